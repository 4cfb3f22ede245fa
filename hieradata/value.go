package hieradata

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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

// kind returns the type of the value in Hiera's terms: null, boolean, integer, float, string, list or mapping.
func (v Value) kind() string {
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

// PuppetType returns the type of the value in Puppet's language; "" for null, and for a text with an interpolation.
func (v Value) PuppetType() string {
	if text, ok := v.v.(string); ok && strings.Contains(text, "%{") {
		return ""
	}
	return map[string]string{"boolean": "Boolean", "integer": "Integer", "float": "Float", "string": "String", "list": "Array", "mapping": "Hash"}[v.kind()]
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
	// A quoted text is sorted by its unquoted form. Otherwise a rename that only adds quotes would move entries.
	byText := func(a, b entry) int {
		return cmp.Or(strings.Compare(a.key.keyText(), b.key.keyText()), strings.Compare(a.key.kind(), b.key.kind()))
	}
	m := mapping(slices.SortedStableFunc(slices.Values(entries), byText))
	for i := 1; i < len(m); i++ {
		if byText(m[i-1], m[i]) == 0 {
			return nil, fmt.Errorf("the key %s appears twice", scalarText(m[i].key))
		}
	}
	return m, nil
}
