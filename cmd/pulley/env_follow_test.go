package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pulley/internal/cli"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
)

// followed shows events of a plan with three nodes to work on, and returns what the two streams got.
func followed(terminal bool, events ...apply.Event) (stdout, stderr string) {
	var out, err bytes.Buffer
	o := &options{env: cli.Env{Stdout: &out, Stderr: &err, Terminal: terminal, ErrTerminal: terminal, Width: 40}}
	p := plan.Plan{Steps: []plan.Step{
		{Verb: plan.Keep, Node: "db1"}, {Verb: plan.Create, Node: "web1"}, {Verb: plan.Retire, Node: "web2"}, {Verb: plan.Wait, Node: "web3"},
	}}
	f := newFollower(o, p)
	for _, e := range events {
		e.At = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
		f.event(e)
	}
	f.progress.Done()
	return out.String(), err.String()
}

var anApply = []apply.Event{
	{Node: "web1", Verb: plan.Create, Step: "order", State: apply.Begins},
	{Node: "web3", Verb: plan.Wait, Step: "register", State: apply.Waits, Text: "it runs, and has not joined yet, for reasons that nobody knows"},
	{Node: "web1", Verb: plan.Create, State: apply.Done},
	{Node: "web2", Verb: plan.Retire, Step: "drain", State: apply.Fails, Text: "it is busy\x1b[2J\nlook at it"},
}

// An operator of a long apply would not know how far it is, or a log would be full of what a terminal obeys.
func TestFollowerCounts(t *testing.T) {
	want := `03:02:01  web3: it runs, and has not joined yet, for reasons that nobody knows
03:02:01  web1: create: done (1 of 3)
`
	out, err := followed(false, anApply...)
	if rest, ok := strings.CutPrefix(out, want); !ok || !strings.Contains(rest, "web2: retire: failed: it is busy") || !strings.HasSuffix(rest, "; look at it (1 of 3, 1 failed)\n") {
		t.Errorf("printed:\n%s", out)
	}
	if err != "" || strings.Contains(out, "\x1b") {
		t.Errorf("a log got %q and %q", out, err)
	}
}

// On a terminal the progress would scroll everything away, or leave halves of lines behind.
func TestFollowerOnATerminal(t *testing.T) {
	out, err := followed(true, anApply...)
	if strings.Contains(out, "has not joined yet") || strings.Count(out, "\n") != 2 {
		t.Errorf("lines for good:\n%s", out)
	}
	lines := strings.Split(err, "\r\x1b[K")
	for _, line := range lines {
		if utf8.RuneCountInString(line) >= 40 || strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("a line of progress is %q", line)
		}
	}
	if !strings.Contains(err, "0 of 3 done, 2 at work; web3: it runs") || lines[len(lines)-1] != "" {
		t.Errorf("progress is %q", err)
	}
}
