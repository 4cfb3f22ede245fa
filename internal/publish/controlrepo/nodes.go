package controlrepo

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/environments"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/where"
)

// nodeMatchers are the node declarations of the manifests, without "default".
type nodeMatchers struct {
	names    map[string]bool
	patterns []*regexp.Regexp
	unclear  bool // a pattern needs Ruby's regular expressions: no warning about missing matches is possible
	any      bool // there is a node declaration, even if only "default"
	others   bool // "default" is meant for the nodes that no other declaration matches: it is neither empty nor fails
}

// collect adds the node declarations of one manifest.
func (n *nodeMatchers) collect(tokens []token) {
	for i := 0; i < len(tokens); i++ {
		if tokens[i].kind != word || tokens[i].text != "node" {
			continue
		}
		matchers, ok := declaration(tokens[i+1:])
		if !ok {
			continue
		}
		n.any = true
		for _, t := range matchers {
			n.add(t)
			if t.kind == word && t.text == "default" {
				body := tokens[i+1:]
				open := slices.IndexFunc(body, func(t token) bool { return t.kind == symbol && t.text == "{" })
				refuses := open+1 < len(body) && body[open+1].text == "fail"
				n.others = n.others || !isSymbol(body, open+1, "}") && !refuses
			}
		}
	}
}

// declaration returns the tokens between "node" and its brace, if tokens are a node declaration.
func declaration(tokens []token) (matchers []token, ok bool) {
	for _, t := range tokens {
		switch {
		case t.kind == symbol && t.text == "{":
			return matchers, len(matchers) > 0
		case t.kind == word && t.text == "node":
			return nil, false // the next declaration; scanning on from each "node" would take quadratic time
		case t.kind == symbol && (t.text == "," || t.text == "."):
		case t.kind == word, t.kind == regex, t.kind == text && t.whole:
			matchers = append(matchers, t)
		default:
			return nil, false
		}
	}
	return nil, false
}

func (n *nodeMatchers) add(t token) {
	switch {
	case t.kind == regex:
		re, err := regexp.Compile("(?m)" + strings.ReplaceAll(t.text, `\/`, "/"))
		if err != nil {
			n.unclear = true
			return
		}
		n.patterns = append(n.patterns, re)
	case t.text != "default":
		if n.names == nil {
			n.names = map[string]bool{}
		}
		n.names[t.text] = true
	}
}

func (n *nodeMatchers) match(hostname string) bool {
	if n.names[hostname] || n.unclear {
		return true
	}
	for _, re := range n.patterns {
		if re.MatchString(hostname) {
			return true
		}
	}
	return false
}

// missingRoles warns of the roles of an environment with a node that matches only the default declaration, beside other
// declarations.
func (n *nodeMatchers) missingRoles(file string, data []byte, e *environments.Environment) []Finding {
	if n.others || len(n.names) == 0 && len(n.patterns) == 0 {
		return nil // the default declaration is meant for all nodes
	}
	var out []Finding
	for _, role := range e.Roles {
		names := slices.Clone(role.Members)
		if role.Cardinality > 0 {
			for _, num := range []int{1, role.Cardinality} {
				names = append(names, model.Node{Role: role.Name, Num: num, Stack: e.Stack}.Hostname())
			}
		}
		if i := slices.IndexFunc(names, func(name string) bool { return !n.match(name) }); i >= 0 {
			line, column := rolePlace(data, role.Name)
			out = append(out, finding(RoleUnmatched, file, line, column, fmt.Sprintf("%s of role %s", names[i], role.Name)))
		}
	}
	return out
}

// rolePlace returns the place of a role in a parsed environment file.
func rolePlace(data []byte, role string) (line, column int) {
	var doc struct {
		Roles yaml.Node `yaml:"roles"`
	}
	if yaml.Unmarshal(data, &doc) != nil {
		return 0, 0
	}
	for i := 0; i+1 < len(doc.Roles.Content); i += 2 {
		if key := doc.Roles.Content[i]; key.Value == role {
			return key.Line, key.Column
		}
	}
	return 0, 0
}

