package progress

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
	"pulley/internal/machines/plan"
)

// displayed shows events of a plan with three nodes to work on, and returns the content of both streams.
func displayed(terminal bool, events ...apply.Event) (stdout, stderr string) {
	var out, err bytes.Buffer
	e := cli.Env{Stdout: &out, Stderr: &err, Terminal: terminal, ErrTerminal: terminal, Width: 40}
	d := New(e, plan.Plan{Steps: []plan.Step{
		{Verb: plan.Keep, Node: "db1"}, {Verb: plan.Create, Node: "web1"}, {Verb: plan.Retire, Node: "web2"}, {Verb: plan.Wait, Node: "web3"},
	}})
	for _, e := range events {
		e.At = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
		d.Event(e)
	}
	d.Close()
	return out.String(), err.String()
}

var anApply = []apply.Event{
	{Node: "web1", Verb: plan.Create, Task: "order", State: apply.Begins},
	{Node: "web3", Verb: plan.Wait, Task: "register", State: apply.Waits, Reasons: []machines.Reason{{Code: machines.WaitsForRetry, Problem: "it runs, and has not joined yet, for reasons that nobody knows"}}},
	{Node: "web1", Verb: plan.Create, State: apply.Done},
	{Node: "web2", Verb: plan.Retire, Task: "drain", State: apply.Fails, Err: errors.New("it is busy\x1b[2J\nlook at it")},
}

// Without this an operator would not see the progress of a long apply, or a log would contain control characters.
func TestDisplayCountsSteps(t *testing.T) {
	want := `03:02:01  web3: the provider answered: it runs, and has not joined yet, for reasons that nobody knows; retrying
03:02:01  web1: create: done (1 of 3)
`
	out, err := displayed(false, anApply...)
	if rest, ok := strings.CutPrefix(out, want); !ok || !strings.Contains(rest, "web2: retire: failed: it is busy") || !strings.HasSuffix(rest, "; look at it (1 of 3, 1 failed)\n") {
		t.Errorf("printed:\n%s", out)
	}
	if err != "" || strings.Contains(out, "\x1b") {
		t.Errorf("a log got %q and %q", out, err)
	}
}

// Without this, progress on a terminal would scroll, or leave parts of lines.
func TestDisplayOverwritesOneLineOnATerminal(t *testing.T) {
	out, err := displayed(true, anApply...)
	if strings.Contains(out, "has not joined yet") || strings.Count(out, "\n") != 2 {
		t.Errorf("printed lines:\n%s", out)
	}
	lines := strings.Split(err, "\r\x1b[K")
	for _, line := range lines {
		if utf8.RuneCountInString(line) >= 40 || strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("a line of progress is %q", line)
		}
	}
	if !strings.Contains(err, "0 of 3 done, 2 in progress; web3: th") || lines[len(lines)-1] != "" {
		t.Errorf("progress is %q", err)
	}
}
