package agent

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"pulley/internal/stablehash"
)

// Action is what a tick will do.
type Action string

// The actions.
const (
	Nothing Action = "nothing" // leave the machine alone
	Enforce Action = "enforce" // run Puppet on the target that is being enforced already
	Take    Action = "take"    // bring the machine to a target that it is not on
	Retire  Action = "retire"  // run the hooks of its release that say goodbye, and then nothing any more
)

// Reason says why, as a sentence about the node.
type Reason string

// The reasons, in the order of the ladder that gives them.
const (
	ReasonDisabled      Reason = "it was disabled on the machine itself"
	ReasonRetire        Reason = "it was asked to retire"
	ReasonRetired       Reason = "it is being retired: it runs nothing any more"
	ReasonPuppetBlocked Reason = "the machine's own Puppet forbids a run"
	ReasonStopped       Reason = "an operator's hold says not to run Puppet"
	ReasonUnreachable   Reason = "etcd is unreachable: it goes on with what it was enforcing"
	ReasonUnreadable    Reason = "etcd holds something that this agent can't read: it goes on with what it was enforcing"
	ReasonUnregistered  Reason = "it is not on the list of hosts that should be alive"
	ReasonOtherMachine  Reason = "another machine has this node's name: it goes on with what it was enforcing"
	ReasonNoTarget      Reason = "no release was promoted for it yet"
	ReasonFrozen        Reason = "an operator's hold freezes it on the target that it has"
	ReasonGateClosed    Reason = "the environment's gate is closed: nothing new starts"
	ReasonRefused       Reason = "its target is refused: it is not proven to be authentic"
	ReasonBackoff       Reason = "the last attempt at its target failed; it waits before the next one"
	ReasonStuck         Reason = "it is stuck: its target failed too often; it tries on, rarely"
	ReasonForced        Reason = "somebody asked for a run now"
	ReasonAsked         Reason = "an operator asked it for a run"
	ReasonNoop          Reason = "somebody asked what a run would change"
	ReasonNew           Reason = "its target is new"
	ReasonReturn        Reason = "it stands between two targets and goes back to the last good one"
	ReasonInterrupted   Reason = "its last run was cut off"
	ReasonUnverified    Reason = "what it enforces was applied without etcd and has yet to be verified"
	ReasonRetry         Reason = "the last attempt failed and its wait is over"
	ReasonDue           Reason = "it is time to enforce its target again"
	ReasonUpToDate      Reason = "it is on its target, enforced not long ago"
)

// Observed is what a node knows of itself.
type Observed struct {
	Identity
	State         State
	Settings      Settings
	Machine       string // machine id; "" where there is none
	Disabled      string // why an operator disabled it on the machine; "" when enabled
	PuppetBlocked string // why the machine's own Puppet forbids a run; "" when it doesn't
	Force, Noop   bool
	Looked        bool // the refusal in State is of this very tick: to ask for a run does not make it look once more
}

// Decision is what a tick will do, and why.
type Decision struct {
	Action  Action
	Reason  Reason
	Detail  string    // names, times and words that the reason is about
	Target  Target    // what Action is about
	Wanted  Target    // what etcd wants of this node; zero when unknown
	Blocked Reason    // why Wanted is not being taken although the node is not on it; "" when it is
	Hold    *Hold     // the strictest hold that applies
	Next    time.Time // when a wait ends; zero when nothing is waited for
	Ladder  []Rung    // each question in order, and its answer
}

// Rung is one question of the ladder with its answer, for `pulley explain`.
type Rung struct {
	Question string `json:"question"`
	OK       bool   `json:"ok"`
	Answer   string `json:"answer"`
}

// Decide is the whole policy of a node, as a pure function: what it knows of itself, what etcd wants of it, and the time.
func Decide(o Observed, d Desired, now time.Time) Decision {
	l := &ladder{o: o, d: d, now: now}
	return l.climb()
}

