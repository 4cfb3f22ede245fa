package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"pulley/internal/cli"
	"pulley/internal/shellquote"
)

// screen prints captions, command lines with their output, and progress.
type screen struct {
	out      io.Writer
	terminal cli.Env
	width    int
	now      func() time.Time
	progress *cli.Progress
}

func newScreen(env cli.Env) *screen {
	width := env.Width
	if width <= 0 { // unknown
		width = 80
	}
	return &screen{out: env.Stdout, terminal: env, width: width, now: env.Now, progress: cli.NewProgress(env)}
}

func (s *screen) line(text string) { fmt.Fprintln(s.out, text) }

func (s *screen) paint(style cli.Style, text string) string { return s.terminal.Paint(style, text) }

// prompt shows a command as it was run. Where is "$" for the operator, "controller1#" for root in a machine.
func (s *screen) prompt(where string, args ...string) { s.typed(where, shellquote.Join(args)) }

// typed is prompt for a line in the shell's own syntax.
func (s *screen) typed(where, command string) { s.line(s.paint(cli.Bold, where+" "+command)) }

// show prints the first lines of a command's output.
func (s *screen) show(output string, most int) {
	lines := nonEmpty(output)
	for _, l := range lines[:min(most, len(lines))] {
		s.line("  " + cli.Clean(l))
	}
	if more := len(lines) - most; more > 0 {
		s.line(fmt.Sprintf("  … %d more lines", more))
	}
}

// during shows progress while do works; do may report details. Elsewhere than on a terminal there is no progress.
func (s *screen) during(what string, do func(detail func(string)) error) error {
	began := s.now()
	s.progress.Show(cut("  … "+what, s.width-1))
	err := do(func(detail string) { s.progress.Show(cut("  … "+what+": "+detail, s.width-1)) })
	s.progress.Done()
	if err == nil {
		s.line(s.paint(cli.Green, fmt.Sprintf("  ✓ %s (%.1fs)", what, s.now().Sub(began).Seconds())))
	}
	return err
}

// cut shortens a line to a width: the next one overwrites it.
func cut(s string, width int) string {
	r := []rune(s)
	if width = max(width, 1); len(r) <= width {
		return s
	}
	return string(r[:width-1]) + "…"
}

func nonEmpty(s string) []string {
	var lines []string
	for l := range strings.Lines(s) {
		if l = strings.TrimRight(l, " \r\n"); l != "" {
			lines = append(lines, l)
		}
	}
	return lines
}
