package main

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"pulley/internal/content"
)

// changeKind is what became of a path between two releases. The words are part of the JSON output.
type changeKind string

// The kinds of changes. A file that is renamed has the same content under another path.
const (
	fileAdded   changeKind = "added"
	fileRemoved changeKind = "removed"
	fileChanged changeKind = "changed" // its content, its mode, its target, or what it is
	fileRenamed changeKind = "renamed"
)

// fileChange is one path that differs.
type fileChange struct {
	Path    string     `json:"path"` // after a rename, the new one
	OldPath string     `json:"old_path,omitempty"`
	Change  changeKind `json:"change"`
	Before  *fileState `json:"before"` // null for what was added
	After   *fileState `json:"after"`  // null for what was removed
	Binary  bool       `json:"binary,omitempty"`
	Added   *int       `json:"added,omitempty"`   // lines
	Removed *int       `json:"removed,omitempty"` // lines
	Patch   string     `json:"patch,omitempty"`

	note string // why there is no patch
}

// fileState is what lies under a path.
type fileState struct {
	Kind   string `json:"kind"` // file, executable, link or directory
	Size   int64  `json:"size"`
	Hash   string `json:"hash,omitempty"`
	Target string `json:"target,omitempty"` // of a link
}

var kindNames = map[content.Kind]string{
	content.KindFile: "file", content.KindExecutable: "executable", content.KindLink: "link", content.KindDirectory: "directory",
}

func stateOf(e *content.Entry) *fileState {
	if e == nil {
		return nil
	}
	s := &fileState{Kind: kindNames[e.Kind], Size: e.Size, Target: e.Target}
	if isFile(e) {
		s.Hash = hex.EncodeToString(e.Hash[:])
	}
	return s
}

// file says whether there is something that a patch can change.
func (s *fileState) file() bool { return s != nil && s.Hash != "" }

func isFile(e *content.Entry) bool {
	return e != nil && (e.Kind == content.KindFile || e.Kind == content.KindExecutable)
}

// comparison is what differs between two trees, with the entries that it was found from.
type comparison struct {
	changes []*fileChange
	entries map[*fileChange][2]*content.Entry // before and after
}

// compare lists what differs, in the order of paths. Folders count only where they are empty: others come and go with what
// is in them. A removed file whose content appears under a new path is renamed, by preference to one of the same name.
func compare(a, b *content.Manifest, wanted func(string) bool) comparison {
	c := comparison{entries: map[*fileChange][2]*content.Entry{}}
	var removed, added []content.Difference
	fullBefore, fullAfter := withContents(a), withContents(b)
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
			c.add(wanted, d.Path, d.Path, fileChanged, d.Before, d.After)
		}
	}
	for _, d := range removed {
		if at := renamedTo(d, added); at >= 0 {
			c.add(wanted, d.Path, added[at].Path, fileRenamed, d.Before, added[at].After)
			added = slices.Delete(added, at, at+1)
			continue
		}
		c.add(wanted, d.Path, d.Path, fileRemoved, d.Before, nil)
	}
	for _, d := range added {
		c.add(wanted, d.Path, d.Path, fileAdded, nil, d.After)
	}
	slices.SortStableFunc(c.changes, func(a, b *fileChange) int { return strings.Compare(a.Path, b.Path) })
	return c
}

func (c *comparison) add(wanted func(string) bool, from, to string, kind changeKind, before, after *content.Entry) {
	if !wanted(from) && !wanted(to) {
		return
	}
	f := &fileChange{Path: to, Change: kind, Before: stateOf(before), After: stateOf(after)}
	if from != to {
		f.OldPath = from
	}
	c.changes = append(c.changes, f)
	c.entries[f] = [2]*content.Entry{before, after}
}

// withContents are the folders that are not empty.
func withContents(m *content.Manifest) map[string]bool {
	full := map[string]bool{}
	for _, e := range m.Entries {
		full[path.Dir(e.Path)] = true
	}
	return full
}

// renamedTo finds the added file that has the content of a removed one, or -1.
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

// describe is what changed of a path beside its content: its name, mode, target, or what it is.
func (c *fileChange) describe() string {
	var notes []string
	if c.OldPath != "" {
		notes = append(notes, "from "+c.OldPath)
	}
	if c.Before != nil && c.After != nil {
		switch {
		case c.Before.Kind == "link" && c.After.Kind == "link":
			notes = append(notes, fmt.Sprintf("target %s → %s", c.Before.Target, c.After.Target))
		case c.Before.Kind != c.After.Kind:
			notes = append(notes, c.Before.Kind+" → "+c.After.Kind)
		}
	} else if s := cmp.Or(c.After, c.Before); s != nil && s.Kind != "file" {
		note := s.Kind
		if s.Target != "" {
			note += " to " + s.Target
		}
		notes = append(notes, note)
	}
	return strings.Join(notes, ", ")
}

// maxPatchBytes bounds a file that is compared line by line.
const maxPatchBytes = 1 << 20

// sized says whether a side of a change is small enough, or no file at all.
func sized(e *content.Entry) bool { return !isFile(e) || e.Size <= maxPatchBytes }

// needsContents says whether the bytes of a change have to be compared.
func needsContents(before, after *content.Entry) bool {
	if !isFile(before) && !isFile(after) || !sized(before) || !sized(after) {
		return false
	}
	return !isFile(before) || !isFile(after) || before.Hash != after.Hash
}

// setPatch fills in the patch and its counts. Before and after are the contents; what is no file has none.
func (c *fileChange) setPatch(before, after []byte) {
	if isBinary(before) || isBinary(after) {
		c.Binary = true
		return
	}
	from, to := "a/"+c.Path, "b/"+c.Path
	if c.OldPath != "" {
		from = "a/" + c.OldPath
	}
	if !c.Before.file() {
		from = "/dev/null"
	}
	if !c.After.file() {
		to = "/dev/null"
	}
	text := diff.Diff(patchName(from), before, patchName(to), after)
	added, removed := 0, 0
	for i, line := range bytes.Split(text, []byte("\n")) {
		switch {
		case i < 3: // diff, ---, +++
		case bytes.HasPrefix(line, []byte("+")):
			added++
		case bytes.HasPrefix(line, []byte("-")):
			removed++
		}
	}
	c.Patch, c.Added, c.Removed = string(text), &added, &removed
}

// patchName is a name as patch(1) reads it to its end: without a tab, a blank would end it.
func patchName(name string) string {
	if strings.ContainsFunc(name, unicode.IsSpace) {
		return name + "\t"
	}
	return name
}

// isBinary is git's rule, a NUL byte near the beginning, and text that no terminal could show.
func isBinary(b []byte) bool {
	return bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 || !utf8.Valid(b)
}
