package hieradata

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/pattern"
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
	if len(data) > MaxInputBytes {
		return nil, fmt.Errorf("%d bytes are too many", len(data))
	}
	doc, err := Document(data)
	if err != nil {
		return nil, err
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
	merge, _ := m.find("merge")
	s, _ := strategy(merge) // "" if it is invalid, as for an absent one
	return s
}

// hieraConfig is the part of a version 5 hiera.yaml that locates data.
// https://www.puppet.com/docs/puppet/8/hiera_config_yaml_5
type hieraConfig struct {
	Version  int `yaml:"version"`
	Defaults struct {
		Datadir   string    `yaml:"datadir"`
		LookupKey string    `yaml:"lookup_key"`
		DataHash  string    `yaml:"data_hash"`
		DataDig   string    `yaml:"data_dig"`
		Options   yaml.Node `yaml:"options"`
	} `yaml:"defaults"`
	Hierarchy        []hieraLevel `yaml:"hierarchy"`
	DefaultHierarchy []hieraLevel `yaml:"default_hierarchy"` // of modules
}

type hieraLevel struct {
	Name        string    `yaml:"name"`
	LookupKey   string    `yaml:"lookup_key"`
	DataHash    string    `yaml:"data_hash"`
	DataDig     string    `yaml:"data_dig"`
	Options     yaml.Node `yaml:"options"`
	Datadir     string    `yaml:"datadir"`
	Path        string    `yaml:"path"`
	Paths       []string  `yaml:"paths"`
	Glob        string    `yaml:"glob"`
	Globs       []string  `yaml:"globs"`
	MappedPaths []string  `yaml:"mapped_paths"`
}

// HieraVersion returns the version of a hiera.yaml: 3, 4 or 5. A file without a version is of version 3.
func HieraVersion(data []byte) (int, error) {
	var keys map[string]yaml.Node
	if len(data) > MaxInputBytes {
		return 0, fmt.Errorf("%d bytes are too many for a hiera.yaml", len(data))
	}
	root, err := topLevel(data)
	if err != nil {
		return 0, err
	}
	if root != nil {
		asRuby(root)
		if err := root.Decode(&keys); err != nil {
			return 0, yamlError(err)
		}
	}
	node, has := keys["version"]
	if !has || node.ShortTag() == "!!null" {
		return 3, nil
	}
	switch node.Value {
	case "3", "4", "5":
		return int(node.Value[0] - '0'), nil
	}
	return 0, &SyntaxError{Line: node.Line, Column: node.Column, Problem: fmt.Sprintf("version %q is unknown", node.Value)}
}

// DataFiles returns a function that gives the lookup functions (yaml_data and others) with which Puppet reads a path as data because of
// a hiera.yaml in folder base; nil for other files. Data is nil without a hiera.yaml. An interpolation matches any text.
func DataFiles(data []byte, base string) (func(name string) []string, error) {
	config := hieraConfig{Version: 5}
	version := 5
	var err error
	if data != nil {
		version, err = HieraVersion(data)
	}
	var places []location
	switch {
	case err != nil:
	case version == 5:
		if data != nil {
			config, err = parseHieraConfig(data)
		}
		places = config.locations(base)
	case version == 4: // its levels name files without their suffix
		var v4 struct {
			Datadir   string `yaml:"datadir"`
			Hierarchy []struct {
				Datadir string `yaml:"datadir"`
			} `yaml:"hierarchy"`
		}
		if err = yaml.Unmarshal(data, &v4); err != nil {
			err = yamlError(err)
			break
		}
		dirs := []string{cmp.Or(v4.Datadir, "data")}
		for _, l := range v4.Hierarchy {
			dirs = append(dirs, cmp.Or(l.Datadir, dirs[0]))
		}
		for _, dir := range dirs {
			places = append(places, location{path: path.Join(base, dir, "**/*.yaml"), glob: true, function: "yaml_data"},
				location{path: path.Join(base, dir, "**/*.json"), glob: true, function: "json_data"})
		}
	}
	functions := make([]string, 0, len(places))
	var patterns []*regexp.Regexp
	for _, l := range places {
		if n := len(patterns); n < len(appendPattern(patterns, l.path, l.glob)) {
			patterns, functions = appendPattern(patterns, l.path, l.glob), append(functions, l.function)
		}
	}
	return func(name string) (by []string) {
		for i, p := range patterns {
			if p.MatchString(name) && !slices.Contains(by, functions[i]) {
				by = append(by, functions[i])
			}
		}
		return by
	}, err
}

