package controlrepo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"pulley/agent/puppet"
	"pulley/hieradata"
)

// checkYAML checks a data file. Puppet accepts duplicate keys (it uses the last value) and refuses dates.
func checkYAML(file string, data []byte) []Finding {
	if line := invalidUTF8(data); line > 0 {
		return []Finding{finding(DataSyntax, file, line, 0, "the line is not UTF-8")}
	}
	var out []Finding
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			return append(out, yamlFinding(DataSyntax, file, err))
		}
		out = append(out, checkNode(file, &doc)...)
	}
}

// invalidUTF8 returns the first line that is not UTF-8, from 1; 0 if all are.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return 0
	}
	n := 0
	for line := range bytes.Lines(data) {
		if n++; !utf8.Valid(line) {
			return n
		}
	}
	return n
}

var yamlErrorForm = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func yamlFinding(rule Rule, file string, err error) Finding {
	detail, _, _ := strings.Cut(err.Error(), "\n")
	line := 0
	if m := yamlErrorForm.FindStringSubmatch(detail); m != nil {
		line, _ = strconv.Atoi(m[1])
		detail = m[2]
	}
	return finding(rule, file, line, 0, detail)
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
				out = append(out, finding(DuplicateKey, file, key.Line, key.Column, fmt.Sprintf("%q, first in line %d", key.Value, line)))
				continue
			}
			first[id] = key.Line
		}
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		out = append(out, finding(DataDate, file, n.Line, n.Column, n.Value))
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
func checkSettings(data, hiera []byte) ([]Finding, puppet.ReleaseSettings) {
	s, err := puppet.ParseReleaseSettings(data) // the same parser as on nodes
	if err != nil {
		return []Finding{yamlFinding(Settings, settingsFile, fmt.Errorf("yaml: %w", errors.Unwrap(err)))}, s
	}
	names := livePath.Match(hiera)
	switch {
	case s.LiveData == puppet.LiveDataInHierarchy && !names:
		return []Finding{finding(LiveDataUnused, settingsFile, 0, 0, "")}, s
	case s.LiveData == puppet.LiveDataAbove && names:
		return []Finding{finding(LiveDataTwice, settingsFile, 0, 0, "")}, s
	}
	return nil, s
}

// checkHiera checks a hiera.yaml of the environment or of a module. reads is the test for its data files.
func checkHiera(file string, data []byte) (found []Finding, reads func(name string) bool) {
	reads, err := hieradata.DataFiles(data, path.Dir(file))
	version, unknown := hieradata.HieraVersion(data)
	switch {
	case err != nil || unknown != nil:
		line, column, detail := 0, 0, fmt.Sprint(err)
		var syntax *hieradata.SyntaxError
		if errors.As(err, &syntax) {
			line, column, detail = syntax.Line, syntax.Column, syntax.Problem
		}
		return []Finding{finding(HieraConfig, file, line, column, detail)}, func(string) bool { return false }
	case version == 3:
		found = append(found, finding(HieraVersion3, file, 0, 0, ""))
	case version == 4:
		found = append(found, finding(HieraVersion4, file, 0, 0, ""))
	}
	return append(found, checkNode(file, documentOf(data))...), reads
}

// documentOf parses YAML that was parsed before without an error.
func documentOf(data []byte) *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil {
		return &yaml.Node{}
	}
	return &doc
}
