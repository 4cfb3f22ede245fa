package model

import (
	"cmp"
	"time"

	"pulley/internal/model/refusal"
)

// NodeState is a node's state in one word, for `pulley status`.
type NodeState string

// The states.
const (
	Converged    NodeState = "converged"    // on its target, applied and verified
	Pending      NodeState = "pending"      // its target is newer than its release
	InRun        NodeState = "running"      // Puppet is running
	FailedState  NodeState = "failed"       // last attempt failed, target refused, or duplicate machine; it retries
	Stuck        NodeState = "stuck"        // too many attempts failed; the node retries rarely
	Held         NodeState = "held"         // a hold, or the machine itself, forbids runs
	Silent       NodeState = "silent"       // no report for too long
	Unregistered NodeState = "unregistered" // it reports, but is not on the host list
	Missing      NodeState = "missing"      // neither on the host list nor ever reported: the environment calls for it
)

// NodeStates lists all states in the order of an operator's interest, Converged first.
func NodeStates() []NodeState {
	return []NodeState{Converged, Pending, InRun, FailedState, Stuck, Held, Silent, Unregistered, Missing}
}

// View is an operator's view of one node.
type View struct {
	State      NodeState
	Cause                    // why
	ClockAhead time.Duration // of the node's clock; 0 when the clock may be right
	Wanted     Target

	// Its last run failed or was interrupted, or it refuses its target, and it has not converged since: State may be that of the moment,
	// for example of the next attempt.
	Failing bool
	New     bool // it has never converged, although a target is desired for it
}

// silentAfter is the number of heartbeats that a node may miss, whatever the environment says. DefaultSilence is the time without its setting
// silence. ClockOff is how far a clock may be off.
const (
	silentAfter    = 3
	DefaultSilence = 20 * time.Minute
	ClockOff       = 5 * time.Minute // a larger lead means a wrong clock, which hides the node's silence
)

// Look derives a node's view from its last report (nil: none yet) and its desired state in etcd. A report of a former machine is none.
func Look(s *Status, d Desired, now time.Time) View {
	if s != nil && d.Host != nil && s.OfFormer(d.Host) {
		s = nil
	}
	v := judged(s, d, now)
	v.New = d.Host != nil && !v.Wanted.IsZero() && (s == nil || s.LastGood.IsZero())
	if s == nil {
		return v
	}
	v.Failing = d.Host != nil && v.State != Converged && s.failing(d.Host, v.Wanted)
	if ahead := s.SeenAt.Sub(now); ahead > ClockOff {
		v.ClockAhead = ahead
	}
	return v
}

// Settled reports whether nothing more is expected of the node: it is on its target, or Puppet's own daemon runs instead of the agent's ticks.
func (v View) Settled() bool {
	return v.State == Converged || v.State == Held && v.Reason == ReasonDaemon
}

