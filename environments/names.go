package environments

import (
	"fmt"
	"strings"
	"unicode"
)

// The limits of names, in bytes. A hostname label has at most 63 (RFC 1035, 2.3.4); a role shares it with at least one
// digit, a stack with at least one letter, one digit and a dash.
const (
	maxHostname    = 63
	maxRole        = maxHostname - 1
	maxStack       = maxHostname - 3
	maxEnvironment = 63
	maxFlavor      = 128
	maxCloud       = 63
)

// CheckEnvironment returns an error unless name is [a-z][a-z0-9_]*, at most 63 bytes long: what Puppet takes as the name
// of an environment, and a leading letter so that it never looks like a number.
func CheckEnvironment(name string) error {
	return cannot("use environment name", quoted(name), environmentFlaw(name))
}

// CheckRole returns an error unless name is [a-z][a-z0-9-]*, at most 62 bytes long, and each of its parts between dashes
// ends in a letter: so no role holds a digit before a dash or at its end, and the first such digit of a hostname always
// belongs to the node's number.
func CheckRole(name string) error { return cannot("use role name", quoted(name), roleFlaw(name)) }

// CheckStack returns an error unless name is [a-z0-9]([a-z0-9-]*[a-z0-9])?, at most 60 bytes long.
func CheckStack(name string) error { return cannot("use stack name", quoted(name), stackFlaw(name)) }

// CheckCloud returns an error unless name can be that of a cloud file: letters, digits, '-', '_' and '.', with a letter or
// digit at the start, at most 63 bytes long.
func CheckCloud(name string) error {
	return cannot("use cloud name", quoted(name), judge(cloudProblem, name))
}

func environmentFlaw(name string) *Error { return judge(environmentProblem, name, tidied(name, '_')) }
func stackFlaw(name string) *Error       { return judge(stackProblem, name, tidied(name, '-')) }
func flavorFlaw(name string) *Error      { return judge(flavorProblem, name) }

func roleFlaw(name string) *Error {
	tidy := tidied(name, '-')
	// A node's name is often written where its role belongs.
	return judge(roleProblem, name, tidy, strings.TrimRight(tidy, "0123456789"))
}

// judge returns what problem says of name and, as the hint, the first candidate that has no problem; nil for a good name.
func judge(problem func(string) string, name string, candidates ...string) *Error {
	e := &Error{Problem: problem(name)}
	if e.Problem == "" {
		return nil
	}
	for _, c := range candidates {
		if c != "" && problem(c) == "" {
			e.Advice = fmt.Sprintf("did you mean %s?", c)
			return e
		}
	}
	return e
}

func environmentProblem(name string) string {
	if p := charProblem(name, maxEnvironment, '_'); p != "" {
		return p
	}
	if !isLetter(name[0]) {
		return "it has to start with a letter"
	}
	return ""
}

func roleProblem(name string) string {
	if p := charProblem(name, maxRole, '-'); p != "" {
		return p
	}
	if !isLetter(name[0]) {
		return "it has to start with a letter"
	}
	for part := range strings.SplitSeq(name, "-") {
		if part == "" || !isLetter(part[len(part)-1]) {
			return "each part between dashes has to end in a letter, so that a node's number can be told from its role"
		}
	}
	return ""
}

func stackProblem(name string) string {
	if p := charProblem(name, maxStack, '-'); p != "" {
		return p
	}
	if name[0] == '-' || name[len(name)-1] == '-' {
		return "it can't start or end with a dash"
	}
	return ""
}

func cloudProblem(name string) string {
	if p := sizeProblem(name, maxCloud); p != "" {
		return p
	}
	for i, r := range name {
		joins := i > 0 && strings.ContainsRune("-_.", r)
		if !joins && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)) {
			return fmt.Sprintf("%q can't be part of it there", r)
		}
	}
	return ""
}

// flavorProblem keeps a flavor to one printable word; which ones exist only the provider of the machines knows.
func flavorProblem(flavor string) string {
	if p := sizeProblem(flavor, maxFlavor); p != "" {
		return p
	}
	for _, r := range flavor {
		if r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsGraphic(r) {
			return fmt.Sprintf("%q can't be part of it", r)
		}
	}
	return ""
}

func sizeProblem(name string, most int) string {
	if name == "" {
		return "it is empty"
	}
	if len(name) > most {
		return fmt.Sprintf("it is %d bytes long, at most %d are allowed", len(name), most)
	}
	return ""
}

// charProblem allows a-z, 0-9 and joiner.
func charProblem(name string, most int, joiner rune) string {
	if p := sizeProblem(name, most); p != "" {
		return p
	}
	for _, r := range name {
		if r != joiner && (r > unicode.MaxASCII || !isLetter(byte(r)) && !isDigit(byte(r))) {
			return fmt.Sprintf("%q can't be part of it, only a-z, 0-9 and %q can", r, joiner)
		}
	}
	return ""
}

// tidied returns name in lower case with joiner for what people write instead of it, and none at the ends.
func tidied(name string, joiner rune) string {
	tidy := strings.Map(func(r rune) rune {
		if strings.ContainsRune("_-. ", r) {
			return joiner
		}
		return unicode.ToLower(r)
	}, name)
	return strings.Trim(tidy, string(joiner))
}

func isLetter(b byte) bool { return 'a' <= b && b <= 'z' }
func isDigit(b byte) bool  { return '0' <= b && b <= '9' }
