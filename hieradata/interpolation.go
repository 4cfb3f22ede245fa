package hieradata

import (
	"fmt"
	"slices"
	"strings"

	"pulley/internal/pattern"
)

// FlawCode is the code of a flawed interpolation.
type FlawCode string

// The codes of flaws. The first four end each lookup of the value.
const (
	FlawKey         FlawCode = "key"          // Puppet cannot divide the key: %{lookup('x'}, %{facts..os}
	FlawMethod      FlawCode = "method"       // Puppet has no such method: %{find('x')}
	FlawAlias       FlawCode = "alias"        // alias is not the whole value
	FlawNoMethods   FlawCode = "no_methods"   // a method in hiera.yaml
	FlawOpen        FlawCode = "open"         // without a closing brace: the text stays as it is
	FlawNotVariable FlawCode = "not_variable" // no variable has such a name: nothing takes its place, as in %{User-Agent}
)

// Flaw is an interpolation %{…} that Puppet does not read as it is meant.
type Flaw struct {
	Code FlawCode
	Text string // the interpolation as it is written, at most 100 characters
}

// Fails reports whether each lookup of the value fails.
func (f Flaw) Fails() bool { return f.Code != FlawOpen && f.Code != FlawNotVariable }

// String returns a sentence about the flaw.
func (f Flaw) String() string {
	switch f.Code {
	case FlawMethod:
		return f.Text + ": the methods are " + strings.Join(methods, ", ")
	case FlawAlias:
		return f.Text + ": alias must be the whole value"
	case FlawNoMethods:
		return f.Text + ": hiera.yaml may interpolate variables only"
	case FlawOpen:
		return f.Text + ": it has no closing brace, and Puppet keeps the text"
	case FlawNotVariable:
		return f.Text + ": no variable has this name, and Puppet puts nothing there"
	}
	return f.Text + ": Puppet cannot read the name in it"
}

// interpolationAdvice is the remedy of all flaws.
const interpolationAdvice = `write %{VARIABLE} or %{lookup('KEY')}; and for a percent sign before a brace: %{literal('%')}{`

// methods are the methods of an interpolation.
var methods = []string{"lookup", "hiera", "alias", "scope", "literal"}

// The forms of an interpolation, as in puppet/pops/lookup/interpolation.rb and sub_lookup.rb of Puppet 7.23.
var (
	interpolationForm = pattern.Lazy(`%\{([^}]*)\}`)
	methodForm        = pattern.Lazy(`(?m)^(\w+)\((?:"([^"]+)"|'([^']+)')\)$`)
	keyForm           = pattern.Lazy(`^(?:` + keyPart + `)(?:\.(?:` + keyPart + `))*$`)
	variableForm      = pattern.Lazy(`^\s*(?:::)?\w+(?:::\w+)*\s*(?:\.|$)`)
)

const keyPart = `\s*"[^"]+"\s*|\s*'[^']+'\s*|[^'".]+`

// emptyInterpolations stand for nothing.
var emptyInterpolations = []string{"", "::", `""`, "''", `"::"`, "'::'"}

// Flaws returns the flawed interpolations of a text in a data file, or in a hiera.yaml, where methods do not work.
func Flaws(text string, inData bool) []Flaw {
	var flaws []Flaw
	end := 0
	for _, at := range interpolationForm().FindAllStringSubmatchIndex(text, -1) {
		end = at[1]
		whole, inner := text[at[0]:at[1]], strings.TrimSpace(text[at[2]:at[3]])
		if code := flaw(inner, whole == text, inData); code != "" {
			flaws = append(flaws, Flaw{code, fmt.Sprintf("%.100s", whole)})
		}
	}
	if open := strings.Index(text[end:], "%{"); open >= 0 {
		line, _, _ := strings.Cut(text[end+open:], "\n")
		flaws = append(flaws, Flaw{FlawOpen, fmt.Sprintf("%.100s", line)})
	}
	return flaws
}

// flaw returns the flaw of what stands between the braces, or "".
func flaw(inner string, whole, inData bool) FlawCode {
	if slices.Contains(emptyInterpolations, inner) {
		return ""
	}
	method, key := "scope", inner
	m := methodForm().FindStringSubmatch(inner)
	if m != nil {
		method, key = m[1], m[2]+m[3]
	}
	switch {
	case m != nil && !inData:
		return FlawNoMethods
	case method == "alias" && !whole:
		return FlawAlias
	case !slices.Contains(methods, method):
		return FlawMethod
	case method == "literal":
		return ""
	case strings.ContainsAny(key, `'".`) && !keyForm().MatchString(key):
		return FlawKey
	case method == "scope" && !strings.HasPrefix(strings.TrimSpace(key), `"`) && !strings.HasPrefix(strings.TrimSpace(key), "'") && !variableForm().MatchString(key):
		return FlawNotVariable
	}
	return ""
}

// checkInterpolations refuses a value whose lookups would fail on every node.
func checkInterpolations(v Value) *SyntaxError {
	for _, f := range flawsOf(v) {
		if f.Fails() {
			return &SyntaxError{Problem: "every lookup of the value would fail: " + f.String(), Advice: interpolationAdvice}
		}
	}
	return nil
}

// flawsOf returns the flaws of a value of live data. Puppet also interpolates the keys of mappings.
func flawsOf(v Value) []Flaw {
	switch x := v.v.(type) {
	case string:
		return Flaws(x, true)
	case []Value:
		var all []Flaw
		for _, one := range x {
			all = append(all, flawsOf(one)...)
		}
		return all
	case mapping:
		var all []Flaw
		for _, e := range x {
			all = append(append(all, flawsOf(e.key)...), flawsOf(e.value)...)
		}
		return all
	}
	return nil
}