// asRuby gives mappings the keys that Puppet sees: the last of equal ones, and texts for symbols, so that :version is version.
func asRuby(n *yaml.Node) {
	for i := len(n.Content) - 2; n.Kind == yaml.MappingNode && i >= 0; i -= 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			continue
		}
		if len(key.Value) > 1 {
			key.Value = strings.TrimPrefix(key.Value, ":")
		}
		for later := i + 2; later < len(n.Content); later += 2 {
			if n.Content[later].Kind == yaml.ScalarNode && n.Content[later].Value == key.Value {
				n.Content = slices.Delete(n.Content, i, i+2)
				break
			}
		}
	}
	for _, child := range n.Content {
		asRuby(child)
	}
}

func parseHieraConfig(data []byte) (hieraConfig, error) {
	var c hieraConfig
	if len(data) > MaxInputBytes {
		return c, fmt.Errorf("%d bytes are too many for a hiera.yaml", len(data))
	}
	root, err := topLevel(data)
	if err != nil {
		return c, err
	}
	if root != nil {
		asRuby(root)
		err = root.Decode(&c)
	}
	if err != nil {
		return c, yamlError(err)
	}
	if c.Version != 5 {
		return c, &SyntaxError{Problem: fmt.Sprintf("it is not of version 5 but of %d", c.Version),
			Advice: "only version 5 works for the data of an environment: write version: 5"}
	}
	for i, l := range c.Hierarchy {
		if l.Name == "" {
			return c, &SyntaxError{Problem: fmt.Sprintf("level %d of the hierarchy has no name", i+1)}
		}
		if slices.ContainsFunc(c.Hierarchy[:i], func(o hieraLevel) bool { return o.Name == l.Name }) {
			return c, &SyntaxError{Problem: fmt.Sprintf("two levels of the hierarchy are named %q", l.Name)}
		}
		if len(l.MappedPaths) != 0 && len(l.MappedPaths) != 3 {
			return c, &SyntaxError{Problem: fmt.Sprintf("mapped_paths of level %q must be a variable, a name and a path", l.Name)}
		}
	}
	return c, nil
}

// defaultHierarchy is Puppet's hierarchy without a hiera.yaml, or with one that has no levels.
var defaultHierarchy = []hieraLevel{{Name: "Common", Path: "common.yaml"}}

// patterns returns expressions for the files that may contain data, in the order of the hierarchy. base is the folder
// of the hiera.yaml. An interpolation matches any text.
func (c hieraConfig) patterns(base string) []*regexp.Regexp {
	var out []*regexp.Regexp
	for _, l := range c.locations(base) {
		out = appendPattern(out, l.path, l.glob)
	}
	return out
}

// location is a path or glob of a data file, with its interpolations. It is absolute if it is outside of the release.
type location struct {
	folder, path string // path begins with the folder of the level
	glob         bool
	function     string // that reads it
}

