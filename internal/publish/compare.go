package publish

import (
	"context"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"pulley/internal/publish/source"
	"pulley/internal/release"
	"pulley/internal/release/content"
)

// ChangeKind is the difference of one path between two releases.
type ChangeKind string

// The kinds of changes. A renamed file has the same content under another path.
const (
	Added   ChangeKind = "added"
	Removed ChangeKind = "removed"
	Changed ChangeKind = "changed" // its content, mode, link target or kind
	Renamed ChangeKind = "renamed"
)

// FileChange is one path that differs.
type FileChange struct {
	Path    string     `json:"path"` // the new path after a rename
	OldPath string     `json:"old_path,omitempty"`
	Change  ChangeKind `json:"change"`
	Before  *FileState `json:"before"` // null if added
	After   *FileState `json:"after"`  // null if removed

	// The bytes of names that are not UTF-8, which JSON cannot hold.
	PathBytes    []byte `json:"path_bytes,omitempty"`
	OldPathBytes []byte `json:"old_path_bytes,omitempty"`
}

// FileState is one entry of a release.
type FileState struct {
	Kind   string `json:"kind"` // file, executable, link or directory
	Size   int64  `json:"size"`
	Hash   string `json:"hash,omitempty"`
	Target string `json:"target,omitempty"` // of a link

	TargetBytes []byte `json:"target_bytes,omitempty"` // if the target is not UTF-8
}

