package provision

import (
	"fmt"
	"pulley/internal/clip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxWords is how much of what a provider says is shown, in bytes.
const maxWords = 200

// clean makes what a provider or a node says fit for a sentence on a terminal: one line, nothing that steers, cut.
func clean(s string) string { return plain(clip.Text(s, maxWords)) }

// plain makes a text one line without anything that steers a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// quote prints a name that nobody vouches for.
func quote(s string) string { return strconv.Quote(clip.Text(s, 80)) }

// because adds a provider's problem to a sentence.
func because(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + clean(problem)
}

// span is a duration without parts that are zero: "30m", "1h30m".
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// goOn is what to do to go on with a plan that was cut off, or of which something failed. To apply would call a destroy off.
func (p Plan) goOn() string { return Deed(p.Destroys) + " again" }

// Deed is what is done to a fleet, as its command is called: "apply", or "destroy".
func Deed(destroys bool) string {
	if destroys {
		return "destroy"
	}
	return "apply"
}

// anew is what to do where the world is another than a plan was made from.
func (p Plan) anew() string {
	if p.Destroys {
		return "destroy again, and look at the plan that is shown"
	}
	return "look at a new plan"
}

// count is a number of things: "1 machine", "3 machines".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// are is the verb for a number of things.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
