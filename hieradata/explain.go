package hieradata

import (
	"fmt"
	"regexp"
	"strings"
)

// Holding is one layer that has a key.
type Holding struct {
	Layer Layer `json:"layer"`
	Value Value `json:"value"`
}

// Explanation shows which live layers of one node provide a key's value.
type Explanation struct {
	Key string `json:"key"`
	// first, unique, hash or deep, by the lookup_options of these layers; first without an entry
	Merge    string    `json:"merge"`
	Holdings []Holding `json:"holdings"` // highest first; empty if no layer has the key
}

// Explain finds a key in the live layers of one node. layers contains the bytes of each existing layer; Explain ignores
// layers of other roles and nodes.
func Explain(layers map[Layer][]byte, role, node, key string) (Explanation, error) {
	e := Explanation{Key: key, Merge: "first"}
	var options []Value
	for _, layer := range Order(role, node) {
		v, err := ParseLayer(layers[layer])
		if err != nil {
			return Explanation{}, fmt.Errorf("cannot read layer %s: %w", layer, err)
		}
		m := v.v.(mapping)
		if value, has := m.find(key); has {
			e.Holdings = append(e.Holdings, Holding{layer, value})
		}
		if o, has := m.find(lookupOptions); has {
			options = append(options, o)
		}
	}
	if merge := mergeOf(key, options); merge != "" {
		e.Merge = merge
	}
	return e, nil
}

// String returns the explanation as a sentence.
func (e Explanation) String() string {
	if len(e.Holdings) == 0 {
		return fmt.Sprintf("no live layer has %s", e.Key)
	}
	names := make([]string, len(e.Holdings))
	for i, h := range e.Holdings {
		names[i] = string(h.Layer)
	}
	if len(names) == 1 {
		return fmt.Sprintf("%s comes from layer %s", e.Key, names[0])
	}
	if e.Merge == "first" {
		return fmt.Sprintf("%s comes from layer %s, which shadows %s", e.Key, names[0], strings.Join(names[1:], ", "))
	}
	return fmt.Sprintf("%s is merged (%s) from layers %s", e.Key, e.Merge, strings.Join(names, ", "))
}

// mergeOf finds a key's merge strategy in several lookup_options, highest first; "" if none has one. As in Puppet, a
// higher entry replaces the complete lower entry of the same name. An entry of the key itself overrides patterns (keys
// that begin with ^), and the first matching pattern wins.
func mergeOf(key string, options []Value) string {
	var merged []entry
	seen := map[string]bool{}
	for _, o := range options {
		m, _ := o.v.(mapping)
		for _, e := range m {
			if name := e.key.keyText(); !seen[name] {
				seen[name] = true
				merged = append(merged, e)
			}
		}
	}
	for _, e := range merged {
		if e.key.keyText() == key {
			return entryMerge(e.value)
		}
	}
	for _, e := range merged {
		if pattern := e.key.keyText(); strings.HasPrefix(pattern, "^") && matches(pattern, key) {
			return entryMerge(e.value)
		}
	}
	return ""
}

// matches ignores Ruby patterns that Go does not support, such as look-ahead.
func matches(pattern, key string) bool {
	re, err := regexp.Compile(pattern)
	return err == nil && re.MatchString(key)
}

func entryMerge(options Value) string {
	m, _ := options.v.(mapping)
	merge, has := m.find("merge")
	if !has {
		return ""
	}
	s, err := strategy(merge)
	if err != nil {
		return ""
	}
	return s
}