func judged(s *Status, d Desired, now time.Time) View {
	v := View{Wanted: d.Wanted()}
	switch {
	case s == nil:
		return v.unheard(d, now)
	case d.Host == nil:
		v.State, v.Cause = Unregistered, d.unlisted(s.Node)
		if s.Reason == ReasonRetired { // and an apply removed it: nobody has to act
			v.Cause = Cause{ReasonRetired, Params{Problem: s.Answer.Failure()}}
		}
		return v
	}
	attempt := attemptAt(s, v.Wanted)
	hold := strictest(d.Holds)
	switch {
	case d.LockedOut != nil:
		v.State, v.Cause = Silent, d.lockedOut()
	case now.After(s.SilentFrom(d.Silence, now)):
		v.State, v.Cause = Silent, Cause{ReasonSilent, Params{At: s.SeenAt}}
	case retires(d.Host, s.Machine) && !s.declined(d.Host.Request):
		v.State, v.Cause = Held, s.retirement(d.Host.Request)
	case s.Phase == Running:
		v.State, v.Cause = InRun, s.Why()
	case hold != nil && hold.Mode == Stop:
		v.State, v.Cause = Held, Cause{ReasonStopped, Params{Hold: hold}}
	case hold != nil:
		v.State, v.Cause = Held, Cause{ReasonFrozen, Params{Hold: hold}}
	case s.Disabled != "":
		v.State, v.Cause = Held, Cause{ReasonDisabled, Params{Text: s.Disabled}}
	case s.Reason == ReasonPuppetBlocked || s.Reason == ReasonDaemon:
		v.State, v.Cause = Held, s.Why()
	case d.JobTurn() != nil && d.Turn(&State{Ran: s.Ran}) == nil:
		v.State, v.Cause = Held, Cause{ReasonWaits, Params{Gate: &d.Gate}}
	case AnotherMachine(d.Host, s.Machine):
		v.State, v.Cause = FailedState, Cause{ReasonOtherMachine, Params{Machine: s.Machine, Listed: d.Host.MachineID}}
	case s.stale() && s.Refusal.Target == v.Wanted:
		v.State, v.Cause = FailedState, s.Refusal.staleness()
		if s.Refusal.Code == refusal.StatementExpired && s.SeenAt.Sub(now) > ClockOff { // it ended only by that clock
			v.Reason = ReasonClock
		}
	case s.Refusal != nil && s.Refusal.Target == v.Wanted:
		v.State, v.Cause = FailedState, Cause{ReasonRefused, Params{Refusal: s.Refusal}}
	case attempt != nil && attempt.Started >= max(s.Settings.MaxAttempts, 1):
		v.State, v.Cause = Stuck, Cause{ReasonStuck, Params{Attempt: attempt}}
	case attempt != nil && attempt.Finished > 0:
		v.State, v.Cause = FailedState, Cause{ReasonBackoff, Params{Attempt: attempt}}
	case s.Reason == ReasonServerAway:
		v.State, v.Cause = FailedState, s.Why()
	case attempt != nil && attempt.Target == s.LastGood && s.Outcome == Failed: // it counts afresh
		v.State, v.Cause = FailedState, s.Why()
	case v.Wanted.IsZero():
		v.State, v.Cause = Pending, Cause{Reason: ReasonNoTarget}
	case s.LastGood == v.Wanted && s.Enforcing == v.Wanted:
		v.State, v.Cause = Converged, Cause{Reason: ReasonUpToDate}
	default:
		v.State, v.Cause = Pending, Cause{ReasonNotTaken, Params{Target: &v.Wanted, LastGood: &s.LastGood}}
	}
	return v
}

// OfFormer reports whether the status is of a machine that another one replaced since, and that has reported nothing itself.
func (s *Status) OfFormer(h *Host) bool {
	return AnotherMachine(h, s.Machine) && !s.SeenAt.After(h.At)
}

// failing reports whether the node failed, whatever it does at the moment. A run in progress proves nothing before its end.
func (s *Status) failing(h *Host, wanted Target) bool {
	switch a := attemptAt(s, wanted); {
	case s.Outcome == Failed, s.Refusal != nil && s.Refusal.Target == wanted, AnotherMachine(h, s.Machine):
		return true
	case a != nil && (a.Finished > 0 || a.Started > 1):
		return true
	}
	return s.Phase != Running && s.Enforcing != s.LastGood // a part of the target may be in place
}

// stale reports whether the refusal is that of a statement, which the node checks in every tick.
func (s *Status) stale() bool {
	return s.Refusal != nil && (s.Reason == ReasonStale || s.Reason == ReasonClock)
}

// retires reports whether the reporting machine is requested to retire.
func retires(h *Host, machine string) bool {
	return h.Retires() && !AnotherMachine(h, machine)
}

// declined reports whether the node answered that it cannot retire, for example because runs were disabled.
func (s *Status) declined(r *Request) bool {
	return s.Answer != nil && s.Answer.ID == r.ID && s.Reason != ReasonRetired
}

