package model

import (
	"strconv"
	"time"

	"pulley/internal/model/refusal"
	"pulley/internal/stablehash"
)

// Action is the work of a tick.
type Action string

// The actions.
const (
	Nothing Action = "nothing" // do not change the machine
	Enforce Action = "enforce" // run Puppet on the target that is already enforced
	Take    Action = "take"    // change the machine to another target
	Retire  Action = "retire"  // run the release's retire hooks; run nothing afterwards
)

// Observed is the node's knowledge about itself.
type Observed struct {
	Identity
	State         State
	Settings      Settings
	Machine       string   // machine id; "" if unknown
	Disabled      Prose    // the operator's reason for disabling it on the machine; "" when enabled
	PuppetBlocked *Blocked // why the machine's own Puppet forbids a run; nil: allowed
	Force, Noop   bool
	Partial       bool   // a run of a part of the target in place was requested
	Look          Target // noop: the target to show instead of the wanted one
	Looked        bool   // State.Refusal is from this tick: a forced run does not check the target again

	Stale *Refusal // why no statement covers the wanted target; nil: one does, or the node needs none
}

// Decision is the action of a tick, and its cause.
type Decision struct {
	Action  Action
	Cause             // of Action
	Target  Target    // of Action
	Noop    bool      // etcd orders a noop run: it counts for nothing
	Wanted  Target    // the target that etcd wants of this node; zero when unknown
	Blocked Cause     // why the node does not take Wanted; zero when it takes it or is on it
	Hold    *Hold     // the strictest hold that applies
	Next    time.Time // end of the wait; zero: no wait
	Ladder  []Rung    // each question in order, and its answer
}

// Question is one condition of the ladder.
type Question string

// The questions, in their order.
const (
	AskEnabled    Question = "enabled"
	AskRetiring   Question = "not_retiring"
	AskHooks      Question = "hooks_due"
	AskPuppet     Question = "puppet_free"
	AskStopped    Question = "not_stopped"
	AskEtcd       Question = "etcd_answers" // revision
	AskRegistered Question = "registered"   // role
	AskMachine    Question = "own_machine"
	AskTurn       Question = "own_turn"
	AskPromoted   Question = "target_promoted" // target
	AskCurrent    Question = "target_current"
	AskInPlace    Question = "target_in_place" // target, last_good
	AskFrozen     Question = "not_frozen"
	AskGate       Question = "gate_open"
	AskAuthentic  Question = "target_authentic"      // at: when the node refused it
	AskServer     Question = "puppet_server_answers" // only where it does not
	AskAttempt    Question = "attempt_due"
	AskEnforcing  Question = "enforcement_due"
)

// Rung is one question of the ladder with its answer, for `pulley explain`.
type Rung struct {
	Question Question `json:"question"`
	OK       bool     `json:"ok"`
	Reason   Reason   `json:"reason,omitempty"`
	Params   Params   `json:"params,omitzero"`
}

// Decide is the policy of a node. It is a pure function of the node's state, the desired state in etcd and the time.
func Decide(o Observed, d Desired, now time.Time) Decision {
	l := &ladder{o: o, d: d, now: now}
	return l.climb()
}

// Calm reports whether a tick with this decision only enforces the target in place: no new target, no hold, no closed
// gate, no failure, no preview order, which the agent in place answers. Only then may the agent be upgraded: an upgrade never coincides with
// new content.
func (d Decision) Calm(on Desired) bool {
	if on.Preview != nil {
		return false
	}
	open := on.Gate.State == GateOpen || on.Gate.State == ""
	if d.Reason == ReasonDaemon { // decided before the rest was looked at
		return open && on.Known() && on.Host != nil && len(on.Holds) == 0
	}
	return open && d.Hold == nil && d.Blocked.Reason == "" && (d.Reason == ReasonUpToDate || d.Reason == ReasonNotEnforced || d.Reason == ReasonDue || d.Reason == ReasonHosts)
}

// Gaps are the waits after the first, second, … attempt at one target; later ones are the enforce interval.
var Gaps = []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute}

// refusalGap is the wait after a refusal. It is shorter than cron's five minutes: each tick checks again, because no
// event announces a new signature.
const refusalGap = 4 * time.Minute

// The values of puppet.enforce in the environment file.
const (
	EnforceOff    = "off"    // a node runs what it is ordered to, and nothing is due by time
	EnforceDaemon = "daemon" // a daemon of Puppet's own runs on the machine
)

