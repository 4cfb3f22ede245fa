package environments

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxProblems bounds what one file makes us remember and say.
const maxProblems = 100

var (
	fileKeys = []string{"stack", "roles"}
	roleKeys = []string{"cardinality", "flavor"}
	// otherWords are what people and Pulley's forerunners call our keys.
	otherWords = map[string]string{
		"number": "cardinality", "count": "cardinality", "replicas": "cardinality", "instances": "cardinality", "size": "cardinality",
		"resources": "roles", "stack_id": "stack",
	}
)

// Parse reads an environment file of at most 4 MiB. filename is only looked at: its last part without .yaml or .yml is
// the environment's name, and errors begin with it. The error is an Errors with everything that was found.
func Parse(filename string, data []byte) (*Environment, error) {
	p := &parser{file: filename, places: map[spot]*yaml.Node{}}
	e := &Environment{Name: p.environmentName()}
	if root := p.document(data); root != nil {
		p.environment(root, e)
	}
	e.check(func(at spot, flaw *Error) {
		if at.field != "name" { // said already, better
			p.problem(p.places[at], flaw.Advice, "%s", flaw.Problem)
		}
	})
	if len(p.problems) == 0 {
		return e, nil
	}
	slices.SortStableFunc(p.problems, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.unsaid > 0 {
		p.problems = append(p.problems, &Error{File: filename, Problem: fmt.Sprintf("%d more problems", p.unsaid)})
	}
	return nil, p.problems
}

// parser reads one file: it remembers where the parts of the environment stand, and all problems.
type parser struct {
	file     string
	places   map[spot]*yaml.Node
	problems Errors
	unsaid   int // problems beyond maxProblems
}

// problem remembers a problem at node; a nil node means the file as a whole.
func (p *parser) problem(at *yaml.Node, hint, format string, args ...any) {
	line, column := 0, 0
	if at != nil {
		line, column = at.Line, at.Column
	}
	p.problemAt(line, column, hint, format, args...)
}

func (p *parser) problemAt(line, column int, hint, format string, args ...any) {
	if len(p.problems) >= maxProblems {
		p.unsaid++
		return
	}
	p.problems = append(p.problems, &Error{
		File: p.file, Line: line, Column: column, Problem: fmt.Sprintf(format, args...), Advice: hint,
	})
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

func (p *parser) environment(root *yaml.Node, e *Environment) {
	hasRoles := false
	whole := p.mapping(root, "an environment", fileKeys, func(key, value *yaml.Node) {
		switch key.Value {
		case "stack":
			p.places[spot{noRole, "stack"}] = value
			e.Stack = p.text(value, "stack")
		case "roles":
			hasRoles = true
			p.places[spot{noRole, "roles"}] = key
			p.mapping(value, "roles", nil, func(key, value *yaml.Node) { p.role(key, value, e) })
		}
	})
	if whole && !hasRoles {
		p.problem(root, "an environment without nodes says `roles: {}`", "roles is missing")
	}
}

func (p *parser) role(key, value *yaml.Node, e *Environment) {
	i, r, hasCardinality := len(e.Roles), Role{Name: key.Value}, false
	p.places[spot{i, ""}] = key
	whole := p.mapping(value, "role "+quoted(r.Name), roleKeys, func(key, value *yaml.Node) {
		p.places[spot{i, key.Value}] = value
		switch key.Value {
		case "cardinality":
			hasCardinality = true
			r.Cardinality = p.count(value, "cardinality")
		case "flavor":
			r.Flavor = p.text(value, "flavor")
		}
	})
	if whole && !hasCardinality {
		p.problem(key, "say how many nodes it has: `cardinality: 1`", "role %s has no cardinality", quoted(r.Name))
	}
	e.Roles = append(e.Roles, r)
}

// mapping calls each for the keys of n, once per key. With known, other keys are problems. The result is false where n
// could not be read to the end, so that nothing can be said to be missing.
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
			whole = false // the document was searched for these: they have been told
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			p.problem(key, "put quotes around it if it is meant as text", "a key of %s is %s, not text", what, kindOf(key))
		case first != nil:
			p.problem(key, "keep one of them", "%s is there twice, first in line %d, column %d", quoted(key.Value), first.Line, first.Column)
		case known != nil && !slices.Contains(known, key.Value):
			seen[key.Value] = key
			hint := "its keys are " + strings.Join(known, " and ")
			if name := meant(key.Value, known); name != "" {
				hint = "did you mean " + name + "?"
				whole = false // to miss that one, too, would say the same thing twice
			}
			p.problem(key, hint, "%s has no key %s", what, quoted(key.Value))
		default:
			seen[key.Value] = key
			each(key, value)
		}
	}
	return whole
}

// meant returns the known key that key probably stands for, or "".
func meant(key string, known []string) string {
	if name := SuggestName(key, known); name != "" {
		return name
	}
	if other := otherWords[strings.ToLower(key)]; slices.Contains(known, other) {
		return other
	}
	return ""
}
