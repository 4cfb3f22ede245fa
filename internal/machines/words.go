package machines

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"pulley/internal/clip"
)

// maxWords is how much of what a provider says is shown, in bytes.
const maxWords = 200

// clean makes what a provider or a node says fit for a sentence on a terminal: one line, nothing that steers, cut.
func Clean(s string) string { return Plain(clip.Text(s, maxWords)) }

// plain makes a text one line without anything that steers a terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// quote prints a name that nobody vouches for.
func Quote(s string) string { return strconv.Quote(clip.Text(s, 80)) }

// because adds a provider's problem to a sentence.
func Because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + Clean(problem)
}

// span is a duration without parts that are zero: "30m", "1h30m".
func Span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Deed is what is done to a fleet, as its command is called: "apply", or "destroy".
func Deed(destroys bool) string {
	if destroys {
		return "destroy"
	}
	return "apply"
}

// count is a number of things: "1 machine", "3 machines".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// are is the verb for a number of things.
func Are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// clock is a time as sentences have it.
func Clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// names joins the first few of some names.
func Names(all []string) string {
	const most = 5
	text := ""
	for i, n := range all {
		switch {
		case i == most:
			return fmt.Sprintf("%s and %d more", text, len(all)-most)
		case i > 0:
			text += ", "
		}
		text += n
	}
	return text
}
