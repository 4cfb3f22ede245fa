package environments

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/model"
)

// LoadOptions are the sources of an environment.
type LoadOptions struct {
	File  Source   // environments/<environment>.yaml
	Cloud *Source  // clouds/<cloud>.yaml; nil for none
	Sets  []string // of --set: "compute.cardinality=5"
	Stack string   // of --stack, instead of the file's; "" keeps the file's

	Expression func(string) error // checks rollout.canaries_where and puppet.provision.where; nil: they are not checked
}

// Source is a file that the caller has read.
type Source struct {
	Name string // as errors name it
	Data []byte
}

// Load reads an environment file, adds the values of a cloud file, changes single values and checks the result. It also
// checks that the driver supports the values of roles. The error is an Errors with all problems and their positions.
func Load(o LoadOptions) (*Environment, error) {
	return o.read(checker.checkGiven)
}

// read reads and checks an environment; more makes further checks of the result.
func (o LoadOptions) read(more func(checker)) (*Environment, error) {
	var cloud *yaml.Node
	var ofCloud Errors
	p := newParser(o.File.Name)
	if o.Cloud != nil {
		cloud, ofCloud = readCloud(*o.Cloud)
	}
	e := &Environment{Name: p.environmentName()}
	if root := p.document(o.File.Data, "an environment", "`roles:`"); root != nil {
		if cloud != nil && ofCloud == nil {
			p.of(o.Cloud.Name, cloud)
			p.merge(root, cloud)
		}
		p.sets(root, o)
		p.environment(root, e)
	}
	e.check(ofCloud != nil, p.report)
	if ofCloud == nil {
		more(checker{e, false, p.report})
		o.checkExpression(e, p)
	}
	if problems := append(p.end(), ofCloud...); len(problems) > 0 {
		return nil, problems
	}
	data, err := e.bytes()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", o.File.Name, err)
	}
	if flaw := sizeFlaw(len(data)); flaw != nil {
		flaw.File = o.File.Name
		return nil, Errors{flaw}
	}
	return e, nil
}

// checkExpression reports a mistake in an expression. The last line of its error is the remedy.
func (o LoadOptions) checkExpression(e *Environment, p *parser) {
	for _, where := range [][2]string{{"rollout.canaries_where", e.Rollout.CanariesWhere}, {"puppet.provision.where", e.Puppet.Provision.Where}} {
		if o.Expression == nil || where[1] == "" {
			continue
		}
		if err := o.Expression(where[1]); err != nil {
			text, hint := err.Error(), ""
			if cut := strings.LastIndexByte(text, '\n'); cut >= 0 {
				text, hint = text[:cut], text[cut+1:]
			}
			p.report(spot{noRole, where[0]}, &model.Error{Problem: where[0] + ": " + text, Advice: hint})
		}
	}
}

// report records a problem of check at its position.
func (p *parser) report(at spot, flaw *model.Error) {
	if at.field != "name" { // the parser has reported it already
		p.problem(p.place(at), flaw.Advice, "%s", flaw.Problem)
	}
}

// ParseCloud checks a cloud file of at most 4 MiB, which maps an environment's symbols to the names of one provider. The
// error is an Errors with all problems.
func ParseCloud(filename string, data []byte) error {
	_, problems := readCloud(Source{filename, data})
	return problems.orNil()
}

func readCloud(file Source) (*yaml.Node, Errors) {
	p, e := newParser(file.Name), &Environment{}
	root := p.document(file.Data, "a cloud", "words like `flavors:`")
	if root != nil {
		scope{p, noRole, ""}.keys(root, "a cloud", cloudFields(e))
	}
	checker{e, true, p.report}.checkValues(noRole, "", cloudFields(e))
	return root, p.end()
}

// of records that nodes come from another file.
func (p *parser) of(file string, n *yaml.Node) {
	p.elsewhere[n] = file
	for _, child := range n.Content {
		p.of(file, child)
	}
}

// merge adds to own the values that only other has. It merges mappings key by key; of any other value, it keeps own.
// Two providers with different drivers are not merged, nor are the checksums of agents: these belong to their URLs.
func (p *parser) merge(own, other *yaml.Node) {
	if own.Kind != yaml.MappingNode || other.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(other.Content); i += 2 {
		key, value := other.Content[i], other.Content[i+1]
		at := indexOf(own, key.Value)
		switch {
		case at < 0:
			own.Content = append(own.Content, key, value)
		case key.Value == "provider":
			mine, theirs := unfolded(own.Content[at]), unfolded(value)
			p.elsewhere[theirs] = p.elsewhere[value]
			driver, other := valueOf(mine, "driver"), valueOf(theirs, "driver")
			if driver != nil && other != nil && driver.Value == other.Value {
				own.Content[at] = mine
				p.merge(mine, theirs)
			}
		case key.Value != "agent_sha256":
			p.merge(own.Content[at], value)
		}
	}
}

// sets writes the values of --set and --stack into the parsed document. They then pass the same checks as the file. The
// file itself does not change.
func (p *parser) sets(root *yaml.Node, o LoadOptions) {
	if root.Kind != yaml.MappingNode {
		return
	}
	for _, text := range o.Sets {
		p.set(root, text)
	}
	if o.Stack != "" {
		p.write(root, "stack", "!!str", o.Stack, "--stack "+o.Stack)
	}
}