// gaps are the waits after the first, second, … attempt at one target; after these it is the enforce interval.
var gaps = []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute}

// refusalGap is the wait after a target was refused. It is less than cron's five minutes, so that each of its ticks looks
// again: nobody can tell a node that a signature was added.
const refusalGap = 4 * time.Minute

type ladder struct {
	o   Observed
	d   Desired
	now time.Time
	dec Decision
}

func (l *ladder) climb() Decision {
	if l.o.Disabled != "" {
		return l.stop("enabled on the machine", ReasonDisabled, l.o.Disabled)
	}
	l.pass("enabled on the machine", "yes")
	if l.retire() {
		return l.dec
	}
	if l.o.PuppetBlocked != "" {
		return l.stop("Puppet may run", ReasonPuppetBlocked, l.o.PuppetBlocked)
	}
	l.pass("Puppet may run", "yes")

	holds := l.d.Holds
	if !l.d.known() {
		holds = l.o.State.Holds
	}
	l.dec.Hold = strictest(holds)
	if l.dec.Hold != nil && l.dec.Hold.Mode == Stop {
		return l.stop("not stopped by a hold", ReasonStopped, l.dec.Hold.String())
	}
	l.pass("not stopped by a hold", "yes")

	switch {
	case l.d.Unreachable != "":
		return l.enforce("etcd answers", ReasonUnreachable, l.d.Unreachable)
	case l.d.Unreadable != "":
		return l.enforce("etcd answers", ReasonUnreadable, l.d.Unreadable)
	}
	l.pass("etcd answers", fmt.Sprintf("yes, at revision %d", l.d.Revision))

	if l.d.Host == nil {
		return l.enforce("on the list of hosts that should be alive", ReasonUnregistered,
			"run `pulley-agent bootstrap` on it, or `pulley nodes add "+l.o.Node+"`")
	}
	l.pass("on the list of hosts that should be alive", "yes, as "+l.d.Host.Role)
	l.dec.Wanted = l.d.Wanted()
	const own = "that entry is this machine's"
	if other := otherMachine(l.d.Host, l.o.Machine); other != "" {
		return l.enforce(own, ReasonOtherMachine, other)
	}
	l.pass(own, "yes")
	if l.dec.Wanted.IsZero() {
		return l.enforce("a release is promoted for it", ReasonNoTarget, "")
	}
	l.pass("a release is promoted for it", l.dec.Wanted.String())

	st := l.o.State
	if l.dec.Wanted == st.Enforcing {
		l.pass("its target is in place", "yes")
		return l.enforceOn(st.Enforcing)
	}
	return l.take()
}

// take climbs the rungs between a node and a target that it is not on.
func (l *ladder) take() Decision {
	w := l.dec.Wanted
	l.fail("its target is in place", fmt.Sprintf("no: it enforces %s and is to be on %s", l.o.State.Enforcing, w))
	if h := l.dec.Hold; h != nil {
		return l.enforce("not frozen by a hold", ReasonFrozen, h.String())
	}
	l.pass("not frozen by a hold", "yes")
	if g := l.d.Gate; g.State != GateOpen && g.State != "" {
		return l.enforce("the gate is open", ReasonGateClosed, fmt.Sprintf("%s by %s: %s", g.State, g.By, g.Why))
	}
	l.pass("the gate is open", "yes")

	const authentic = "its target is authentic"
	switch r := l.o.State.Refusal; {
	case r == nil || r.Target != w:
		l.pass(authentic, "as far as is known; it has to prove so before it is installed")
	case l.refused(r):
		l.dec.Next = r.At.Add(refusalGap)
		return l.enforce(authentic, ReasonRefused, r.Why)
	default:
		l.pass(authentic, "it was refused at "+r.At.UTC().Format(time.RFC3339)+", and is looked at again")
	}

	a := l.o.State.Attempt(w)
	due, next := l.retryDue(a)
	if !due && !l.o.Force && !l.o.Noop {
		l.dec.Next = next
		return l.enforce("its next attempt is due", l.waitReason(a), a.sentence(next))
	}
	reason, detail := ReasonNew, ""
	switch {
	case l.o.Noop:
		reason = ReasonNoop
	case l.o.Force:
		reason = ReasonForced
	case a != nil && a.Open:
		reason = ReasonInterrupted
	case a != nil:
		reason, detail = ReasonRetry, a.sentence(time.Time{})
	case w == l.o.State.LastGood:
		reason = ReasonReturn
	}
	l.pass("its next attempt is due", string(reason))
	return l.end(Take, reason, detail, w)
}

