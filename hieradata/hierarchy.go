package hieradata

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/bounded"

	"pulley/internal/pattern"
)

// Hierarchy is the order of the layers of live data, and the attributes of roles and nodes. An environment file declares
// both. The zero value is the order without attributes.
type Hierarchy struct {
	order        []string                     // names of levels, highest first
	roles, nodes map[string]map[string]string // attributes; nodes by their names without a stack
}

// standard are the levels of every hierarchy, in the order of an environment file without one.
var standard = []string{"node", "role", "environment", "common"}

// Level is one level of a node's live data.
type Level struct {
	Name  string `json:"name"`            // node, role, environment, common, or an attribute
	Layer Layer  `json:"layer,omitempty"` // "" if the node has none
}

// File returns the name of the level's data file.
func (l Level) File() string { return l.Name + ".yaml" }

// Levels are the levels of one node, highest first. The first that has a key wins.
type Levels []Level

// mentionsLayers excludes files without the key: most fleets have none, and a file may be no environment file of Pulley.
var mentionsLayers = pattern.Lazy(`\blayers["']?\s*:`)

// ReadHierarchy reads the hierarchy of an environment file, which is a part of a release. It ignores all keys that it does
// not need: a newer file may have keys that this program does not know.
func ReadHierarchy(environmentFile []byte) (h Hierarchy, err error) {
	if !mentionsLayers().Match(environmentFile) {
		return Hierarchy{}, nil
	}
	defer func() { // the parser is third-party, and a release must not crash the agent
		if r := recover(); r != nil {
			h, err = Hierarchy{}, fmt.Errorf("unreadable YAML: %v", r)
		}
	}()
	type attributes struct {
		Attributes map[string]string `yaml:"attributes"`
	}
	var f struct {
		Layers []string              `yaml:"layers"`
		Roles  map[string]attributes `yaml:"roles"`
		Nodes  map[string]attributes `yaml:"nodes"`
	}
	if err := yaml.Unmarshal(environmentFile, &f); err != nil {
		return Hierarchy{}, err
	}
	if len(f.Layers) == 0 {
		return Hierarchy{}, nil
	}
	h = Hierarchy{order: f.Layers, roles: map[string]map[string]string{}, nodes: map[string]map[string]string{}}
	for name, of := range f.Roles {
		h.roles[name] = of.Attributes
	}
	for name, of := range f.Nodes {
		h.nodes[name] = of.Attributes
	}
	return h, h.validate()
}

// validate checks what becomes a file's name or a layer. The operator's program has checked all of it (package environments).
func (h Hierarchy) validate() error {
	for i, name := range h.order {
		if slices.Contains(h.order[:i], name) {
			return fmt.Errorf("layers: %.100q appears twice", name)
		}
		if !slices.Contains(standard, name) && !isAttribute(name) {
			return fmt.Errorf("layers: %.100q is not the name of an attribute", name)
		}
	}
	for _, name := range standard {
		if !slices.Contains(h.order, name) {
			return fmt.Errorf("layers: %s is missing", name)
		}
	}
	for _, all := range []map[string]map[string]string{h.roles, h.nodes} {
		for of, attributes := range all {
			for name, value := range attributes {
				if err := CheckAttribute(name, value); err != nil {
					return fmt.Errorf("attributes of %.100q: %w", of, err)
				}
			}
		}
	}
	return nil
}

// Order returns the names of the levels, highest first.
func (h Hierarchy) Order() []string {
	if len(h.order) == 0 {
		return slices.Clone(standard)
	}
	return slices.Clone(h.order)
}

// Levels returns the levels of a node. stack is that of its environment, or "": one environment file serves all stacks.
func (h Hierarchy) Levels(role, node, stack string) Levels {
	plain := node
	if stack != "" {
		plain = strings.TrimSuffix(node, "_"+stack)
	}
	levels := make(Levels, 0, len(standard)+len(h.order))
	for _, name := range h.Order() {
		level := Level{Name: name}
		switch name {
		case "node":
			level.Layer = ForNode(node)
		case "role":
			if role != "" {
				level.Layer = ForRole(role)
			}
		case "environment":
			level.Layer = Environment
		case "common":
			level.Layer = Common
		default:
			value := h.nodes[plain][name]
			if value == "" {
				value = h.roles[role][name]
			}
			if value != "" {
				level.Layer = ForAttribute(name, value)
			}
		}
		levels = append(levels, level)
	}
	return levels
}

// Attributes returns the attributes of a node by name; nil without any. stack is that of its environment, or "".
func (h Hierarchy) Attributes(role, node, stack string) (of map[string]string) {
	if len(h.order) == 0 {
		return nil
	}
	for _, level := range h.Levels(role, node, stack) {
		if level.Layer != "" && !slices.Contains(standard, level.Name) {
			if of == nil {
				of = map[string]string{}
			}
			of[level.Name] = strings.TrimPrefix(string(level.Layer), level.Name+"/")
		}
	}
	return of
}

// Values returns the values of an attribute that a role or a node has, in the order of their names.
func (h Hierarchy) Values(attribute string) (values []string) {
	for _, all := range []map[string]map[string]string{h.roles, h.nodes} {
		for _, attributes := range all {
			if v := attributes[attribute]; v != "" && !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
	}
	slices.Sort(values)
	return values
}

// Rank returns the priority of a layer: 0 for the highest. A layer of an attribute that the hierarchy does not have is the
// lowest: no node sees it.
func (h Hierarchy) Rank(l Layer) int {
	order := h.Order()
	if i := slices.Index(order, l.level()); i >= 0 {
		return i
	}
	return len(order)
}

// Sorted sorts layers by their ranks, the highest first. Layers of one level keep their order.
func (h Hierarchy) Sorted(layers []Layer) []Layer {
	slices.SortStableFunc(layers, func(a, b Layer) int { return h.Rank(a) - h.Rank(b) })
	return layers
}

// Declares reports whether nodes may have a layer of this level.
func (h Hierarchy) Declares(l Layer) bool { return slices.Contains(h.Order(), l.level()) }

// Has reports whether a layer is one of the levels.
func (l Levels) Has(layer Layer) bool {
	return slices.ContainsFunc(l, func(level Level) bool { return level.Layer == layer && layer != "" })
}

// isStandard reports whether the levels are those without attributes, in their usual order.
func (l Levels) isStandard() bool {
	return slices.EqualFunc(l, standard, func(level Level, name string) bool { return level.Name == name })
}

// LevelsFile is the file in a folder of data that lists its levels, if they are not the standard ones.
const LevelsFile = "levels.json"

// maxLevelsFile bounds that file, in bytes.
const maxLevelsFile = 64 << 10

// ReadLevels returns the levels of a folder that Materialise wrote for a node.
func ReadLevels(dir, role, node string) (Levels, error) {
	data, err := bounded.ReadFile(filepath.Join(dir, LevelsFile), maxLevelsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Hierarchy{}.Levels(role, node, ""), nil
	}
	var levels Levels
	if err == nil {
		err = json.Unmarshal(data, &levels)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the order of live data: %w", err)
	}
	return levels, nil
}
