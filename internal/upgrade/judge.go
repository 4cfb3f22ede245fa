package upgrade

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"pulley/agent"
)

// Ending is a candidate's report at the end of a tick.
type Ending struct {
	Code        int         `json:"code"`                  // its exit code
	Locked      bool        `json:"locked,omitempty"`      // another run was in progress: it did nothing
	Unreachable bool        `json:"unreachable,omitempty"` // etcd did not answer it
	Puppet      bool        `json:"puppet,omitempty"`      // Puppet was started
	Failed      bool        `json:"failed,omitempty"`      // its run of Puppet failed
	Problem     agent.Prose `json:"problem,omitempty"`     // why it could not do the tick
}

// Trial is one tick of a candidate, as the agent in place saw it.
type Trial struct {
	Steps   []string      // that it reported to begin
	Ending  *Ending       // nil when it did not report the end of the tick
	Code    int           // its exit code; -1 when a signal ended it
	Signal  string        // which
	Late    string        // the step in which its time was over; "" when it ended by itself
	Limit   time.Duration // of that step
	Stopped bool          // it was ended because this agent was stopped
	Words   string        // the end of its standard error
	Err     error         // it could not be started
}

// Finding is what a trial shows about the candidate.
type Finding string

// The findings, the good one first.
const (
	Good    Finding = "good"
	Nothing Finding = "nothing" // it shows nothing about the agent
	Reach   Finding = "reach"   // it could not reach etcd: bad if this agent can
	Compare Finding = "compare" // the tick failed: bad if this agent's own succeeds
	Bad     Finding = "bad"
)

// Judge decides what a trial shows of a candidate, and why, as a pure function.
func Judge(t Trial) (Finding, agent.Problem) {
	switch {
	case t.Err != nil && machines(t.Err):
		return Nothing, agent.Problem{Code: agent.UpgradeNotStarted, Text: agent.Prose(t.Err.Error())}
	case t.Err != nil:
		return Bad, agent.Problem{Code: agent.UpgradeNotStarted, Text: agent.Prose(t.Err.Error())}
	case t.Late != "":
		return Bad, agent.Problem{Code: agent.UpgradeStoodStill, Step: t.Late, Limit: t.Limit}
	case t.Stopped:
		return Nothing, agent.Problem{Code: agent.UpgradeStopped}
	case t.Signal != "":
		return Bad, agent.Problem{Code: agent.UpgradeKilled, Signal: t.Signal, Text: t.said()}
	case t.Ending == nil && len(t.Steps) == 0:
		return Bad, agent.Problem{Code: agent.UpgradeNeverBegan, Number: t.Code, Text: t.said()}
	case t.Ending == nil:
		return Bad, agent.Problem{Code: agent.UpgradeNoEnding, Number: t.Code, Step: t.Steps[len(t.Steps)-1], Text: t.said()}
	case t.Ending.Code != t.Code:
		return Bad, agent.Problem{Code: agent.UpgradeOtherCode, Number: t.Code, Text: t.said()}
	case t.Ending.Locked:
		return Nothing, agent.Problem{Code: agent.UpgradeBusy}
	case t.Ending.Unreachable:
		return Reach, agent.Problem{Code: agent.UpgradeNoEtcd}
	case t.Ending.Failed:
		return Compare, agent.Problem{Code: agent.UpgradeRunFailed}
	case t.Ending.Problem != "":
		return Compare, agent.Problem{Code: agent.UpgradeTickFailed, Text: t.Ending.Problem}
	case !slices.Contains(t.Steps, lastStep):
		return Bad, agent.Problem{Code: agent.UpgradeNoReport}
	}
	return Good, agent.Problem{}
}

// machines says whether a program that can't be started is the machine's fault: no memory, no more processes, a file system
// from which nothing may be started. The program's own is only that the kernel can't run it.
func machines(err error) bool { return !errors.Is(err, syscall.ENOEXEC) }

// said is what a candidate said last, for people: a panic begins with its reason.
func (t Trial) said() agent.Prose {
	words := t.Words
	for _, begin := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(words, begin); i >= 0 {
			words = words[i:]
			break
		}
	}
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n")
	return agent.Prose(words)
}
