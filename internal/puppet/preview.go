package puppet

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// containers returns the classes, stages and other resources of a preview that only contain resources. Puppet reports that
// they would refresh whenever one of their resources changes.
func (r *reportFile) containers() map[string]bool {
	found := map[string]bool{}
	if !r.preview {
		return found
	}
	for i := 0; i+1 < len(r.Statuses.Content); i += 2 {
		var s struct {
			Path []string `yaml:"containment_path"`
		}
		_ = r.Statuses.Content[i+1].Decode(&s) // what is not readable stays empty
		name := r.Statuses.Content[i].Value
		if strings.HasPrefix(name, "Class[") || strings.HasPrefix(name, "Stage[") || strings.HasPrefix(name, "Node[") {
			found[name] = true
		}
		for _, part := range s.Path[:max(len(s.Path)-1, 0)] {
			found[part] = true
		}
	}
	return found
}

// detail adds the diff to a resource.
func (r *reportFile) detail(e *model.ResourceEvent, s resourceStatus) {
	path := "/" + strings.Join(s.Path, "/")
	for source, diff := range r.diffs {
		if strings.HasPrefix(source, path+"/") && !strings.Contains(source[len(path)+1:], "/") || strings.HasPrefix(source, e.Resource+"(provider=") {
			e.Diff = diff
		}
	}
}

// properties adds the properties to a resource of a preview. Its messages then belong to no property.
func (r *reportFile) properties(e *model.ResourceEvent, s resourceStatus, lines []model.LogLine) {
	if e.Status != "noop" {
		return
	}
	e.Messages = nil
	for _, event := range s.Events {
		switch {
		case len(e.Properties)+len(e.Messages) >= maxMessages:
		case event.Property == "":
			e.Messages = append(e.Messages, clip.Text(event.Message, maxMessage))
		default:
			e.Properties = append(e.Properties, model.PropertyChange{Property: clip.Text(event.Property, maxMessage), Old: flat(&event.Old), New: flat(&event.New)})
		}
	}
	for _, line := range lines {
		if wouldRefresh(line) && !slices.Contains(e.Messages, line.Message) {
			e.Messages = append(e.Messages, line.Message)
		}
	}
}

// wouldRefresh reports whether noop kept a resource from its refresh. Only the log tells it.
func wouldRefresh(line model.LogLine) bool {
	return strings.HasPrefix(line.Message, "Would have triggered '")
}

// checksum is the value of the property content of a file, of more than minChecksum characters.
var checksum = pattern.Lazy(`^\{\w+\}[0-9a-f]+$`)

const minChecksum = 32

// flat returns a value of a report in one line.
func flat(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.ScalarNode:
		if b, err := base64.StdEncoding.DecodeString(n.Value); err == nil && len(b) > minChecksum && checksum().Match(b) {
			return string(b) // Puppet 7 writes the checksum of a wanted content so
		}
		return clip.Text(n.Value, maxMessage)
	case n.Kind == yaml.SequenceNode && !slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return c.Kind != yaml.ScalarNode }):
		var parts []string
		for _, c := range n.Content {
			parts = append(parts, c.Value)
		}
		return clip.Text(strings.Join(parts, ", "), maxMessage)
	case n.Kind == 0:
		return ""
	}
	b, err := yaml.Marshal(n)
	if err != nil {
		return ""
	}
	return clip.Text(strings.Join(strings.Fields(string(b)), " "), maxMessage)
}

// plainDiff returns a unified diff without times and without the name of Puppet's temporary file: it is the same on nodes
// with the same content.
func plainDiff(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	name, _, _ := strings.Cut(strings.TrimPrefix(lines[0], "--- "), "\t")
	lines[0] = "--- " + name
	if len(lines) > 1 && strings.HasPrefix(lines[1], "+++ ") {
		lines[1] = "+++ " + name
	}
	return strings.Join(lines, "\n")
}

// hidePrivate removes the diffs of files that not every user of the machine can read, now or after the change: their content
// may be secret.
func hidePrivate(resources []model.ResourceEvent) {
	for i := range resources {
		e := &resources[i]
		if e.Diff == "" {
			continue
		}
		head, _, _ := strings.Cut(e.Diff, "\n")
		if !public(strings.TrimPrefix(head, "--- ")) || slices.ContainsFunc(e.Properties, becomesPrivate) {
			e.Diff, e.Hidden = "", true
		}
	}
}

// becomesPrivate reports whether a property takes the right to read from other users. A symbolic mode may do so.
func becomesPrivate(p model.PropertyChange) bool {
	if p.Property != "mode" {
		return false
	}
	last := p.New[max(len(p.New)-1, 0):]
	return !strings.Contains("4567", last) || last == "" || strings.Trim(p.New, "01234567") != ""
}

// public reports whether every user can read a file.
func public(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil || !filepath.IsAbs(path) {
		return false
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
		return false
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}
