package controlrepo

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"pulley/hieradata"
)

// environmentUse is a place that expects a value of $environment.
type environmentUse struct {
	name, file   string
	line, column int
}

// checkEnvironmentNames warns of data and code for environments that the repository does not have, while it has others.
// On a node of Pulley, $environment is the name of the environment file, which is seldom that of the former branch.
func (r *reading) checkEnvironmentNames() {
	own, used := map[string]bool{}, map[string]bool{}
	for name := range r.files {
		if IsEnvironment(name) {
			own[strings.TrimSuffix(path.Base(name), path.Ext(name))] = true
		}
	}
	uses := r.environmentUses()
	for _, u := range uses {
		used[u.name] = true
	}
	var unused []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !used[name] {
			unused = append(unused, name)
		}
	}
	if len(unused) == 0 {
		return // also without environments
	}
	for _, u := range uses {
		if !own[u.name] {
			own[u.name] = true // once
			r.add(finding(EnvironmentName, u.file, u.line, u.column, fmt.Sprintf("%s; the environments are %s", u.name, strings.Join(unused[:min(len(unused), 5)], ", "))))
		}
	}
}

// environmentUses returns the places in own data and code that expect a value of $environment, by file.
func (r *reading) environmentUses() []environmentUse {
	var uses []environmentUse
	var others []*regexp.Regexp // paths that Hiera reads for all environments
	locations := hieradata.Locations(r.files["hiera.yaml"])
	for _, p := range locations {
		if !slices.ContainsFunc(interpolation.FindAllString(p, -1), environmentVariable.MatchString) {
			others = append(others, pathForm(p, nil))
		}
	}
	for _, v := range r.captured(locations, environmentVariable) {
		if !slices.ContainsFunc(others, func(re *regexp.Regexp) bool { return re.MatchString(v.file) }) && isEnvironmentName.MatchString(v.text) {
			uses = append(uses, environmentUse{name: v.text, file: v.file})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if path.Ext(name) == ".pp" && !r.vendored(name) {
			uses = append(uses, comparedEnvironments(name, string(r.files[name]), r.lex(name))...)
		}
	}
	return uses
}

var (
	environmentVariable = regexp.MustCompile(`^%\{(?:::)?environment\}$`)
	isEnvironmentName   = regexp.MustCompile(`^[a-z0-9_]+$`) // of Puppet
)

// comparedEnvironments returns the names with which a manifest compares $environment: by == and !=, and in the cases of
// case and ?.
func comparedEnvironments(file, src string, tokens []token) []environmentUse {
	var uses []environmentUse
	local := false // a parameter with this name hides the variable
	add := func(t token) {
		if t.kind == text && t.whole && isEnvironmentName.MatchString(t.text) {
			line := src[strings.LastIndexByte(src[:t.at], '\n')+1 : t.at]
			uses = append(uses, environmentUse{t.text, file, strings.Count(src[:t.at], "\n") + 1, utf8.RuneCountInString(line) + 1})
		}
	}
	for i, t := range tokens {
		switch {
		case t.kind == word && (t.text == "class" || t.text == "define" || t.text == "function"):
			local = slices.Contains(parameters(tokens[i+1:]), "environment")
		case !isVariable(tokens, i) || t.text != "::environment" && (t.text != "environment" || local):
		case (isSymbol(tokens, i+1, "=") || isSymbol(tokens, i+1, "!")) && isSymbol(tokens, i+2, "=") && i+3 < len(tokens):
			add(tokens[i+3])
		case i > 2 && isSymbol(tokens, i-1, "=") && (isSymbol(tokens, i-2, "=") || isSymbol(tokens, i-2, "!")):
			add(tokens[i-3])
		case i > 0 && tokens[i-1].kind == word && tokens[i-1].text == "case" && isSymbol(tokens, i+1, "{"):
			eachCase(tokens[i+1:], ":", add)
		case isSymbol(tokens, i+1, "?") && isSymbol(tokens, i+2, "{"):
			eachCase(tokens[i+2:], "=>", add)
		}
	}
	return uses
}

// eachCase calls add with the texts that begin a case. tokens begin with the brace of the cases.
func eachCase(tokens []token, end string, add func(token)) {
	depth := 0
	for i, t := range tokens[:min(len(tokens), maxListTokens)] {
		switch {
		case isSymbol(tokens, i, "{") || isSymbol(tokens, i, "${"):
			depth++
		case isSymbol(tokens, i, "}"):
			if depth--; depth == 0 {
				return
			}
		case depth == 1 && t.kind == text && (followedBy(tokens, i, end) || end == ":" && followedBy(tokens, i, ",")):
			add(t)
		}
	}
}