// AwayGap is the wait after no Puppet server answered. A try is one connection: each tick of cron tries again.
const AwayGap = 20 * time.Second

type ladder struct {
	o   Observed
	d   Desired
	now time.Time
	dec Decision

	turn bool // in a job: the run is forced
}

// forced is the cause of a run that is due in spite of failures.
func (l *ladder) forced() Cause {
	if l.turn {
		return Cause{ReasonTurn, Params{Gate: &l.d.Gate}}
	}
	return Cause{Reason: ReasonForced}
}

func (l *ladder) climb() Decision {
	if l.o.Disabled != "" {
		return l.stop(AskEnabled, Cause{ReasonDisabled, Params{Text: l.o.Disabled}})
	}
	l.pass(AskEnabled, Cause{})
	if l.retire() {
		return l.dec
	}
	if l.o.PuppetBlocked != nil {
		return l.stop(AskPuppet, Cause{ReasonPuppetBlocked, Params{Blocked: l.o.PuppetBlocked}})
	}
	if l.o.State.Enforce == EnforceDaemon && !l.o.Force && !l.o.Noop {
		return l.stop(AskPuppet, Cause{Reason: ReasonDaemon})
	}
	l.pass(AskPuppet, Cause{})

	holds := l.d.Holds
	if !l.d.Known() {
		holds = l.o.State.Holds
	}
	l.dec.Hold = strictest(holds)
	if l.dec.Hold != nil && l.dec.Hold.Mode == Stop {
		return l.stop(AskStopped, Cause{ReasonStopped, Params{Hold: l.dec.Hold}})
	}
	l.pass(AskStopped, Cause{})

	switch {
	case l.d.Clock:
		return l.enforce(AskEtcd, Cause{ReasonClock, Params{Text: l.d.Unreachable}})
	case l.d.Unreachable != "":
		return l.enforce(AskEtcd, Cause{ReasonUnreachable, Params{Text: l.d.Unreachable}})
	case l.d.LockedOut != nil:
		return l.enforce(AskEtcd, l.d.lockedOut())
	case l.d.Unreadable != "" && l.d.Removed != "":
		return l.enforce(AskEtcd, l.d.unlisted(l.o.Node))
	case l.d.Unreadable != "":
		return l.enforce(AskEtcd, Cause{ReasonUnreadable, Params{Text: l.d.Unreadable}})
	}
	l.pass(AskEtcd, Cause{Params: Params{Revision: l.d.Revision}})

	if l.d.Host == nil {
		return l.enforce(AskRegistered, l.d.unlisted(l.o.Node))
	}
	l.pass(AskRegistered, Cause{Params: Params{Role: l.d.Host.Role}})
	l.dec.Wanted = l.d.Wanted()
	if AnotherMachine(l.d.Host, l.o.Machine) {
		return l.enforce(AskMachine, Cause{ReasonOtherMachine, Params{Machine: l.o.Machine, Listed: l.d.Host.MachineID}})
	}
	l.pass(AskMachine, Cause{})
	if l.d.JobTurn() != nil {
		if l.turn = l.d.Turn(&l.o.State) != nil; !l.turn {
			return l.stop(AskTurn, Cause{ReasonWaits, Params{Gate: &l.d.Gate}})
		}
		l.o.Force = true // waits after failed runs do not count
		l.dec.Noop = l.d.Turn(&l.o.State).Kind == AssignNoop && !l.o.Noop && !l.o.Partial
	}
	l.pass(AskTurn, Cause{})
	if !l.o.Look.IsZero() {
		l.pass(AskAttempt, Cause{Reason: ReasonNoop})
		return l.end(Take, Cause{Reason: ReasonNoop}, l.o.Look.Overlay(l.dec.Wanted))
	}
	if l.dec.Wanted.IsZero() {
		return l.enforce(AskPromoted, Cause{Reason: ReasonNoTarget})
	}
	wanted := l.dec.Wanted
	l.pass(AskPromoted, Cause{Params: Params{Target: &wanted}})

	if r := l.o.Stale; r != nil && r.Target == wanted {
		return l.enforce(AskCurrent, r.staleness())
	}
	l.pass(AskCurrent, Cause{})
	st := l.o.State
	if wanted == st.Enforcing {
		l.pass(AskInPlace, Cause{})
		if a := l.d.Assignment(); a != nil && a.Agent.Version != "" && l.revived() { // it forbids only the assigned agent
			return l.enforce(AskGate, Cause{ReasonEpochPassed, Params{Gate: &l.d.Gate, Epoch: l.o.State.Epoch}})
		}
		return l.enforceOn(st.Enforcing)
	}
	return l.take()
}

