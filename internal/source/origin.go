package source

import (
	"path"
	"slices"
	"strings"
)

// differences are the paths that git does not have as they are: files, and folders that git does not read.
func (c changes) differences() map[string]bool {
	all := map[string]bool{}
	for _, name := range slices.Concat(c.changed, c.ignored) {
		all[strings.TrimSuffix(name, "/")] = true
	}
	return all
}

// Committed reports whether git has a file as it is. Without git, no file is committed.
func (f *Folder) Committed(name string) bool {
	if f.Facts.Commit == "" {
		return false
	}
	for up := name; up != "." && up != "/"; up = path.Dir(up) {
		if f.differs[up] {
			return false
		}
	}
	return true
}

// Vendored returns a test for paths in modules that the Puppetfile names. The error reports an unreadable Puppetfile; the
// test is never nil.
func (f *Folder) Vendored() (func(name string) bool, error) {
	p, err := readPuppetfile(f.Root)
	if err != nil || p == nil {
		return func(string) bool { return false }, err
	}
	return func(name string) bool {
		return slices.ContainsFunc(p.modules, func(m string) bool { return strings.HasPrefix(name, m+"/") })
	}, nil
}
