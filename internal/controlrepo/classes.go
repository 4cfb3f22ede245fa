package controlrepo

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// inclusions returns the names of the classes that code includes by name: include a, b; contain c; class { 'd': }; inherits e.
func inclusions(tokens []token) (names []token) {
	for i, t := range tokens {
		switch {
		case t.kind == word && (t.text == "include" || t.text == "contain" || t.text == "require"):
			expected := true
			for n, name := range tokens[i+1:] {
				switch {
				case name.kind == symbol && (name.text == "(" || name.text == "["):
					continue
				case name.kind == symbol && name.text == "," && !expected:
					expected = true
					continue
				case expected && (name.kind == word && !followedBy(tokens, i+1+n, "(") || name.kind == text && name.whole):
					names = append(names, name)
					expected = false
					continue
				}
				break
			}
		case t.kind == word && t.text == "class" && isSymbol(tokens, i+1, "{") && i+2 < len(tokens) && tokens[i+2].kind == text && tokens[i+2].whole:
			names = append(names, tokens[i+2])
		case t.kind == word && t.text == "inherits" && i+1 < len(tokens) && tokens[i+1].kind == word:
			names = append(names, tokens[i+1])
		}
	}
	return names
}

// className matches the name of a class.
var className = regexp.MustCompile(`^(?:::)?[a-z]\w*(?:::[a-z]\w*)*$`)

// className returns the class that a token names, as Puppet looks it up; "" for other texts.
func (t token) className() string {
	name := strings.ToLower(t.text)
	if !className.MatchString(name) || name[0] != t.text[0] { // a type begins with a capital
		return ""
	}
	return strings.TrimPrefix(name, "::")
}

// declaredClasses returns the classes that the manifests declare, also within others.
func (r *reading) declaredClasses() map[string]bool {
	declared := map[string]bool{"settings": true} // of Puppet itself
	for file := range r.files {
		if path.Ext(file) != ".pp" {
			continue
		}
		tokens := r.lex(file)
		for i, t := range tokens {
			if t.kind == word && t.text == "class" && i+1 < len(tokens) && tokens[i+1].kind == word {
				declared[tokens[i+1].className()] = true
			}
		}
	}
	return declared
}

// include finds the manifests of the classes that site manifests include, directly or by others.
func (r *reading) include(autoloaded map[string]string) {
	files := map[string][]string{}
	var pending []string
	for file, name := range autoloaded {
		files[name] = append(files[name], file)
	}
	for file := range r.files {
		if r.isSite(file) {
			pending = append(pending, file)
		}
	}
	r.used = map[string]bool{}
	for len(pending) > 0 {
		file := pending[0]
		pending = pending[1:]
		for _, name := range inclusions(r.lex(file)) {
			for _, next := range files[name.className()] {
				if !r.used[next] {
					r.used[next] = true
					pending = append(pending, next)
				}
			}
		}
	}
}

// hasModule reports whether the repository has a folder of the module.
func (r *reading) hasModule(module string) bool {
	for file := range r.modes {
		if folder, _, ok := r.layout.module(file); ok && path.Base(folder) == module {
			return true
		}
	}
	return false
}

// checkClasses warns of classes that site manifests and own manifests that nodes can load include, and that no module has. Without all
// modules, it knows only those of modules that the Puppetfile does not mention.
func (r *reading) checkClasses() {
	if len(r.layout.outside) > 0 { // modules of the machine
		return
	}
	declared := r.declaredClasses()
	modules := map[string]bool{}
	for file := range r.modes {
		if folder, _, ok := r.layout.module(file); ok {
			modules[path.Base(folder)] = true
		}
	}
	warned := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(r.files)) {
		if !r.isSite(file) && (!r.loadable[file] || r.vendored(file)) {
			continue
		}
		tokens := r.lex(file)
		if slices.ContainsFunc(tokens, func(t token) bool { return t.kind == word && t.text == "defined" }) {
			continue // it asks whether the class exists
		}
		for _, t := range inclusions(tokens) {
			name := t.className()
			module, rest, _ := strings.Cut(name, "::")
			last := name[strings.LastIndexByte(name, ':')+1:]
			switch {
			case name == "" || warned[name] || declared[name] || rest != "" && declared[last]:
			case !r.opts.Complete && (!modules[module] || r.mayBring(module)):
			default:
				warned[name] = true
				r.add(findingAt(ClassMissing, file, string(r.files[file]), t.at, name))
			}
		}
	}
}

// mayBring reports whether the Puppetfile mentions a module.
func (r *reading) mayBring(module string) bool {
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(module) + `\b`).Match(r.puppetfile)
}
