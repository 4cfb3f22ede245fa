// Package upgrade replaces the agent by a newer version and reverts a version that fails. It owns the folder agent/ of
// the node's state, and the protocol between two agents of different versions.
//
// The agent in place is the known good one, and cron starts it. The newer one, the candidate, must pass its self-test,
// and then run several ticks while the agent in place watches it. Only then does one rename install the candidate. A
// crash at any point leaves one of the two in place.
//
// It must never decide which version a node runs, fetch a program itself, or install a program that has not passed its
// probation.
package upgrade

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"pulley/internal/clip"
	"pulley/internal/model"
)

// Program is one build of the agent.
type Program struct {
	Version string `json:"version"` // the published version
	Digest  string `json:"digest"`  // sha256 of the file: 64 hex digits
}

// State is a node's record of its own agent, in agent/state.json.
type State struct {
	Format    int        `json:"v"`
	Installed *Installed `json:"installed,omitempty"` // nil: not compared with a published version yet
	Candidate *Candidate `json:"candidate,omitempty"`
	Dropped   *Dropped   `json:"dropped,omitempty"`
	Waiting   *Waiting   `json:"waiting,omitempty"`
	Previous  *Previous  `json:"previous,omitempty"`
}

// Installed is the agent that is in place.
type Installed struct {
	Program
	Try   int64  `json:"try,omitempty"`   // see model.AgentChoice
	Order string `json:"order,omitempty"` // see model.AgentChoice: a rollout installed it, and the node may return from it
	File  string `json:"file"`            // size and time of the compared file; a changed file is compared again
}

// Candidate is an agent that passed its self-test and is on probation.
type Candidate struct {
	Program
	Try   int64     `json:"try,omitempty"`
	Order string    `json:"order,omitempty"`
	Since time.Time `json:"since"`          // start of its probation
	Good  int       `json:"good,omitempty"` // good ticks since the last doubt

	// Doubts counts ticks in a row that failed with it, and not with the agent in place directly afterwards.
	Doubts  int           `json:"doubts,omitempty"`
	Puppet  bool          `json:"puppet,omitempty"` // one was a Puppet run: only a good Puppet run resets them
	Problem model.Problem `json:"problem,omitzero"` // the last doubt, or why it could not start
}

// Choice returns the choice for which the candidate was fetched.
func (c Candidate) Choice() model.AgentChoice {
	return model.AgentChoice{Version: c.Version, Try: c.Try, Order: c.Order}
}

// Dropped is an agent that failed. It stays dropped while its version is wanted, until an operator retries it, or a rollout orders
// it again.
type Dropped struct {
	Program
	Try     int64         `json:"try,omitempty"`
	Order   string        `json:"order,omitempty"`
	Problem model.Problem `json:"problem"`
	At      time.Time     `json:"at"`

	// ByHand means that an operator reverted it. Only a retry after the next read of the wanted version counts; earlier
	// retries do not.
	ByHand bool `json:"by_hand,omitempty"`
}

// covers reports whether d blocks the wanted version.
func (d *Dropped) covers(want model.AgentChoice) bool {
	return d.ByHand || want.Try <= d.Try && (want.Order == "" || want.Order == d.Order)
}

// Waiting is the cause for which the wanted version was not tested yet. The node retries later.
type Waiting struct {
	Version string        `json:"version"`
	Try     int64         `json:"try,omitempty"`
	Problem model.Problem `json:"problem"`
	At      time.Time     `json:"at"`
}

// Previous is the agent that was in place before. Its file is kept.
type Previous struct {
	Program
	Until time.Time `json:"until"` // the time of its replacement
}

// Proof is the proof that a candidate must give. Each limit is a named constant and can be set in agent.yaml.
type Proof struct {
	SelfTest  time.Duration // of its self-test
	FirstStep time.Duration // from its start until its first step
	Step      time.Duration // of a step that has no limit of its own
	Slow      time.Duration // of the steps stage and verify, which wait for downloads and for the release's own checks
	Apply     time.Duration // of the step apply: Puppet's own deadline and a margin
	Ticks     int           // number of good ticks
	Probation time.Duration // minimum time from its self-test to its installation
}

// The limits of a proof.
const (
	SelfTestLimit  = 60 * time.Second
	FirstStepLimit = 60 * time.Second
	StepLimit      = 5 * time.Minute
	SlowLimit      = 30 * time.Minute
	endLimit       = 30 * time.Second // from its final message to its exit
	GoodTicks      = 3
	MaxDoubts      = 3               // in a row; then the candidate is dropped
	SelfTests      = 3               // of one candidate; then it is dropped
	TestAgain      = 5 * time.Second // between two of them
	Probation      = 10 * time.Minute
)

// askAgain is the wait after a version was not available. It is less than two of cron's five minutes.
const askAgain = 9 * time.Minute

// maxText limits the stored text of a problem, in bytes.
const maxText = 300

func clipped(p model.Problem) model.Problem {
	p.Text = model.Prose(clip.Text(string(p.Text), maxText))
	return p
}

// Move is the work on the node's own agent after a tick without other work.
type Move string

