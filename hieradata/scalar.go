package hieradata

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

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
