package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// Output contains the flag -o table|json|yaml.
type Output struct {
	Format string // "" means table
}

// AddFlags adds the flag.
func (o *Output) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Format, "output", "o", "", "table, json or yaml [PULLEY_OUTPUT] (default table)")
}

// Fill sets an unset flag from the environment.
func (o *Output) Fill(e Env) {
	if o.Format == "" {
		o.Format = e.Getenv("PULLEY_OUTPUT")
	}
}

// Print writes value as JSON or YAML, or calls table for people. JSON and YAML use the same field names. A list without
// elements is [], never null.
func (o *Output) Print(e Env, value any, table func(w *Table) error) error {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Slice && v.IsNil() {
		value = []any{}
	}
	switch o.Format {
	case "json":
		enc := json.NewEncoder(e.Stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(value)
	case "yaml":
		b, err := json.Marshal(value)
		if err != nil {
			return err
		}
		var plain any
		if err := yaml.Unmarshal(b, &plain); err != nil {
			return err
		}
		enc := yaml.NewEncoder(e.Stdout)
		enc.SetIndent(2)
		if err := enc.Encode(plain); err != nil {
			return err
		}
		return enc.Close()
	case "table", "":
		t := NewTable(e)
		if err := table(t); err != nil {
			return err
		}
		return t.Flush()
	}
	return o.Check()
}

// ForPeople reports whether the output is a table, which allows additional text beside it.
func (o *Output) ForPeople() bool { return o.Format == "" || o.Format == "table" }

// Check rejects an unknown format. Programs call it before any other work.
func (o *Output) Check() error {
	switch o.Format {
	case "json", "yaml", "table", "":
		return nil
	}
	return Usagef("cannot print as %q: give table, json or yaml", o.Format)
}

// Clean makes text from a machine safe for a terminal: one line, no control characters.
func Clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, control) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if control(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// Cleanf is fmt.Fprintf for data from machines. It cleans every argument except integers: only the format can break
// lines.
func Cleanf(w io.Writer, format string, args ...any) {
	for i, a := range args {
		if !reflect.ValueOf(a).CanInt() {
			args[i] = Clean(fmt.Sprint(a))
		}
	}
	fmt.Fprintf(w, format, args...)
}

// control reports a character that a terminal obeys instead of showing it: also one that reverses the order of the others.
func control(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || unicode.Is(unicode.Bidi_Control, r)
}

// Ago formats an age: "12s", "5m", "3h", "4d"; "never" for the zero time.
func Ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return Span(now.Sub(then)) + " ago"
}

// Span formats a duration in one unit.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + Span(d.Abs())
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Count formats a number with its noun in singular or plural: "1 error", "2 errors".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Bytes formats a size with a unit of 1024: "512 B", "3.4 KiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		if f /= 1024; f < 1024 || unit == "GiB" {
			return fmt.Sprintf("%.1f %s", f, unit)
		}
	}
	return ""
}
