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

// checkYAML checks any YAML file of a release. YAML that Puppet accepts with an unexpected meaning (it uses the last of
// two equal keys) is an error too.
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

// checkNode finds duplicate keys, and dates that Puppet refuses. It does not follow aliases: their targets are checked
// in place.
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
