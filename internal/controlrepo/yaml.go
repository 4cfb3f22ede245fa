package controlrepo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// checkYAML says what is wrong with any YAML file of a release. What Puppet's reader takes silently in a sense that nobody
// means (the last of two equal keys) is an error, too.
func checkYAML(file string, data []byte) []Finding {
	var out []Finding
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			return append(out, yamlFinding(file, err))
		}
		out = append(out, checkNode(file, &doc)...)
	}
}

var yamlErrorForm = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func yamlFinding(file string, err error) Finding {
	f := Finding{File: file, Severity: Error}
	f.Problem, _, _ = strings.Cut(err.Error(), "\n")
	if m := yamlErrorForm.FindStringSubmatch(f.Problem); m != nil {
		f.Line, _ = strconv.Atoi(m[1])
		f.Problem = m[2]
	}
	return f
}

// checkNode looks for duplicate keys, and for dates that Puppet refuses to read. Aliases are not followed: what they stand for
// is looked at where it stands.
func checkNode(file string, n *yaml.Node) []Finding {
	var out []Finding
	if n.Kind == yaml.MappingNode {
		first := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
				continue
			}
			id := key.ShortTag() + " " + key.Value
			if line, twice := first[id]; twice {
				out = append(out, Finding{File: file, Line: key.Line, Column: key.Column, Severity: Error,
					Problem: fmt.Sprintf("the key %q stands already in line %d, and this one would silently win", key.Value, line),
					Hint:    "remove one of them"})
				continue
			}
			first[id] = key.Line
		}
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		out = append(out, Finding{File: file, Line: n.Line, Column: n.Column, Severity: Warning,
			Problem: fmt.Sprintf("Puppet refuses to read a file with the date %s in it", n.Value), Hint: "quote it"})
	}
	for _, child := range n.Content {
		out = append(out, checkNode(file, child)...)
	}
	return out
}