// enforce ends the climb to something new at this rung: what is being enforced stays so, on its schedule.
func (l *ladder) enforce(question string, why Reason, detail string) Decision {
	answer := string(why)
	if detail != "" {
		answer += ": " + detail
	}
	l.fail(question, answer)
	l.dec.Blocked = why
	l.dec.Detail = detail
	return l.enforceOn(l.o.State.Enforcing)
}

// enforceOn decides whether the target that is in place is to be enforced now.
func (l *ladder) enforceOn(t Target) Decision {
	blocked, detail := l.dec.Blocked, l.dec.Detail
	if t.IsZero() {
		return l.end(Nothing, blocked, detail, t)
	}
	const question = "enforcing what it has is due"
	a := l.o.State.Attempt(t)
	due, next := l.retryDue(a)
	switch {
	case l.o.Noop:
		return l.act(question, ReasonNoop, t)
	case l.o.Force:
		return l.act(question, ReasonForced, t)
	case l.o.pending(l.d, DeedRun) != nil:
		if l.dec.Detail == "" {
			l.dec.Detail = l.o.pending(l.d, DeedRun).sentence()
		}
		return l.act(question, ReasonAsked, t)
	case a != nil && !due:
		if blocked == "" {
			blocked, detail = l.waitReason(a), a.sentence(next)
			l.dec.Blocked = blocked
		}
		if l.dec.Next.IsZero() {
			l.dec.Next = next
		}
		l.fail(question, a.sentence(next))
		return l.end(Nothing, blocked, detail, t)
	case a != nil && a.Open:
		return l.act(question, ReasonInterrupted, t)
	case a != nil:
		return l.act(question, ReasonRetry, t)
	}
	if blocked == "" && t != l.o.State.LastGood {
		return l.act(question, ReasonUnverified, t)
	}
	since := l.now.Sub(l.o.State.RanAt)
	// A clock that went back makes the last run lie in the future: then nobody knows how long ago it was.
	if since < 0 || since >= l.o.Settings.EnforceInterval {
		return l.act(question, ReasonDue, t)
	}
	next = l.o.State.RanAt.Add(l.o.Settings.EnforceInterval)
	if l.dec.Next.IsZero() {
		l.dec.Next = next
	}
	l.fail(question, "not before "+next.UTC().Format(time.RFC3339))
	if blocked == "" {
		return l.end(Nothing, ReasonUpToDate, "", t)
	}
	return l.end(Nothing, blocked, detail, t)
}

// act enforces t now. What blocks something newer stays visible in Blocked.
func (l *ladder) act(question string, why Reason, t Target) Decision {
	l.pass(question, string(why))
	return l.end(Enforce, why, l.dec.Detail, t)
}

func (l *ladder) end(a Action, why Reason, detail string, t Target) Decision {
	l.dec.Action, l.dec.Reason, l.dec.Detail, l.dec.Target = a, why, detail, t
	return l.dec
}

func (l *ladder) stop(question string, why Reason, detail string) Decision {
	l.fail(question, string(why)+": "+detail)
	l.dec.Blocked = why
	return l.end(Nothing, why, detail, l.o.State.Enforcing)
}

func (l *ladder) pass(question, answer string) {
	l.dec.Ladder = append(l.dec.Ladder, Rung{Question: question, OK: true, Answer: answer})
}

