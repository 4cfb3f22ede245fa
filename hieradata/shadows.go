package hieradata

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Place is the position in a release that defines a key.
type Place struct {
	File string `json:"file"` // relative to the release, with slashes
	Line int    `json:"line"`
}

// String returns the place as file:line.
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// WantFile reports whether Shadows needs a file of a release. Paths are relative to the release.
func WantFile(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") {
			return false
		}
	}
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json", ".eyaml":
		return true
	}
	return false
}

// Shadows lists the places in a release that define a key, in the order of its hierarchy. Live data hides them, or is
// merged with them. files contains the files for which WantFile is true, by path. merge is the key's strategy in
// lookup_options of the release: "first" without an entry. An unreadable data file is an error; the places in the other
// files are returned with it.
func Shadows(files map[string][]byte, key string) (places []Place, merge string, err error) {
	configs, err := hieraConfigs(files, key)
	if err != nil {
		return nil, "", err
	}
	var options []Value
	var problems []error
	seen := map[string]bool{}
	for _, config := range configs {
		for _, pattern := range config {
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if seen[name] || !pattern.MatchString(name) {
					continue
				}
				seen[name] = true
				data, err := topLevel(files[name])
				if err != nil {
					problems = append(problems, fmt.Errorf("cannot read %s: %w", name, err))
					continue
				}
				if k, _ := child(data, key); k != nil {
					places = append(places, Place{name, k.Line})
				}
				if _, o := child(data, lookupOptions); o != nil {
					options = append(options, mergeOptions(o))
				}
			}
		}
	}
	if merge = mergeOf(key, options); merge == "" {
		merge = "first"
	}
	return places, merge, errors.Join(problems...)
}

// hieraConfigs returns the patterns of the files that may define a key: of the environment, then of the key's own
// module.
func hieraConfigs(files map[string][]byte, key string) ([][]*regexp.Regexp, error) {
	var out [][]*regexp.Regexp
	add := func(name string) error {
		config, err := parseHieraConfig(files[name])
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", name, err)
		}
		out = append(out, config.patterns(path.Dir(name)))
		return nil
	}
	if _, has := files["hiera.yaml"]; has {
		if err := add("hiera.yaml"); err != nil {
			return nil, err
		}
	} else {
		out = append(out, hieraConfig{}.patterns("."))
	}
	module, _, qualified := strings.Cut(key, "::")
	if !qualified {
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if parts := strings.Split(name, "/"); len(parts) == 3 && parts[1] == module && parts[2] == "hiera.yaml" {
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// topLevel returns the mapping of a data file; nil for an empty file.
func topLevel(data []byte) (*yaml.Node, error) {
	if len(data) > maxInputBytes {
		return nil, fmt.Errorf("%d bytes are too many", len(data))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, yamlError(err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil
	}
	return doc.Content[0], nil
}

// child finds a key of a mapping and its value. It follows an alias, and returns nil if there is no such key.
func child(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n = target(n); n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == name {
			return n.Content[i], target(n.Content[i+1])
		}
	}
	return nil, nil
}

func target(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// mergeOptions returns the merge strategies in lookup_options of a release. A release may use more of YAML than a
// layer.
func mergeOptions(n *yaml.Node) Value {
	var m mapping
	if n.Kind != yaml.MappingNode {
		return Value{m}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		_, merge := child(n.Content[i+1], "merge")
		if merge != nil && merge.Kind == yaml.MappingNode {
			_, merge = child(merge, "strategy")
		}
		options := mapping{}
		if merge != nil && merge.Kind == yaml.ScalarNode {
			options = mapping{{Value{"merge"}, Value{merge.Value}}}
		}
		m = append(m, entry{Value{n.Content[i].Value}, Value{options}})
	}
	return Value{m}
}
