package hieradata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// FromYAML converts a value that a person wrote, as Set does. All keys must be text: the stored form is JSON.
// Its error is a *SyntaxError.
func FromYAML(n *yaml.Node) (Value, error) {
	v, err := convert(n, 0)
	if err != nil {
		return Value{}, err
	}
	if key, has := v.otherKey(); has {
		return Value{}, &SyntaxError{Line: n.Line, Column: n.Column, Problem: fmt.Sprintf("the key %s is not text (%s)", key.keyText(), key.kind()), Advice: "quote it"}
	}
	return v, nil
}

// otherKey returns a key that is not text.
func (v Value) otherKey() (Value, bool) {
	switch x := v.v.(type) {
	case []Value:
		for _, item := range x {
			if key, has := item.otherKey(); has {
				return key, true
			}
		}
	case mapping:
		for _, e := range x {
			if _, text := e.key.v.(string); !text {
				return e.key, true
			}
			if key, has := e.value.otherKey(); has {
				return key, true
			}
		}
	}
	return Value{}, false
}

// Mapping returns a mapping with text keys.
func Mapping(values map[string]Value) Value {
	var m mapping // nil if it is empty, as convertMapping returns it: equal values are deeply equal
	for _, key := range slices.Sorted(maps.Keys(values)) {
		m = append(m, entry{Text(key), values[key]})
	}
	return Value{m}
}

// List returns a list.
func List(items ...Value) Value { return Value{slices.Clone(items)} }

// UnmarshalJSON reads what MarshalJSON wrote of a value whose keys are text.
func (v *Value) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var any any
	if err := d.Decode(&any); err != nil {
		return err
	}
	var err error
	*v, err = fromJSON(any, 0)
	return err
}

func fromJSON(of any, depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, errors.New("values are nested too deep")
	}
	switch x := of.(type) {
	case json.Number:
		if strings.ContainsAny(x.String(), ".eE") {
			f, err := x.Float64()
			return Value{f}, err
		}
		n, err := x.Int64()
		return Value{n}, err
	case []any:
		list := make([]Value, len(x))
		for i, item := range x {
			var err error
			if list[i], err = fromJSON(item, depth+1); err != nil {
				return Value{}, err
			}
		}
		return Value{list}, nil
	case map[string]any:
		values := make(map[string]Value, len(x))
		for key, item := range x {
			var err error
			if values[key], err = fromJSON(item, depth+1); err != nil {
				return Value{}, err
			}
		}
		return Mapping(values), nil
	}
	return Value{of}, nil // null, a boolean or a text
}