// checkClouds validates the cloud files and returns the valid ones.
func (r *reading) checkClouds() []environments.Source {
	var clouds []environments.Source
	for name, data := range r.files {
		if !isCloud(name) {
			continue
		}
		if path.Ext(name) == ".yml" {
			r.add(finding(CloudName, name, 0, 0, ""))
		}
		if err := environments.ParseCloud(name, data); err != nil {
			r.add(environmentFindings(name, err)...)
			continue
		}
		clouds = append(clouds, environments.Source{Name: name, Data: data})
	}
	return clouds
}

// load reads an environment. It must be valid alone or with one of the clouds, because no file states which clouds
// belong to it.
func load(name string, data []byte, clouds []environments.Source) (*environments.Environment, error) {
	o := environments.LoadOptions{File: environments.Source{Name: name, Data: data}, Expression: where.Check}
	e, err := environments.Load(o)
	for i := 0; err != nil && i < len(clouds); i++ {
		o.Cloud = &clouds[i]
		if in, problem := environments.Load(o); problem == nil {
			return in, nil
		}
	}
	return e, err
}

// readEnvironments reads the files of environments and clouds of the control repository in root.
func readEnvironments(root string) (*reading, error) {
	r := &reading{modes: map[string]fs.FileMode{}, files: map[string][]byte{}}
	for _, folder := range []string{"environments", "clouds"} {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the environments of %s: %w", root, err)
		}
		for _, e := range entries {
			name := path.Join(folder, e.Name())
			if !e.Type().IsRegular() || !isYAML(name) {
				continue
			}
			data, err := bounded.ReadFile(filepath.Join(root, name), 1<<20)
			if err != nil {
				return nil, fmt.Errorf("cannot read the environments of %s: %w", root, err)
			}
			r.files[name] = data
		}
	}
	return r, nil
}

// Environments checks the environment files of the control repository in root and nothing else. It returns the valid environments.
func Environments(root string) ([]*environments.Environment, Report, error) {
	r, err := readEnvironments(root)
	if err != nil {
		return nil, Report{}, err
	}
	var valid []*environments.Environment
	clouds := r.checkClouds()
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if !IsEnvironment(name) {
			continue
		}
		e, err := load(name, r.files[name], clouds)
		if err != nil {
			r.add(environmentFindings(name, err)...)
			continue
		}
		valid = append(valid, e)
	}
	return valid, r.report(), nil
}

// Nodes returns the nodes of the environment files of the control repository in root, by certname, with their
// environment.
func Nodes(root string) (map[string]string, error) {
	r, err := readEnvironments(root)
	if err != nil {
		return nil, err
	}
	nodes, clouds := map[string]string{}, r.checkClouds()
	for name, data := range r.files {
		if !IsEnvironment(name) {
			continue
		}
		e, err := load(name, data, clouds)
		if err != nil {
			return nil, err
		}
		for n := range certnames(e) {
			nodes[n] = e.Name
		}
		if len(nodes) > maxClassified {
			return nil, fmt.Errorf("cannot classify more than %d nodes one by one\nkeep their answers in the folder, with a default.yaml for nodes that are alike", maxClassified)
		}
	}
	return nodes, nil
}

// certnames returns the certnames of the nodes and members of an environment.
func certnames(e *environments.Environment) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := range e.Nodes() {
			if !yield(n.Hostname()) {
				return
			}
		}
		for _, role := range e.Roles {
			for _, m := range role.Members {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// maxClassified limits the nodes of Nodes: each one is a file of the release.
const maxClassified = 50_000

func environmentFindings(file string, err error) []Finding {
	var several environments.Errors
	if !errors.As(err, &several) {
		return []Finding{finding(EnvironmentFile, file, 0, 0, err.Error())}
	}
	out := make([]Finding, 0, len(several))
	for _, e := range several {
		f := finding(EnvironmentFile, file, e.Line, e.Column, e.Problem)
		f.Problem, f.Hint = e.Problem, cmp.Or(e.Advice, f.Hint) // the rule's sentence would stand in each line
		out = append(out, f)
	}
	return slices.Clip(out)
}