// The moves.
const (
	Stay   Move = "stay"   // nothing to do now
	Fetch  Move = "fetch"  // fetch and test the wanted version
	Forget Move = "forget" // delete the record of other versions
)

// Next decides the next move. It is a pure function of the state, the choice and the time.
func (s State) Next(want model.AgentChoice, now time.Time) Move {
	if s.stale(want) {
		return Forget
	}
	switch {
	case want.Version == "", want.Unknown, s.Candidate != nil, s.Installed != nil && s.Installed.Version == want.Version:
		return Stay
	case s.Dropped != nil && s.Dropped.covers(want):
		return Stay
	case s.Waiting != nil && want.Try <= s.Waiting.Try:
		if age := now.Sub(s.Waiting.At); age >= 0 && age < askAgain {
			return Stay
		}
	}
	return Fetch
}

// stale reports whether the state mentions a version that is in place or no longer wanted.
func (s State) stale(want model.AgentChoice) bool {
	if want.Unknown {
		return false
	}
	installed := s.Installed != nil && s.Installed.Version == want.Version
	return s.Candidate != nil && s.Candidate.Version != want.Version ||
		s.Dropped != nil && s.Dropped.Version != want.Version && s.Dropped.Version != s.installedVersion() ||
		s.Waiting != nil && (s.Waiting.Version != want.Version || installed)
}

func (s State) installedVersion() string {
	if s.Installed == nil {
		return ""
	}
	return s.Installed.Version
}

// Forgotten returns the state without other versions.
func (s State) Forgotten(want model.AgentChoice) State {
	if s.Candidate != nil && s.Candidate.Version != want.Version {
		s.Candidate = nil
	}
	if s.Dropped != nil && s.Dropped.Version != want.Version {
		s.Dropped = nil
	}
	s.Waiting = nil
	return s
}

// Found returns the state when the wanted version is in place already.
func (s State) Found(p Program, try int64, file string) State {
	s.Installed = &Installed{Program: p, Try: try, File: file}
	s.Waiting = nil
	return s
}

// Tested returns the state after a candidate passed its self-test.
func (s State) Tested(p Program, want model.AgentChoice, now time.Time) State {
	s.Candidate = &Candidate{Program: p, Try: want.Try, Order: want.Order, Since: now.UTC().Truncate(time.Second)}
	s.Dropped, s.Waiting = nil, nil
	return s
}

// Wait returns the state when a version is not available.
func (s State) Wait(want model.AgentChoice, why model.Problem, now time.Time) State {
	s.Waiting = &Waiting{Version: want.Version, Try: want.Try, Problem: clipped(why), At: now.UTC().Truncate(time.Second)}
	return s
}

// Drop returns the state after p failed.
func (s State) Drop(p Program, want model.AgentChoice, why model.Problem, now time.Time) State {
	s.Dropped = &Dropped{Program: p, Try: want.Try, Order: want.Order, Problem: clipped(why), At: now.UTC().Truncate(time.Second)}
	s.Candidate, s.Waiting = nil, nil
	return s
}

// Returns reports whether an older version is the way back from a rollout: it installed the agent in place, and that version was
// never the desired one.
func (s State) Returns() bool { return s.Installed != nil && s.Installed.Order != "" }

// Seen returns the state after the first read of the wanted version since a revert by hand, or since the rollout that installed it
// completed, and whether the read changes the state.
func (s State) Seen(want model.AgentChoice) (State, bool) {
	if s.Returns() && want.Order == "" && !want.Unknown && want.Version == s.Installed.Version {
		i := *s.Installed
		i.Order, s.Installed = "", &i
		return s, true
	}
	if s.Dropped == nil || !s.Dropped.ByHand || want.Unknown || want.Version != s.Dropped.Version {
		return s, false
	}
	d := *s.Dropped
	d.Try, d.Order, d.ByHand = want.Try, want.Order, false
	s.Dropped = &d
	return s, true
}

// Doubt counts a tick that failed with the candidate and not with the agent in place directly afterwards. puppet means
// a Puppet run. One failure may be a coincidence: condemned reports too many in a row.
func (s State) Doubt(why model.Problem, puppet bool) (_ State, condemned bool) {
	c := *s.Candidate
	c.Doubts, c.Puppet, c.Problem, c.Good = c.Doubts+1, c.Puppet || puppet, clipped(why), 0
	s.Candidate = &c
	return s, c.Doubts >= MaxDoubts
}

// Hindered returns the state when the machine could not start the candidate.
func (s State) Hindered(why model.Problem) State {
	c := *s.Candidate
	c.Problem = clipped(why)
	s.Candidate = &c
	return s
}

// Credit counts a good tick of the candidate, with or without a Puppet run, and reports whether the candidate passed
// its probation. A clock that was set back restarts the time, not the count.
func (s State) Credit(p Proof, puppet bool, now time.Time) (State, bool) {
	c := *s.Candidate
	if c.Puppet && !puppet {
		return s, false
	}
	c.Doubts, c.Puppet, c.Problem = 0, false, model.Problem{}
	c.Good++
	if now.Before(c.Since) {
		c.Since = now.UTC().Truncate(time.Second)
	}
	s.Candidate = &c
	return s, c.Good >= p.Ticks && now.Sub(c.Since) >= p.Probation
}

