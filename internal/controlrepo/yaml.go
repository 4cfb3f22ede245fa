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

	"pulley/agent/puppet"
	"pulley/hieradata"
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
					Problem: fmt.Sprintf("the key %q is in line %d already, and this one would override it", key.Value, line),
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

// livePath matches a path in hiera.yaml to the node's folder of live data. The fact does not work as a datadir: Puppet
// prepends the release's folder before it expands interpolations (seen with Puppet 7.23).
var livePath = regexp.MustCompile(`%\{(::)?facts\.pulley\.data\}/`)

// checkSettings checks pulley.yaml, which may be missing (data is nil), and compares hiera.yaml with it.
func checkSettings(data, hiera []byte) []Finding {
	s, err := puppet.ParseReleaseSettings(data) // the same parser as on nodes
	if err != nil {
		f := yamlFinding("pulley.yaml", fmt.Errorf("yaml: %w", errors.Unwrap(err)))
		f.Hint = "its one setting is live_data: above or hierarchy"
		return []Finding{f}
	}
	names := livePath.Match(hiera)
	switch {
	case s.LiveData == puppet.LiveDataInHierarchy && !names:
		return []Finding{{File: "pulley.yaml", Severity: Error, Problem: "live_data is hierarchy, but hiera.yaml has no place for it: live data would be ignored",
			Hint: `add a level to hiera.yaml with paths such as "%{facts.pulley.data}/node.yaml"; the files are ` + strings.Join(hieradata.Files(), ", ")}}
	case s.LiveData == puppet.LiveDataAbove && names:
		return []Finding{{File: "pulley.yaml", Severity: Warning, Problem: "hiera.yaml has a place for live data, but live_data is above: it would be looked up twice",
			Hint: "write live_data: hierarchy"}}
	}
	return nil
}

// checkHiera checks a hiera.yaml of the environment or of a module.
func checkHiera(file string, data []byte) []Finding {
	err := hieradata.CheckHieraConfig(data)
	if err == nil {
		return nil
	}
	f := Finding{File: file, Severity: Error, Problem: err.Error()}
	var syntax *hieradata.SyntaxError
	if errors.As(err, &syntax) {
		f.Line, f.Column, f.Problem, f.Hint = syntax.Line, syntax.Column, syntax.Problem, syntax.Advice
	}
	return []Finding{f}
}