// retirement returns the progress of a requested retirement.
func (s *Status) retirement(r *Request) Cause {
	if s.Answer == nil || s.Answer.ID != r.ID {
		return Cause{ReasonRetire, Params{Request: r}}
	}
	return Cause{ReasonRetired, Params{Problem: s.Answer.Failure()}}
}

// runningSilence is the maximum time of a run before its node counts as silent: Puppet's default deadline and a margin.
const runningSilence = 75 * time.Minute

// SilentFrom returns the time from which a node without a new report counts as silent. The time of a clock that is ahead would hide the silence:
// then the node reported before the others that reported later. silence is the setting of the environment; 0: the default.
func (s *Status) SilentFrom(silence time.Duration, now time.Time) time.Time {
	quiet := max(silentAfter*s.Settings.Heartbeat, cmp.Or(silence, DefaultSilence))
	if s.Phase == Running {
		quiet = max(quiet, runningSilence)
	}
	if s.SeenAt.Sub(now) > ClockOff && !s.Before.IsZero() {
		return s.Before.Add(quiet)
	}
	return s.SeenAt.Add(quiet)
}

func (v View) unheard(d Desired, now time.Time) View {
	v.State, v.Cause = Pending, Cause{Reason: ReasonNotReported}
	if d.Host == nil {
		v.State, v.Cause = Missing, Cause{Reason: ReasonUnknownNode}
	} else if d.LockedOut != nil {
		v.State = Silent
	} else if age := now.Sub(d.Host.At); age > cmp.Or(d.Silence, DefaultSilence) {
		v.State, v.Cause = Silent, Cause{ReasonNeverReported, Params{At: d.Host.At}}
	}
	if d.LockedOut != nil {
		v.Cause = d.lockedOut()
	}
	return v
}

// lockedOut returns the cause of a lockout.
func (d Desired) lockedOut() Cause {
	return Cause{ReasonLockedOut, Params{At: d.LockedOut.First}}
}

// Ends reports whether a node reported after a lockout.
func (s *Status) Ends(l Lockout) bool {
	at := s.SeenAt
	if at.Sub(l.Last) > ClockOff && !s.Before.IsZero() { // the clock may be ahead
		at = s.Before
	}
	return at.After(l.Last)
}

// attemptAt returns the node's attempts at its target, or at the target in place.
func attemptAt(s *Status, wanted Target) *Attempt {
	if s.Attempt == nil || s.Attempt.Target != wanted && s.Attempt.Target != s.Enforcing {
		return nil
	}
	return s.Attempt
}

// Observed rebuilds the node's knowledge about itself from its status. Decide then returns the node's own answer.
func (s *Status) Observed(id Identity) Observed {
	o := Observed{Identity: id, Settings: s.Settings, Machine: s.Machine, Disabled: s.Disabled, State: State{
		LastGood: s.LastGood, Enforcing: s.Enforcing, RanAt: s.RanAt, Outcome: s.Outcome, LastRun: s.LastRun,
		Refusal: s.Refusal, Answer: s.Answer, Ran: s.Ran, Enforce: s.Enforce,
	}}
	if s.Attempt != nil {
		o.State.Attempts = []Attempt{*s.Attempt}
	}
	if s.stale() {
		o.Stale, o.State.Refusal = s.Refusal, nil
	}
	if s.Reason == ReasonPuppetBlocked {
		o.PuppetBlocked = s.Params.Blocked
	}
	if s.Reason == ReasonRetired { // only the node needs the request's id
		o.State.Retire = "unknown"
	}
	if s.Reason == ReasonEpochPassed {
		o.State.Epoch = s.Params.Epoch
	}
	if s.Reason == ReasonServerAway && s.Params.Problem != nil {
		o.State.Away = []Away{{Target: s.Target, Problem: *s.Params.Problem, Since: s.Params.At, At: s.SeenAt}}
		o.Looked = true
	}
	if s.Reason == ReasonHosts { // only the node needs the digest
		o.State.Hosts.Shown = "unknown"
	}
	return o
}
