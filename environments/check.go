package environments

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// spot is the part of an environment that a problem concerns: a role by its index in Roles, or noRole, and the field.
// The field "" is the role's name.
type spot struct {
	role  int
	field string
}

const noRole = -1

// checker checks an environment from any source.
type checker struct {
	*Environment
	pending bool // values that a cloud file can add may be missing
	report  func(spot, *Error)
}

func (c checker) flaw(at spot, what string, flaw *Error) {
	if flaw != nil {
		c.report(at, &Error{Problem: what + ": " + flaw.Problem, Advice: flaw.Advice})
	}
}

func (c checker) tell(at spot, hint, format string, args ...any) {
	c.report(at, &Error{Problem: fmt.Sprintf(format, args...), Advice: hint})
}

// check reports everything that is wrong with e.
func (e *Environment) check(pending bool, report func(spot, *Error)) {
	c := checker{e, pending, report}
	if len(e.Roles) > MaxRoles {
		c.checkNames()
		c.tell(spot{noRole, "roles"}, "", "there are %d roles, at most %d are allowed", len(e.Roles), MaxRoles)
		return
	}
	c.checkRoles(c.checkNames())
	c.checkOrder()
	c.checkMembers()
	c.checkCloud()
	c.checkMapped()
	c.checkHalves()
}

// checkCloud checks the keys that a cloud file can also have.
func (c checker) checkCloud() {
	c.checkProvider(c.Provider)
	c.checkWords("flavors", c.Flavors)
	c.checkWords("images", c.Images)
	c.checkWords("networks", c.Networks)
	c.checkUserdata(noRole, c.Userdata)
}

// checkNames checks the names of the environment and its stack, and reports whether the stack's name is valid.
func (c checker) checkNames() bool {
	c.flaw(spot{noRole, "name"}, "environment name "+quoted(c.Name), environmentFlaw(c.Name))
	if c.Stack == "" {
		return true
	}
	flaw := stackFlaw(c.Stack)
	c.flaw(spot{noRole, "stack"}, "stack "+quoted(c.Stack), flaw)
	return flaw == nil
}

// checkRoles checks each role, and the roles together.
func (c checker) checkRoles(goodStack bool) {
	sum, places := 0, map[string]int{}
	for i, r := range c.Roles {
		if _, twice := places[r.Name]; twice {
			c.tell(spot{i, ""}, "", "role %s is there twice", quoted(r.Name))
		}
		places[r.Name] = i
		badName := roleFlaw(r.Name)
		c.flaw(spot{i, ""}, "role "+quoted(r.Name), badName)
		if badName == nil && goodStack {
			c.flaw(spot{i, ""}, "role "+quoted(r.Name), hostnameFlaw(r, c.Stack))
		}
		c.flaw(spot{i, "cardinality"}, "cardinality of "+quoted(r.Name), cardinalityFlaw(r.Cardinality))
		c.checkMachine(i, r)
		before := sum
		sum += min(max(r.Cardinality, 0), MaxNodes)
		if before <= MaxNodes && sum > MaxNodes {
			c.tell(spot{i, "cardinality"}, "", "with role %s the environment has more than %d nodes", quoted(r.Name), MaxNodes)
		}
	}
	for i, r := range c.Roles {
		c.flaw(spot{i, ""}, "role "+quoted(r.Name), overlapFlaw(r.Name, places))
	}
}