// notUTF8 returns the bytes of a name that JSON cannot hold, or nil.
func notUTF8(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

// Comparison is the difference between two releases, by path.
type Comparison struct {
	From    string       `json:"from"`
	To      string       `json:"to"`
	Changes []FileChange `json:"changes"`

	Modules []ModuleChange `json:"modules,omitempty"` // of the Puppetfiles, by name

	// The environments of Puppet servers that reference releases name. Their code is not compared.
	FromEnvironment string `json:"from_puppet_environment,omitempty"`
	ToEnvironment   string `json:"to_puppet_environment,omitempty"`
}

// ModuleChange is a module of a Puppetfile that was resolved differently.
type ModuleChange struct {
	Name   string         `json:"name"`
	Before *source.Module `json:"before"` // null if the release did not have it
	After  *source.Module `json:"after"`
}

// Compare compares two releases. If paths are given, it compares only these files and the files in these folders.
func Compare(ctx context.Context, s *release.Releases, from, to string, paths []string) (Comparison, error) {
	for i, p := range paths {
		paths[i] = path.Clean(strings.Trim(p, "/"))
	}
	a, err := readManifest(ctx, s, from)
	if err != nil {
		return Comparison{}, err
	}
	b, err := readManifest(ctx, s, to)
	if err != nil {
		return Comparison{}, err
	}
	for _, p := range paths {
		if !has(a, p) && !has(b, p) {
			return Comparison{}, fmt.Errorf("cannot compare %q: neither %s nor %s has it\ngive paths from the root of a release, like manifests/site.pp", p, from, to)
		}
	}
	c := Comparison{From: from, To: to, Changes: compare(a, b, paths)}
	if len(paths) > 0 {
		return c, nil
	}
	before, err := s.Get(ctx, from)
	if err != nil {
		return c, err
	}
	after, err := s.Get(ctx, to)
	if err != nil {
		return c, err
	}
	c.FromEnvironment, c.ToEnvironment = before.PuppetEnvironment, after.PuppetEnvironment
	c.Modules, err = compareModules(ctx, s, before, after)
	return c, err
}

// compareModules compares the modules that two releases name in their deploy files.
func compareModules(ctx context.Context, s *release.Releases, from, to release.SignedRelease) (changes []ModuleChange, err error) {
	var modules [2]map[string]source.Module
	for i, r := range []release.SignedRelease{from, to} {
		files, err := content.ReadFiles(ctx, s, r.Content, func(p string) bool { return p == source.DeployFile })
		if err != nil {
			return nil, damaged(ctx, fmt.Errorf("cannot read release %s: %w", r.Version, err))
		}
		modules[i] = source.ParseModules(files[source.DeployFile])
	}
	for name, before := range modules[0] {
		after, ok := modules[1][name]
		switch {
		case !ok:
			changes = append(changes, ModuleChange{name, &before, nil})
		case after != before:
			changes = append(changes, ModuleChange{name, &before, &after})
		}
	}
	for name, after := range modules[1] {
		if _, ok := modules[0][name]; !ok {
			changes = append(changes, ModuleChange{name, nil, &after})
		}
	}
	slices.SortFunc(changes, func(a, b ModuleChange) int { return strings.Compare(a.Name, b.Name) })
	return changes, nil
}

// Describe returns versions and short commits.
func (c ModuleChange) Describe() string {
	state := func(m *source.Module) string {
		if m == nil {
			return "none"
		}
		return strings.TrimSpace(fmt.Sprintf("%s %.10s", m.Version, m.SHA))
	}
	return state(c.Before) + " → " + state(c.After)
}

func readManifest(ctx context.Context, s *release.Releases, version string) (*content.Manifest, error) {
	r, err := s.Get(ctx, version)
	if err != nil {
		return nil, err
	}
	v, err := content.OpenView(ctx, s, r.Content)
	if err != nil {
		return nil, damaged(ctx, fmt.Errorf("cannot read release %s: %w", version, err))
	}
	return v.Manifest(), nil
}

func has(m *content.Manifest, p string) bool {
	return p == "." || slices.ContainsFunc(m.Entries, func(e content.Entry) bool { return e.Path == p })
}

// within reports whether a path is one of paths or lies below one. Without paths, it returns true.
func within(p string, paths []string) bool {
	for _, a := range paths {
		if p == a || a == "." || strings.HasPrefix(p, a+"/") {
			return true
		}
	}
	return len(paths) == 0
}

// compare returns the differences, sorted by path. It lists only empty folders, because files imply the others. If the
// content of a removed file appears under a new path, the file is renamed; a path with the same file name has
// preference.
func compare(a, b *content.Manifest, paths []string) []FileChange {
	changes := []FileChange{}
	add := func(from, to string, kind ChangeKind, before, after *content.Entry) {
		if !within(from, paths) && !within(to, paths) {
			return
		}
		f := FileChange{Path: to, Change: kind, Before: stateOf(before), After: stateOf(after), PathBytes: notUTF8(to)}
		if from != to {
			f.OldPath, f.OldPathBytes = from, notUTF8(from)
		}
		changes = append(changes, f)
	}
	var removed, added []content.Difference
	fullBefore, fullAfter := folders(a), folders(b)
	for _, d := range content.Diff(a, b) {
		if d.Before != nil && d.Before.Kind == content.KindDirectory && fullBefore[d.Path] {
			d.Before = nil
		}
		if d.After != nil && d.After.Kind == content.KindDirectory && fullAfter[d.Path] {
			d.After = nil
		}
		switch {
		case d.Before == nil && d.After == nil:
		case d.Before == nil:
			added = append(added, d)
		case d.After == nil:
			removed = append(removed, d)
		default:
			add(d.Path, d.Path, Changed, d.Before, d.After)
		}
	}
	for _, d := range removed {
		if at := renamedTo(d, added); at >= 0 {
			add(d.Path, added[at].Path, Renamed, d.Before, added[at].After)
			added = slices.Delete(added, at, at+1)
			continue
		}
		add(d.Path, d.Path, Removed, d.Before, nil)
	}
	for _, d := range added {
		add(d.Path, d.Path, Added, nil, d.After)
	}
	slices.SortStableFunc(changes, func(a, b FileChange) int { return strings.Compare(a.Path, b.Path) })
	return changes
}

// folders returns the folders that contain entries.
func folders(m *content.Manifest) map[string]bool {
	full := map[string]bool{}
	for _, e := range m.Entries {
		full[path.Dir(e.Path)] = true
	}
	return full
}

// renamedTo returns the index of the added file with the content of a removed one, or -1.
func renamedTo(d content.Difference, added []content.Difference) int {
	if !isFile(d.Before) || d.Before.Size == 0 {
		return -1
	}
	found := -1
	for i, a := range added {
		if !isFile(a.After) || a.After.Hash != d.Before.Hash {
			continue
		}
		if path.Base(a.Path) == path.Base(d.Path) {
			return i
		}
		if found < 0 {
			found = i
		}
	}
	return found
}

func isFile(e *content.Entry) bool {
	return e != nil && (e.Kind == content.KindFile || e.Kind == content.KindExecutable)
}

func stateOf(e *content.Entry) *FileState {
	if e == nil {
		return nil
	}
	kinds := map[content.Kind]string{
		content.KindFile: "file", content.KindExecutable: "executable", content.KindLink: "link", content.KindDirectory: "directory",
	}
	s := &FileState{Kind: kinds[e.Kind], Size: e.Size, Target: e.Target, TargetBytes: notUTF8(e.Target)}
	if isFile(e) {
		s.Hash = hex.EncodeToString(e.Hash[:])
	}
	return s
}

// Describe returns the changes besides the content: name, mode, link target or kind. It returns "" if there are none.
func (c FileChange) Describe() string {
	var notes []string
	if c.OldPath != "" {
		notes = append(notes, "from "+ShownName(c.OldPath))
	}
	one := c.After
	if one == nil {
		one = c.Before
	}
	switch {
	case c.Before != nil && c.After != nil && c.Before.Kind == "link" && c.After.Kind == "link":
		notes = append(notes, fmt.Sprintf("target %s → %s", ShownName(c.Before.Target), ShownName(c.After.Target)))
	case c.Before != nil && c.After != nil && c.Before.Kind != c.After.Kind:
		notes = append(notes, c.Before.Kind+" → "+c.After.Kind)
	case c.Before != nil && c.After != nil:
	case one.Target != "":
		notes = append(notes, one.Kind+" to "+ShownName(one.Target))
	case one.Kind != "file":
		notes = append(notes, one.Kind)
	}
	return strings.Join(notes, ", ")
}
