package controlrepo

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/model"
)

// WantClass reports whether the class of a key of Hiera may be in a file of a release, or another part of its module.
func WantClass(key string) func(file string) bool {
	module, _, _ := strings.Cut(key, "::")
	return func(file string) bool {
		return path.Ext(file) == ".pp" && strings.Contains("/"+file, "/"+module+"/manifests/")
	}
}

// KeyFlaw tells why the classes of a release do not use a key of Hiera, such as profile::app::port, or its value; "" if they do, or if nobody
// can tell. Files are those of WantClass. Kind is the type of the value in Puppet's language; "" if it is unknown.
func KeyFlaw(files map[string][]byte, key, kind string) string {
	at := strings.LastIndex(key, "::")
	if at < 0 || len(files) == 0 {
		return ""
	}
	class, name := key[:at], key[at+2:]
	all := map[string][]token{}
	for file, b := range files {
		all[file] = lex(string(b))
		if slices.ContainsFunc(all[file], func(t token) bool { return t.kind == text && t.text == key }) {
			return "" // a lookup
		}
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		tokens := all[file]
		for i, t := range tokens {
			if t.kind != word || t.text != "class" || i+1 >= len(tokens) || strings.TrimPrefix(tokens[i+1].text, "::") != class {
				continue
			}
			types := parameterTypes(tokens[i+1:])
			want, known := types[name]
			switch {
			case !known:
				advice := ""
				if near := model.SuggestName(name, slices.Sorted(maps.Keys(types))); near != "" {
					advice = fmt.Sprintf("; did you mean %s::%s?", class, near)
				}
				return fmt.Sprintf("class %s has no parameter %s%s", class, name, advice)
			case kind != "" && want != "" && want != kind && !(want == "Numeric" && (kind == "Integer" || kind == "Float")):
				return fmt.Sprintf("class %s wants %s, and the value is %s", class, want, kind)
			}
			return ""
		}
	}
	return fmt.Sprintf("no class and no lookup of module %s has it", cmp.Or(strings.Split(class, "::")[0], class))
}

// MayLookUp reports whether a file of a release may look up keys of Hiera: code, templates and data of any module.
func MayLookUp(name string) bool {
	return slices.Contains([]string{".pp", ".epp", ".erb", ".rb", ".yaml", ".yml", ".json", ".eyaml"}, path.Ext(name))
}

// LooksUp reports whether code or data use a key by its name. A key that data only define is not used.
func LooksUp(files map[string][]byte, key string) bool {
	name := regexp.QuoteMeta(key)
	code := regexp.MustCompile(`['"](::)?` + name + `['".]`)
	data := regexp.MustCompile(`\b(lookup|alias|hiera)\(\s*['"\\]*(::)?` + name + `\b`)
	for file, b := range files {
		if !bytes.Contains(b, []byte(key)) {
			continue
		}
		switch path.Ext(file) {
		case ".yaml", ".yml", ".json", ".eyaml":
			if data.Match(b) {
				return true
			}
		default:
			if code.Match(b) {
				return true
			}
		}
	}
	return false
}

// Converts reports whether data may convert values of keys to other types, by their lookup_options.
func Converts(files map[string][]byte) bool {
	for file, b := range files {
		if path.Ext(file) != ".pp" && bytes.Contains(b, []byte("convert_to")) {
			return true
		}
	}
	return false
}

// plain are the types that a value of Hiera has by itself.
var plain = []string{"String", "Integer", "Float", "Numeric", "Boolean", "Array", "Hash"}

// parameterTypes returns the parameters of a class, each with its type if that is a plain one.
func parameterTypes(tokens []token) map[string]string {
	types := map[string]string{}
	names := parameters(tokens)
	for i, t := range tokens[:min(len(tokens), maxHeaderTokens)] {
		if t.kind != variable || !slices.Contains(names, t.text) {
			continue
		}
		if _, known := types[t.text]; known { // a default that uses it
			continue
		}
		at := i - 1
		for depth := 0; at > 0; at-- {
			if isSymbol(tokens, at, "]") {
				depth++
			} else if isSymbol(tokens, at, "[") {
				depth--
			} else if depth == 0 {
				break
			}
		}
		types[t.text] = ""
		if at <= 0 || tokens[at].kind != word {
			continue
		}
		head := tokens[at].text
		if slices.Contains(plain, head) {
			types[t.text] = head
		}
	}
	return types
}
