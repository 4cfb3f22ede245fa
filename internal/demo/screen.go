package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"pulley/internal/cli"
	"pulley/internal/shellquote"
)

// screen prints captions, command lines with their output, and progress.
type screen struct {
	out      io.Writer
	terminal bool // progress is one line that changes; elsewhere there is none
	color    bool
	width    int
	now      func() time.Time
}

const (
	plainWidth    = 140
	paintInterval = 120 * time.Millisecond
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

func newScreen(env cli.Env, noColor bool) *screen {
	s := &screen{out: env.Stdout, terminal: env.Terminal && env.Getenv("TERM") != "dumb", width: plainWidth, now: env.Now}
	s.color = s.terminal && !noColor && env.Getenv("NO_COLOR") == ""
	if env.Terminal && env.Width > 0 {
		s.width = max(env.Width, 40)
	}
	return s
}

func (s *screen) line(text string) { fmt.Fprintln(s.out, text) }

func (s *screen) paint(style, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// title begins a step of the story.
func (s *screen) title(n, of int, text string) {
	s.line("\n" + s.paint("1;36", fmt.Sprintf("── %d of %d: %s", n, of, text)))
}

// say prints a caption.
func (s *screen) say(text string) {
	for _, l := range wrap(text, min(s.width, 100)) {
		s.line(l)
	}
}

// prompt shows a command as it was run. Where is "$" for the operator, "controller1#" for root in a machine.
func (s *screen) prompt(where string, args ...string) { s.typed(where, shellquote.Join(args)) }

// typed is prompt for a line in the shell's own syntax.
func (s *screen) typed(where, command string) { s.line(s.paint("1", where+" "+command)) }

// show prints the first lines of a command's output, each cut to the width.
func (s *screen) show(output string, most int) {
	s.first(output, most, func(l string) { s.line("  " + cut(l, s.width-2)) })
}

// tell is show for sentences: long lines are wrapped.
func (s *screen) tell(output string, most int) {
	s.first(output, most, func(l string) {
		indent := "  " + l[:len(l)-len(strings.TrimLeft(l, " "))]
		for i, part := range wrap(l, s.width-len(indent)-2) {
			if i == 1 {
				indent += "  "
			}
			s.line(indent + part)
		}
	})
}

func (s *screen) first(output string, most int, show func(string)) {
	lines := nonEmpty(output)
	for _, l := range lines[:min(most, len(lines))] {
		show(l)
	}
	if more := len(lines) - most; more > 0 {
		s.line(fmt.Sprintf("  … %d more lines", more))
	}
}

// during shows progress while do works; do may report details.
func (s *screen) during(what string, do func(detail func(string)) error) error {
	began, ended := s.now(), make(chan struct{})
	var mu sync.Mutex
	text := what
	var painter sync.WaitGroup
	if s.terminal {
		painter.Go(func() {
			ticker := time.NewTicker(paintInterval)
			defer ticker.Stop()
			for frame := 0; ; frame++ {
				select {
				case <-ended:
					fmt.Fprint(s.out, "\r\x1b[K")
					return
				case <-ticker.C:
					mu.Lock()
					line := fmt.Sprintf("%s %s", cli.Span(s.now().Sub(began)), text)
					mu.Unlock()
					fmt.Fprintf(s.out, "\r\x1b[K  %c %s", spinner[frame%len(spinner)], cut(line, s.width-5))
				}
			}
		})
	}
	err := do(func(detail string) {
		mu.Lock()
		defer mu.Unlock()
		text = what + ": " + detail
	})
	close(ended)
	painter.Wait()
	if err == nil {
		s.line(s.paint("32", fmt.Sprintf("  ✓ %s (%.1fs)", what, s.now().Sub(began).Seconds())))
	}
	return err
}

// cut shortens a line to a width.
func cut(s string, width int) string {
	r := []rune(cli.Clean(strings.TrimRight(s, " ")))
	if len(r) <= max(width, 1) {
		return string(r)
	}
	return string(r[:max(width, 1)-1]) + "…"
}

// wrap breaks a text between words into lines of at most width. A longer word has a line of its own.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(cli.Clean(s)) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
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
