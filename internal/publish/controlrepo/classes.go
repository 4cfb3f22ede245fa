package controlrepo

import (
	"path"
	"regexp"
	"strings"
)

// inclusions returns the names of the classes that code includes by name: include a, b; contain c; class { 'd': }; inherits e.
func inclusions(tokens []token) (names []token) {
	for i, t := range tokens {
		switch {
		case i > 0 && isSymbol(tokens, i-1, "."): // a method, whose arguments are before it
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

// declared returns the names that the manifests declare after a keyword: class, define or function.
func (r *reading) declared(keyword string) map[string]bool {
	all := map[string]bool{}
	for file := range r.files {
		if path.Ext(file) != ".pp" {
			continue
		}
		tokens := r.lex(file)
		for i, t := range tokens {
			if t.kind == word && t.text == keyword && i+1 < len(tokens) && tokens[i+1].kind == word {
				all[tokens[i+1].className()] = true
			}
		}
	}
	return all
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

// modules returns the names of the modules in the repository.
func (r *reading) modules() map[string]bool {
	if r.moduleNames == nil {
		r.moduleNames = map[string]bool{}
		for file := range r.modes {
			if folder, _, ok := r.layout.module(file); ok {
				r.moduleNames[path.Base(folder)] = true
			}
		}
	}
	return r.moduleNames
}

// mayHave reports whether a module that is not in the folder may have a name: of a class, or of a function or a type, which are qualified
// or may be in any module. Only a Puppetfile that is not resolved brings such modules.
func (r *reading) mayHave(name string) bool {
	module, _, _ := strings.Cut(name, "::")
	return !r.opts.Complete && (!r.modules()[module] || r.mayBring(module))
}

var commentLine = regexp.MustCompile(`(?m)^[ \t]*#.*$`)

// mayBring reports whether the Puppetfile mentions a module, other than in a comment.
func (r *reading) mayBring(module string) bool {
	brings, known := r.brings[module]
	if !known {
		brings = regexp.MustCompile(`\b` + regexp.QuoteMeta(module) + `\b`).Match(commentLine.ReplaceAll(r.puppetfile, nil))
		if r.brings == nil {
			r.brings = map[string]bool{}
		}
		r.brings[module] = brings
	}
	return brings
}
