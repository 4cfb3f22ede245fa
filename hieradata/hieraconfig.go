package hieradata

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// hieraConfig is the part of a version 5 hiera.yaml that locates data.
// https://www.puppet.com/docs/puppet/8/hiera_config_yaml_5
type hieraConfig struct {
	Version  int `yaml:"version"`
	Defaults struct {
		Datadir string `yaml:"datadir"`
	} `yaml:"defaults"`
	Hierarchy []hieraLevel `yaml:"hierarchy"`
}

type hieraLevel struct {
	Name        string   `yaml:"name"`
	Datadir     string   `yaml:"datadir"`
	Path        string   `yaml:"path"`
	Paths       []string `yaml:"paths"`
	Glob        string   `yaml:"glob"`
	Globs       []string `yaml:"globs"`
	MappedPaths []string `yaml:"mapped_paths"`
}

// CheckHieraConfig returns the errors of a hiera.yaml that can be found without Puppet.
func CheckHieraConfig(data []byte) error {
	_, err := parseHieraConfig(data)
	return err
}

func parseHieraConfig(data []byte) (hieraConfig, error) {
	var c hieraConfig
	if len(data) > maxInputBytes {
		return c, fmt.Errorf("%d bytes are too many for a hiera.yaml", len(data))
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
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
	datadir := c.Defaults.Datadir
	if datadir == "" {
		datadir = "data"
	}
	levels := c.Hierarchy
	if len(levels) == 0 {
		levels = defaultHierarchy
	}
	var out []*regexp.Regexp
	for _, l := range levels {
		dir := l.Datadir
		if dir == "" {
			dir = datadir
		}
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
		for _, p := range paths {
			out = appendPattern(out, path.Join(base, dir, p), false)
		}
		for _, g := range globs {
			out = appendPattern(out, path.Join(base, dir, g), true)
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
