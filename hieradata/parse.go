package hieradata

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"pulley/internal/pattern"
)

// MaxInputBytes is the maximum size of a layer as it is written: blanks and comments may make it larger than its canonical bytes.
const MaxInputBytes = 4 * maxLayerBytes

const (
	maxDepth    = 64
	maxKeyBytes = 1000 // of a key in canonical form; YAML readers fail above 1024
)

// SyntaxError is an error in YAML that a person wrote.
type SyntaxError struct {
	Line, Column int // from 1; 0 if unknown
	Problem      string
	Advice       string // the remedy, one sentence; "" if there is none
}

// Hint returns the remedy, or "".
func (e *SyntaxError) Hint() string { return e.Advice }

// Error returns the problem with its position.
func (e *SyntaxError) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ", column %d", e.Column)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}

const quoteAdvice = `quote text that holds characters of YAML's own, for example 'a: b' or '%{facts.os.name}'`

var errEmpty = errors.New("there is no value")

// parseValue reads one YAML value, in flow or block style. Anchors, tags, merge keys and duplicate keys are refused.
func parseValue(text string) (Value, error) {
	node, err := parseNode([]byte(text))
	if errors.Is(err, errEmpty) {
		return Value{}, &SyntaxError{Problem: "the value is empty", Advice: "write '' for an empty text, or ~ for null"}
	}
	if err != nil {
		return Value{}, err
	}
	return convert(node, 0)
}

// Remarks returns sentences about a valid value that Pulley may read differently than its author meant.
func Remarks(text string) []string {
	node, err := parseNode([]byte(text))
	if err != nil {
		return nil
	}
	var out []string
	var walk func(*yaml.Node, int)
	walk = func(n *yaml.Node, depth int) {
		if n.Kind == yaml.ScalarNode && isPlain(n) {
			if s := remark(n.Value); s != "" {
				out = append(out, s)
			}
		}
		if n.Kind == yaml.ScalarNode {
			for _, f := range Flaws(n.Value, true) {
				if !f.Fails() { // Set refuses the others
					out = append(out, f.String())
				}
			}
		}
		if depth > maxDepth {
			return
		}
		for _, child := range n.Content {
			walk(child, depth+1)
		}
	}
	walk(node, 0)
	return out
}

// parseLayer reads a layer that a person wrote. An empty file is an empty layer.
func parseLayer(data []byte) (Value, error) {
	node, err := parseNode(data)
	if errors.Is(err, errEmpty) {
		return Value{mapping{}}, nil
	}
	if err != nil {
		return Value{}, err
	}
	v, err := convert(node, 0)
	if err != nil {
		return Value{}, err
	}
	m, ok := v.v.(mapping)
	if !ok {
		return Value{}, &SyntaxError{Line: node.Line, Column: node.Column,
			Problem: "a layer is a mapping of Hiera keys to values, and this is of type " + v.kind()}
	}
	for _, e := range m {
		var problem *SyntaxError
		key, isString := e.key.v.(string)
		if isString {
			problem = checkEntry(key, e.value)
		} else {
			key = e.key.keyText()
			problem = &SyntaxError{Advice: "quote it",
				Problem: fmt.Sprintf("the key %s is not text (%s), and Hiera looks up text", key, e.key.kind())}
		}
		if problem != nil {
			problem.Line, problem.Column = keyPlace(node, key)
			return Value{}, problem
		}
	}
	return v, nil
}

func keyPlace(m *yaml.Node, key string) (line, column int) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i].Line, m.Content[i].Column
		}
	}
	return m.Line, m.Column
}

// Document returns the first document of YAML, empty if there is none. Ruby's Psych, by which Puppet reads files, ignores those behind it.
func Document(data []byte) (*yaml.Node, error) {
	doc := &yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(readable(firstDocument(data)))).Decode(doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, yamlError(err)
	}
	return doc, nil
}

// firstDocument returns the text up to the end of the first document: the library reads ahead.
func firstDocument(data []byte) []byte {
	begun, at := false, 0
	for line := range bytes.Lines(data) {
		switch text := bytes.TrimRight(line, " \t\r\n"); {
		case bytes.HasPrefix(line, []byte("---")) && (len(text) == 3 || line[3] == ' ' || line[3] == '\t'):
			if begun {
				return data[:at]
			}
			begun = true
		case string(text) == "...":
			if begun {
				return data[:at]
			}
		case len(text) > 0 && text[0] != '#' && (begun || text[0] != '%'):
			begun = true
		}
		at += len(line)
	}
	return data
}

var (
	yaml12  = pattern.Lazy(`(?m)^%YAML[ \t]+1\.2`)
	escapes = pattern.Lazy(`\\.`)
)