// locations returns where the hierarchy reads data, in its order. base is the folder of the hiera.yaml.
func (c hieraConfig) locations(base string) []location {
	levels := c.Hierarchy
	if levels == nil {
		levels = defaultHierarchy
	}
	byDefault := cmp.Or(c.Defaults.DataHash, c.Defaults.LookupKey, c.Defaults.DataDig, "yaml_data")
	var out []location
	for _, l := range slices.Concat(levels, c.DefaultHierarchy) {
		function := cmp.Or(l.DataHash, l.LookupKey, l.DataDig, byDefault)
		dir := cmp.Or(l.Datadir, c.Defaults.Datadir, "data")
		paths := slices.Clone(l.Paths)
		if l.Path != "" {
			paths = append(paths, l.Path)
		}
		if len(l.MappedPaths) == 3 {
			paths = append(paths, l.MappedPaths[2])
		}
		globs := slices.Clone(l.Globs)
		if l.Glob != "" {
			globs = append(globs, l.Glob)
		}
		if !path.IsAbs(dir) {
			dir = path.Join(base, dir)
		}
		for i, p := range slices.Concat(paths, globs) {
			l := location{dir, path.Join(dir, p), i >= len(paths), function}
			if path.IsAbs(p) { // Puppet then ignores the datadir
				l.folder, l.path = path.Dir(p), path.Clean(p)
			}
			out = append(out, l)
		}
	}
	return out
}

// livePath matches the node's folder of live data in hiera.yaml. The fact does not work as a datadir: Puppet prepends the release's folder
// before it expands interpolations (seen with Puppet 7.23).
var livePath = pattern.Lazy(`%\{\s*(::)?facts\.pulley\.data\s*\}/`)

// LivePath reports whether a path in hiera.yaml is in the node's folder of live data.
func LivePath(path string) bool { return livePath().MatchString(path) }

// NamesLiveData reports whether a level of a hiera.yaml reads a file of live data. Keys that its options name are no data. Of a file that
// Puppet cannot use, any mention counts.
func NamesLiveData(hiera []byte) bool {
	c, err := parseHieraConfig(hiera)
	if err != nil {
		return livePath().Match(hiera)
	}
	return slices.ContainsFunc(slices.Concat(c.Hierarchy, c.DefaultHierarchy), func(l hieraLevel) bool {
		return slices.ContainsFunc(slices.Concat(l.Paths, l.Globs, l.MappedPaths, []string{l.Path, l.Glob}), LivePath)
	})
}

// OutsideFolders returns the folders outside of the release that a hiera.yaml of version 5 reads, in its order.
func OutsideFolders(hiera []byte) []string {
	c, err := parseHieraConfig(hiera)
	if err != nil {
		return nil
	}
	var out []string
	for _, l := range c.locations(".") {
		if path.IsAbs(l.folder) && !slices.Contains(out, l.folder) {
			out = append(out, l.folder)
		}
	}
	return out
}

// Locations returns the paths that a hiera.yaml of version 5 reads, with their interpolations, in the order of the
// hierarchy: data/nodes/%{trusted.certname}.yaml. A path with a glob is left out.
func Locations(hiera []byte) []string {
	c, err := parseHieraConfig(hiera)
	if err != nil {
		return nil
	}
	var out []string
	for _, l := range c.locations(".") {
		if !l.glob {
			out = append(out, l.path)
		}
	}
	return out
}

func appendPattern(all []*regexp.Regexp, location string, glob bool) []*regexp.Regexp {
	re, err := regexp.Compile("^(?:" + expression(location, glob) + ")$")
	if err != nil {
		return all // a character class that matches no file name
	}
	return append(all, re)
}

// expression converts a location of a hiera.yaml to a regular expression.
func expression(location string, glob bool) string {
	var b strings.Builder
	braces := 0
	for i := 0; i < len(location); {
		rest := location[i:]
		if strings.HasPrefix(rest, "%{") {
			if end := strings.IndexByte(rest, '}'); end > 0 {
				b.WriteString(".*")
				i += end + 1
				continue
			}
		}
		if !glob {
			b.WriteString(regexp.QuoteMeta(rest[:1]))
			i++
			continue
		}
		i++
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '{':
			braces++
			b.WriteString("(?:")
		case c == '}' && braces > 0:
			braces--
			b.WriteString(")")
		case c == ',' && braces > 0:
			b.WriteString("|")
		case c == '[' && strings.IndexByte(rest, ']') > 1:
			end := strings.IndexByte(rest, ']')
			b.WriteString("[" + strings.ReplaceAll(rest[1:end], `\`, `\\`) + "]")
			i += end
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
		}
	}
	return b.String()
}
