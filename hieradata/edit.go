package hieradata

import (
	"errors"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const lookupOptions = "lookup_options"

// canonicalOf returns the canonical bytes of a layer that a person wrote. It returns nil if the layer is empty: an empty
// layer is absent.
func canonicalOf(layer []byte) ([]byte, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, err
	}
	return canonicalLayer(v.v.(mapping)), nil
}

// Set returns the layer with one key set to a value written as YAML. A nil layer is an empty one. Set refuses a value
// whose lookups would fail.
func Set(layer []byte, key, valueYAML string) ([]byte, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	value, err := parseValue(valueYAML)
	if err != nil {
		return nil, fmt.Errorf("cannot read the value of %s: %w", key, err)
	}
	if err := checkEntry(key, value); err != nil {
		return nil, err
	}
	if err := checkInterpolations(value); err != nil {
		return nil, fmt.Errorf("cannot set %s: %w", key, err)
	}
	m, err := sorted(append(v.v.(mapping).without(key), entry{Value{key}, value}))
	if err != nil {
		return nil, err
	}
	return canonicalLayer(m), nil
}

// Parse returns the canonical bytes of a whole layer that a person wrote, or nil for one without keys. It refuses values whose
// lookups would fail.
func Parse(text []byte) ([]byte, error) {
	v, err := parseLayer(text)
	if err != nil {
		return nil, err
	}
	m := v.v.(mapping)
	for _, e := range m {
		if problem := checkInterpolations(e.value); problem != nil {
			if root, err := parseNode(text); err == nil {
				problem.Line, problem.Column = keyPlace(root, e.key.keyText())
			}
			problem.Problem = e.key.keyText() + ": " + problem.Problem
			return nil, problem
		}
	}
	return canonicalLayer(m), nil
}

// Difference is a key whose value differs between two layers.
type Difference struct {
	Key      string
	From, To *Value // nil: the layer lacks the key
}

// Differences compares two layers, in the order of their keys. A nil layer is an empty one.
func Differences(from, to []byte) ([]Difference, error) {
	a, err := parseLayer(from)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	b, err := parseLayer(to)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	byKey := map[string]*Difference{}
	at := func(key string) *Difference {
		if byKey[key] == nil {
			byKey[key] = &Difference{Key: key}
		}
		return byKey[key]
	}
	for _, e := range a.v.(mapping) {
		at(e.key.keyText()).From = &e.value
	}
	for _, e := range b.v.(mapping) {
		at(e.key.keyText()).To = &e.value
	}
	var all []Difference
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		d := byKey[key]
		if d.From == nil || d.To == nil || d.From.String() != d.To.String() {
			all = append(all, *d)
		}
	}
	return all, nil
}

// Unset returns the layer without one key, and whether it had the key. The layer is nil if no key is left.
func Unset(layer []byte, key string) ([]byte, bool, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the layer: %w", err)
	}
	m := v.v.(mapping)
	_, had := m.find(key)
	return canonicalLayer(m.without(key)), had, nil
}

// Get returns one key's value, and whether the layer has the key.
func Get(layer []byte, key string) (Value, bool, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return Value{}, false, fmt.Errorf("cannot read the layer: %w", err)
	}
	value, had := v.v.(mapping).find(key)
	return value, had, nil
}

// Keys lists the keys of a layer, sorted.
func Keys(layer []byte) ([]string, error) {
	v, err := parseLayer(layer)
	if err != nil {
		return nil, fmt.Errorf("cannot read the layer: %w", err)
	}
	m := v.v.(mapping)
	keys := make([]string, len(m))
	for i, e := range m {
		keys[i] = e.key.keyText()
	}
	return keys, nil
}

func canonicalLayer(m mapping) []byte {
	if len(m) == 0 {
		return nil
	}
	return encode(Value{m})
}