// readable replaces what Psych reads and this program's library does not: the directive of YAML 1.2, and the escape \/, which programs
// that write JSON use for a slash.
func readable(data []byte) []byte {
	data = yaml12().ReplaceAll(data, []byte("%YAML 1.1"))
	if !bytes.Contains(data, []byte(`\/`)) || yaml.Unmarshal(data, new(yaml.Node)) == nil {
		return data
	}
	var out []byte
	for line := range bytes.Lines(data) {
		if at := bytes.IndexByte(line, '"'); at >= 0 {
			line = slices.Concat(line[:at], escapes().ReplaceAllFunc(line[at:], func(m []byte) []byte {
				if m[1] == '/' {
					return m[1:]
				}
				return m
			}))
		}
		out = append(out, line...)
	}
	return out
}

// parseNode reads exactly one YAML document.
func parseNode(data []byte) (*yaml.Node, error) {
	if len(data) > MaxInputBytes {
		return nil, &SyntaxError{Problem: fmt.Sprintf("%d bytes of YAML are too many, at most %d are read", len(data), MaxInputBytes)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(readable(data)))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, errEmpty
	case err != nil:
		return nil, yamlError(err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, &SyntaxError{Line: second.Line, Problem: "there is a second YAML document"}
	case !errors.Is(err, io.EOF):
		return nil, yamlError(err)
	}
	if len(doc.Content) != 1 {
		return nil, errEmpty
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Value == "" && root.Style == 0 && root.Anchor == "" {
		return nil, errEmpty
	}
	return root, nil
}

var yamlErrorForm = pattern.Lazy(`^yaml: (?:line (\d+): )?(.*)$`)

// yamlError converts an error of the library to a SyntaxError.
func yamlError(err error) *SyntaxError {
	first, second, _ := strings.Cut(err.Error(), "\n")
	if strings.HasSuffix(first, "unmarshal errors:") {
		first, _, _ = strings.Cut("yaml: "+strings.TrimSpace(second), "\n")
	}
	m := yamlErrorForm().FindStringSubmatch(first)
	if m == nil {
		return &SyntaxError{Problem: first, Advice: quoteAdvice}
	}
	line, _ := strconv.Atoi(m[1])
	return &SyntaxError{Line: line, Problem: m[2], Advice: quoteAdvice}
}

func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// convert converts a node of the library to a Value. It refuses the parts of YAML that Hiera data does not need.
func convert(n *yaml.Node, depth int) (Value, error) {
	at := func(problem, hint string) error {
		return &SyntaxError{Line: n.Line, Column: n.Column, Problem: problem, Advice: hint}
	}
	switch {
	case depth > maxDepth:
		return Value{}, at(fmt.Sprintf("values are nested more than %d deep", maxDepth), "")
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return Value{}, at("anchors and aliases (& and *) are not accepted", "write the value out, or quote it if it is text")
	case n.Style&yaml.TaggedStyle != 0:
		return Value{}, at(fmt.Sprintf("tags (%.60s) are not accepted", n.Tag), "quote the value to make it text")
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if !isPlain(n) {
			return Value{n.Value}, nil
		}
		v, err := plainScalar(n.Value)
		if err != nil {
			return Value{}, at(err.Error(), "quote it to keep it as text")
		}
		return v, nil
	case yaml.SequenceNode:
		list := make([]Value, len(n.Content))
		for i, child := range n.Content {
			v, err := convert(child, depth+1)
			if err != nil {
				return Value{}, err
			}
			list[i] = v
		}
		return Value{list}, nil
	case yaml.MappingNode:
		return convertMapping(n, depth)
	}
	return Value{}, at("this is not a YAML value", "")
}

func convertMapping(n *yaml.Node, depth int) (Value, error) {
	entries := make([]entry, 0, len(n.Content)/2)
	lines := map[string]int{} // of each key
	for i := 0; i+1 < len(n.Content); i += 2 {
		keyNode := n.Content[i]
		at := func(problem, hint string) error {
			return &SyntaxError{Line: keyNode.Line, Column: keyNode.Column, Problem: problem, Advice: hint}
		}
		key, err := convert(keyNode, depth+1)
		if err != nil {
			return Value{}, err
		}
		switch key.kind() {
		case "null", "list", "mapping":
			return Value{}, at("the key of a mapping can't be "+key.kind(), quoteAdvice)
		}
		if key.v == "<<" { // Psych also merges a quoted one
			return Value{}, at("merge keys (<<) are not accepted", "write the keys out")
		}
		if len(scalarText(key)) > maxKeyBytes {
			return Value{}, at(fmt.Sprintf("a key may have at most %d characters", maxKeyBytes), "")
		}
		if first := lines[scalarText(key)]; first > 0 {
			return Value{}, at(fmt.Sprintf("the key %s appears twice, first in line %d", scalarText(key), first), "")
		}
		lines[scalarText(key)] = keyNode.Line
		value, err := convert(n.Content[i+1], depth+1)
		if err != nil {
			return Value{}, err
		}
		entries = append(entries, entry{key, value})
	}
	m, err := sorted(entries)
	if err != nil {
		return Value{}, &SyntaxError{Line: n.Line, Column: n.Column, Problem: err.Error()}
	}
	return Value{m}, nil
}

// YAML readers disagree about unquoted text: YAML 1.2 reads "yes" as text, Psych as true; one reads 1e3 as a number,
// another as text. Here unquoted text is a number, boolean or null only if all readers agree. Any other is text, and
// Remarks reports it.
type scalarForms struct {
	decimal, octal, hex, binary, float, endless *regexp.Regexp
	boolWord, numberLike, sexagesimal           *regexp.Regexp
}

// forms compiles the patterns at their first use: a tick without work reads no YAML.
var forms = sync.OnceValue(func() scalarForms {
	return scalarForms{
		decimal:     regexp.MustCompile(`^[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)$`),
		octal:       regexp.MustCompile(`^[-+]?0[0-7]+$`),
		hex:         regexp.MustCompile(`^[-+]?0x[0-9a-fA-F]+$`),
		binary:      regexp.MustCompile(`^[-+]?0b[01]+$`),
		float:       regexp.MustCompile(`^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?$`),
		endless:     regexp.MustCompile(`^(?:[-+]?\.(?i:inf)|\.(?i:nan))$`),
		boolWord:    regexp.MustCompile(`^(?i:yes|no|on|off|true|false|null)$`),
		numberLike:  regexp.MustCompile(`^[-+]?(?:[0-9][0-9_,]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|0o[0-7]+)$`),
		sexagesimal: regexp.MustCompile(`^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9]){1,2}(?:\.[0-9_]*)?$`),
	}
})

// plainScalar parses unquoted text.
func plainScalar(text string) (Value, error) {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return Value{}, nil
	case "true", "True", "TRUE":
		return Value{true}, nil
	case "false", "False", "FALSE":
		return Value{false}, nil
	}
	switch {
	case forms().decimal.MatchString(text):
		return parseInt(text, strings.ReplaceAll(text, "_", ""), 10)
	case forms().octal.MatchString(text), forms().hex.MatchString(text), forms().binary.MatchString(text):
		return parseInt(text, text, 0)
	case forms().float.MatchString(text):
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) {
			return Value{}, fmt.Errorf("%.40s is too large for a number of 64 bits", text)
		}
		return Value{f}, nil
	case forms().endless.MatchString(text):
		return Value{}, fmt.Errorf("%s is not a number that Puppet can keep in a catalog", text)
	}
	return Value{text}, nil
}