// staleness returns the cause of a target that no statement covers. A statement from the future proves a wrong clock.
func (r *Refusal) staleness() Cause {
	if r.Code == refusal.StatementFuture {
		return Cause{ReasonClock, Params{Refusal: r}}
	}
	return Cause{ReasonStale, Params{Refusal: r}}
}

// take asks the questions that a new target must pass.
func (l *ladder) take() Decision {
	w, has := l.dec.Wanted, l.o.State.Enforcing
	l.fail(AskInPlace, Cause{Params: Params{Target: &w, LastGood: &has}})
	if l.o.Partial {
		return l.enforceOn(has)
	}
	if h := l.dec.Hold; h != nil {
		return l.enforce(AskFrozen, Cause{ReasonFrozen, Params{Hold: h}})
	}
	l.pass(AskFrozen, Cause{})
	if g := l.d.Gate; l.d.closed() {
		return l.enforce(AskGate, Cause{ReasonGateClosed, Params{Gate: &g}})
	} else if l.d.Assignment() != nil && l.revived() {
		return l.enforce(AskGate, Cause{ReasonEpochPassed, Params{Gate: &g, Epoch: l.o.State.Epoch}})
	}
	l.pass(AskGate, Cause{})

	switch r := l.o.State.Refusal; {
	case r == nil || r.Target != w:
		l.pass(AskAuthentic, Cause{})
	case l.refused(r):
		l.dec.Next = r.At.Add(refusalGap)
		return l.enforce(AskAuthentic, Cause{ReasonRefused, Params{Refusal: r}})
	default:
		l.pass(AskAuthentic, Cause{Params: Params{At: r.At}})
	}

	if away := l.away(w); away != nil {
		l.dec.Next = away.At.Add(AwayGap)
		return l.enforce(AskServer, away.cause())
	}
	a := l.o.State.Attempt(w)
	due, next := l.retryDue(a)
	if !due && !l.o.Force && !l.o.Noop {
		l.dec.Next = next
		return l.enforce(AskAttempt, l.waits(a, next))
	}
	why := Cause{Reason: ReasonNew}
	switch {
	case l.o.Noop:
		why.Reason = ReasonNoop
	case l.o.Force:
		why = l.forced()
	case a != nil && a.Open:
		why.Reason = ReasonInterrupted
	case a != nil:
		why = Cause{ReasonRetry, Params{Attempt: a}}
	case w == l.o.State.LastGood:
		why.Reason = ReasonReturn
	}
	l.pass(AskAttempt, Cause{Reason: why.Reason})
	return l.end(Take, why, w)
}

// revived reports whether a restored backup revived a rollout.
func (l *ladder) revived() bool { return l.d.Gate.Epoch < l.o.State.Epoch }

// enforce stops at this question: the node does not take the new target and enforces the target in place on its
// schedule.
func (l *ladder) enforce(q Question, why Cause) Decision {
	l.fail(q, why)
	l.dec.Blocked = why
	return l.enforceOn(l.o.State.Enforcing)
}

