package controlrepo

import (
	"regexp"
	"strings"
)

// nameForm matches names of classes, functions and types, and the beginnings that an interpolation completes, as
// profile:: in "profile::${x}".
var nameForm = regexp.MustCompile(`(?:[A-Za-z_]\w*::)*(?:[A-Za-z_]\w*|$)`)

// mentions are the names in code or data. They may be names of classes.
type mentions struct {
	names    map[string]bool
	prefixes map[string]bool // end with ::
}

func (m *mentions) add(text string, open bool) {
	for _, name := range nameForm.FindAllString(text, -1) {
		m.names[strings.ToLower(name)] = true
	}
	if end := strings.ToLower(nameForm.FindString(text[strings.LastIndexAny(text, " \t\n'\"")+1:])); open && strings.HasSuffix(end, "::") {
		m.prefixes[end] = true
	}
}

// reached returns the manifests that nodes may load: those whose name is in a site manifest, in data, or in a manifest
// that nodes may load. Names that nothing in the repository contains, such as those of an external classifier, are
// unknown.
func (r *reading) reached(autoloaded map[string]string) map[string]bool {
	files := map[string][]string{} // by autoloaded name
	for file, name := range autoloaded {
		files[name] = append(files[name], file)
	}
	m := mentions{map[string]bool{}, map[string]bool{}}
	reached := map[string]bool{}
	var pending []string
	for file := range r.files {
		switch {
		case r.isSite(file):
			pending = append(pending, file)
		case r.data[file] != nil, isExternalNode(file):
			m.add(string(r.files[file]), false)
		}
	}
	take := func(name string) {
		module, _, _ := strings.Cut(name, "::")
		for _, file := range append(files[name], files[module]...) { // Puppet loads init.pp as well
			if !reached[file] {
				reached[file] = true
				pending = append(pending, file)
			}
		}
	}
	for {
		for _, file := range pending {
			for _, t := range r.lex(file) {
				if t.kind == word || t.kind == text {
					m.add(t.text, t.open)
				}
			}
		}
		pending = nil
		for name := range files {
			if m.names[name] || m.begins(name) {
				take(name)
			}
		}
		if len(pending) == 0 {
			return reached
		}
	}
}

func (m *mentions) begins(name string) bool {
	for prefix := range m.prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
