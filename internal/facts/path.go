package facts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Find returns the value at a path of names and indexes with dots between them; nil if there is none. A name may contain
// dots: the longest name that exists counts.
func (p Published) Find(path string) json.RawMessage {
	parts := strings.Split(path, ".")
	for n := len(parts); n > 0; n-- {
		raw, ok := p.Facts[strings.Join(parts[:n], ".")]
		if !ok && n == 1 && parts[0] == "trusted" && p.Trusted != nil {
			raw, ok = p.Trusted, true
		}
		if !ok {
			continue
		}
		if found := find(raw, parts[n:]); found != nil {
			return found
		}
	}
	return nil
}

// word has the paths that need no quotes in a shell.
const word = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-:@+"

// Complete returns the paths that continue a prefix by one name, in order, at most limit. The path of a fact with parts ends
// with a dot. Paths that a shell could interpret are left out: the owner of the machine chose the names.
func (p Published) Complete(prefix string, limit int) (paths []string) {
	parent := prefix[:strings.LastIndex(prefix, ".")+1]
	parts := p.Facts
	if parent != "" {
		parts = partsOf(p.Find(strings.TrimSuffix(parent, ".")))
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		path := parent + name
		if len(paths) == limit || !strings.HasPrefix(path, prefix) || strings.Trim(path, word) != "" {
			continue
		}
		if len(partsOf(parts[name])) > 0 {
			path += "."
		}
		paths = append(paths, path)
	}
	return paths
}

// partsOf returns the parts of a fact by name or index; none of a single value.
func partsOf(raw json.RawMessage) (parts map[string]json.RawMessage) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		_ = json.Unmarshal(raw, &parts)
		return parts
	}
	parts = map[string]json.RawMessage{}
	for i, one := range list {
		parts[strconv.Itoa(i)] = one
	}
	return parts
}

// At returns the value at a path in the result of Encode; nil if there is none, or if it is no JSON.
func At(b []byte, path string) json.RawMessage {
	parts := strings.Split(path, ".")
	names := make([]string, len(parts))
	for i := range parts {
		names[i] = strings.Join(parts[:i+1], ".")
	}
	found, trusted, err := Pick(b, names)
	if err != nil {
		return nil
	}
	value := Published{Facts: found, Trusted: trusted}.Find(path)
	if !json.Valid(value) {
		return nil
	}
	return value
}

func find(raw json.RawMessage, parts []string) json.RawMessage {
	if len(parts) == 0 {
		return raw
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		i, err := strconv.Atoi(parts[0])
		if err != nil || i < 0 || i >= len(list) {
			return nil
		}
		return find(list[i], parts[1:])
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	for n := len(parts); n > 0; n-- {
		if v, ok := object[strings.Join(parts[:n], ".")]; ok {
			if found := find(v, parts[n:]); found != nil {
				return found
			}
		}
	}
	return nil
}

// Value returns a fact as Go values: integers as int where they fit, all other numbers as float64.
func Value(raw json.RawMessage) (any, error) {
	value, err := decode(raw)
	return plain(value), err
}

func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if i, err := strconv.Atoi(v.String()); err == nil {
			return i
		}
		f, _ := v.Float64() // infinite where it does not fit
		return f
	case map[string]any:
		for key, one := range v {
			v[key] = plain(one)
		}
	case []any:
		for i, one := range v {
			v[i] = plain(one)
		}
	}
	return value
}

// Line is one value of facts with its path.
type Line struct{ Path, Value string }

// Lines returns every value below a fact, in the order of names, at most limit; and whether there are more. Texts stand
// without quotes: they are for people.
func Lines(path string, raw json.RawMessage, limit int) (lines []Line, more bool) {
	value, err := decode(raw)
	if err != nil {
		return []Line{{path, string(raw)}}, false
	}
	return flatten(nil, path, value, limit)
}

func flatten(lines []Line, path string, value any, limit int) ([]Line, bool) {
	if len(lines) >= limit {
		return lines, true
	}
	under := func(name string) string {
		if path == "" {
			return name
		}
		return path + "." + name
	}
	more := false
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if lines, more = flatten(lines, under(key), v[key], limit); more {
				return lines, true
			}
		}
		if len(v) > 0 {
			return lines, false
		}
	case []any:
		for i, one := range v {
			if lines, more = flatten(lines, under(strconv.Itoa(i)), one, limit); more {
				return lines, true
			}
		}
		if len(v) > 0 {
			return lines, false
		}
	}
	return append(lines, Line{path, Text(value)}), false
}

// Text renders a value for people.
func Text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case nil:
		return "null"
	case json.RawMessage:
		if one, err := decode(v); err == nil {
			return Text(one)
		}
		return string(bytes.TrimSpace(v))
	case map[string]any, []any:
		if b, err := encode(v); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(value)
}
