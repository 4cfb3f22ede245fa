package environments

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"pulley/environments/settings"
	"pulley/internal/model"
)

// maxProblems limits the number of problems of one file that the parser stores and reports.
const maxProblems = 100

// otherWords are keys that people use by mistake, and the keys of Pulley's predecessors.
var otherWords = map[string]string{
	"number": "cardinality", "count": "cardinality", "replicas": "cardinality", "instances": "cardinality", "size": "cardinality",
	"resources": "roles", "stack_id": "stack", "depends": "after", "depends_on": "after", "network": "networks", "tags": "labels",
	"metadata": "labels", "type": "driver", "canary": "canaries", "user_data": "userdata",
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

// end returns all problems in the order of the file, then those of other files and flags.
func (p *parser) end() Errors {
	slices.SortStableFunc(p.problems, func(a, b *model.Error) int {
		return cmp.Or(strings.Compare(p.foreign(a), p.foreign(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.unsaid > 0 {
		p.problems = append(p.problems, &model.Error{File: p.file, Problem: fmt.Sprintf("%d more problems", p.unsaid)})
	}
	return p.problems
}

func (p *parser) foreign(e *model.Error) string {
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
	p.add(&model.Error{File: file, Line: line, Column: column, Problem: fmt.Sprintf(format, args...), Advice: hint})
}

func (p *parser) problemAt(line, column int, hint, format string, args ...any) {
	p.add(&model.Error{File: p.file, Line: line, Column: column, Problem: fmt.Sprintf(format, args...), Advice: hint})
}

func (p *parser) add(e *model.Error) {
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
	} else if flaw := model.EnvironmentFlaw(name); flaw != nil {
		p.problem(nil, flaw.Advice, "the file's name is the environment's, and %s is not an environment name: %s", model.Quoted(name), flaw.Problem)
	}
	return name
}

// environment reads a document into e.
func (p *parser) environment(root *yaml.Node, e *Environment) {
	whole, given := scope{p, noRole, ""}.keys(root, "an environment", fieldsOf(e))
	if i := indexOf(root, "roles"); i > 0 {
		p.places[spot{noRole, "roles"}] = root.Content[i-1]
	}
	if whole && !given["roles"] {
		p.problem(root, "for an environment without nodes, write `roles: {}`", "roles is missing")
	}
}

func (p *parser) role(key, value *yaml.Node, roles *[]Role) {
	r := Role{Name: key.Value}
	of := scope{p, len(*roles), ""}
	p.places[spot{of.role, ""}] = key
	whole, given := of.keys(value, "role "+model.Quoted(r.Name), fieldsOf(&r))
	if whole && !given["cardinality"] && !given["members"] {
		p.problem(key, "add the number of its nodes: `cardinality: 1`", "role %s has no cardinality", model.Quoted(r.Name))
	}
	*roles = append(*roles, r)
}

// scope is the part of the file that fields belong to: a role or the environment, and the path: "replace.".
type scope struct {
	p    *parser
	role int
	path string
}

// keys reads a mapping with known keys. whole is false if it could not be read completely.
func (s scope) keys(n *yaml.Node, what string, fields []field) (whole bool, given map[string]bool) {
	given = map[string]bool{}
	whole = s.p.mapping(n, what, keysOf(fields), func(key, value *yaml.Node) {
		given[key.Value] = true
		s.read(*find(fields, key.Value), value)
	})
	return whole, given
}

// read records the position of a value and reads it.
func (s scope) read(f field, n *yaml.Node) {
	path := s.path + f.key
	s.p.places[spot{s.role, path}] = n
	switch to := f.value.(type) {
	case *string:
		if f.form == "batch" || f.form == "failures" {
			*to = s.p.share(n, path)
		} else {
			*to = s.p.text(n, path)
		}
	case *int:
		*to = s.p.count(n, path)
	case *bool:
		*to = s.p.flag(n, path)
	case *model.Duration:
		*to = s.p.duration(n, path)
	case *[]string:
		s.list(n, path, to)
	case *map[string]string:
		s.words(n, path, f.form == "extension" || f.form == "attribute" || f.form == "export", to)
	case *map[string]int:
		s.numbers(n, path, to)
	case *map[string]NodeSettings:
		each(s, n, path, "node", to)
	case *map[string]RoleRollout:
		each(s, n, path, "role", to)
	case *map[string]settings.PuppetServer:
		each(s, n, path, "server", to)
	case *Applications:
		s.applications(n, path, to)
	case *Provider:
		s.provider(n, path, to)
	case *Classification:
		s.classification(n, path, to)
	case *[]Role:
		s.p.mapping(n, path, nil, func(key, value *yaml.Node) { s.p.role(key, value, to) })
	case *UnreadyPolicy:
		if n.Kind == yaml.ScalarNode {
			s.p.places[spot{s.role, path + ".others"}] = n
			if to.Others = s.p.text(n, path); to.Others == "" {
				return
			}
			if flaw := formFlaw("unready", "skip", to.Others); flaw != nil {
				s.p.problem(n, "or name causes: `unready: {silent: skip, stuck: fail}`", "%s %s: %s", path, model.Quoted(to.Others), flaw.Problem)
				to.Others = "" // it would be a second problem of the same value
			}
			return
		}
		scope{s.p, s.role, path + "."}.keys(n, path, f.fields())
	default:
		scope{s.p, s.role, path + "."}.keys(n, path, f.fields())
	}
}

// list reads a list of texts; the parser records the position of each. The word all stands for a list in `sees`.
func (s scope) list(n *yaml.Node, what string, into *[]string) {
	if what == "sees" && n.Kind == yaml.ScalarNode && n.Value == AllRoles { // `sees: all`
		n = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}}
	}
	if n.Kind != yaml.SequenceNode {
		s.p.noList(n, what)
		return
	}
	for _, item := range n.Content {
		if text := s.p.text(item, what+" has an item that"); text != "" {
			s.p.places[spot{s.role, what + "." + strconv.Itoa(len(*into))}] = item
			*into = append(*into, text)
		}
	}
}

// words reads a mapping with any keys and text values. strict refuses words that readers of YAML 1.1, such as Ruby, take
// for booleans.
func (s scope) words(n *yaml.Node, what string, strict bool, into *map[string]string) {
	s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
		if strict && value.Tag == "!!str" && value.Style == 0 && oldBoolean.MatchString(value.Value) {
			s.p.problem(value, fmt.Sprintf("put quotes around it: %q", value.Value), "%s is the boolean %s, not text", what+"."+key.Value, model.Quoted(value.Value))
			return
		}
		text := s.p.text(value, what+"."+key.Value)
		if text == "" {
			return
		}
		if *into == nil {
			*into = map[string]string{}
		}
		s.p.places[spot{s.role, what + "." + key.Value}] = value
		(*into)[key.Value] = text
	})
}

// oldBoolean matches the texts that Ruby takes for booleans, as YAML 1.1 does: https://yaml.org/type/bool.html
var oldBoolean = regexp.MustCompile(`^(?i:yes|no|on|off)$`)

// numbers reads a mapping with any keys and integers.
func (s scope) numbers(n *yaml.Node, what string, into *map[string]int) {
	s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
		if *into == nil {
			*into = map[string]int{}
		}
		s.p.places[spot{s.role, what + "." + key.Value}] = value
		problems := len(s.p.problems)
		if (*into)[key.Value] = s.p.count(value, what+"."+key.Value); len(s.p.problems) > problems {
			delete(*into, key.Value) // 0 would be a second problem of the same value
		}
	})
}

