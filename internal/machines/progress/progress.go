// Package progress shows the progress of an apply. It must never decide anything.
package progress

import (
	"cmp"
	"fmt"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
)

// Display prints a line for each step that is done or fails, and for each note. On a terminal, the state of waits
// overwrites one line; elsewhere each state has its own line.
type Display struct {
	env          cli.Env
	progress     *cli.Progress
	all          int // nodes that the plan works on
	done, failed int
	begun        map[string]bool
}

// New returns the display of a plan.
func New(e cli.Env, p plan.Plan) *Display {
	d := &Display{env: e, progress: cli.NewProgress(e), begun: map[string]bool{}}
	for _, s := range p.Steps {
		if s.Works() {
			d.all++
		}
	}
	return d
}

// Close removes the progress line.
func (d *Display) Close() { d.progress.Done() }

// Event prints one event.
func (d *Display) Event(e apply.Event) {
	d.begun[e.Node] = true
	text := render.Reasons(e.Reasons)
	switch e.State {
	case apply.Done:
		d.done++
		d.line(e, fmt.Sprintf("%s: done (%s)", e.Verb, d.count()))
	case apply.Fails:
		d.failed++
		text = e.Err.Error()
		d.line(e, fmt.Sprintf("%s: failed: %s (%s)", e.Verb, text, d.count()))
	case apply.Notes:
		d.line(e, fmt.Sprintf("%s: %s", e.Verb, text))
	case apply.Waits:
		if !d.env.Terminal || !d.env.ErrTerminal {
			d.line(e, text)
		}
	}
	d.show(e, text)
}

// line prints one event without the remedies of its error, which the end of the apply prints.
func (d *Display) line(e apply.Event, text string) {
	d.progress.Done()
	cli.Cleanf(d.env.Stdout, "%s  %s: %s\n", e.At.UTC().Format("15:04:05"), e.Node, oneLine(text))
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

// count returns "12 of 40", with the number of failures.
func (d *Display) count() string {
	count := fmt.Sprintf("%d of %d", d.done, d.all)
	if d.failed > 0 {
		count += fmt.Sprintf(", %d failed", d.failed)
	}
	return count
}

// show overwrites the progress line, cut to the terminal: a line that wraps could not be removed.
func (d *Display) show(e apply.Event, text string) {
	line := d.count() + " done"
	if working := len(d.begun) - d.done - d.failed; working > 0 {
		line += fmt.Sprintf(", %d in progress; %s: %s", working, e.Node, cmp.Or(text, e.Task, string(e.Verb)+" is done"))
	}
	runes := []rune(cli.Clean(oneLine(line)))
	if width := cmp.Or(d.env.Width, 80); len(runes) >= width {
		runes = append(runes[:max(width-2, 0)], '…')
	}
	d.progress.Show(string(runes))
}
