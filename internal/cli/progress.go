package cli

import "fmt"

// Progress is one line on a terminal that each update overwrites. If standard error is not a terminal, Progress writes
// nothing.
type Progress struct {
	env   Env
	shown bool
}

// NewProgress returns a Progress that shows nothing yet.
func NewProgress(e Env) *Progress { return &Progress{env: e} }

// Show replaces the line.
func (p *Progress) Show(line string) {
	if p.env.ErrTerminal {
		p.shown = true
		fmt.Fprintf(p.env.Stderr, "\r\x1b[K%s", Clean(line))
	}
}

// Done removes the line. A second call does nothing.
func (p *Progress) Done() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.env.Stderr, "\r\x1b[K")
	}
}
