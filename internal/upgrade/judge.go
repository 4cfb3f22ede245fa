package upgrade

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Ending is what a candidate says at the end of a tick.
type Ending struct {
	Code        int    `json:"code"`                  // with which it is going to exit
	Locked      bool   `json:"locked,omitempty"`      // another run was in progress: it did nothing
	Unreachable bool   `json:"unreachable,omitempty"` // etcd did not answer it
	Failed      bool   `json:"failed,omitempty"`      // its run of Puppet failed
	Problem     string `json:"problem,omitempty"`     // why it could not do the tick
}

// Trial is one tick of a candidate, as it was seen from outside.
type Trial struct {
	Steps   []string      // those that it said it began
	Ending  *Ending       // nil when it never said how the tick went
	Code    int           // its exit code; -1 when a signal ended it
	Signal  string        // which
	Late    string        // what it was at when its time was over; "" when it ended by itself
	Limit   time.Duration // of what it was at
	Stopped bool          // it was ended because this agent was told to end
	Words   string        // the last that it said to standard error
	Err     error         // it could not be started
}

// Finding is what a trial says of the candidate.
type Finding string

// The findings, the good one first.
const (
	Good    Finding = "good"
	Nothing Finding = "nothing" // it says nothing of the agent
	Reach   Finding = "reach"   // it could not reach etcd: bad if this agent can
	Compare Finding = "compare" // the tick failed: bad if this agent's own succeeds
	Bad     Finding = "bad"
)

// Judge decides what a trial says of a candidate, and why, as a pure function.
func Judge(t Trial) (Finding, string) {
	switch {
	case t.Err != nil && machines(t.Err):
		return Nothing, "it could not be started: " + t.Err.Error()
	case t.Err != nil:
		return Bad, "it could not be started: " + t.Err.Error()
	case t.Late == startStep:
		return Bad, fmt.Sprintf("it did not begin its tick within %s of its start", t.Limit)
	case t.Late == endStep:
		return Bad, fmt.Sprintf("it did not end within %s of its last word", t.Limit)
	case t.Late != "":
		return Bad, fmt.Sprintf("it stood still in the step %s for %s", t.Late, t.Limit)
	case t.Stopped:
		return Nothing, "this agent was told to end"
	case t.Signal != "":
		return Bad, "it was ended by the signal " + t.Signal + t.said()
	case t.Ending == nil && len(t.Steps) == 0:
		return Bad, fmt.Sprintf("it ended with code %d and never began its tick%s", t.Code, t.said())
	case t.Ending == nil:
		return Bad, fmt.Sprintf("it ended with code %d in the step %s and never said how its tick went%s", t.Code, t.Steps[len(t.Steps)-1], t.said())
	case t.Ending.Code != t.Code:
		return Bad, fmt.Sprintf("it said that it would end with code %d, and ended with %d%s", t.Ending.Code, t.Code, t.said())
	case t.Ending.Locked:
		return Nothing, "another run was in progress"
	case t.Ending.Unreachable:
		return Reach, "it could not reach etcd"
	case t.Ending.Failed:
		return Compare, "its run of Puppet failed"
	case t.Ending.Problem != "":
		return Compare, "its tick failed: " + t.Ending.Problem
	case !slices.Contains(t.Steps, lastStep):
		return Bad, "it ended without a report"
	}
	return Good, ""
}

// machines says whether a program that can't be started is the machine's fault: no memory, no more processes, a file system
// from which nothing may be started. The program's own is only that the kernel can't run it.
func machines(err error) bool { return !errors.Is(err, syscall.ENOEXEC) }

// said is what a candidate said last, for people: a panic begins with its reason.
func (t Trial) said() string {
	words := t.Words
	for _, begin := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(words, begin); i >= 0 {
			words = words[i:]
			break
		}
	}
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n")
	if words == "" {
		return ""
	}
	return ": " + words
}
