package environments

import (
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// field is one key of a mapping and the function that reads its value.
type field struct {
	key  string
	tag  string  // YAML type of the value that --set may write: !!str, !!int, !!bool; "" if --set cannot write it
	sub  []field // the keys of a mapping
	open bool    // a mapping with any keys and text values
	read func(*yaml.Node)
}

// scope is the part of the file that a list of fields belongs to: a role or the environment, and the path: "rollout.".
type scope struct {
	p    *parser
	role int
	path string
}

// field returns a field that records the position of its value before it reads the value.
func (s scope) field(key, tag string, read func(n *yaml.Node, what string)) field {
	path := s.path + key
	return field{key: key, tag: tag, read: func(n *yaml.Node) {
		s.p.places[spot{s.role, path}] = n
		read(n, path)
	}}
}

func (s scope) text(key string, into *string) field {
	return s.field(key, "!!str", func(n *yaml.Node, what string) { *into = s.p.text(n, what) })
}

func (s scope) count(key string, into *int) field {
	return s.field(key, "!!int", func(n *yaml.Node, what string) { *into = s.p.count(n, what) })
}

func (s scope) flag(key string, into *bool) field {
	return s.field(key, "!!bool", func(n *yaml.Node, what string) { *into = s.p.flag(n, what) })
}

func (s scope) share(key string, into *string) field {
	return s.field(key, "!!str", func(n *yaml.Node, what string) { *into = s.p.share(n, what) })
}

func (s scope) duration(key string, into *Duration) field {
	return s.field(key, "!!str", func(n *yaml.Node, what string) { *into = s.p.duration(n, what) })
}

// list reads a list of texts; the parser records the position of each.
func (s scope) list(key string, into *[]string) field {
	return s.field(key, "", func(n *yaml.Node, what string) {
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
	})
}

// words reads a mapping with any keys and text values.
func (s scope) words(key string, into *map[string]string) field {
	f := s.field(key, "", func(n *yaml.Node, what string) {
		s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
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
	})
	f.open = true
	return f
}

// group reads a mapping with known keys.
func (s scope) group(key string, fields func(scope) []field) field {
	sub := fields(scope{s.p, s.role, s.path + key + "."})
	f := s.field(key, "", func(n *yaml.Node, what string) { s.p.keys(n, what, sub) })
	f.sub = sub
	return f
}

// keys reads a mapping with known keys. whole is false if it could not be read completely.
func (p *parser) keys(n *yaml.Node, what string, fields []field) (whole bool, given map[string]bool) {
	given = map[string]bool{}
	whole = p.mapping(n, what, keysOf(fields), func(key, value *yaml.Node) {
		given[key.Value] = true
		if f := find(fields, key.Value); f != nil {
			f.read(value)
		}
	})
	return whole, given
}

func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

func find(fields []field, key string) *field {
	for i := range fields {
		if fields[i].key == key {
			return &fields[i]
		}
	}
	return nil
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

// share returns a number of machines or a percentage. check enforces the limits.
func (p *parser) share(n *yaml.Node, what string) string {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!int" {
		count := p.count(n, what)
		return strconv.Itoa(count)
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		p.wrongKind(n, what, "a number of machines like 2, or a share like 25%")
		return ""
	}
	return p.text(n, what)
}

// duration returns a duration with units. check enforces the limits.
func (p *parser) duration(n *yaml.Node, what string) Duration {
	const like = "write it with units, like 90s, 30m or 1h30m"
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.wrongKind(n, what, "a time like 30m")
		return 0
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil || n.Tag != "!!str" || !shapes().duration.MatchString(n.Value) {
		p.problem(n, like, "%s is %s, not a time", what, kindOf(n))
		return 0
	}
	if d <= 0 {
		p.problem(n, like, "%s is no time at all", what)
	}
	return Duration(d)
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