// checkKey refuses keys that Hiera cannot look up. Hiera reads a dot as a path within a value.
func checkKey(key string) *SyntaxError {
	bad := func(problem, hint string) *SyntaxError {
		return &SyntaxError{Problem: fmt.Sprintf("%.100q is not a Hiera key: %s", key, problem), Advice: hint}
	}
	switch {
	case key == "":
		return bad("it is empty", "write it as <class>::<parameter>")
	case len(key) > 255:
		return bad("it has more than 255 characters", "")
	case !utf8.ValidString(key):
		return bad("it is not valid UTF-8", "")
	case strings.ContainsFunc(key, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return bad("it contains white space or control characters", "write it as <class>::<parameter>")
	case key == "<<":
		return bad("YAML reads it as a merge", "")
	case strings.HasPrefix(key, "%"):
		return bad("it starts with %", "keys are not interpolated; write the name itself")
	case strings.Contains(key, "."):
		root, _, _ := strings.Cut(key, ".")
		return bad("Hiera reads a dot as a step into a mapping", fmt.Sprintf("set all of %s, as a mapping", root))
	case strings.ContainsAny(key, `'"`):
		return bad("Hiera interprets quotes itself", "leave them out")
	}
	return nil
}

// checkEntry checks a key, and the value of lookup_options, which Hiera itself reads.
func checkEntry(key string, value Value) *SyntaxError {
	if err := checkKey(key); err != nil {
		return err
	}
	if key != lookupOptions {
		return nil
	}
	if err := checkLookupOptions(value); err != nil {
		return &SyntaxError{Problem: err.Error(), Advice: "for example {'ntp::servers': {merge: unique}}"}
	}
	return nil
}

// deepMergeOptions are those of Puppet's DeepMergeStrategy, which fails on others.
var deepMergeOptions = []string{"strategy", "knockout_prefix", "merge_debug", "merge_hash_arrays", "sort_merged_arrays"}

func checkLookupOptions(value Value) error {
	options, ok := value.v.(mapping)
	if !ok {
		return fmt.Errorf("lookup_options is a mapping of keys to their options, and this is of type %s", value.kind())
	}
	for _, e := range options {
		if err := checkPattern(e.key.keyText()); err != nil {
			return err
		}
		one, ok := e.value.v.(mapping)
		if !ok {
			return fmt.Errorf("lookup_options of %s is a mapping, and this is of type %s", e.key.keyText(), e.value.kind())
		}
		if merge, has := one.find("merge"); has {
			if _, err := strategy(merge); err != nil {
				return fmt.Errorf("lookup_options of %s: %w", e.key.keyText(), err)
			}
			m, _ := merge.v.(mapping)
			for _, option := range m {
				if name := option.key.keyText(); !slices.Contains(deepMergeOptions, name) {
					return fmt.Errorf("lookup_options of %s: merge has no option %q: they are %s", e.key.keyText(), name, strings.Join(deepMergeOptions, ", "))
				}
			}
		}
	}
	return nil
}

// checkPattern checks a key of lookup_options that is a regular expression. Puppet compiles all of them for each lookup of
// any key. Ruby's language has more than Go's: only what neither reads is a mistake.
func checkPattern(key string) error {
	if !strings.HasPrefix(key, "^") {
		return nil
	}
	var problem *syntax.Error
	if _, err := syntax.Parse(key, syntax.Perl); errors.As(err, &problem) {
		switch problem.Code {
		case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrTrailingBackslash:
			return fmt.Errorf("lookup_options of %s: every lookup would fail: the pattern has a %s", key, problem.Code)
		}
	}
	return nil
}

var errStrategy = errors.New("merge is one of first, unique, hash and deep, or a mapping with one of them as its strategy")

// strategy reads the option "merge" of lookup_options.
func strategy(merge Value) (string, error) {
	if m, ok := merge.v.(mapping); ok {
		merge, _ = m.find("strategy")
	}
	switch s, _ := merge.v.(string); s {
	case "first", "unique", "hash", "deep":
		return s, nil
	}
	return "", errStrategy
}
