package controlrepo

import (
	"bytes"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"pulley/internal/puppet"
)

// maxScanFindings is the maximum number of findings for one manifest.
const maxScanFindings = 100

// scan finds features in a manifest that do not work, or work differently, without a Puppet server. Puppet accepts all
// of them where it parses the manifest: every finding is a warning.
func scan(file, src string, tokens []token) []Finding {
	var out []Finding
	add := func(at int, rule Rule, detail string) {
		out = append(out, findingAt(rule, file, src, at, detail))
	}
	own, values := assigned(tokens), literals(tokens)
	for i, t := range tokens {
		if len(out) >= maxScanFindings {
			return out
		}
		switch {
		case t.kind == symbol && t.text == "@@":
			add(t.at, ExportedResource, "")
		case t.kind == symbol && t.text == "<<|":
			add(t.at, ExportedResource, "a collector of them")
		case t.kind == word && (t.text == "puppetdb_query" || t.text == "::puppetdb_query") && followedBy(tokens, i, "("):
			add(t.at, PuppetDBQuery, "")
		case t.kind == word && t.text == "filebucket" && followedBy(tokens, i, "{") && remoteBucket(tokens[i+1:]):
			add(t.at, RemoteFilebucket, "")
		case t.kind == word && t.text == "service" && followedBy(tokens, i, "{") && agentService(tokens[i+2:], values) != "":
			add(t.at, AgentService, agentService(tokens[i+2:], values))
		case t.kind == text && isCommand(tokens, i) && puppet.Starts(t.text) != "":
			add(t.at, PuppetStarted, "puppet "+puppet.Starts(t.text))
		case isVariable(tokens, i) && serverVariables[strings.TrimPrefix(t.text, "::")] && !own[t.text]:
			add(t.at, ServerVariable, "$"+t.text)
		case isVariable(tokens, i) && agentCertificate(t.text) != "":
			add(t.at, AgentCertificate, agentCertificate(t.text))
		case t.kind == text && !hasAlternative(tokens, i):
			for _, m := range fileSource.FindAllStringSubmatchIndex(t.text, -1) {
				if problem := sourceProblem(t, m); problem != "" {
					add(t.at+m[0], FileServer, problem)
				}
			}
		}
	}
	return out
}

// remoteBucket reports whether a declaration, from its opening brace, has path => false: Puppet then asks a server.
func remoteBucket(tokens []token) bool {
	for i, t := range tokens[:min(len(tokens), maxListTokens)] {
		if isSymbol(tokens, i, "}") {
			return false
		}
		if t.kind == word && t.text == "path" && followedBy(tokens, i, "=>") && i+2 < len(tokens) && tokens[i+2].kind == word && tokens[i+2].text == "false" {
			return true
		}
	}
	return false
}

// agentService returns the service of puppet agent in the titles or the name of a declaration, or "". values are those of variables.
func agentService(tokens []token, values map[string]string) string {
	titles := true
	for i, t := range tokens[:min(len(tokens), maxListTokens)] {
		name := t.text
		switch {
		case isSymbol(tokens, i, "}") && !isSymbol(tokens, i-2, "${"):
			return ""
		case isSymbol(tokens, i, ":"):
			titles = false
		case isVariable(tokens, i) && (!isSymbol(tokens, i-1, "${") || tokens[i-2].text == "" && i+2 < len(tokens) && tokens[i+2].text == ""):
			name = values[t.text]
		case t.kind != text || !t.whole:
			continue
		}
		named := i > 1 && isSymbol(tokens, i-1, "=>") && tokens[i-2].text == "name"
		if (titles || named) && (name == "puppet" || name == "pe-puppet") {
			return name
		}
	}
	return ""
}

// literals returns the strings that a manifest gives to its variables and parameters.
func literals(tokens []token) map[string]string {
	values := map[string]string{}
	for i, t := range tokens {
		if t.kind == variable && isSymbol(tokens, i+1, "=") && i+2 < len(tokens) && tokens[i+2].kind == text && tokens[i+2].whole {
			values[t.text] = tokens[i+2].text
		}
	}
	return values
}

// talk are the attributes whose values are no commands that run on their own.
var talk = map[string]bool{"message": true, "description": true, "summary": true, "unless": true, "onlyif": true, "title": true, "comment": true, "ensure": true}

// logs are the functions whose arguments are messages.
var logs = map[string]bool{"debug": true, "info": true, "notice": true, "warning": true, "err": true, "alert": true, "crit": true, "emerg": true, "fail": true}

// isCommand reports whether a string may be a command, or the text of a file: the value of an attribute or a variable, or the title of an
// exec. Messages are none.
func isCommand(tokens []token, i int) bool {
	if isSymbol(tokens, i-1, "{") && i > 1 && tokens[i-2].text == "exec" {
		return true
	}
	for at := i - 1; at > 0 && i-at < maxListTokens; at-- {
		switch {
		case isSymbol(tokens, at, "=>"):
			return !talk[tokens[at-1].text]
		case isSymbol(tokens, at, "("):
			if logs[tokens[at-1].text] {
				return false
			}
		case isSymbol(tokens, at, "=") && tokens[at-1].kind == variable:
			return true
		case isSymbol(tokens, at, "{"), isSymbol(tokens, at, ")"), isSymbol(tokens, at, "}") && !isSymbol(tokens, at-2, "${"):
			return false
		}
	}
	return false
}