// enforceOn decides whether the target in place is due for enforcement.
func (l *ladder) enforceOn(t Target) Decision {
	blocked := l.dec.Blocked
	switch {
	case !l.o.Look.IsZero():
		return l.end(Nothing, blocked, t)
	case t.IsZero() && blocked.Reason == "":
		return l.end(Nothing, Cause{Reason: ReasonPartial}, t)
	case t.IsZero():
		return l.end(Nothing, blocked, t)
	}
	if away := l.away(t); away != nil {
		l.fail(AskEnforcing, away.cause())
		if blocked.Reason == "" {
			blocked = away.cause()
			l.dec.Blocked, l.dec.Next = blocked, away.At.Add(AwayGap)
		}
		return l.end(Nothing, blocked, t)
	}
	a := l.o.State.Attempt(t)
	due, next := l.retryDue(a)
	switch {
	case l.o.Noop:
		return l.act(Cause{Reason: ReasonNoop}, t)
	case l.o.Partial:
		return l.act(Cause{Reason: ReasonPartial}, t)
	case l.o.Force:
		return l.act(l.forced(), t)
	case l.o.Pending(l.d, RequestRun) != nil:
		return l.act(Cause{ReasonAsked, Params{Request: l.o.Pending(l.d, RequestRun)}}, t)
	case l.o.Pending(l.d, RequestNoop) != nil:
		l.dec.Noop = true
		return l.act(Cause{ReasonAsked, Params{Request: l.o.Pending(l.d, RequestNoop)}}, t)
	case a != nil && !due:
		waits := l.waits(a, next)
		l.fail(AskEnforcing, waits)
		if blocked.Reason == "" {
			blocked = waits
			l.dec.Blocked = waits
		}
		if l.dec.Next.IsZero() {
			l.dec.Next = next
		}
		return l.end(Nothing, blocked, t)
	case a != nil && a.Open:
		return l.act(Cause{Reason: ReasonInterrupted}, t)
	case a != nil:
		return l.act(Cause{ReasonRetry, Params{Attempt: a}}, t)
	}
	if blocked.Reason == "" && t != l.o.State.LastGood {
		return l.act(Cause{Reason: ReasonUnverified}, t)
	}
	if l.o.State.Hosts.moved() {
		return l.act(Cause{Reason: ReasonHosts}, t)
	}
	if l.o.State.Enforce == EnforceOff {
		l.fail(AskEnforcing, Cause{Reason: ReasonNotEnforced})
		if blocked.Reason == "" {
			blocked.Reason = ReasonNotEnforced
		}
		return l.end(Nothing, blocked, t)
	}
	since := l.now.Sub(l.o.State.RanAt)
	// After the clock was set back, the last run lies in the future. Its age is unknown, and a run is due.
	if since < 0 || since >= l.o.Settings.EnforceInterval {
		return l.act(Cause{Reason: ReasonDue}, t)
	}
	next = l.o.State.RanAt.Add(l.o.Settings.EnforceInterval)
	if l.dec.Next.IsZero() {
		l.dec.Next = next
	}
	l.fail(AskEnforcing, Cause{ReasonUpToDate, Params{Next: next}})
	if blocked.Reason == "" {
		return l.end(Nothing, Cause{Reason: ReasonUpToDate}, t)
	}
	return l.end(Nothing, blocked, t)
}

// act enforces t now. Blocked keeps the cause that blocks a newer target.
func (l *ladder) act(why Cause, t Target) Decision {
	l.pass(AskEnforcing, why)
	return l.end(Enforce, why, t)
}

func (l *ladder) end(a Action, why Cause, t Target) Decision {
	l.dec.Action, l.dec.Cause, l.dec.Target, l.dec.Noop = a, why, t, l.dec.Noop && a != Nothing
	return l.dec
}

func (l *ladder) stop(q Question, why Cause) Decision {
	l.fail(q, why)
	l.dec.Blocked = why
	return l.end(Nothing, why, l.o.State.Enforcing)
}

func (l *ladder) pass(q Question, c Cause) {
	l.dec.Ladder = append(l.dec.Ladder, Rung{Question: q, OK: true, Reason: c.Reason, Params: c.Params})
}

func (l *ladder) fail(q Question, c Cause) {
	l.dec.Ladder = append(l.dec.Ladder, Rung{Question: q, Reason: c.Reason, Params: c.Params})
}

// AnotherMachine reports whether the host list names another machine than this one. An unknown id on either side does
// not count.
func AnotherMachine(h *Host, machine string) bool {
	return h.MachineID != "" && machine != "" && h.MachineID != machine
}

// retryDue reports whether the next attempt at a target is due. If not, it returns the due time.
func (l *ladder) retryDue(a *Attempt) (bool, time.Time) {
	if a == nil || a.Started <= 0 {
		return true, time.Time{}
	}
	// The first interrupted run (reboot, kill) proves nothing about the target. A second one may.
	if a.Open && a.Started-a.Finished <= 1 {
		return true, time.Time{}
	}
	next := a.Last.Add(l.gap(a.Started))
	if l.now.Before(a.Last) || !l.now.Before(next) {
		return true, time.Time{}
	}
	return false, next
}

// refused reports whether a refusal still counts. A forced run checks the target again.
func (l *ladder) refused(r *Refusal) bool {
	age := l.now.Sub(r.At)
	asked := (l.o.Force || l.o.Noop) && !l.o.Looked
	return age >= 0 && age < refusalGap && !asked
}