func (l *ladder) fail(question, answer string) {
	l.dec.Ladder = append(l.dec.Ladder, Rung{Question: question, Answer: answer})
}

// otherMachine tells the two machines apart that have one node's name; "" when there is one, as far as is known.
func otherMachine(h *Host, machine string) string {
	if h.MachineID == "" || machine == "" || h.MachineID == machine {
		return ""
	}
	return fmt.Sprintf("the list of hosts has machine %s, and this is machine %s", h.MachineID, machine)
}

// retryDue says whether a target may be tried (again), and if not, when.
func (l *ladder) retryDue(a *Attempt) (bool, time.Time) {
	if a == nil || a.Started <= 0 {
		return true, time.Time{}
	}
	// A first run that was cut off (reboot, kill) says nothing about the target; a second one might.
	if a.Open && a.Started-a.Finished <= 1 {
		return true, time.Time{}
	}
	next := a.Last.Add(l.gap(a.Started))
	if l.now.Before(a.Last) || !l.now.Before(next) {
		return true, time.Time{}
	}
	return false, next
}

// refused says whether a refusal still counts: until the next look, which a person may ask for.
func (l *ladder) refused(r *Refusal) bool {
	age := l.now.Sub(r.At)
	asked := (l.o.Force || l.o.Noop) && !l.o.Looked
	return age >= 0 && age < refusalGap && !asked
}

// gap is the wait after the given number of attempts, ±10 %, always the same for one node and one number.
func (l *ladder) gap(started int) time.Duration {
	g := l.o.Settings.EnforceInterval
	if started <= len(gaps) {
		g = min(gaps[started-1], max(g, time.Second))
	}
	return g + time.Duration(spread(l.o.Node, started)*float64(g)/10)
}

func (l *ladder) waitReason(a *Attempt) Reason {
	if a.Started >= l.o.Settings.MaxAttempts {
		return ReasonStuck
	}
	return ReasonBackoff
}

// spread maps a node and a number to [-1, 1), stable over time, so that a fleet's waits don't fall together.
func spread(node string, n int) float64 {
	return 2*stablehash.Fraction(node, strconv.Itoa(n)) - 1
}

// Wanted is the target that etcd wants of the node: its assignment while that is of the gate's epoch, else what is
// desired for the node, else for its role, else by default; a part left out is inherited.
func (d Desired) Wanted() Target {
	t := d.ForNode.Overlay(d.ForRole).Overlay(d.Default)
	if d.Assigned != nil && d.Assigned.Epoch == d.Gate.Epoch {
		return d.Assigned.Target.Overlay(t)
	}
	return t
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

// String is the hold as a person reads it.
func (h Hold) String() string {
	s := fmt.Sprintf("%s on %s", h.Mode, h.Scope)
	if h.Who != "" {
		s += " by " + h.Who
	}
	if !h.Until.IsZero() {
		s += " until " + h.Until.UTC().Format(time.RFC3339)
	}
	if r := h.Reason(); r != "" {
		s += ": " + r
	}
	return s
}

// Reason is the sentence that says why the hold was set.
func (h Hold) Reason() string {
	var parts []string
	switch h.Kind {
	case RetirementHold:
		parts = append(parts, "the node is being retired")
	case DuplicateHold:
		parts = append(parts, "two machines run as this node")
	}
	if h.Why != "" {
		parts = append(parts, string(h.Why))
	}
	s := strings.Join(parts, ": ")
	if b := h.Replaced; b != nil {
		s += fmt.Sprintf(" (replaces %s)", b.String())
	}
	return s
}

func (a Attempt) sentence(next time.Time) string {
	s := fmt.Sprintf("attempt %d at %s", a.Started, a.Target)
	switch {
	case a.Open:
		s += " was cut off"
	case a.Problem != "":
		s += " failed: " + a.Problem
	}
	if !next.IsZero() {
		s += "; next one at " + next.UTC().Format(time.RFC3339)
	}
	return s
}
