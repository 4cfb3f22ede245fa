package environments

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxProblems limits the number of problems of one file that the parser stores and reports.
const maxProblems = 100

// otherWords are keys that people use by mistake, and the keys of Pulley's predecessors.
var otherWords = map[string]string{
	"number": "cardinality", "count": "cardinality", "replicas": "cardinality", "instances": "cardinality", "size": "cardinality",
	"resources": "roles", "stack_id": "stack", "depends": "after", "depends_on": "after", "network": "networks", "tags": "labels",
	"metadata": "labels", "type": "driver", "user_data": "userdata",
}

// Parse reads an environment file of at most 4 MiB, without a cloud file. It does not open filename: its base name
// without .yaml or .yml is the environment's name, and errors begin with it. The error is an Errors with all problems.
// Unlike Load, it accepts everything that can be stored, whatever the driver supports.
func Parse(filename string, data []byte) (*Environment, error) {
	return LoadOptions{File: Source{Name: filename, Data: data}}.read(func(checker) {})
}

// parser reads one file. It records the positions of the environment's parts, and all problems.
type parser struct {
	file      string
	places    map[spot]*yaml.Node
	elsewhere map[*yaml.Node]string // nodes from another source: the name of the cloud file or the flag
	problems  Errors
	unsaid    int // number of problems beyond maxProblems
}

func newParser(file string) *parser {
	return &parser{file: file, places: map[spot]*yaml.Node{}, elsewhere: map[*yaml.Node]string{}}
}

