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

// Ignored reports whether git ignores a path, or a folder above it.
func (f *Folder) Ignored(name string) bool { return changes{ignored: f.ignored}.ignores(name) }

// Vendored reports whether a path is in a module that the Puppetfile names.
func (f *Folder) Vendored(name string) bool {
	return f.puppetfile != nil && slices.ContainsFunc(f.puppetfile.modules, func(m string) bool { return strings.HasPrefix(name, m+"/") })
}
