package environments

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

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
	complain := func(problem, hint string) { p.add(&Error{File: from, Problem: problem, Advice: hint}) }
	path, value, ok := strings.Cut(text, "=")
	keys := strings.Split(path, ".")
	if !ok || slices.Contains(keys, "") {
		complain("it is not PATH=VALUE", "write it like compute.cardinality=5")
		return
	}
	at, fields, what := root, newParser(p.file).fileFields(&Environment{}), "an environment"
	roles := valueOf(root, "roles")
	if keys[0] == "roles" && len(keys) > 1 {
		keys = keys[1:]
		fields = nil // only roles
	}
	if role := p.valueOf(roles, keys[0]); role != nil && len(keys) > 1 {
		at, fields, what = role, scope{newParser(p.file), 0, ""}.roleFields(&Role{}), "role "+quoted(keys[0])
		keys = keys[1:]
	} else if role != nil && find(fields, keys[0]) == nil {
		complain(quoted(keys[0])+" is a role, and no single value", "write it like "+keys[0]+".cardinality="+value)
		return
	} else if find(fields, keys[0]) == nil {
		names := slices.Concat(namesIn(roles), keysOf(fields))
		hint := "it begins with a role or a key of the file: " + listed(names)
		if near := SuggestName(keys[0], names); near != "" {
			hint = "did you mean " + near + "?"
		}
		complain("there is no role and no key "+quoted(keys[0]), hint)
		return
	}
	for {
		f := find(fields, keys[0])
		switch {
		case f == nil:
			hint := "its keys are " + listed(keysOf(fields))
			if near := meant(keys[0], keysOf(fields)); near != "" {
				hint = "did you mean " + near + "?"
			}
			complain(what+" has no key "+quoted(keys[0]), hint)
			return
		case len(keys) == 1 && f.tag != "":
			p.write(at, f.key, f.tag, value, from)
			return
		case len(keys) == 1 || f.sub == nil && !f.open:
			complain(noScalar(f, strings.Join(keys, ".")), "change the file for that")
			return
		}
		if at = p.descend(at, f.key, from); at == nil {
			return // reading reports the wrong type
		}
		if what = f.key; f.open { // a symbol may contain dots
			p.write(at, strings.Join(keys[1:], "."), "!!str", value, from)
			return
		}
		fields, keys = f.sub, keys[1:]
	}
}

func noScalar(f *field, path string) string {
	switch {
	case f.tag != "":
		return quoted(path) + " is below a single value"
	case f.sub != nil || f.open:
		return quoted(f.key) + " has keys of its own, and is no single value"
	}
	return quoted(f.key) + " is a list, and only single values can be set"
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

func (p *parser) valueOf(n *yaml.Node, key string) *yaml.Node {
	if n == nil {
		return nil
	}
	return valueOf(n, key)
}

// namesIn returns the keys of a mapping.
func namesIn(n *yaml.Node) []string {
	var names []string
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		names = append(names, n.Content[i].Value)
	}
	return names
}
