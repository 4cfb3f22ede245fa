package controlrepo

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxScanFindings is the maximum number of findings for one manifest.
const maxScanFindings = 100

// scan finds features in a manifest that do not work, or work differently, without a Puppet server.
func scan(file, src string) []Finding {
	var out []Finding
	add := func(at int, severity Severity, problem, hint string) {
		line := src[strings.LastIndexByte(src[:at], '\n')+1 : at]
		out = append(out, Finding{
			File: file, Line: strings.Count(src[:at], "\n") + 1, Column: utf8.RuneCountInString(line) + 1,
			Severity: severity, Problem: problem, Hint: hint,
		})
	}
	tokens := lex(src)
	for i, t := range tokens {
		if len(out) >= maxScanFindings {
			return out
		}
		switch {
		case t.kind == symbol && (t.text == "@@" || t.text == "<<|"):
			what := "exported resources"
			if t.text == "<<|" {
				what = "collectors of exported resources"
			}
			add(t.at, Error, what+" need PuppetDB, which a masterless run does not have",
				"declare the resource where it is wanted; nodes can learn of each other from the host list")
		case t.kind == word && (t.text == "puppetdb_query" || t.text == "::puppetdb_query") && followedBy(tokens, i, "("):
			add(t.at, Error, "puppetdb_query needs PuppetDB, which a masterless run does not have",
				"use the host list, or put what it would find into Hiera")
		case isVariable(tokens, i) && serverVariables[strings.TrimPrefix(t.text, "::")]:
			add(t.at, Warning, fmt.Sprintf("$%s is about a Puppet server, and there is none: the value describes the node itself, or nothing", t.text),
				"use $facts or $trusted")
		case t.kind == text:
			for _, m := range fileSource.FindAllStringSubmatchIndex(t.text, -1) {
				problem, hint := sourceProblem(t, m)
				if problem != "" {
					add(t.at+m[0], Error, problem, hint)
				}
			}
		}
	}
	return out
}

func followedBy(tokens []token, i int, symbolText string) bool {
	return i+1 < len(tokens) && tokens[i+1].kind == symbol && tokens[i+1].text == symbolText
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

// fileSource matches puppet://<server>/<mount>/.
var fileSource = regexp.MustCompile(`\bpuppet://([^/\s'"]*)/([^/\s'"]*)`)

// sourceProblem checks one file source. It cannot check a server or mount with an interpolation.
func sourceProblem(t token, m []int) (problem, hint string) {
	server, mount := t.text[m[2]:m[3]], t.text[m[4]:m[5]]
	atEnd := t.open && m[1] == len(t.text)
	switch {
	case server != "":
		return fmt.Sprintf("puppet://%s/ is a file server, and a masterless run has none", server),
			"put the file into a module and use puppet:///modules/<module>/<file>"
	case mount == "modules" || atEnd:
		return "", ""
	}
	return fmt.Sprintf("puppet:///%s is a mount of a file server, and a masterless run only has puppet:///modules", mount),
		"put the file into a module and use puppet:///modules/<module>/<file>"
}