// each reads the settings of single nodes or roles by name.
func each[T any](s scope, n *yaml.Node, what, kind string, into *map[string]T) {
	s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
		var own T
		at := what + "." + key.Value
		s.p.places[spot{s.role, at}] = key
		scope{s.p, s.role, at + "."}.keys(value, kind+" "+model.Quoted(key.Value), fieldsOf(&own))
		if *into == nil {
			*into = map[string]T{}
		}
		(*into)[key.Value] = own
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
			p.problem(key, "keep one of them", "%s appears twice, first in line %d, column %d", model.Quoted(key.Value), first.Line, first.Column)
		case known != nil && !slices.Contains(known, key.Value):
			seen[key.Value] = key
			hint := "its keys are " + listed(known)
			if key.Value == "rollout" && strings.HasPrefix(what, "role ") {
				hint = "write `replace:` for the limits of replaced machines; `rollout: {roles: …}` of the environment has those of staged rollouts"
			} else if name := meant(key.Value, known); name != "" {
				hint = "did you mean " + name + "?"
				whole = false // a missing key would be a second report of the same mistake
			}
			p.problem(key, hint, "%s has no key %s", what, model.Quoted(key.Value))
		default:
			seen[key.Value] = key
			each(key, value)
		}
	}
	return whole
}

// meant returns the known key that key is probably a mistake for, or "".
func meant(key string, known []string) string {
	if name := model.SuggestName(key, known); name != "" {
		return name
	}
	if other := otherWords[strings.ToLower(key)]; slices.Contains(known, other) {
		return other
	}
	return ""
}

// place returns the position of a part, or else of the part that contains it.
func (p *parser) place(at spot) *yaml.Node {
	for {
		if n := p.places[at]; n != nil || at.field == "" {
			return n
		}
		cut := strings.LastIndexByte(at.field, '.')
		at.field = at.field[:max(cut, 0)]
	}
}