// checkMachine checks the properties of a role's machines.
func (c checker) checkMachine(i int, r Role) {
	if r.Flavor != "" {
		c.flaw(spot{i, "flavor"}, "flavor "+quoted(r.Flavor), flavorFlaw(r.Flavor))
	}
	if r.Image != "" {
		c.flaw(spot{i, "image"}, "image "+quoted(r.Image), flavorFlaw(r.Image))
	}
	for j, network := range r.Networks {
		c.flaw(spot{i, "networks." + strconv.Itoa(j)}, "network "+quoted(network), flavorFlaw(network))
	}
	if len(r.Labels) > maxLabels {
		c.tell(spot{i, "labels"}, "", "there are %d labels, at most %d are allowed", len(r.Labels), maxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		c.flaw(spot{i, "labels." + key}, "label "+quoted(key), labelFlaw(key, r.Labels[key]))
	}
	c.flaw(spot{i, "rollout.batch"}, "rollout.batch "+quoted(r.Rollout.Batch), shape(r.Rollout.Batch, shapes().batch, "2 or 25%, of at least one machine"))
	c.flaw(spot{i, "rollout.failures"}, "rollout.failures "+quoted(r.Rollout.Failures), shape(r.Rollout.Failures, shapes().failures, "2 or 25%, or 0"))
	c.flaw(spot{i, "rollout.timeout"}, "rollout.timeout", timeFlaw(r.Rollout.Timeout))
	c.checkUserdata(i, r.Userdata)
}

// maxLabels is the maximum number of labels of a role. Clouds allow about as many, and drivers need some.
const maxLabels = 40

func labelFlaw(key, value string) *Error {
	switch flaw := wordFlaw(value); {
	case !shapes().label.MatchString(key):
		return &Error{Problem: "a label is called with letters, digits and . _ / -, at most 63 of them"}
	case strings.HasPrefix(strings.ToLower(key), "pulley"):
		return &Error{Problem: "such labels are Pulley's own, by which it knows its machines"}
	case value == "":
		return &Error{Problem: "it is empty"}
	case flaw != nil:
		return &Error{Problem: "its value " + quoted(value) + ": " + flaw.Problem}
	}
	return nil
}

// checkWords checks the values of a symbol table.
func (c checker) checkWords(what string, words map[string]string) {
	for _, symbol := range slices.Sorted(maps.Keys(words)) {
		at := spot{noRole, what + "." + symbol}
		c.flaw(at, what+" "+quoted(symbol), flavorFlaw(symbol))
		if words[symbol] == "" {
			c.tell(at, "", "%s.%s is empty", what, symbol)
		}
		c.flaw(at, what+"."+symbol+" "+quoted(words[symbol]), wordFlaw(words[symbol]))
	}
}

// checkMapped refuses symbols that are not in their table. Without a table, the symbols are the provider's own names.
func (c checker) checkMapped() {
	if c.pending || c.Driver() == DriverNone {
		return
	}
	for i, r := range c.Roles {
		c.mapped(spot{i, "flavor"}, r, "flavor", "flavors", r.Flavor, c.Flavors)
		c.mapped(spot{i, "image"}, r, "image", "images", r.Image, c.Images)
		for j, network := range r.Networks {
			c.mapped(spot{i, "networks." + strconv.Itoa(j)}, r, "network", "networks", network, c.Networks)
		}
	}
}

func (c checker) mapped(at spot, r Role, what, table, symbol string, words map[string]string) {
	if _, has := words[symbol]; has || symbol == "" || len(words) == 0 {
		return
	}
	known := slices.Sorted(maps.Keys(words))
	hint := "there is " + listed(known[:min(len(known), 20)])
	if near := SuggestName(symbol, known); near != "" {
		hint = "did you mean " + near + "?"
	}
	c.tell(at, hint, "%s %s of role %s has no entry in %s", what, quoted(symbol), quoted(r.Name), table)
}

// wordFlaw returns an error unless word is a valid name at a provider. "" is allowed.
func wordFlaw(word string) *Error {
	switch {
	case word == "":
		return nil
	case utf8.RuneCountInString(word) > maxWord:
		return &Error{Problem: fmt.Sprintf("it is longer than %d characters", maxWord)}
	case shapes().word.MatchString(word) && !strings.ContainsRune(word, unicode.ReplacementChar):
		return nil
	}
	return &Error{Problem: "only printable characters can be part of it, with no space at its ends"}
}

// shape returns an error unless value is "" or matches form.
func shape(value string, form *regexp.Regexp, like string) *Error {
	if value == "" || form.MatchString(value) && len(value) <= maxText && utf8.ValidString(value) {
		return nil
	}
	return &Error{Problem: "it does not look as it should", Advice: "write it like " + like}
}

// pathFlaw is shape for paths of at most maxWord characters. The pattern does not limit the length: a pattern with a
// count takes a hundred times as long to compile, and every program compiles it at its start.
func pathFlaw(value string, form *regexp.Regexp, like string) *Error {
	if utf8.RuneCountInString(value) > maxWord {
		return &Error{Problem: fmt.Sprintf("it is longer than %d characters", maxWord)}
	}
	return shape(value, form, like)
}

const (
	maxText = 2048 // bytes of a one-line value
	maxWord = 255  // characters of a name or a path
)

func cardinalityFlaw(n int) *Error {
	switch {
	case n < 0:
		return &Error{Problem: fmt.Sprintf("it is %d, below 0", n), Advice: "0 keeps the role without nodes"}
	case n > MaxNodes:
		return &Error{Problem: fmt.Sprintf("it is %d, an environment has at most %d nodes", n, MaxNodes)}
	}
	return nil
}

// hostnameFlaw checks that the role's last node still has a valid hostname.
func hostnameFlaw(r Role, stack string) *Error {
	last := Node{Role: r.Name, Num: max(1, min(r.Cardinality, MaxNodes)), Stack: stack}
	size := len(last.Hostname())
	if size <= maxHostname {
		return nil
	}
	return &Error{
		Problem: fmt.Sprintf("the hostname of its node %s would be %d bytes long, at most %d are allowed", last, size, maxHostname),
		Advice:  fmt.Sprintf("make the role's name shorter by %d", size-maxHostname),
	}
}

// overlapFlaw refuses two roles that site.pp cannot distinguish: `node /^a\d+/` would match a1b1, too.
func overlapFlaw(name string, places map[string]int) *Error {
	for i := 1; i < len(name) && len(name) <= maxRole; i++ {
		if _, other := places[name[:i]]; other && isDigit(name[i]) {
			return &Error{Problem: fmt.Sprintf("node /^%s\\d+/ of role %s would match its nodes, too", name[:i], quoted(name[:i]))}
		}
	}
	return nil
}