// Report returns the upgrade for the node's status, or nil if the wanted version is in place. own is the version of the
// agent in place.
func (s State) Report(want model.AgentChoice, own string) *model.Upgrade {
	if want.Unknown {
		want = s.lastWanted()
	}
	if want.Version == "" || s.Installed != nil && s.Installed.Version == want.Version {
		return nil
	}
	u := &model.Upgrade{Wanted: want.Version, Phase: model.UpgradeWaiting}
	switch {
	case s.Candidate != nil && s.Candidate.Version == want.Version:
		u.Phase, u.Problem = model.UpgradeProbation, s.Candidate.Problem
	case s.Dropped != nil && s.Dropped.Version == want.Version && s.Dropped.covers(want):
		u.Phase, u.Problem = model.UpgradeDropped, s.Dropped.Problem
	case s.Waiting != nil && s.Waiting.Version == want.Version:
		u.Problem = s.Waiting.Problem
	case s.Installed == nil && own == want.Version:
		return nil // no difference is known
	}
	return u
}

// lastWanted returns the choice that this state is about.
func (s State) lastWanted() model.AgentChoice {
	switch {
	case s.Candidate != nil:
		return s.Candidate.Choice()
	case s.Dropped != nil:
		return model.AgentChoice{Version: s.Dropped.Version, Try: s.Dropped.Try, Order: s.Dropped.Order}
	case s.Waiting != nil:
		return model.AgentChoice{Version: s.Waiting.Version, Try: s.Waiting.Try}
	}
	return model.AgentChoice{}
}

// String formats a program for people.
func (p Program) String() string {
	if p.Version == "" {
		return fmt.Sprintf("one with digest %.12s", p.Digest)
	}
	return p.Version
}

// Ending is a candidate's report at the end of a tick.
type Ending struct {
	Code        int         `json:"code"`                  // its exit code
	Locked      bool        `json:"locked,omitempty"`      // another run was in progress, and it did nothing
	Unreachable bool        `json:"unreachable,omitempty"` // etcd did not answer
	Puppet      bool        `json:"puppet,omitempty"`      // Puppet was started
	Failed      bool        `json:"failed,omitempty"`      // its Puppet run failed
	Problem     model.Prose `json:"problem,omitempty"`     // why it could not run the tick
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
func Judge(t Trial) (Finding, model.Problem) {
	switch {
	case t.Err != nil && machines(t.Err):
		return Nothing, model.Problem{Code: model.UpgradeNotStarted, Text: model.Prose(t.Err.Error())}
	case t.Err != nil:
		return Bad, model.Problem{Code: model.UpgradeNotStarted, Text: model.Prose(t.Err.Error())}
	case t.Late == startStep:
		return Bad, model.Problem{Code: model.UpgradeNotBegun, Limit: t.Limit}
	case t.Late == endStep:
		return Bad, model.Problem{Code: model.UpgradeNotEnded, Limit: t.Limit}
	case t.Late != "":
		return Bad, model.Problem{Code: model.UpgradeStoodStill, Step: t.Late, Limit: t.Limit}
	case t.Stopped:
		return Nothing, model.Problem{Code: model.UpgradeStopped}
	case t.Signal != "":
		return Bad, model.Problem{Code: model.UpgradeKilled, Signal: t.Signal, Text: t.said()}
	case t.Ending == nil && len(t.Steps) == 0:
		return Bad, model.Problem{Code: model.UpgradeNeverBegan, Number: t.Code, Text: t.said()}
	case t.Ending == nil:
		return Bad, model.Problem{Code: model.UpgradeNoEnding, Number: t.Code, Step: t.Steps[len(t.Steps)-1], Text: t.said()}
	case t.Ending.Code != t.Code:
		return Bad, model.Problem{Code: model.UpgradeOtherCode, Number: t.Code, Text: t.said()}
	case t.Ending.Locked:
		return Nothing, model.Problem{Code: model.UpgradeBusy}
	case t.Ending.Unreachable:
		return Reach, model.Problem{Code: model.UpgradeNoEtcd}
	case t.Ending.Failed:
		return Compare, model.Problem{Code: model.UpgradeRunFailed}
	case t.Ending.Problem != "":
		return Compare, model.Problem{Code: model.UpgradeTickFailed, Text: t.Ending.Problem}
	case !slices.Contains(t.Steps, lastStep):
		return Bad, model.Problem{Code: model.UpgradeNoReport}
	}
	return Good, model.Problem{}
}

// machines reports whether the machine is at fault when a program cannot start: no memory, too many processes, a file
// system that forbids execution. Only ENOEXEC is the program's fault.
func machines(err error) bool { return !errors.Is(err, syscall.ENOEXEC) }

// said returns the candidate's last output, for people. A panic's reason comes first.
func (t Trial) said() model.Prose {
	words := t.Words
	for _, begin := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(words, begin); i >= 0 {
			words = words[i:]
			break
		}
	}
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n")
	return model.Prose(words)
}
