package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"pulley/internal/cli"
)

// screen is how the demo speaks: captions, command lines with what they print, and progress.
type screen struct {
	out      io.Writer
	terminal bool // progress is one line that changes, else lines every few seconds
	color    bool
	width    int
	now      func() time.Time
}

const (
	plainWidth    = 140
	paintInterval = 120 * time.Millisecond
	lineInterval  = 5 * time.Second
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

// title opens a scene.
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
func (s *screen) prompt(where string, args ...string) {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = shellQuoted(a)
	}
	s.typed(where, strings.Join(words, " "))
}

// typed is prompt for what a shell is told in its own words.
func (s *screen) typed(where, command string) { s.line(s.paint("1", where+" "+command)) }

// show prints what a command printed: its first lines, each cut to the width.
func (s *screen) show(output string, most int) {
	lines := nonEmpty(output)
	for _, l := range lines[:min(most, len(lines))] {
		s.line("  " + cut(l, s.width-2))
	}
	if more := len(lines) - most; more > 0 {
		s.line(fmt.Sprintf("  … %d more lines", more))
	}
}

// tell is show for sentences: long lines are wrapped.
func (s *screen) tell(output string, most int) {
	lines := nonEmpty(output)
	for _, l := range lines[:min(most, len(lines))] {
		indent := "  " + l[:len(l)-len(strings.TrimLeft(l, " "))]
		for _, part := range wrap(l, s.width-len(indent)-2) {
			s.line(indent + part)
			if !strings.HasSuffix(indent, "    ") {
				indent += "  "
			}
		}
	}
	if more := len(lines) - most; more > 0 {
		s.line(fmt.Sprintf("  … %d more lines", more))
	}
}

// during shows that something takes time. do may tell how far it is.
func (s *screen) during(what string, do func(detail func(string)) error) error {
	p := &progress{screen: s, what: what, began: s.now(), ended: make(chan struct{})}
	p.shown = p.began
	var painter sync.WaitGroup
	painter.Go(p.paint)
	err := do(p.detail)
	close(p.ended)
	painter.Wait()
	if err == nil {
		s.line(s.paint("32", fmt.Sprintf("  ✓ %s (%.1fs)", what, s.now().Sub(p.began).Seconds())))
	}
	return err
}

// progress is one wait on the screen.
type progress struct {
	*screen
	what  string
	began time.Time
	shown time.Time
	ended chan struct{}

	mu   sync.Mutex
	text string
}

func (p *progress) detail(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
}

func (p *progress) paint() {
	ticker := time.NewTicker(paintInterval)
	defer ticker.Stop()
	for frame := 0; ; frame++ {
		select {
		case <-p.ended:
			if p.terminal {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return
		case <-ticker.C:
			p.frame(frame)
		}
	}
}

func (p *progress) frame(n int) {
	p.mu.Lock()
	text := p.what
	if p.text != "" {
		text += ": " + p.text
	}
	p.mu.Unlock()
	now := p.now()
	text = fmt.Sprintf("%s %s", cli.Span(now.Sub(p.began)), text)
	switch {
	case p.terminal:
		fmt.Fprintf(p.out, "\r\x1b[K  %c %s", spinner[n%len(spinner)], cut(text, p.width-5))
	case now.Sub(p.shown) >= lineInterval:
		p.shown = now
		p.line("  … " + cut(text, p.width-4))
	}
}

// cut shortens a line to a width.
func cut(s string, width int) string {
	r := []rune(cli.Clean(strings.TrimRight(s, " ")))
	if len(r) <= max(width, 1) {
		return string(r)
	}
	return string(r[:max(width, 1)-1]) + "…"
}

// wrap breaks a text between words into lines of at most width, where words are no longer than that.
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

// shellQuoted writes a word as a shell reads it.
func shellQuoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%~", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
