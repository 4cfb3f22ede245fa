package model

import (
	"fmt"
	"strings"
	"unicode"

	"pulley/internal/pattern"
)

// The limits of names, in bytes. A hostname label has at most 63 (RFC 1035, 2.3.4); a role shares it with at least one
// digit, a stack with at least one letter, one digit and a dash.
const (
	MaxHostname    = 63
	MaxRole        = MaxHostname - 1
	MaxStack       = MaxHostname - 3
	MaxEnvironment = 63
	MaxFlavor      = 128
	maxCloud       = 63
)

// CheckRole returns an error unless name is [a-z][a-z0-9-]*, at most 62 bytes long, and each of its parts between
// dashes ends in a letter. No role has a digit before a dash or at its end. The first such digit of a hostname
// therefore always belongs to the node's number.
func CheckRole(name string) error { return Cannot("use role name", Quoted(name), RoleFlaw(name)) }

// CheckCloud returns an error unless name is a valid name of a cloud file: letters, digits, '-', '_' and '.', with a
// letter or digit at the start, at most 63 bytes long.
func CheckCloud(name string) error {
	return Cannot("use cloud name", Quoted(name), judge(cloudProblem, name))
}

// StackFlaw refuses all but [a-z0-9]([a-z0-9-]*[a-z0-9])?, at most 60 bytes long.
func StackFlaw(name string) *Error { return judge(stackProblem, name, tidied(name, '-')) }

// EnvironmentFlaw refuses all but [a-z][a-z0-9_]*, at most 63 bytes long. Puppet accepts these names of environments; the
// leading letter distinguishes a name from a number.
func EnvironmentFlaw(name string) *Error { return judge(environmentProblem, name, tidied(name, '_')) }

// FlavorFlaw refuses what is not one printable word.
func FlavorFlaw(name string) *Error { return judge(flavorProblem, name) }

// RoleFlaw is the problem of CheckRole, with a role that was meant; nil for none.
func RoleFlaw(name string) *Error {
	tidy := tidied(name, '-')
	// A common mistake is a node's name instead of its role.
	return judge(roleProblem, name, tidy, strings.TrimRight(tidy, "0123456789"))
}

// judge returns the problem of name with the first valid candidate as the hint; nil for a valid name.
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
	if p := charProblem(name, MaxEnvironment, '_'); p != "" {
		return p
	}
	if !isLetter(name[0]) {
		return "it has to start with a letter"
	}
	return ""
}

func roleProblem(name string) string {
	if p := charProblem(name, MaxRole, '-'); p != "" {
		return p
	}
	if !isLetter(name[0]) {
		return "it has to start with a letter"
	}
	for part := range strings.SplitSeq(name, "-") {
		if part == "" || !isLetter(part[len(part)-1]) {
			return "each part between dashes has to end in a letter, to separate a node's number from its role"
		}
	}
	return ""
}

func stackProblem(name string) string {
	if p := charProblem(name, MaxStack, '-'); p != "" {
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

// flavorProblem requires a flavor to be one printable word. Only the provider knows which flavors exist.
func flavorProblem(flavor string) string {
	if p := sizeProblem(flavor, MaxFlavor); p != "" {
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
		if r != joiner && (r > unicode.MaxASCII || !isLetter(byte(r)) && !IsDigit(byte(r))) {
			return fmt.Sprintf("%q can't be part of it, only a-z, 0-9 and %q can", r, joiner)
		}
	}
	return ""
}

// tidied returns name in lower case, with joiner for other separators, and without separators at the ends.
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

// IsDigit reports whether b is an ASCII digit.
func IsDigit(b byte) bool { return '0' <= b && b <= '9' }

// MaxMember is the maximum length of an existing machine's name (RFC 1035, 2.3.4).
const MaxMember = 253

var memberForm = pattern.Lazy(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// CheckMember returns an error unless name is a valid name of an existing machine whose role is stored beside it: the
// name of a node, or a domain name in lower case of at most 253 bytes. Puppet accepts no other certnames.
func CheckMember(name string) error {
	if _, err := ParseNode(name); err == nil {
		return nil
	}
	var flaw *Error
	switch lower := strings.ToLower(name); {
	case name == "":
		flaw = &Error{Problem: "it is empty"}
	case len(name) > MaxMember:
		flaw = &Error{Problem: fmt.Sprintf("it is %d bytes long, and a name may have %d", len(name), MaxMember)}
	case memberForm().MatchString(name):
		return nil
	case lower != name && memberForm().MatchString(lower):
		flaw = &Error{Problem: "Puppet takes no capitals in names", Advice: fmt.Sprintf("did you mean %s?", lower)}
	default:
		flaw = &Error{Problem: "only lower-case letters, digits, dots and dashes are allowed, with a letter or digit at both ends"}
	}
	return Cannot("use machine name", Quoted(name), flaw)
}

// SuggestName returns the known name that got is probably a typo of, or "". It returns the nearest name, the first of
// several, with at most two typos (one in a name of up to three bytes). A typo is an extra, missing or different byte,
// or two swapped bytes. Case is ignored.
func SuggestName(got string, known []string) string {
	nearest, least := "", 3
	got = strings.ToLower(got)
	for _, name := range known {
		allowed := 2
		if min(len(got), len(name)) <= 3 {
			allowed = 1
		}
		// The cost of slips is the product of both lengths: skip names whose lengths differ too much.
		if abs(len(got)-len(name)) > allowed {
			continue
		}
		if d := slips(got, strings.ToLower(name)); d <= allowed && d < least {
			nearest, least = name, d
		}
	}
	return nearest
}

// slips is the optimal string alignment distance of a and b, over bytes.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func differ(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}

func abs(n int) int { return max(n, -n) }

// SignaturesRequired is the value of an environment whose nodes must check signatures.
const SignaturesRequired = "required"