// end returns all problems in the order of the file, then those of other files and flags; nil if there are none.
func (p *parser) end() error {
	if len(p.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(p.problems, func(a, b *Error) int {
		return cmp.Or(strings.Compare(p.foreign(a), p.foreign(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.unsaid > 0 {
		p.problems = append(p.problems, &Error{File: p.file, Problem: fmt.Sprintf("%d more problems", p.unsaid)})
	}
	return p.problems
}

func (p *parser) foreign(e *Error) string {
	if e.File == p.file {
		return ""
	}
	return e.File
}

// problem records a problem at a node; nil means the file itself.
func (p *parser) problem(at *yaml.Node, hint, format string, args ...any) {
	file, line, column := p.file, 0, 0
	if at != nil {
		line, column = at.Line, at.Column
	}
	if other, ok := p.elsewhere[at]; ok {
		file = other
	}
	p.add(&Error{File: file, Line: line, Column: column, Problem: fmt.Sprintf(format, args...), Advice: hint})
}

func (p *parser) problemAt(line, column int, hint, format string, args ...any) {
	p.add(&Error{File: p.file, Line: line, Column: column, Problem: fmt.Sprintf(format, args...), Advice: hint})
}

func (p *parser) add(e *Error) {
	if len(p.problems) >= maxProblems {
		p.unsaid++
		return
	}
	p.problems = append(p.problems, e)
}

func (p *parser) environmentName() string {
	base := filepath.Base(p.file)
	name, isYAML := strings.CutSuffix(base, ".yaml")
	if !isYAML {
		name, isYAML = strings.CutSuffix(base, ".yml")
	}
	if !isYAML {
		p.problem(nil, "", "the file has to be called <environment>.yaml, its name is the environment's")
	} else if flaw := environmentFlaw(name); flaw != nil {
		p.problem(nil, flaw.Advice, "the file's name is the environment's, and %s is no environment name: %s", quoted(name), flaw.Problem)
	}
	return name
}

// environment reads a document into e.
func (p *parser) environment(root *yaml.Node, e *Environment) {
	whole, given := p.keys(root, "an environment", p.fileFields(e))
	if i := indexOf(root, "roles"); i > 0 {
		p.places[spot{noRole, "roles"}] = root.Content[i-1]
	}
	if whole && !given["roles"] {
		p.problem(root, "an environment without nodes says `roles: {}`", "roles is missing")
	}
}

// fileFields are the keys of an environment file.
func (p *parser) fileFields(e *Environment) []field {
	top := scope{p, noRole, ""}
	roles := field{key: "roles", read: func(n *yaml.Node) {
		p.mapping(n, "roles", nil, func(key, value *yaml.Node) { p.role(key, value, e) })
	}}
	return slices.Concat([]field{top.text("stack", &e.Stack), roles},
		p.cloudFields(&e.Provider, &e.Flavors, &e.Images, &e.Networks, &e.Userdata))
}

// cloudFields are the keys that environment files and cloud files share.
func (p *parser) cloudFields(provider *Provider, flavors, images, networks *map[string]string, u *Userdata) []field {
	top := scope{p, noRole, ""}
	return []field{
		top.provider(provider), top.words("flavors", flavors), top.words("images", images), top.words("networks", networks),
		top.userdata(u),
	}
}

func (p *parser) role(key, value *yaml.Node, e *Environment) {
	r := Role{Name: key.Value}
	of := scope{p, len(e.Roles), ""}
	p.places[spot{of.role, ""}] = key
	whole, given := p.keys(value, "role "+quoted(r.Name), of.roleFields(&r))
	if whole && !given["cardinality"] && !given["members"] {
		p.problem(key, "say how many nodes it has: `cardinality: 1`", "role %s has no cardinality", quoted(r.Name))
	}
	e.Roles = append(e.Roles, r)
}

// roleFields are the keys of a role.
func (s scope) roleFields(r *Role) []field {
	return []field{
		s.count("cardinality", &r.Cardinality), s.text("flavor", &r.Flavor), s.text("image", &r.Image),
		s.list("networks", &r.Networks), s.words("labels", &r.Labels), s.list("after", &r.After), s.list("reacts_to", &r.ReactsTo),
		s.flag("protected", &r.Protected), s.rollout(&r.Rollout), s.userdata(&r.Userdata), s.list("members", &r.Members),
	}
}

func (s scope) rollout(r *Rollout) field {
	return s.group("rollout", func(s scope) []field {
		return []field{s.share("batch", &r.Batch), s.share("failures", &r.Failures), s.duration("timeout", &r.Timeout)}
	})
}

func (s scope) userdata(u *Userdata) field {
	return s.group("userdata", func(s scope) (fields []field) {
		for _, f := range u.Fields() {
			switch to := f.Value.(type) {
			case *string:
				fields = append(fields, s.text(f.Name, to))
			case *[]string:
				fields = append(fields, s.list(f.Name, to))
			case *map[string]string:
				fields = append(fields, s.words(f.Name, to))
			}
		}
		return fields
	})
}

// mapping calls each for the keys of n, once per key. If known is not nil, other keys are problems. The result is false
// if n could not be read completely; a missing key is then no problem.
func (p *parser) mapping(n *yaml.Node, what string, known []string, each func(key, value *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		p.wrongKind(n, what, "keys with values")
		return false
	}
	whole, seen := true, map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first := seen[key.Value]
		switch {
		case key.Kind == yaml.AliasNode || key.Tag == "!!merge":
			whole = false // document has reported these already
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			p.problem(key, "put quotes around it if it is meant as text", "a key of %s is %s, not text", what, kindOf(key))
		case first != nil:
			p.problem(key, "keep one of them", "%s is there twice, first in line %d, column %d", quoted(key.Value), first.Line, first.Column)
		case known != nil && !slices.Contains(known, key.Value):
			seen[key.Value] = key
			hint := "its keys are " + listed(known)
			if name := meant(key.Value, known); name != "" {
				hint = "did you mean " + name + "?"
				whole = false // a missing key would be a second report of the same mistake
			}
			p.problem(key, hint, "%s has no key %s", what, quoted(key.Value))
		default:
			seen[key.Value] = key
			each(key, value)
		}
	}
	return whole
}

// meant returns the known key that key is probably a mistake for, or "".
func meant(key string, known []string) string {
	if name := SuggestName(key, known); name != "" {
		return name
	}
	if other := otherWords[strings.ToLower(key)]; slices.Contains(known, other) {
		return other
	}
	return ""
}
