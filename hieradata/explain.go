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

// Explanation says where a key's value comes from among the live layers of one node.
type Explanation struct {
	Key      string    `json:"key"`
	Merge    string    `json:"merge"`    // first, unique, hash or deep: what lookup_options of these layers say; first when they don't
	Holdings []Holding `json:"holdings"` // highest first; empty when no layer has the key
}

// Explain looks for a key in the live layers of one node. Layers holds the bytes of each layer that exists; layers of other
// roles and nodes may be among them.
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

// String is the explanation as a sentence.
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

// mergeOf finds a key's merge strategy in several lookup_options, highest first; "" when none names one. As in Puppet, they
// are merged into one, a higher one replacing the whole entry of a lower; an entry of the key itself wins over patterns,
// and of the patterns (keys that begin with ^) the first that matches wins.
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

// matches leaves out patterns of Ruby's that Go does not know, such as look-ahead.
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
