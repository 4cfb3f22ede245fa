package hieradata

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// encode writes canonical YAML: block style, sorted keys, two spaces, and every text quoted that any reader of YAML might
// take for something else. It is written here rather than left to a library, because its bytes are hashed and signed: a
// library's next version must not change them.
func encode(v Value) []byte {
	var b bytes.Buffer
	writeBlock(&b, v, 0)
	if b.Len() == 0 || b.Bytes()[b.Len()-1] != '\n' {
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// writeBlock writes v where the cursor stands already indented.
func writeBlock(b *bytes.Buffer, v Value, indent int) {
	switch x := v.v.(type) {
	case []Value:
		if len(x) == 0 {
			b.WriteString("[]\n")
			return
		}
		for i, item := range x {
			if i > 0 {
				writeIndent(b, indent)
			}
			b.WriteString("- ")
			writeBlock(b, item, indent+2)
		}
	case mapping:
		if len(x) == 0 {
			b.WriteString("{}\n")
			return
		}
		for i, e := range x {
			if i > 0 {
				writeIndent(b, indent)
			}
			b.WriteString(scalarText(e.key))
			b.WriteByte(':')
			if isBlock(e.value) {
				b.WriteByte('\n')
				writeIndent(b, indent+2)
				writeBlock(b, e.value, indent+2)
				continue
			}
			b.WriteByte(' ')
			writeBlock(b, e.value, indent+2)
		}
	default:
		b.WriteString(scalarText(v))
		b.WriteByte('\n')
	}
}

func isBlock(v Value) bool {
	switch x := v.v.(type) {
	case []Value:
		return len(x) > 0
	case mapping:
		return len(x) > 0
	}
	return false
}

func writeIndent(b *bytes.Buffer, n int) {
	for range n {
		b.WriteByte(' ')
	}
}

// scalarText is a scalar in canonical YAML.
func scalarText(v Value) string {
	switch x := v.v.(type) {
	case bool:
		return strconv.FormatBool(x)
	case int64:
		return strconv.FormatInt(x, 10)
	case float64:
		return floatText(x)
	case string:
		if plainText.MatchString(x) && !reservedWord.MatchString(x) {
			return x
		}
		return quoted(x)
	}
	return "null"
}

// plainText is text that no YAML reader takes for anything else, except for the reserved words.
var plainText = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*(::[A-Za-z0-9_./-]+)*$`)

// reservedWord is what YAML 1.1 or 1.2 reads as a boolean or as null.
var reservedWord = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null)$`)

// floatText always has a point and, with an exponent, its sign: Psych reads 1e20 as a string.
func floatText(f float64) string {
	s := strconv.FormatFloat(f, 'g', -1, 64)
	digits, exponent, hasExponent := strings.Cut(s, "e")
	if !strings.Contains(digits, ".") {
		digits += ".0"
	}
	if hasExponent {
		return digits + "e" + exponent
	}
	return digits
}

// quoted writes text in double quotes. What is escaped is fixed here, not taken from the tables of a Unicode version.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20, r >= 0x7f && r < 0xa0:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r == 0x2028, r == 0x2029, r == 0xfeff, r == 0xfffe, r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
