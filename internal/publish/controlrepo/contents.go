package controlrepo

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// readers are the functions that read a file of a module, named MODULE/FILE, and the folder of the module that has it.
var readers = map[string]string{"template": "templates", "epp": "templates", "file": "files"}

// checkContents warns of files of modules that manifests read by a literal name, as the only choice, and that the module does not have.
func (r *reading) checkContents() {
	for _, file := range slices.Sorted(maps.Keys(r.files)) {
		if !r.isNodeCode(file) {
			continue
		}
		tokens := r.lex(file)
		for i, t := range tokens {
			if name := moduleFile(tokens, i); name != "" && r.lacks(name) {
				r.add(findingAt(FileMissing, file, string(r.files[file]), t.at, t.text))
			}
		}
	}
}

// moduleFile returns the file of a module that a text names, as MODULE/templates/FILE; "" for none.
func moduleFile(tokens []token, i int) string {
	t, folder := tokens[i], ""
	if t.kind != text || !t.whole || i < 2 {
		return ""
	}
	name, isSource := strings.CutPrefix(t.text, "puppet:///modules/")
	switch before := tokens[i-2]; {
	case isSource && isSymbol(tokens, i-1, "=>") && before.text == "source":
		folder = "files"
	case isSymbol(tokens, i-1, "(") && before.kind == word && (isSymbol(tokens, i+1, ")") || before.text == "epp"):
		folder = readers[before.text]
	}
	module, rest, ok := strings.Cut(name, "/")
	if folder == "" || !ok || module == "" || rest == "" {
		return ""
	}
	if tokens[i-2].text == "epp" && path.Ext(rest) != ".epp" {
		rest += ".epp" // as Puppet does
	}
	return path.Join(module, folder, rest)
}

// lacks reports whether a module of the repository has neither a file nor a folder, and no link that may lead to it.
func (r *reading) lacks(name string) bool {
	module, _, _ := strings.Cut(name, "/")
	if len(r.layout.outside) > 0 || !r.modules()[module] || !r.opts.Complete && r.mayBring(module) {
		return false
	}
	for _, dir := range r.layout.modulepath {
		for p := path.Join(dir, name); p != path.Join(dir, module) && p != "."; p = path.Dir(p) {
			if _, has := r.modes[p]; has {
				return false
			}
			if info, err := fs.Lstat(r.repo, p); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return false
			}
		}
	}
	for file := range r.modes {
		for _, dir := range r.layout.modulepath {
			if within(path.Join(dir, name), file) {
				return false
			}
		}
	}
	return true
}
