// Package clip shortens text that others wrote before it is stored, logged or shown. It never cuts a character apart, and its
// result is always UTF-8.
package clip

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const more = "…"

// Text returns s in at most limit bytes; an ellipsis ends a text that was cut. Bytes that are not UTF-8 become "?".
func Text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= limit {
		return s
	}
	end := max(limit-len(more), 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}

// Line is Text for one line that a terminal can show: each character that is not printable becomes a space.
func Line(s string, limit int) string {
	return Text(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")), limit)
}