// set writes the value of one "compute.cardinality=5".
func (p *parser) set(root *yaml.Node, text string) {
	from := "--set " + text
	complain := func(problem, hint string) { p.add(&model.Error{File: from, Problem: problem, Advice: hint}) }
	path, value, ok := strings.Cut(text, "=")
	keys := strings.Split(path, ".")
	if !ok || slices.Contains(keys, "") {
		complain("it is not PATH=VALUE", "write it like compute.cardinality=5")
		return
	}
	if keys[0] == "nodes" || keys[0] == "puppet" || keys[0] == "hosts" || keys[len(keys)-1] == "sees" || slices.Contains(keys[:min(len(keys), 3)], "trusted") {
		complain("nodes read it from the file in the release", "write it into the file and publish it")
		return
	}
	at, fields, what := root, fieldsOf(new(Environment)), "an environment"
	roles := valueOf(root, "roles")
	if keys[0] == "roles" && len(keys) > 1 {
		keys, fields = keys[1:], nil
	}
	switch role := valueOf(roles, keys[0]); {
	case role != nil && len(keys) > 1:
		at, fields, what, keys = role, fieldsOf(new(Role)), "role "+model.Quoted(keys[0]), keys[1:]
	case find(fields, keys[0]) != nil:
	case role != nil:
		complain(model.Quoted(keys[0])+" is a role, and no single value", "write it like "+keys[0]+".cardinality="+value)
		return
	default:
		names := slices.Concat(namesIn(roles), keysOf(fields))
		hint := "it begins with a role or a key of the file: " + listed(names)
		if near := model.SuggestName(keys[0], names); near != "" {
			hint = "did you mean " + near + "?"
		}
		complain("there is no role and no key "+model.Quoted(keys[0]), hint)
		return
	}
	for {
		f := find(fields, keys[0])
		if f == nil {
			hint := "its keys are " + listed(keysOf(fields))
			if near := meant(keys[0], keysOf(fields)); near != "" {
				hint = "did you mean " + near + "?"
			}
			complain(what+" has no key "+model.Quoted(keys[0]), hint)
			return
		}
		tag := f.tag()
		_, words := f.value.(*map[string]string)
		_, numbers := f.value.(*map[string]int)
		open := words || numbers
		switch {
		case len(keys) == 1 && tag != "":
			p.write(at, f.key, tag, value, from)
			return
		case len(keys) == 1 || f.fields() == nil && !open:
			problem := model.Quoted(f.key) + " is a list, and only single values can be set"
			if _, classes := f.value.(*Classification); f.fields() != nil || open || classes {
				problem = model.Quoted(f.key) + " has keys of its own, and is not a single value"
			} else if tag != "" {
				problem = model.Quoted(strings.Join(keys, ".")) + " is below a single value"
			}
			complain(problem, "change the file for that")
			return
		}
		if at = p.descend(at, f.key, from); at == nil {
			return // reading reports the wrong type
		}
		if what = f.key; open { // a symbol may contain dots
			tag := "!!str"
			if numbers {
				tag = "!!int"
			}
			p.write(at, strings.Join(keys[1:], "."), tag, value, from)
			return
		}
		fields, keys = f.fields(), keys[1:]
	}
}

// tag returns the YAML type of a value that --set can write; "" for a list or a mapping.
func (f field) tag() string {
	switch f.value.(type) {
	case *string, *model.Duration, *Provider: // the name of a driver
		return "!!str"
	case *int:
		return "!!int"
	case *bool:
		return "!!bool"
	}
	return ""
}

// descend returns the mapping at key. It creates a missing one, and returns nil if the value is no mapping.
func (p *parser) descend(n *yaml.Node, key, from string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	i := indexOf(n, key)
	if i < 0 {
		name := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}
		value := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		p.elsewhere[name], p.elsewhere[value] = from, from
		n.Content = append(n.Content, name, value)
		return value
	}
	if key == "provider" {
		n.Content[i] = unfolded(n.Content[i])
	}
	if n.Content[i].Kind != yaml.MappingNode {
		return nil
	}
	return n.Content[i]
}

// write sets or replaces the value of a key.
func (p *parser) write(n *yaml.Node, key, tag, value, from string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	scalar := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	p.elsewhere[scalar] = from
	if i := indexOf(n, key); i >= 0 {
		n.Content[i] = scalar
		return
	}
	name := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}
	p.elsewhere[name] = from
	n.Content = append(n.Content, name, scalar)
}

// indexOf returns the index of a key's value in a mapping, or -1.
func indexOf(n *yaml.Node, key string) int {
	if n == nil || n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

// valueOf returns the value of a key, or nil.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if i := indexOf(n, key); i >= 0 {
		return n.Content[i]
	}
	return nil
}

// namesIn returns the keys of a mapping.
func namesIn(n *yaml.Node) []string {
	var names []string
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		names = append(names, n.Content[i].Value)
	}
	return names
}