// text returns a text value, or "" after it reported the problem.
func (p *parser) text(n *yaml.Node, what string) string {
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		p.wrongKind(n, what, "text")
	case n.Tag != "!!str":
		p.problem(n, fmt.Sprintf("put quotes around it: %q", n.Value), "%s is %s, not text", what, kindOf(n))
	case n.Value == "":
		p.problem(n, "leave the line out if there is none", "%s is empty", what)
	default:
		return n.Value
	}
	return ""
}

// count returns a number, or 0 after it reported the problem. YAML readers disagree about 017, 0o17, 1_000 and similar
// forms. Only plain decimal digits are accepted.
func (p *parser) count(n *yaml.Node, what string) int {
	digits := strings.TrimPrefix(n.Value, "-")
	plain := digits != "" && strings.Trim(digits, "0123456789") == "" && (digits[0] != '0' || n.Value == "0")
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		p.wrongKind(n, what, "an integer")
	case n.Tag == "!!str" && plain:
		p.problem(n, "write it without quotes: "+n.Value, "%s is text, not an integer", what)
	case plain:
		if v, err := strconv.Atoi(n.Value); err == nil {
			return v // of any size: check enforces the limits
		}
		p.problem(n, "", "%s %s is out of range", what, model.Quoted(n.Value))
	case n.Tag == "!!int":
		p.problem(n, decimal(n.Value), "%s %s is not written as a decimal integer", what, model.Quoted(n.Value))
	default:
		p.problem(n, "", "%s is %s, not an integer", what, kindOf(n))
	}
	return 0
}

// decimal suggests the decimal form of an integer that YAML also accepts in other forms.
func decimal(value string) string {
	digits := strings.TrimLeft(value, "+-")
	if len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "0123456789_") == "" {
		return "without the leading zero: readers of YAML disagree about what it means"
	}
	v, err := strconv.ParseInt(value, 0, 64)
	if err != nil {
		return "use the digits 0 to 9"
	}
	return "write " + strconv.FormatInt(v, 10)
}

// wrongKind reports that n has the wrong type. It skips aliases: document has reported them.
func (p *parser) wrongKind(n *yaml.Node, what, want string) {
	switch {
	case n.Kind == yaml.AliasNode:
	case n.Tag == "!!null":
		p.problem(n, "", "%s has no value, it has to be %s", what, want)
	case n.Tag == "!!str" && strings.Contains(n.Value, ":"):
		p.problem(n, "put a space after the colon", "%s is %s, it has to be %s", what, kindOf(n), want)
	default:
		p.problem(n, "", "%s is %s, it has to be %s", what, kindOf(n), want)
	}
}

// kindOf names the YAML type of n, with its value if that is short.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	names := map[string]string{
		"!!str": "the text", "!!int": "the integer", "!!float": "the decimal number", "!!bool": "the boolean", "!!timestamp": "the date",
	}
	if name, ok := names[n.Tag]; ok {
		return name + " " + model.Quoted(n.Value)
	}
	return "the value " + model.Quoted(n.Value)
}

// flag returns a boolean value.
func (p *parser) flag(n *yaml.Node, what string) bool {
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		p.wrongKind(n, what, "true or false")
	case n.Value != "true" && n.Value != "false":
		p.problem(n, "", "%s is %s, not true or false", what, kindOf(n))
	case n.Tag != "!!bool":
		p.problem(n, "write it without quotes: "+n.Value, "%s is text, not true or false", what)
	}
	return n.Value == "true"
}

// share returns a number or a percentage. check enforces the limits.
func (p *parser) share(n *yaml.Node, what string) string {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!int" {
		count := p.count(n, what)
		return strconv.Itoa(count)
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		p.wrongKind(n, what, "a number like 2, or a share like 25%")
		return ""
	}
	return p.text(n, what)
}

// duration returns a duration with units. check enforces the limits.
func (p *parser) duration(n *yaml.Node, what string) model.Duration {
	const like = "write it with units, like 90s, 30m or 1h30m"
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.wrongKind(n, what, "a time like 30m")
		return 0
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil || n.Tag != "!!str" || !forms()["duration"].matches.MatchString(n.Value) {
		p.problem(n, like, "%s is %s, not a time", what, kindOf(n))
		return 0
	}
	if d <= 0 {
		p.problem(n, like, "%s must be longer than zero", what)
	}
	return model.Duration(d)
}

// noList reports that n is not a list.
func (p *parser) noList(n *yaml.Node, what string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value != "" {
		p.problem(n, "write it as a list: ["+n.Value+"]", "%s is %s, it has to be a list", what, kindOf(n))
		return
	}
	p.wrongKind(n, what, "a list")
}

// listed joins names for a sentence: "a, b and c".
func listed(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