// maxScript limits the files and templates in which checkStarts looks for commands, in bytes.
const maxScript = 64 << 10

// checkStarts finds files and templates of the repository's own modules that start Puppet: scripts, crontabs and units.
func (r *reading) checkStarts() {
	for name := range r.modes {
		_, rest, ok := r.layout.module(name)
		if !ok || !strings.HasPrefix(rest, "files/") && !strings.HasPrefix(rest, "templates/") || r.vendored(name) {
			continue
		}
		if info, err := fs.Stat(r.repo, name); err != nil || info.Size() > maxScript {
			continue
		}
		b, err := fs.ReadFile(r.repo, name)
		if err != nil {
			continue // publish reports it
		}
		script := bytes.HasPrefix(b, []byte("#!"))
		n := 0
		for line := range strings.Lines(string(b)) {
			n++
			line = strings.TrimSpace(line)
			if sub := puppet.Starts(line); sub != "" && (script || strings.HasPrefix(line, "ExecStart") || strings.ContainsAny(line[:1], "@*<$0123456789")) {
				r.add(finding(PuppetStarted, name, n, 0, "puppet "+sub))
				break
			}
		}
	}
}

func followedBy(tokens []token, i int, symbolText string) bool {
	return i+1 < len(tokens) && tokens[i+1].kind == symbol && tokens[i+1].text == symbolText
}

func isSymbol(tokens []token, i int, symbolText string) bool {
	return i >= 0 && i < len(tokens) && tokens[i].kind == symbol && tokens[i].text == symbolText
}

// isVariable also recognizes a variable in an interpolation without a dollar: "${servername}".
func isVariable(tokens []token, i int) bool {
	if tokens[i].kind == word && i > 0 {
		before := tokens[i-1]
		return before.kind == symbol && before.text == "${" && !followedBy(tokens, i, "(")
	}
	return tokens[i].kind == variable
}

var serverVariables = map[string]bool{"server_facts": true, "servername": true, "serverip": true, "serverip6": true, "serverversion": true}

// maxHeaderTokens and maxListTokens limit how far a declaration and a list are read: scanning stays linear.
const (
	maxHeaderTokens = 5000
	maxListTokens   = 200
)

// parameters returns the variables in the parentheses after the name of a class, defined type or function.
func parameters(tokens []token) []string {
	at := 1
	if len(tokens) > 2 && tokens[1].kind == word && tokens[1].text == "inherits" {
		at = 3
	}
	if tokens = tokens[min(at, len(tokens)):]; !isSymbol(tokens, 0, "(") {
		return nil
	}
	var found []string
	depth := 0
	for i, t := range tokens[:min(len(tokens), maxHeaderTokens)] {
		switch {
		case isSymbol(tokens, i, "("):
			depth++
		case isSymbol(tokens, i, ")"):
			if depth--; depth == 0 {
				return found
			}
		case depth == 1 && t.kind == variable:
			found = append(found, t.text)
		}
	}
	return nil // without an end
}

// fileSource matches puppet://<server>/<mount>/.
var fileSource = regexp.MustCompile(`\bpuppet://([^/\s'"]*)/([^/\s'"]*)`)

// ownMounts are the mounts that a run without a server has, too (seen with Puppet 7.23).
var ownMounts = map[string]bool{"modules": true, "plugins": true, "pluginfacts": true, "locales": true, "scripts": true, "tasks": true}

// sourceProblem checks one file source. It cannot check a server or mount with an interpolation.
func sourceProblem(t token, m []int) string {
	server, mount := t.text[m[2]:m[3]], t.text[m[4]:m[5]]
	atEnd := t.open && m[1] == len(t.text)
	switch {
	case server != "":
		return fmt.Sprintf("puppet://%s/", server)
	case ownMounts[mount] || atEnd:
		return ""
	}
	return "puppet:///" + mount
}

// hasAlternative reports whether a text is in a list with a source that works without a server: Puppet uses the first
// source that exists.
func hasAlternative(tokens []token, i int) bool {
	if !strings.Contains(tokens[i].text, "puppet://") {
		return false
	}
	from := i
	for ; from > 0 && i-from < maxListTokens && inList(tokens[from]); from-- {
	}
	if !isSymbol(tokens, from, "[") {
		return false
	}
	for to := from + 1; to < min(len(tokens), from+maxListTokens) && inList(tokens[to]); to++ {
		if s := tokens[to].text; tokens[to].kind == text && (strings.HasPrefix(s, "puppet:///modules/") || strings.HasPrefix(s, "/") && tokens[to].whole) {
			return true
		}
	}
	return false
}

// inList reports whether a token may be between the brackets of a list of strings.
func inList(t token) bool {
	switch t.kind {
	case text, variable, word:
		return true
	case symbol:
		return t.text == "," || t.text == "${" || t.text == "}"
	}
	return false
}
