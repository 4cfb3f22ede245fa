package content

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// OddityCode is the code of an entry that a release carries, and that may not be read as its author meant.
type OddityCode string

// The codes of oddities.
const (
	LinkOutside   OddityCode = "link_outside"   // a link that leads out of the tree: each node has its own file there, or none
	LinkDangling  OddityCode = "link_dangling"  // a link to a path that the tree does not have
	LinkLoop      OddityCode = "link_loop"      // a link that leads to itself, or through too many links
	LinkAround    OddityCode = "link_around"    // a link to a folder from which links lead back: who follows links never ends
	NameControl   OddityCode = "name_control"   // a line break or another control character, or white space at an end
	NameNotUTF8   OddityCode = "name_not_utf8"  // Puppet can't name such a file
	NameAmbiguous OddityCode = "name_ambiguous" // some file systems can't tell it from Other
)

// Oddity is one such entry.
type Oddity struct {
	Path  string
	Code  OddityCode
	Other string // the target of a link, or the other name
}

// Oddities lists the odd entries of a tree, by path.
func (m *Manifest) Oddities() []Oddity {
	var all []Oddity
	t := tree(m.Entries)
	names := make(map[string]string, len(m.Entries))
	var folders []folderLink
	for _, e := range m.Entries {
		if e.Kind == KindLink {
			end, odd := t.resolve(e)
			if odd != "" {
				all = append(all, Oddity{e.Path, odd, e.Target})
			} else if to, ok := t.find(end); end == "." || ok && to.Kind == KindDirectory {
				folders = append(folders, folderLink{e, end})
			}
		}
		switch base := path.Base(e.Path); {
		case !utf8.ValidString(base):
			all = append(all, Oddity{e.Path, NameNotUTF8, ""})
		case strings.ContainsFunc(base, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }) || strings.TrimSpace(base) != base:
			all = append(all, Oddity{e.Path, NameControl, ""})
		}
		name := fold(path.Base(e.Path))
		if dir := path.Dir(e.Path); dir != "." {
			name = dir + "/" + name
		}
		if other, ok := names[name]; ok {
			all = append(all, Oddity{e.Path, NameAmbiguous, other})
		} else {
			names[name] = e.Path
		}
	}
	for _, l := range around(folders) {
		all = append(all, Oddity{l.Path, LinkAround, l.Target})
	}
	slices.SortStableFunc(all, func(a, b Oddity) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// folderLink is a link to a folder of the tree.
type folderLink struct {
	Entry
	end string // path of the folder, "." for the root
}

// leadsTo reports whether a walk through the link's folder comes to another link.
func (l folderLink) leadsTo(other folderLink) bool {
	return l.end == "." || strings.HasPrefix(other.Path, l.end+"/")
}

// maxFolderLinks limits the links that around compares with each other.
const maxFolderLinks = 2000

// around returns the links through which a walk that follows links comes back to where it was, and those on a way from
// one such circle to another. It removes the links that lead to no link, and those that no link leads to, until none of
// them remains.
func around(links []folderLink) []folderLink {
	if len(links) > maxFolderLinks {
		return slices.DeleteFunc(links, func(l folderLink) bool { return !l.leadsTo(l) })
	}
	for {
		before := len(links)
		for _, leads := range []func(a, b folderLink) bool{
			folderLink.leadsTo, func(a, b folderLink) bool { return b.leadsTo(a) },
		} {
			var kept []folderLink
			for _, l := range links {
				if slices.ContainsFunc(links, func(o folderLink) bool { return leads(l, o) }) {
					kept = append(kept, l)
				}
			}
			links = kept
		}
		if len(links) == before {
			return links
		}
	}
}

// maxLinks is the number of links that Linux follows in one path.
const maxLinks = 40

// resolve follows a link as the kernel does, within the tree. It returns the path at the end, "." for the root, or the
// reason why there is none.
func (t tree) resolve(link Entry) (end string, odd OddityCode) {
	at, todo, links := path.Dir(link.Path), strings.Split(link.Target, "/"), 1
	if strings.HasPrefix(link.Target, "/") {
		return "", LinkOutside
	}
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		switch {
		case c == "" || c == ".":
			continue
		case c == ".." && at == ".":
			return "", LinkOutside
		case c == "..":
			at = path.Dir(at)
			continue
		}
		next := c
		if at != "." {
			next = at + "/" + c
		}
		e, ok := t.find(next)
		switch {
		case !ok:
			return "", LinkDangling
		case e.Kind != KindLink:
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", LinkLoop
		}
		if strings.HasPrefix(e.Target, "/") {
			return "", LinkOutside
		}
		todo = append(strings.Split(e.Target, "/"), todo...)
	}
	return at, ""
}

// fold maps paths to one string if they differ only in case (Unicode simple folding) or in the composition of
// characters.
func fold(p string) string {
	if isASCII(p) {
		return strings.ToLower(p)
	}
	return norm.NFC.String(strings.Map(func(r rune) rune {
		least := r
		for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
			least = min(least, o)
		}
		return unicode.ToLower(least)
	}, norm.NFC.String(p)))
}

// isASCII reports whether a path allows a faster comparison with the same result.
func isASCII(p string) bool {
	for i := range len(p) {
		if p[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
