package controlrepo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/puppet"
)

// checkYAML checks a data file as far as it can without Ruby. Puppet accepts duplicate keys (it uses the last value) and refuses dates.
func checkYAML(file string, data []byte) []Finding {
	if line := invalidUTF8(data); line > 0 {
		return []Finding{finding(DataSyntax, file, line, 0, "the line is not UTF-8")}
	}
	if bytes.HasPrefix(data, byteOrderMark) {
		return []Finding{finding(ByteOrderMark, file, 1, 0, "")}
	}
	doc, err := hieradata.Document(data)
	if err != nil {
		return []Finding{syntaxFinding(DataSyntax, file, err)}
	}
	out := checkNode(file, doc)
	for _, key := range values(doc) {
		out = append(out, checkInterpolations(file, key, true)...)
	}
	return out
}

var byteOrderMark = []byte("\ufeff")

// values returns the values of the keys of a data file. Puppet interpolates values, also the keys of mappings in them.
func values(doc *yaml.Node) []*yaml.Node {
	var all []*yaml.Node
	if len(doc.Content) == 1 && doc.Content[0].Kind == yaml.MappingNode {
		for i := 1; i < len(doc.Content[0].Content); i += 2 {
			all = append(all, doc.Content[0].Content[i])
		}
	}
	return all
}

// checkInterpolations finds flawed interpolations in a data file, or in a hiera.yaml, which every lookup reads. It does
// not follow aliases.
func checkInterpolations(file string, n *yaml.Node, inData bool) []Finding {
	var out []Finding
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		for _, f := range hieradata.Flaws(n.Value, inData) {
			rule := InterpolationOdd
			switch {
			case f.Fails() && inData:
				rule = InterpolationFails // of one key, and perhaps of one node
			case f.Fails():
				rule = Interpolation
			}
			out = append(out, finding(rule, file, n.Line, n.Column, f.String()))
		}
	}
	for _, child := range n.Content {
		out = append(out, checkInterpolations(file, child, inData)...)
	}
	return out
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

// syntaxFinding returns the finding for an error of package hieradata.
func syntaxFinding(rule Rule, file string, err error) Finding {
	line, column, detail := 0, 0, fmt.Sprint(err)
	var syntax *hieradata.SyntaxError
	if errors.As(err, &syntax) {
		line, column, detail = syntax.Line, syntax.Column, syntax.Problem
	}
	return finding(rule, file, line, column, detail)
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

// checkSettings checks pulley.yaml, which may be missing (data is nil), and compares hiera.yaml with it.
func checkSettings(data, hiera []byte) ([]Finding, puppet.ReleaseSettings) {
	s, err := puppet.ParseReleaseSettings(data) // the same parser as on nodes
	if err != nil {
		return []Finding{yamlFinding(Settings, settingsFile, fmt.Errorf("yaml: %w", errors.Unwrap(err)))}, s
	}
	if s.PuppetEnvironment != "" {
		return []Finding{yamlFinding(Settings, settingsFile, errors.New("yaml: puppet_environment names the environment of a reference release, "+
			"which `pulley publish --puppet-environment` makes"))}, s
	}
	names := hieradata.NamesLiveData(hiera)
	switch {
	case s.LiveData == puppet.LiveDataInHierarchy && !names:
		return []Finding{finding(LiveDataUnused, settingsFile, 0, 0, "")}, s
	case s.LiveData == puppet.LiveDataAbove && names:
		return []Finding{finding(LiveDataTwice, settingsFile, 0, 0, "")}, s
	}
	return nil, s
}

// checkHiera checks a hiera.yaml of the environment or of a module. reads is the test for its data files.
func checkHiera(file string, data []byte) (found []Finding, reads func(name string) []string) {
	if bytes.HasPrefix(data, byteOrderMark) {
		reads, _ = hieradata.DataFiles(nil, path.Dir(file))
		return []Finding{finding(ByteOrderMark, file, 1, 0, "")}, reads
	}
	reads, err := hieradata.DataFiles(data, path.Dir(file))
	version, unknown := hieradata.HieraVersion(data)
	switch {
	case err != nil || unknown != nil:
		return []Finding{syntaxFinding(HieraConfig, file, cmp.Or(err, unknown))}, func(string) []string { return nil }
	case version == 3:
		found = append(found, finding(HieraVersion3, file, 0, 0, ""))
	case version == 4:
		found = append(found, finding(HieraVersion4, file, 0, 0, ""))
	}
	doc := documentOf(data)
	if version == 5 {
		for _, place := range interpolated(doc) {
			found = append(found, checkInterpolations(file, place, false)...)
		}
		if line := keyLine(doc, "default_hierarchy"); line > 0 && file == "hiera.yaml" {
			found = append(found, finding(HieraConfig, file, line, 0, "default_hierarchy is for modules only, and every lookup fails"))
		}
	}
	return append(found, checkNode(file, doc)...), reads
}

// keyLine returns the line of a key of a document that is a mapping, or 0.
func keyLine(doc *yaml.Node, key string) int {
	for _, top := range doc.Content {
		for i := 0; i+1 < len(top.Content); i += 2 {
			if top.Content[i].Value == key {
				return top.Content[i].Line
			}
		}
	}
	return 0
}

// interpolated returns the values of a hiera.yaml in which Puppet interpolates variables: those of its levels and of
// defaults, except the names of levels and functions.
func interpolated(doc *yaml.Node) []*yaml.Node {
	var all []*yaml.Node
	for _, top := range doc.Content {
		for i := 0; i+1 < len(top.Content); i += 2 {
			levels := []*yaml.Node{top.Content[i+1]}
			switch top.Content[i].Value {
			case "hierarchy":
				levels = top.Content[i+1].Content
			case "defaults":
			default:
				continue
			}
			for _, level := range levels {
				for k := 0; k+1 < len(level.Content); k += 2 {
					switch level.Content[k].Value {
					case "path", "paths", "glob", "globs", "uri", "uris", "datadir", "options":
						all = append(all, level.Content[k+1])
					case "mapped_paths": // a variable, a name, and a path
						all = append(all, level.Content[k+1].Content[min(2, len(level.Content[k+1].Content)):]...)
					}
				}
			}
		}
	}
	return all
}

// documentOf parses YAML that was parsed before without an error.
func documentOf(data []byte) *yaml.Node {
	doc, err := hieradata.Document(data)
	if err != nil {
		return &yaml.Node{}
	}
	return doc
}
