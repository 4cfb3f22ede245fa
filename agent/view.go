package agent

import "time"

// NodeState is where a node stands, in one word, for `pulley status`.
type NodeState string

// The states.
const (
	Converged    NodeState = "converged"    // on its target, applied and verified
	Pending      NodeState = "pending"      // its target is newer than what it has
	InRun        NodeState = "running"      // Puppet is running
	FailedState  NodeState = "failed"       // its last attempt failed, its target is refused, or another machine has its name; it retries
	Stuck        NodeState = "stuck"        // it failed too often; it retries rarely
	Held         NodeState = "held"         // a hold, or the machine itself, forbids runs
	Silent       NodeState = "silent"       // it has not reported for too long
	Unregistered NodeState = "unregistered" // it reports, and is not on the host list
)

// NodeStates lists all states, the good one first, in the order of an operator's interest.
func NodeStates() []NodeState {
	return []NodeState{Converged, Pending, InRun, FailedState, Stuck, Held, Silent, Unregistered}
}

// View is one node as an operator sees it.
type View struct {
	State      NodeState
	Cause                    // why
	ClockAhead time.Duration // of the node; 0 when its clock may be right
	Wanted     Target
}

// silentAfter is how many heartbeats a node may miss, with at least minSilence.
const (
	silentAfter = 3
	minSilence  = 20 * time.Minute
	clockAhead  = 5 * time.Minute // beyond this the node's clock is wrong, and its silence would stay unnoticed
)

// Look judges one node by its last report (nil: none yet) and by what etcd wants of it now.
func Look(s *Status, d Desired, now time.Time) View {
	v := judge(s, d, now)
	if s == nil {
		return v
	}
	if ahead := s.SeenAt.Sub(now); ahead > clockAhead {
		v.ClockAhead = ahead
	}
	return v
}

func judge(s *Status, d Desired, now time.Time) View {
	v := View{Wanted: d.Wanted()}
	switch {
	case s == nil:
		return v.unheard(d, now)
	case d.Host == nil:
		v.State, v.Cause = Unregistered, Cause{ReasonUnregistered, Params{Node: s.Node}}
		return v
	}
	attempt := attemptAt(s, v.Wanted)
	hold := strictest(d.Holds)
	switch {
	case now.After(s.SilentFrom()):
		v.State, v.Cause = Silent, Cause{ReasonSilent, Params{At: s.SeenAt}}
	case retires(d.Host, s.Machine) && !s.declined(d.Host.Request):
		v.State, v.Cause = Held, s.retirement(d.Host.Request)
	case s.Phase == Running:
		v.State, v.Cause = InRun, s.why()
	case hold != nil && hold.Mode == Stop:
		v.State, v.Cause = Held, Cause{ReasonStopped, Params{Hold: hold}}
	case hold != nil:
		v.State, v.Cause = Held, Cause{ReasonFrozen, Params{Hold: hold}}
	case s.Disabled != "":
		v.State, v.Cause = Held, Cause{ReasonDisabled, Params{Text: s.Disabled}}
	case s.Reason == ReasonPuppetBlocked:
		v.State, v.Cause = Held, s.why()
	case anotherMachine(d.Host, s.Machine):
		v.State, v.Cause = FailedState, Cause{ReasonOtherMachine, Params{Machine: s.Machine, Listed: d.Host.MachineID}}
	case s.Refusal != nil && s.Refusal.Target == v.Wanted:
		v.State, v.Cause = FailedState, Cause{ReasonRefused, Params{Refusal: s.Refusal}}
	case attempt != nil && attempt.Started >= max(s.Settings.MaxAttempts, 1):
		v.State, v.Cause = Stuck, Cause{ReasonStuck, Params{Attempt: attempt}}
	case attempt != nil && attempt.Finished > 0:
		v.State, v.Cause = FailedState, Cause{ReasonBackoff, Params{Attempt: attempt}}
	case v.Wanted.IsZero():
		v.State, v.Cause = Pending, Cause{Reason: ReasonNoTarget}
	case s.LastGood == v.Wanted && s.Enforcing == v.Wanted:
		v.State, v.Cause = Converged, Cause{Reason: ReasonUpToDate}
	default:
		v.State, v.Cause = Pending, Cause{ReasonNotTaken, Params{Target: &v.Wanted, LastGood: &s.LastGood}}
	}
	return v
}

// retires reports whether the machine that reports is requested to retire.
func retires(h *Host, machine string) bool {
	return h.Request != nil && h.Request.Do == RequestRetire && !anotherMachine(h, machine)
}

// declined reports whether the node answered that it cannot retire, for example because runs were disabled.
func (s *Status) declined(r *Request) bool {
	return s.Answer != nil && s.Answer.ID == r.ID && s.Reason != ReasonRetired
}

// retirement is how far a node is that is requested to retire.
func (s *Status) retirement(r *Request) Cause {
	if s.Answer == nil || s.Answer.ID != r.ID {
		return Cause{ReasonRetire, Params{Request: r}}
	}
	return Cause{ReasonRetired, Params{Problem: s.Answer.Failure()}}
}

// runningSilence is how long a run may take before its node counts as silent: Puppet's default deadline and a margin.
const runningSilence = 75 * time.Minute

// SilentFrom is when a node that reports nothing more counts as silent.
func (s *Status) SilentFrom() time.Time {
	quiet := max(silentAfter*s.Settings.Heartbeat, minSilence)
	if s.Phase == Running {
		quiet = max(quiet, runningSilence)
	}
	return s.SeenAt.Add(quiet)
}

func (v View) unheard(d Desired, now time.Time) View {
	v.State, v.Cause = Pending, Cause{Reason: ReasonNotReported}
	if d.Host == nil {
		v.State, v.Cause = Unregistered, Cause{Reason: ReasonUnknownNode}
	} else if age := now.Sub(d.Host.At); age > minSilence {
		v.State, v.Cause = Silent, Cause{ReasonNeverReported, Params{At: d.Host.At}}
	}
	return v
}

// attemptAt is the node's count of attempts at its target, or at the target in place.
func attemptAt(s *Status, wanted Target) *Attempt {
	if s.Attempt == nil || s.Attempt.Target != wanted && s.Attempt.Target != s.Enforcing {
		return nil
	}
	return s.Attempt
}

// Observed is the node's knowledge of itself from its status: enough for Decide to give the node's own answer.
func (s *Status) Observed(id Identity) Observed {
	o := Observed{Identity: id, Settings: s.Settings, Machine: s.Machine, Disabled: s.Disabled, State: State{
		LastGood: s.LastGood, Enforcing: s.Enforcing, RanAt: s.RanAt, Outcome: s.Outcome, LastRun: s.LastRun,
		Refusal: s.Refusal, Answer: s.Answer,
	}}
	if s.Attempt != nil {
		o.State.Attempts = []Attempt{*s.Attempt}
	}
	if s.Reason == ReasonPuppetBlocked {
		o.PuppetBlocked = s.Params.Blocked
	}
	if s.Reason == ReasonRetired { // only the node itself needs the request's id
		o.State.Retire = "unknown"
	}
	return o
}
