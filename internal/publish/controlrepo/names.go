package controlrepo

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/hieradata"
	"pulley/internal/puppet"
)

// What the judge reports of manifests. The detail of each is a name, or the key of data.
const (
	called   Rule = "call"     // a function that Puppet itself does not have
	typed    Rule = "type"     // a resource type that Puppet itself does not have
	declares Rule = "declared" // by a site manifest: a class, a defined type, or "node NAME"
	includes Rule = "included" // by a site manifest: the classes in the values of the key; what follows * is unknown
)

var namings = []Rule{called, typed, declares, includes}

// checkNames warns of classes, types and functions that manifests and data name, and that no module has. Without all modules, it warns only
// of names in modules that the Puppetfile does not mention.
func (r *reading) checkNames() {
	r.checkDeclarations()
	if len(r.layout.outside) > 0 { // modules of the machine
		return
	}
	classes, types, functions := r.declared("class"), r.types(), r.functions()
	classes["settings"] = true // of Puppet itself
	warned := map[string]bool{}
	class := func(name string, f Finding) {
		if name == "" || warned[name] || declaredAs(classes, name) {
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
				r.listed(file, "classes", class)
			}
		case r.environmentData(file) != nil:
			for _, f := range r.named {
				if f.Rule == includes {
					r.listed(file, f.detail, class)
				}
			}
		}
	}
	for _, f := range r.named {
		var rule Rule
		switch {
		case asks[f.File] || warned[f.detail] || f.detail == "puppetdb_query": // which has a rule of its own
		case f.detail != "import" && (r.mayHave(f.detail) || !r.opts.Complete && !strings.Contains(f.detail, "::")): // any module may have a name without ::
		case f.Rule == called && !functions[f.detail]:
			rule = FunctionMissing
		case f.Rule == typed && !declaredAs(types, f.detail) && !puppet.IsCoreType(f.detail):
			rule = TypeMissing
		}
		if rule != "" {
			warned[f.detail] = true
			r.add(finding(rule, f.File, f.Line, f.Column, f.detail))
		}
	}
}

// declaredAs reports whether a class or a defined type is declared: by its name, or within a class by the last part of it.
func declaredAs(all map[string]bool, name string) bool {
	at := strings.LastIndex(name, "::")
	return all[name] || at >= 0 && all[name[at+2:]]
}

// listed calls class for each name that a YAML file lists below a key, as Hiera finds it: site.classes is classes in the mapping site.
// In external_nodes/, names can be the keys of a mapping.
func (r *reading) listed(file, key string, class func(name string, f Finding)) {
	doc, err := hieradata.Document(r.files[file])
	if err != nil || len(doc.Content) == 0 {
		return
	}
	values := []*yaml.Node{doc.Content[0]}
	for part := range strings.SplitSeq(key, ".") {
		part, open := strings.CutSuffix(part, "*")
		var found []*yaml.Node
		for _, v := range values {
			for i := 0; v.Kind == yaml.MappingNode && i+1 < len(v.Content); i += 2 {
				if name := strings.TrimPrefix(v.Content[i].Value, ":"); name == part || open && strings.HasPrefix(name, part) {
					found = append(found, v.Content[i+1])
				}
			}
		}
		values = found
	}
	for _, v := range values {
		step := 1
		switch {
		case v.Kind == yaml.MappingNode && isExternalNode(file):
			step = 2
		case v.Kind != yaml.SequenceNode:
			continue
		}
		for i := 0; i < len(v.Content); i += step {
			if name := v.Content[i]; name.Kind == yaml.ScalarNode {
				class(token{text: name.Value}.className(), finding(ClassMissing, file, name.Line, name.Column, ""))
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

// types returns the names of the resource types that modules, the environment itself and manifests have.
func (r *reading) types() map[string]bool {
	all := r.declared("define")
	for file := range r.modes {
		_, rest, _ := r.layout.module(file)
		if name, found := strings.CutPrefix(cmp.Or(rest, file), "lib/puppet/type/"); found {
			all[strings.TrimSuffix(name, ".rb")] = true
		}
	}
	return all
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
