// Package clip shortens text that others wrote before it is stored, logged or shown. It never cuts a character apart, and its
// result is always UTF-8.
package clip

import (
	"strings"
	"sync"
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

// Parts returns the first line of a text and what follows: a sentence, and its remedy.
func Parts(s string) (sentence, remedy string) {
	sentence, remedy, _ = strings.Cut(s, "\n")
	return sentence, remedy
}

// Tail is a writer that keeps the last bytes written to it. Several goroutines may write.
type Tail struct {
	Limit int // in bytes

	mu    sync.Mutex
	bytes []byte
}

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = append(t.bytes, p...)
	if extra := len(t.bytes) - t.Limit; extra > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[extra:]...)
	}
	return len(p), nil
}

// Head is a writer that keeps the first bytes written to it. One goroutine writes.
type Head struct {
	Limit int // in bytes

	bytes []byte
}

func (h *Head) Write(p []byte) (int, error) {
	h.bytes = append(h.bytes, p[:min(len(p), h.Limit-len(h.bytes))]...)
	return len(p), nil
}

// String returns the kept text.
func (h *Head) String() string { return string(h.bytes) }

// String returns the kept text without white space at its ends.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.bytes), "?"))
}
