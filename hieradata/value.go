package hieradata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Value is one piece of Hiera data. The zero Value is null. Values are immutable.
type Value struct {
	v any // nil, bool, int64, float64, string, []Value, or mapping
}

// mapping is sorted by the canonical text of its keys.
type mapping []entry

type entry struct {
	key   Value // a string, integer, float or boolean
	value Value
}

// Kind returns the type of the value in Hiera's terms: null, boolean, integer, float, string, list or mapping.
func (v Value) Kind() string {
	switch v.v.(type) {
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "float"
	case string:
		return "string"
	case []Value:
		return "list"
	case mapping:
		return "mapping"
	}
	return "null"
}

// Any returns the value as plain Go: nil, bool, int64, float64, string, []any or map[string]any. Keys that are not
// strings become their YAML text.
func (v Value) Any() any {
	switch x := v.v.(type) {
	case []Value:
		list := make([]any, len(x))
		for i, item := range x {
			list[i] = item.Any()
		}
		return list
	case mapping:
		m := make(map[string]any, len(x))
		for _, e := range x {
			m[e.key.keyText()] = e.value.Any()
		}
		return m
	}
	return v.v
}

// MarshalJSON encodes the value as JSON. A float keeps its point: readers can distinguish 1.0 from 1.
func (v Value) MarshalJSON() ([]byte, error) {
	switch x := v.v.(type) {
	case float64:
		return []byte(floatText(x)), nil
	case []Value:
		if x == nil {
			return []byte("[]"), nil
		}
		return json.Marshal(x)
	case mapping:
		var b bytes.Buffer
		b.WriteByte('{')
		for i, e := range x {
			if i > 0 {
				b.WriteByte(',')
			}
			key, err := json.Marshal(e.key.keyText())
			if err != nil {
				return nil, err
			}
			value, err := e.value.MarshalJSON()
			if err != nil {
				return nil, err
			}
			b.Write(key)
			b.WriteByte(':')
			b.Write(value)
		}
		b.WriteByte('}')
		return b.Bytes(), nil
	}
	return json.Marshal(v.v)
}

// String returns the value as canonical YAML, without a line break at its end.
func (v Value) String() string {
	return string(bytes.TrimSuffix(encode(v), []byte("\n")))
}

// YAML returns the value as canonical YAML. A data file contains a mapping.
func (v Value) YAML() []byte { return encode(v) }

// Equal reports whether two values have the same types and contents.
func (v Value) Equal(other Value) bool { return bytes.Equal(encode(v), encode(other)) }

// keyText returns a mapping's key as a person would write it.
func (v Value) keyText() string {
	if s, ok := v.v.(string); ok {
		return s
	}
	return scalarText(v)
}

// find returns the value of a string key.
func (m mapping) find(key string) (Value, bool) {
	for _, e := range m {
		if e.key.v == key {
			return e.value, true
		}
	}
	return Value{}, false
}

// without returns the mapping without one key.
func (m mapping) without(key string) mapping {
	return slices.DeleteFunc(slices.Clone(m), func(e entry) bool { return e.key.v == key })
}

// sorted sorts entries into canonical order and refuses duplicate keys.
func sorted(entries []entry) (mapping, error) {
	type keyed struct {
		text string
		entry
	}
	all := make([]keyed, len(entries))
	for i, e := range entries {
		all[i] = keyed{scalarText(e.key), e}
		// A quoted text is sorted by its unquoted form. Otherwise a rename that only adds quotes would move entries.
		if s, ok := e.key.v.(string); ok {
			all[i].text = s
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int {
		if a.text != b.text {
			return cmpText(a.text, b.text)
		}
		return cmpText(a.key.Kind(), b.key.Kind())
	})
	m := make(mapping, len(all))
	for i, k := range all {
		if i > 0 && k.text == all[i-1].text && k.key.Kind() == all[i-1].key.Kind() {
			return nil, fmt.Errorf("the key %s stands there twice", scalarText(k.key))
		}
		m[i] = k.entry
	}
	return m, nil
}

func cmpText(a, b string) int {
	return bytes.Compare([]byte(a), []byte(b))
}
