package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func wideTable(e Env) *Table {
	table := NewTable(e)
	table.Spare("RUN", "OUTCOME")
	table.Paint("STATE", func(cell string) Style { return map[string]Style{"failed": Red, "ok": Green}[cell] })
	table.Row("NODE", "STATE", "OUTCOME", "RUN", "WHY")
	table.Row("a-node-with-a-long-name.example.com", "failed", "failed", "20261120T222330Z-2", strings.Repeat("why ", 30))
	table.Row("n2", "ok")
	return table
}

// A table that breaks its lines is unreadable. One that hides a name or loses text in a pipe is worse.
func TestTablesFitTheTerminal(t *testing.T) {
	for _, width := range []int{200, 100, 80} {
		e, out, _ := env(nil)
		e.Terminal, e.Width = true, width
		e.Getenv = func(name string) string { return map[string]string{"NO_COLOR": "1"}[name] }
		if err := wideTable(e).Flush(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("width %d: %d columns: %s", width, n, line)
			}
		}
		if !strings.Contains(out.String(), "a-node-with-a-long-name.example.com") || !strings.Contains(out.String(), "STATE") {
			t.Errorf("width %d:\n%s", width, out)
		}
		if run := strings.Contains(out.String(), "RUN"); run != (width == 200) {
			t.Errorf("width %d shows column RUN: %t", width, run)
		}
	}
	e, out, _ := env(nil)
	e.Width = 80 // not a terminal
	if err := wideTable(e).Flush(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), strings.TrimSpace(strings.Repeat("why ", 30))) || !strings.Contains(out.String(), "20261120T222330Z-2") {
		t.Errorf("in a pipe:\n%s", out)
	}
}

// Colours in a file or against the user's wish are noise.
func TestColoursAreForTerminals(t *testing.T) {
	for _, c := range []struct {
		name, value string
		terminal    bool
		want        bool
	}{{"", "", true, true}, {"", "", false, false}, {"NO_COLOR", "1", true, false}, {"TERM", "dumb", true, false}} {
		e, out, _ := env(map[string]string{c.name: c.value})
		e.Terminal = c.terminal
		if err := wideTable(e).Flush(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "\x1b[31mfailed\x1b[0m"); got != c.want || strings.Count(out.String(), "\x1b[31m") > 1 {
			t.Errorf("%+v: %q", c, out)
		}
	}
}
