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
	Locked      bool        `json:"locked,omitempty"`      // another run was in progress, and it did nothing
	Unreachable bool        `json:"unreachable,omitempty"` // etcd did not answer
	Puppet      bool        `json:"puppet,omitempty"`      // Puppet was started
	Failed      bool        `json:"failed,omitempty"`      // its Puppet run failed
	Problem     agent.Prose `json:"problem,omitempty"`     // why it could not run the tick
}

// Trial is one tick of a candidate, as observed by the agent in place.
type Trial struct {
	Steps   []string      // the started steps that it reported
	Ending  *Ending       // nil: the end of the tick was not reported
	Code    int           // its exit code; -1 when a signal ended it
	Signal  string        // the name of that signal
	Late    string        // the step that exceeded its limit; "" if it ended by itself
	Limit   time.Duration // of that step
	Stopped bool          // ended because this agent was stopped
	Words   string        // the end of its standard error
	Err     error         // why it could not start
}

// Finding is the conclusion from a trial.
type Finding string

// The findings, the good one first.
const (
	Good    Finding = "good"
	Nothing Finding = "nothing" // no conclusion about the candidate
	Reach   Finding = "reach"   // it could not reach etcd: a failure if this agent can
	Compare Finding = "compare" // the tick failed: a failure if this agent's own tick succeeds
	Bad     Finding = "bad"
)

// Judge derives the finding of a trial and its cause. It is a pure function.
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

// machines reports whether the machine is at fault when a program cannot start: no memory, too many processes, a file
// system that forbids execution. Only ENOEXEC is the program's fault.
func machines(err error) bool { return !errors.Is(err, syscall.ENOEXEC) }

// said returns the candidate's last output, for people. A panic's reason comes first.
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