// away returns the record that no Puppet server answered for t, if it still counts. A forced run tries again.
func (l *ladder) away(t Target) *Away {
	a := l.o.State.AwayFrom(t)
	if a == nil {
		return nil
	}
	age := l.now.Sub(a.At)
	forced := l.o.Force || l.o.Noop
	if l.o.Looked || age >= 0 && age < AwayGap && !forced {
		return a
	}
	return nil
}

func (a *Away) cause() Cause {
	return Cause{ReasonServerAway, Params{Problem: &a.Problem, At: a.Since}}
}

// gap is the wait after a number of attempts, ±10 %. It is constant for one node and one number.
func (l *ladder) gap(started int) time.Duration {
	g := l.o.Settings.EnforceInterval
	if started <= len(Gaps) {
		g = min(Gaps[started-1], max(g, time.Second))
	}
	return g + time.Duration(spread(l.o.Node, started)*float64(g)/10)
}

// waits returns the reason for a wait until next.
func (l *ladder) waits(a *Attempt, next time.Time) Cause {
	if a.Started >= l.o.Settings.MaxAttempts {
		return Cause{ReasonStuck, Params{Attempt: a, Next: next}}
	}
	return Cause{ReasonBackoff, Params{Attempt: a, Next: next}}
}

// spread maps a node and a number to a constant in [-1, 1), to keep the waits of a fleet from coinciding.
func spread(node string, n int) float64 {
	return 2*stablehash.Fraction(node, strconv.Itoa(n)) - 1
}

// Splay returns a node's delay before a tick, below limit, to spread the ticks of a fleet. The delay is constant for
// one name.
func Splay(node string, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration((spread(node, 0) + 1) / 2 * float64(limit))
}

// Wanted returns the target that etcd wants of the node. An assignment of the gate's epoch comes first, then the
// desired targets of the node, of its role, and the default. A target inherits its empty parts from the next one.
func (d Desired) Wanted() Target {
	t := d.ForNode.Overlay(d.ForRole).Overlay(d.Default)
	if a := d.Assignment(); a != nil {
		return a.Target.Overlay(t)
	}
	return t
}

// WantedAgent returns the version of the agent that etcd wants of the node: that of an assignment of the gate's epoch, else the
// desired one.
func (d Desired) WantedAgent() AgentChoice {
	if a := d.Assignment(); a != nil && a.Agent.Version != "" {
		c := a.Agent
		c.Try, c.Order = d.Agent.Try, a.ID
		return c
	}
	return d.Agent
}

// Assignment returns the assignment that counts for the node, or nil. An assignment to another machine of the same name
// does not count.
func (d Desired) Assignment() *Assignment {
	a := d.Assigned
	if a == nil || a.Epoch != d.Gate.Epoch {
		return nil
	}
	if a.Machine != "" && d.Host != nil && a.Machine != d.Host.MachineID {
		return nil
	}
	return a
}

// JobTurn returns the assignment of a job that counts for the node, or nil. A job that nothing advances has ended: a lease ends its key.
func (d Desired) JobTurn() *Assignment {
	if a := d.Assignment(); a != nil && a.Kind != AssignTake && d.Job != nil && d.Job.ID == a.Rollout {
		return a
	}
	return nil
}

// Turn returns the assignment of a job that orders a run which the node has not answered, or nil.
func (d Desired) Turn(s *State) *Assignment {
	if a := d.JobTurn(); a != nil && (a.Kind == AssignRun || a.Kind == AssignNoop) && (s.Ran == nil || s.Ran.ID != a.ID) {
		return a
	}
	return nil
}

// closed reports whether the gate keeps the node from taking its target. The gate of a rollout stops what the rollout assigns,
// and nothing else: a new machine takes what is desired.
func (d Desired) closed() bool {
	if d.Gate.State == GateOpen || d.Gate.State == "" {
		return false
	}
	return d.Gate.Rollout == "" || d.Assignment() != nil
}

func strictest(holds []Hold) *Hold {
	var found *Hold
	for i, h := range holds {
		if found == nil || h.Mode == Stop && found.Mode != Stop {
			found = &holds[i]
		}
	}
	return found
}

// Held returns the strictest hold on the node, or nil.
func (d Desired) Held() *Hold { return strictest(d.Holds) }

// unlisted is the cause for which a node is not on the host list.
func (d Desired) unlisted(node string) Cause {
	if d.Removed != "" {
		return Cause{ReasonRemoved, Params{Node: node, Text: d.Removed}}
	}
	return Cause{ReasonUnregistered, Params{Node: node}}
}
