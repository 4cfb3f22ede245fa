package main

import (
	"cmp"
	"fmt"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
)

// follower shows how an apply goes. Whatever is done, fails or is worth knowing gets a line; what is waited for is one line on
// a terminal, which the next one takes the place of, and lines of its own elsewhere.
type follower struct {
	*options
	progress     *cli.Progress
	all          int // nodes that something is done for
	done, failed int
	begun        map[string]bool
}

func newFollower(o *options, p plan.Plan) *follower {
	f := &follower{options: o, progress: cli.NewProgress(o.env), begun: map[string]bool{}}
	for _, s := range p.Steps {
		if works(s) {
			f.all++
		}
	}
	return f
}

// works reports whether an apply does something about a step, if only wait.
func works(s plan.Step) bool {
	switch s.Verb {
	case plan.Keep, plan.Missing, plan.Extra, plan.Stranger:
		return false
	}
	return true
}

func (f *follower) event(e apply.Event) {
	f.begun[e.Node] = true
	switch e.State {
	case apply.Done:
		f.done++
		f.line(e, fmt.Sprintf("%s: done (%s)", e.Verb, f.count()))
	case apply.Fails:
		f.failed++
		f.line(e, fmt.Sprintf("%s: failed: %s (%s)", e.Verb, e.Text, f.count()))
	case apply.Notes:
		f.line(e, e.Text)
	case apply.Waits:
		if !f.watched() {
			f.line(e, e.Text)
		}
	}
	f.show(e)
}

// watched reports whether a person sees the line that is written over.
func (f *follower) watched() bool { return f.env.Terminal && f.env.ErrTerminal }

// line is one event for good. Errors have hints in further lines, which the end of the apply shows again.
func (f *follower) line(e apply.Event, text string) {
	f.progress.Done()
	cli.Cleanf(f.env.Stdout, "%s  %s: %s\n", e.At.UTC().Format("15:04:05"), e.Node, strings.ReplaceAll(text, "\n", "; "))
}

// count is "12 of 40", with those that failed.
func (f *follower) count() string {
	count := fmt.Sprintf("%d of %d", f.done, f.all)
	if f.failed > 0 {
		count += fmt.Sprintf(", %d failed", f.failed)
	}
	return count
}

// show writes the line of progress anew, cut to the terminal: one that wraps could not be taken away.
func (f *follower) show(e apply.Event) {
	line := f.count() + " done"
	if working := len(f.begun) - f.done - f.failed; working > 0 {
		line += fmt.Sprintf(", %d at work; %s: %s", working, e.Node, cmp.Or(e.Text, e.Step, string(e.Verb)+" is done"))
	}
	text := []rune(cli.Clean(strings.ReplaceAll(line, "\n", "; ")))
	if width := cmp.Or(f.env.Width, 80); len(text) >= width {
		text = append(text[:max(width-2, 0)], '…')
	}
	f.progress.Show(string(text))
}