func parseInt(text, digits string, base int) (Value, error) {
	n, err := strconv.ParseInt(digits, base, 64)
	if err != nil {
		return Value{}, fmt.Errorf("%.40s is too large: Puppet's integers have 64 bits", text)
	}
	return Value{n}, nil
}

// remark returns a sentence about unquoted text that its author may have meant differently; "" for other text.
func remark(text string) string {
	v, err := plainScalar(text)
	if err != nil {
		return ""
	}
	if n, ok := v.v.(int64); ok {
		if forms().octal.MatchString(text) {
			return fmt.Sprintf("%s is the number %d; for text, such as a file's mode, write '%s'", text, n, text)
		}
		return ""
	}
	if _, ok := v.v.(float64); ok && losesDigits(text, v.String()) {
		return fmt.Sprintf("%s is the number %s; for text, such as a version, write '%s'", text, v, text)
	}
	if _, ok := v.v.(string); !ok {
		return ""
	}
	switch {
	case forms().boolWord.MatchString(text):
		return fmt.Sprintf("%s is kept as text; for a boolean write true or false", text)
	case forms().numberLike.MatchString(text):
		return fmt.Sprintf("%s is kept as text; for a number write it with digits, and a point where it is a float", text)
	case forms().sexagesimal.MatchString(text):
		return fmt.Sprintf("%s is kept as text", text)
	}
	return ""
}

// losesDigits reports whether a float, as it is kept, lacks digits that its author wrote: more than 64 bits hold, or zeros at the end,
// which count in a version.
func losesDigits(written, kept string) bool {
	if strings.ContainsAny(written, "eE") { // of a large exponent, the exact value would take megabytes
		return false
	}
	if written = strings.TrimPrefix(written, "+"); strings.HasSuffix(written, "0") && written != kept {
		return true
	}
	exact, ok := new(big.Rat).SetString(written)
	rounded, okToo := new(big.Rat).SetString(kept)
	return ok && okToo && exact.Cmp(rounded) != 0
}
