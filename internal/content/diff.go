package content

import "strings"

// Difference is one path that differs between two trees.
type Difference struct {
	Path          string
	Before, After *Entry // nil if the tree lacks the path
}

// Diff lists the differences between two trees, sorted by path.
func Diff(a, b *Manifest) []Difference {
	var all []Difference
	before, after := a.Entries, b.Entries
	for len(before) > 0 || len(after) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = strings.Compare(before[0].Path, after[0].Path)
		}
		switch {
		case order < 0:
			all = append(all, Difference{Path: before[0].Path, Before: &before[0]})
			before = before[1:]
		case order > 0:
			all = append(all, Difference{Path: after[0].Path, After: &after[0]})
			after = after[1:]
		default:
			if before[0] != after[0] {
				all = append(all, Difference{Path: before[0].Path, Before: &before[0], After: &after[0]})
			}
			before, after = before[1:], after[1:]
		}
	}
	return all
}

// apply applies differences to a and returns the result; the caller must check it. It refuses differences that are out
// of order or do not match a.
func apply(a *Manifest, differences []Difference) (*Manifest, error) {
	b := &Manifest{Entries: make([]Entry, 0, len(a.Entries)+len(differences))}
	rest := a.Entries
	for i, d := range differences {
		if i > 0 && d.Path <= differences[i-1].Path {
			return nil, &RefusedError{d.Path, "it is changed twice or out of order", hintBroken}
		}
		for len(rest) > 0 && rest[0].Path < d.Path {
			b.Entries = append(b.Entries, rest[0])
			rest = rest[1:]
		}
		there := len(rest) > 0 && rest[0].Path == d.Path
		if there {
			rest = rest[1:]
		}
		switch {
		case d.After != nil:
			b.Entries = append(b.Entries, *d.After)
		case !there:
			return nil, &RefusedError{d.Path, "it is to be removed and is not there", hintBroken}
		}
	}
	if b.Entries = append(b.Entries, rest...); len(b.Entries) > MaxEntries {
		return nil, tooManyEntries()
	}
	return b, nil
}
