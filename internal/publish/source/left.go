package source

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// leftModules are the modules of the operator's folder, by path, that a tool installed in an earlier run or may have installed. They
// lie in folders where tools install modules.
type leftModules struct {
	stale  map[string]string // the copy leaves them out, and why; the tool installs those of the Puppetfile again
	clones []string          // of git. Nobody else has them if the Puppetfile, which is Ruby, does not name them
}

// leftModules finds these modules. Modules that git tracks, submodules, and local ones of the Puppetfile are the operator's.
func (p *puppetfile) leftModules(root string, c changes) leftModules {
	old := leftModules{stale: map[string]string{}}
	for _, folder := range p.folders {
		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(folder)))
		if err != nil || slices.Contains(p.modules, folder) {
			continue // the folder is missing or is a module, or the copy reports the error
		}
		for _, e := range entries {
			name := path.Join(folder, e.Name())
			has := func(mark string) bool {
				_, err := os.Lstat(filepath.Join(root, filepath.FromSlash(name), mark))
				return err == nil
			}
			switch {
			case p.leadsTo(name), slices.Contains(p.local, name), slices.ContainsFunc(c.tracked, func(file string) bool { return within(file, []string{name}) }):
			case c.ignores(name):
				old.stale[name] = "git ignores them"
			case has(".latest_commit"):
				old.stale[name] = "g10k installed them"
			case has(".git") && slices.Contains(p.modules, name):
				old.stale[name] = "the Puppetfile names them"
			case has(".git"):
				old.clones = append(old.clones, name)
			}
		}
	}
	return old
}

// replaces lists the modules of a folder in whose place the Puppetfile has others, as far as it names them in plain strings. No tool has run.
func (p *puppetfile) replaces(root string, c changes) []string {
	old := p.leftModules(root, c)
	return slices.DeleteFunc(slices.Clone(p.modules), func(name string) bool {
		is := filepath.Join(root, filepath.FromSlash(name))
		info, err := os.Lstat(is)
		if err == nil && info.IsDir() {
			var entries []os.DirEntry
			if entries, err = os.ReadDir(is); len(entries) == 0 {
				return true
			}
		}
		return err != nil || slices.Contains(p.local, name) || slices.Contains(old.clones, name) || old.stale[name] != "" || c.ignores(name)
	})
}

// ignores reports whether git ignores a path, or a folder above it.
func (c changes) ignores(name string) bool {
	return slices.ContainsFunc(c.ignored, func(path string) bool { return within(name, []string{strings.TrimSuffix(path, "/")}) })
}

// within reports whether a path is one of some folders, or lies in one.
func within(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") })
}

// maxNamed limits the modules that a note names.
const maxNamed = 20

// noteModules names the modules of the operator's folder that the release lacks or has otherwise, and those of unknown origin.
func (f *Folder) noteModules(old leftModules) {
	unnamed := func(names []string, sentence string) {
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(f.made, name) })
		f.noteNames(names, "modules that the Puppetfile does not name "+sentence)
	}
	if note := f.Replaced(); note != "" {
		f.Notes = append(f.Notes, note)
	}
	unnamed(old.clones, "are published as they are in the folder, because they are clones of git")
	byCause := map[string][]string{}
	for name, why := range old.stale {
		byCause[why] = append(byCause[why], name)
	}
	for _, why := range slices.Sorted(maps.Keys(byCause)) {
		slices.Sort(byCause[why])
		unnamed(byCause[why], "are left out, because "+why)
	}
}

// Replaced is the note of the folder's modules in whose place the Puppetfile has others; "" for none.
func (f *Folder) Replaced() string {
	return named(f.replaced, "modules of the folder are left out, because the Puppetfile has others with their names")
}

// noteNames notes a sentence about modules, if there are any.
func (f *Folder) noteNames(names []string, sentence string) {
	if note := named(names, sentence); note != "" {
		f.Notes = append(f.Notes, note)
	}
}

func named(names []string, sentence string) string {
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed:maxNamed], fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		return ""
	}
	return sentence + ": " + strings.Join(names, ", ")
}
