package controlrepo

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/agent/puppet"
	"pulley/hieradata"
)

// What the judge reports of manifests. The detail of each is a name, or the key of data.
const (
	called   Rule = "call"     // a function that Puppet itself does not have
	typed    Rule = "type"     // a resource type that Puppet itself does not have
	declares Rule = "declared" // by a site manifest: a class, a defined type, or "node NAME"
	includes Rule = "included" // by a site manifest: the classes in the values of the key; what follows * is unknown
)

var namings = []Rule{called, typed, declares, includes}

// checkNames warns of classes, types and functions that manifests and data name, and that no module has. Without all modules, it knows only
// those of modules that the Puppetfile does not mention.
func (r *reading) checkNames() {
	r.checkDeclarations()
	if len(r.layout.outside) > 0 { // modules of the machine
		return
	}
	classes, types, functions := r.declared("class"), r.declared("define"), r.functions()
	classes["settings"] = true // of Puppet itself
	warned := map[string]bool{}
	class := func(name string, f Finding) {
		_, rest, _ := strings.Cut(name, "::")
		last := name[strings.LastIndexByte(name, ':')+1:]
		if name == "" || warned[name] || classes[name] || rest != "" && classes[last] {
			return
		}
		detail, elsewhere := name, r.outsideModulepath(name)
		switch {
		case elsewhere != "" && !r.mayBring(path.Base(elsewhere)):
			detail += fmt.Sprintf(" (it is in %s, and modulepath does not contain %s)", elsewhere, path.Dir(elsewhere))
		case r.mayHave(name):
			return
		}
		warned[name] = true
		r.add(finding(ClassMissing, f.File, f.Line, f.Column, detail))
	}
	asks := map[string]bool{} // manifests that ask whether something exists
	for _, file := range slices.Sorted(maps.Keys(r.files)) {
		switch {
		case r.isNodeCode(file):
			tokens := r.lex(file)
			if asks[file] = slices.ContainsFunc(tokens, func(t token) bool { return t.kind == word && t.text == "defined" }); asks[file] {
				continue
			}
			for _, t := range inclusions(tokens) {
				class(t.className(), findingAt(ClassMissing, file, string(r.files[file]), t.at, ""))
			}
		case isExternalNode(file):
			if _, err := puppet.ParseExternalNode(r.files[file]); err == nil {
				r.listed(file, func(key string) bool { return strings.TrimPrefix(key, ":") == "classes" }, class)
			}
		case r.environmentData(file) != nil:
			for _, f := range r.named {
				key, open := strings.CutSuffix(f.detail, "*")
				top, _, _ := strings.Cut(key, ".")
				if f.Rule == includes {
					r.listed(file, func(name string) bool { return name == key || name == top || open && strings.HasPrefix(name, key) }, class)
				}
			}
		}
	}
	for _, f := range r.named {
		var rule Rule
		switch {
		case !r.isNodeCode(f.File) || asks[f.File] || warned[f.detail]:
		case f.detail != "import" && (r.mayHave(f.detail) || !r.opts.Complete && !strings.Contains(f.detail, "::")): // any module may have a name without ::
		case f.Rule == called && !functions[f.detail]:
			rule = FunctionMissing
		case f.Rule == typed && !types[f.detail] && !puppet.IsCoreType(f.detail) && !r.has("lib/puppet/type/"+f.detail+".rb"):
			rule = TypeMissing
		}
		if rule != "" {
			warned[f.detail] = true
			r.add(finding(rule, f.File, f.Line, f.Column, f.detail))
		}
	}
}

// listed calls class for each name below a key of a YAML file: in lists, or the keys of a mapping.
func (r *reading) listed(file string, below func(key string) bool, class func(name string, f Finding)) {
	doc, err := hieradata.Document(r.files[file])
	if err != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return
	}
	names := func(all []*yaml.Node, step int) {
		for i := 0; i < len(all); i += step {
			if all[i].Kind == yaml.ScalarNode {
				class(token{text: all[i].Value}.className(), finding(ClassMissing, file, all[i].Line, all[i].Column, ""))
			}
		}
	}
	pairs := doc.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		switch value := pairs[i+1]; {
		case !below(pairs[i].Value):
		case value.Kind == yaml.SequenceNode:
			names(value.Content, 1)
		case value.Kind == yaml.MappingNode && isExternalNode(file):
			names(value.Content, 2)
		case value.Kind == yaml.MappingNode: // looked up by a part of the key
			for _, part := range value.Content {
				if part.Kind == yaml.SequenceNode {
					names(part.Content, 1)
				}
			}
		}
	}
}

// isNodeCode reports whether a manifest is of the repository itself, and nodes can load it.
func (r *reading) isNodeCode(file string) bool {
	return r.isSite(file) || r.loadable[file] && !r.vendored(file)
}

// outsideModulepath returns the folder of a module that has the class, and that Puppet does not find.
func (r *reading) outsideModulepath(class string) string {
	module, rest, _ := strings.Cut(class, "::")
	if r.modules()[module] {
		return ""
	}
	manifest := path.Join(module, "manifests", cmp.Or(strings.ReplaceAll(rest, "::", "/"), "init")+".pp")
	for _, up := range []string{".", "site", "site-modules", "dist", "modules", "local"} {
		if _, has := r.modes[path.Join(up, manifest)]; has {
			return path.Join(up, module)
		}
	}
	return ""
}

// has reports whether a module, or the environment itself, has a file.
func (r *reading) has(name string) bool {
	if _, own := r.modes[name]; own {
		return true
	}
	for file := range r.modes {
		if _, rest, _ := r.layout.module(file); rest == name {
			return true
		}
	}
	return false
}

// functions returns the names of the functions that modules and site manifests have.
func (r *reading) functions() map[string]bool {
	all := r.declared("function")
	for file := range r.modes {
		folder, rest, ok := r.layout.module(file)
		module := path.Base(folder)
		if !ok {
			module, rest = "environment", file
		}
		name, isRuby := strings.CutSuffix(rest, ".rb")
		if legacy, found := strings.CutPrefix(name, "lib/puppet/parser/functions/"); found && isRuby {
			all[legacy] = true
		} else if modern, found := strings.CutPrefix(name, "lib/puppet/functions/"); found && isRuby {
			all[strings.ReplaceAll(modern, "/", "::")] = true
		} else if own, found := strings.CutPrefix(strings.TrimSuffix(rest, ".pp"), "functions/"); found && !isRuby {
			all[module+"::"+strings.ReplaceAll(own, "/", "::")] = true
		}
	}
	return all
}

// checkDeclarations finds classes, defined types and nodes that site manifests declare twice: every run reads all of them.
func (r *reading) checkDeclarations() {
	first := map[string]Finding{}
	for _, f := range r.named {
		if f.Rule != declares {
			continue
		}
		if before, twice := first[f.detail]; twice {
			r.add(finding(DeclaredTwice, f.File, f.Line, f.Column, fmt.Sprintf("%s, first in %s", f.detail, strings.TrimSuffix(before.place(), ": "))))
			continue
		}
		first[f.detail] = f
	}
}
