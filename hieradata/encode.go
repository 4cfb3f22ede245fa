package hieradata

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"pulley/internal/pattern"
)

// encode returns canonical YAML: block style, sorted keys, two spaces. It quotes every text that any YAML reader might
// read as another type. Pulley does not use a library here: the bytes are hashed and signed, and a new version of a
// library could change them.
func encode(v Value) []byte {
	var b bytes.Buffer
	writeBlock(&b, v, 0)
	if b.Len() == 0 || b.Bytes()[b.Len()-1] != '\n' {
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// writeBlock writes v. The current line is already indented.
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
			if e.value.IsBlock() {
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

// IsBlock reports whether canonical YAML writes the value on lines of its own: it is a list or a mapping that is not empty.
func (v Value) IsBlock() bool {
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

// scalarText returns a scalar as canonical YAML.
func scalarText(v Value) string {
	switch x := v.v.(type) {
	case bool:
		return strconv.FormatBool(x)
	case int64:
		return strconv.FormatInt(x, 10)
	case float64:
		return floatText(x)
	case string:
		if plainText().MatchString(x) && !reservedWord().MatchString(x) {
			return x
		}
		return quoted(x)
	}
	return "null"
}

// plainText matches text that every YAML reader reads as text, except for the reserved words.
var plainText = pattern.Lazy(`^[A-Za-z_/][A-Za-z0-9_./-]*(::[A-Za-z0-9_./-]+)*$`)

// reservedWord matches text that YAML 1.1 or 1.2 reads as a boolean or null.
var reservedWord = pattern.Lazy(`^(?i:y|n|yes|no|on|off|true|false|null)$`)

// floatText always writes a point and, with an exponent, its sign: Psych reads 1e20 as a string.
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

// quoted returns text in double quotes. The escaped characters are fixed here: they must not depend on a Unicode
// version.
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
