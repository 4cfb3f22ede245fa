package agent

import (
	"fmt"
	"strings"
	"time"
)

// NodeState is where a node stands, in one word, for `pulley status`.
type NodeState string

// The states, each with what it says.
const (
	Converged    NodeState = "converged"    // on its target, applied and verified
	Pending      NodeState = "pending"      // its target is newer than what it has; it will look
	InRun        NodeState = "running"      // Puppet is at work
	FailedState  NodeState = "failed"       // its last attempt failed, its target is refused, or its name is another machine's; it will try again
	Stuck        NodeState = "stuck"        // it failed too often; it tries on, rarely
	Held         NodeState = "held"         // a hold, or its own machine, says to leave it alone
	Silent       NodeState = "silent"       // it has not been heard of for too long
	Unregistered NodeState = "unregistered" // it speaks, but is not on the list of hosts that should be alive
)

// NodeStates lists all states, the good one first, in the order of an operator's interest.
func NodeStates() []NodeState {
	return []NodeState{Converged, Pending, InRun, FailedState, Stuck, Held, Silent, Unregistered}
}

// View is one node as an operator sees it.
type View struct {
	State  NodeState
	Why    string // a sentence
	Wanted Target
}

// silentAfter is how many heartbeats a node may miss, with at least minSilence.
const (
	silentAfter = 3
	minSilence  = 20 * time.Minute
	clockAhead  = 5 * time.Minute // beyond this a node's clock is wrong, and its silence would go unnoticed
)

// Look judges one node from what it last said (nil: nothing yet) and what etcd wants of it now.
func Look(s *Status, d Desired, now time.Time) View {
	v := judge(s, d, now)
	if s == nil {
		return v
	}
	if ahead := s.SeenAt.Sub(now); ahead > clockAhead {
		v.Why += fmt.Sprintf("; its clock is %s ahead", strings.TrimSuffix(ahead.Round(time.Minute).String(), "0s"))
	}
	return v
}

func judge(s *Status, d Desired, now time.Time) View {
	v := View{Wanted: d.Wanted()}
	switch {
	case s == nil:
		return v.unheard(d, now)
	case d.Host == nil:
		v.State, v.Why = Unregistered, string(ReasonUnregistered)
		return v
	}
	attempt := attemptAt(s, v.Wanted)
	hold := strictest(d.Holds)
	other := otherMachine(d.Host, s.Machine)
	switch {
	case now.After(s.SilentFrom()):
		v.State, v.Why = Silent, fmt.Sprintf("it was last heard of at %s", s.SeenAt.UTC().Format(time.RFC3339))
	case retires(d.Host, s.Machine) && !s.declined(d.Host.Request):
		v.State, v.Why = Held, s.farewell(d.Host.Request)
	case s.Phase == Running:
		v.State, v.Why = InRun, "Puppet is at work: "+string(s.Reason)
	case hold != nil:
		v.State, v.Why = Held, hold.String()
	case s.Disabled != "":
		v.State, v.Why = Held, string(ReasonDisabled)+": "+s.Disabled
	case s.Reason == ReasonPuppetBlocked:
		v.State, v.Why = Held, string(s.Reason)+": "+s.Detail
	case other != "":
		v.State, v.Why = FailedState, string(ReasonOtherMachine)+": "+other
	case s.Refusal != nil && s.Refusal.Target == v.Wanted:
		v.State, v.Why = FailedState, string(ReasonRefused)+": "+s.Refusal.Why
	case attempt != nil && attempt.Started >= max(s.Settings.MaxAttempts, 1):
		v.State, v.Why = Stuck, attempt.sentence(time.Time{})
	case attempt != nil && attempt.Finished > 0:
		v.State, v.Why = FailedState, attempt.sentence(time.Time{})
	case v.Wanted.IsZero():
		v.State, v.Why = Pending, string(ReasonNoTarget)
	case s.LastGood == v.Wanted && s.Enforcing == v.Wanted:
		v.State, v.Why = Converged, string(ReasonUpToDate)
	default:
		v.State, v.Why = Pending, fmt.Sprintf("it is on %s and has yet to take %s", s.LastGood, v.Wanted)
	}
	return v
}

// retires says whether the machine that speaks is asked to retire.
func retires(h *Host, machine string) bool {
	return h.Request != nil && h.Request.Do == DeedRetire && otherMachine(h, machine) == ""
}

// declined says whether the node answered that it could not retire: it was disabled, and lives on.
func (s *Status) declined(r *Request) bool {
	return s.Answer != nil && s.Answer.ID == r.ID && s.Reason != ReasonRetired
}

// farewell is how far a node is that was asked to retire.
func (s *Status) farewell(r *Request) string {
	if s.Answer == nil || s.Answer.ID != r.ID {
		return string(ReasonRetire) + ", and has yet to: " + r.sentence()
	}
	return string(ReasonRetired) + ": " + s.Answer.sentence()
}

// runningSilence is how long a run may take until its node counts as silent: Puppet's default deadline and some.
const runningSilence = 75 * time.Minute

// SilentFrom is until when a node is believed to be there although it says nothing more.
func (s *Status) SilentFrom() time.Time {
	quiet := max(silentAfter*s.Settings.Heartbeat, minSilence)
	if s.Phase == Running {
		quiet = max(quiet, runningSilence)
	}
	return s.SeenAt.Add(quiet)
}

func (v View) unheard(d Desired, now time.Time) View {
	v.State, v.Why = Pending, "it is registered and has not reported yet"
	if d.Host == nil {
		v.State, v.Why = Unregistered, "etcd knows nothing of it"
	} else if age := now.Sub(d.Host.At); age > minSilence {
		v.State, v.Why = Silent, "it registered at "+d.Host.At.UTC().Format(time.RFC3339)+" and has never reported"
	}
	return v
}

// attemptAt is the node's count of attempts, when it is about its target or about what it enforces now.
func attemptAt(s *Status, wanted Target) *Attempt {
	if s.Attempt == nil || s.Attempt.Target != wanted && s.Attempt.Target != s.Enforcing {
		return nil
	}
	return s.Attempt
}

// Observed is what a node knows of itself, as far as its status tells: enough for Decide to give the node's own answer.
func (s *Status) Observed(id Identity) Observed {
	o := Observed{Identity: id, Settings: s.Settings, Machine: s.Machine, Disabled: s.Disabled, State: State{
		LastGood: s.LastGood, Enforcing: s.Enforcing, RanAt: s.RanAt, Outcome: s.Outcome, LastRun: s.LastRun,
		Refusal: s.Refusal, Answer: s.Answer,
	}}
	if s.Attempt != nil {
		o.State.Attempts = []Attempt{*s.Attempt}
	}
	if s.Reason == ReasonPuppetBlocked {
		o.PuppetBlocked = s.Detail
	}
	if s.Reason == ReasonRetired { // by which request counts only for this node itself
		o.State.Retire = string(ReasonRetired)
	}
	return o
}
