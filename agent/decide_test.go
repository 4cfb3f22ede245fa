package agent

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pulley/internal/release/trust/refusal"
)

var (
	verA, verB, verC = version("1.0.0"), version("2.0.0"), version("3.0.0")

	freeze = Hold{Scope: "nodes/web1", Mode: Freeze, Who: "ann", Why: "I am looking at it"}
	stop   = Hold{Scope: "roles/web", Mode: Stop, Who: "bob", Why: "moving racks"}
)

// viewReasons are the reasons that only Look returns.
var viewReasons = []Reason{ReasonSilent, ReasonNeverReported, ReasonNotReported, ReasonUnknownNode, ReasonNotTaken}

func refusedFor(detail string) *refusal.Error {
	return &refusal.Error{Code: refusal.RecordUnreadable, Params: refusal.Params{"detail": detail}}
}

var disabledPuppet = &Blocked{Code: PuppetDisabled, Path: "agent_disabled.lock"}

// failedHook returns the problem of a hook, or the zero Problem for an empty text.
func failedHook(text Prose) Problem {
	if text == "" {
		return Problem{}
	}
	return Problem{Code: HookFailed, Text: text}
}

// onA returns a healthy node that reached A ten minutes ago, in a fleet whose target is A.
func onA() (Observed, Desired) {
	o := Observed{
		Identity: Identity{Node: "web1", Role: "web", Environment: "dev"}, Settings: DefaultSettings(),
		State: State{LastGood: verA, Enforcing: verA, RanAt: start.Add(-10 * time.Minute)},
	}
	return o, Desired{Revision: 9, Host: &Host{Node: "web1", Role: "web"}, Gate: Gate{Epoch: 4, State: GateOpen}, Default: verA}
}

func attempts(o *Observed, target Target, started, finished int, ago time.Duration) {
	a := Attempt{Target: target, Started: started, Finished: finished, Open: started > finished, Last: start.Add(-ago)}
	if finished > 0 {
		a.Kind, a.Problem = Untouched, Problem{Code: CatalogRefused, Text: "it does not compile"}
	}
	o.State.Attempts = append(o.State.Attempts, a)
}

func refused(o *Observed, target Target, ago time.Duration) {
	o.State.refuse(target, refusedFor("it is not signed"), start.Add(-ago))
}

// inJob orders the node something for the job in progress.
func inJob(d *Desired, kind AssignmentKind, id string) {
	d.Gate.Rollout, d.Job = "j4", &LiveJob{"j4"}
	d.Assigned = &Assignment{ID: id, Kind: kind, Rollout: "j4", Epoch: 4}
}

func notRunFor(o *Observed, d time.Duration) { o.State.RanAt = start.Add(-d) }

// askedFor returns a new request of this kind.
func askedFor(do RequestKind) *Request {
	return &Request{ID: "00112233aabbccdd", Do: do, Why: "fewer are needed", By: "ann", At: start}
}

// answered adds a request that the node has answered.
func answered(o *Observed, d *Desired, do RequestKind, problem Prose) {
	d.Host.Request = askedFor(do)
	o.State.settle(d.Host.Request.ID, failedHook(problem))
	if do == RequestRetire {
		o.State.Retire = d.Host.Request.ID
	}
}

type want struct {
	action  Action
	reason  Reason
	target  Target // default: the enforced target
	blocked Reason
	detail  string // a substring
}

type decision struct {
	say  string
	when func(*Observed, *Desired)
	want want
}

func staleAt(t Target, code refusal.Code) *Refusal {
	return &Refusal{Target: t, Error: *refusal.New(code, "statement", "dev", "at", "2026-06-15T12:00:00Z"), At: start}
}

var decisions = []decision{
	{"a node on its target, enforced recently, runs nothing",
		func(*Observed, *Desired) {},
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"a node on its target is enforced again when the interval is over",
		func(o *Observed, _ *Desired) { notRunFor(o, 30*time.Minute) },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"and not a second before",
		func(o *Observed, _ *Desired) { notRunFor(o, 30*time.Minute-time.Second) },
		want{Nothing, ReasonUpToDate, verA, "", ""}},

	{"a node that sees changed nodes runs, before enforcement is due",
		func(o *Observed, _ *Desired) { o.State.Hosts = HostView{Shown: "b", Applied: "a"} },
		want{Enforce, ReasonHosts, verA, "", ""}},
	{"a disabled node runs nothing, whatever is due, forced or new",
		func(o *Observed, d *Desired) { o.Disabled, o.Force, d.Default = "kernel debugging", true, verB },
		want{Nothing, ReasonDisabled, verA, ReasonDisabled, "kernel debugging"}},
	{"a node whose own Puppet is disabled or at work runs nothing",
		func(o *Observed, d *Desired) { o.PuppetBlocked, o.Force, d.Default = disabledPuppet, true, verB },
		want{Nothing, ReasonPuppetBlocked, verA, ReasonPuppetBlocked, "agent_disabled.lock"}},

	{"a node on a target whose statement ended enforces it, and reports that it may be old",
		func(o *Observed, _ *Desired) {
			notRunFor(o, 30*time.Minute)
			o.Stale = staleAt(verA, refusal.StatementExpired)
		},
		want{Enforce, ReasonDue, verA, ReasonStale, "the statement of the targets of dev ended at 2026"}},
	{"a target that no statement covers is not taken, not even by force",
		func(o *Observed, d *Desired) {
			o.Force, d.Default, o.Stale = true, verB, staleAt(verB, refusal.StatementDiffers)
		},
		want{Enforce, ReasonForced, verA, ReasonStale, "covers the target"}},
	{"a statement from the future proves a wrong clock",
		func(o *Observed, _ *Desired) { o.Stale = staleAt(verA, refusal.StatementFuture) },
		want{Nothing, ReasonClock, verA, ReasonClock, "in the future by this machine's clock"}},
	{"a statement about another target is not about this one",
		func(o *Observed, _ *Desired) { o.Stale = staleAt(verB, refusal.StatementMissing) },
		want{Nothing, ReasonUpToDate, verA, "", ""}},

	{"a stop hold stops Puppet on a node that is due",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); d.Holds = []Hold{stop} },
		want{Nothing, ReasonStopped, verA, ReasonStopped, "stop on roles/web by bob: moving racks"}},
	{"force does not pass a stop hold",
		func(o *Observed, d *Desired) { o.Force = true; d.Holds = []Hold{stop} },
		want{Nothing, ReasonStopped, verA, ReasonStopped, ""}},
	{"a freeze on the node and a stop on its role: the stop is the stricter one",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); d.Holds = []Hold{freeze, stop} },
		want{Nothing, ReasonStopped, verA, ReasonStopped, "roles/web"}},
	{"a stop on the node and a freeze on all: the stop is the stricter one, in whatever order they come",
		func(_ *Observed, d *Desired) {
			d.Holds = []Hold{{Scope: "nodes/web1", Mode: Stop}, {Scope: "all", Mode: Freeze}}
		},
		want{Nothing, ReasonStopped, verA, ReasonStopped, "nodes/web1"}},
	{"a stop on all stops",
		func(_ *Observed, d *Desired) { d.Holds = []Hold{{Scope: "all", Mode: Stop}} },
		want{Nothing, ReasonStopped, verA, ReasonStopped, "stop on all"}},
	{"a freeze keeps a node from its new target",
		func(_ *Observed, d *Desired) { d.Default = verB; d.Holds = []Hold{freeze} },
		want{Nothing, ReasonFrozen, verA, ReasonFrozen, "I am looking at it"}},
	{"force under a freeze enforces the current target",
		func(o *Observed, d *Desired) { o.Force = true; d.Default = verB; d.Holds = []Hold{freeze} },
		want{Enforce, ReasonForced, verA, ReasonFrozen, ""}},
	{"a freeze does not keep a node from being enforced",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); d.Default = verB; d.Holds = []Hold{freeze} },
		want{Enforce, ReasonDue, verA, ReasonFrozen, ""}},
	{"a freeze of a node that is where it should be blocks nothing",
		func(_ *Observed, d *Desired) { d.Holds = []Hold{freeze} },
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"a hold that etcd no longer has does not count, although it was seen",
		func(o *Observed, d *Desired) { o.State.Holds = []Hold{stop}; d.Default = verB },
		want{Take, ReasonNew, verB, "", ""}},

	{"a node that is asked for a run enforces what it has, although that is not due",
		func(_ *Observed, d *Desired) { d.Host.Request = askedFor(RequestRun) },
		want{Enforce, ReasonAsked, verA, "", "by ann: fewer are needed"}},
	{"after the answer it is up to date again",
		func(o *Observed, d *Desired) { answered(o, d, RequestRun, "") },
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"one that has answered another request answers this one",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRun, "")
			d.Host.Request.ID = "ffff"
		},
		want{Enforce, ReasonAsked, verA, "", ""}},
	{"asked for a run it takes what is new first",
		func(_ *Observed, d *Desired) { d.Default, d.Host.Request = verB, askedFor(RequestRun) },
		want{Take, ReasonNew, verB, "", ""}},
	{"asked for a run it does not cut the wait for what failed: it enforces what it has",
		func(o *Observed, d *Desired) {
			d.Default, d.Host.Request = verB, askedFor(RequestRun)
			attempts(o, verB, 1, 1, 30*time.Second)
		},
		want{Enforce, ReasonAsked, verA, ReasonBackoff, "it does not compile"}},
	{"what it stands between is run again at once",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default, d.Host.Request = verB, verB, askedFor(RequestRun)
			attempts(o, verB, 2, 2, time.Second)
		},
		want{Enforce, ReasonAsked, verB, "", ""}},
	{"a freeze lets it run what it has",
		func(_ *Observed, d *Desired) {
			d.Default, d.Holds, d.Host.Request = verB, []Hold{freeze}, askedFor(RequestRun)
		},
		want{Enforce, ReasonAsked, verA, ReasonFrozen, "I am looking at it"}},
	{"a stop permits no run, for any requester",
		func(_ *Observed, d *Desired) { d.Holds, d.Host.Request = []Hold{stop}, askedFor(RequestRun) },
		want{Nothing, ReasonStopped, verA, ReasonStopped, ""}},
	{"before the first release there is nothing to run",
		func(o *Observed, d *Desired) {
			o.State, d.Default, d.Host.Request = State{}, Target{}, askedFor(RequestRun)
		},
		want{Nothing, ReasonNoTarget, Target{}, ReasonNoTarget, ""}},
	{"what another machine of its name is asked for does not concern it",
		func(o *Observed, d *Desired) {
			o.Machine, d.Host.MachineID, d.Host.Request = "aaaa", "bbbb", askedFor(RequestRetire)
		},
		want{Nothing, ReasonOtherMachine, verA, ReasonOtherMachine, ""}},
	{"a request without a name could not be answered: it is none",
		func(_ *Observed, d *Desired) { d.Host.Request = &Request{Do: RequestRetire} },
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"an unknown request changes nothing",
		func(_ *Observed, d *Desired) { d.Host.Request = askedFor("dance") },
		want{Nothing, ReasonUpToDate, verA, "", ""}},

	{"a retirement request precedes everything else, under the hold of its requester",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			d.Default, d.Holds, d.Host.Request = verB, []Hold{stop}, askedFor(RequestRetire)
		},
		want{Retire, ReasonRetire, verA, "", "by ann: fewer are needed"}},
	{"the machine's own Puppet forbids no hooks",
		func(o *Observed, d *Desired) {
			o.PuppetBlocked, d.Host.Request = disabledPuppet, askedFor(RequestRetire)
		},
		want{Retire, ReasonRetire, verA, "", ""}},
	{"a node that stands between uses the hooks that were good",
		func(o *Observed, d *Desired) { o.State.Enforcing, d.Host.Request = verB, askedFor(RequestRetire) },
		want{Retire, ReasonRetire, verA, "", ""}},
	{"and one that never had a good release those that it was part way to",
		func(o *Observed, d *Desired) {
			o.State = State{Enforcing: verB}
			d.Host.Request = askedFor(RequestRetire)
		},
		want{Retire, ReasonRetire, verB, "", ""}},
	{"a node that was disabled on the machine does not retire",
		func(o *Observed, d *Desired) {
			o.Disabled, d.Host.Request = "kernel debugging", askedFor(RequestRetire)
		},
		want{Nothing, ReasonDisabled, verA, ReasonDisabled, "kernel debugging"}},
	{"a node with that answer runs again once it is enabled: its hooks never ran",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "disabled on the machine itself: kernel debugging")
			o.State.Retire, d.Default = "", verB
		},
		want{Take, ReasonNew, verB, "", ""}},
	{"one that retired before it was disabled, and is asked anew meanwhile, stays retired",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "disabled on the machine itself: kernel debugging")
			o.State.Retire = "ffff"
		},
		want{Nothing, ReasonRetired, verA, ReasonRetired, "kernel debugging"}},
	{"to look at what a run would change runs no hooks",
		func(o *Observed, d *Desired) { o.Noop, d.Host.Request = true, askedFor(RequestRetire) },
		want{Nothing, ReasonRetire, verA, ReasonRetire, "retirement is requested"}},
	{"a node that has retired runs nothing, whatever is due, forced or new",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			o.Force, d.Default = true, verB
			notRunFor(o, time.Hour)
		},
		want{Nothing, ReasonRetired, verA, ReasonRetired, "the node is retired"}},
	{"a node whose hooks failed runs nothing: its requester decides",
		func(o *Observed, d *Desired) { answered(o, d, RequestRetire, "retire.d/10-drain: exit status 1") },
		want{Nothing, ReasonRetired, verA, ReasonRetired, "10-drain"}},
	{"asked anew, it runs its hooks anew",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "retire.d/10-drain: exit status 1")
			d.Host.Request.ID = "ffff"
		},
		want{Retire, ReasonRetire, verA, "", ""}},
	{"without etcd what was begun stays begun",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			notRunFor(o, time.Hour)
			*d = Desired{Unreachable: "timeout"}
		},
		want{Nothing, ReasonRetired, verA, ReasonRetired, "the node is retired"}},
	{"so it does once it is taken off the list of hosts",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			notRunFor(o, time.Hour)
			d.Host = nil
		},
		want{Nothing, ReasonRetired, verA, ReasonRetired, ""}},
	{"and once another machine has its name",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			notRunFor(o, time.Hour)
			o.Machine, d.Host = "aaaa", &Host{MachineID: "bbbb"}
		},
		want{Nothing, ReasonRetired, verA, ReasonRetired, ""}},
	{"after a canceled retirement it runs again",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			notRunFor(o, time.Hour)
			d.Host.Request = nil
		},
		want{Enforce, ReasonDue, verA, "", ""}},
	{"so it does when it is asked for something else",
		func(o *Observed, d *Desired) {
			answered(o, d, RequestRetire, "")
			d.Host.Request = &Request{ID: "ffff", Do: RequestRun}
		},
		want{Enforce, ReasonAsked, verA, "", "by an unknown operator"}},

	{"without etcd a node that never had a target does nothing",
		func(o *Observed, d *Desired) { o.State = State{}; *d = Desired{Unreachable: "timeout"} },
		want{Nothing, ReasonUnreachable, Target{}, ReasonUnreachable, "timeout"}},
	{"without etcd a node is enforced when that is due",
		func(o *Observed, d *Desired) { notRunFor(o, 31*time.Minute); *d = Desired{Unreachable: "timeout"} },
		want{Enforce, ReasonDue, verA, ReasonUnreachable, "timeout"}},
	{"with a wrong clock a node is enforced when that is due, too",
		func(o *Observed, d *Desired) {
			notRunFor(o, 31*time.Minute)
			*d = Desired{Unreachable: "the clock shows 1970", Clock: true}
		},
		want{Enforce, ReasonDue, verA, ReasonClock, "the clock shows 1970"}},
	{"and left alone when it is not due",
		func(_ *Observed, d *Desired) { *d = Desired{Unreachable: "timeout"} },
		want{Nothing, ReasonUnreachable, verA, ReasonUnreachable, ""}},
	{"without etcd a node that stands between stays on the new target",
		func(o *Observed, d *Desired) {
			o.State.Enforcing = verB
			attempts(o, verB, 1, 1, 10*time.Minute)
			*d = Desired{Unreachable: "timeout"}
		},
		want{Enforce, ReasonRetry, verB, ReasonUnreachable, ""}},
	{"and there, too, its attempts keep their distance",
		func(o *Observed, d *Desired) {
			o.State.Enforcing = verB
			attempts(o, verB, 3, 3, 3*time.Minute)
			*d = Desired{Unreachable: "timeout"}
		},
		want{Nothing, ReasonUnreachable, verB, ReasonUnreachable, ""}},
	{"without etcd the stop that was seen last is obeyed",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []Hold{freeze, stop}
			*d = Desired{Unreachable: "timeout"}
		},
		want{Nothing, ReasonStopped, verA, ReasonStopped, "moving racks"}},
	{"without etcd the last known freeze permits enforcement",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []Hold{freeze}
			*d = Desired{Unreachable: "timeout"}
		},
		want{Enforce, ReasonDue, verA, ReasonUnreachable, ""}},
	{"without etcd a forced run enforces the current target",
		func(o *Observed, d *Desired) { o.Force = true; *d = Desired{Unreachable: "timeout"} },
		want{Enforce, ReasonForced, verA, ReasonUnreachable, ""}},
	{"what etcd says beside a value that can't be read is not acted on",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []Hold{freeze}
			d.Default, d.Unreadable = verB, "the gate is of format 9"
		},
		want{Enforce, ReasonDue, verA, ReasonUnreadable, "format 9"}},
	{"and when nothing is due the node says what it can't read",
		func(_ *Observed, d *Desired) { d.Unreadable = "the gate is of format 9" },
		want{Nothing, ReasonUnreadable, verA, ReasonUnreadable, "format 9"}},
	{"etcd refuses its machine", func(_ *Observed, d *Desired) { d.LockedOut = &Lockout{} },
		want{Nothing, ReasonLockedOut, verA, ReasonLockedOut, "etcd has refused"}},
	{"a node whose certificate etcd refuses keeps its current target",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			*d = Desired{Unreadable: "no such user", Removed: "no such user"}
		},
		want{Enforce, ReasonDue, verA, ReasonRemoved, "the node was removed from the fleet: no such user"}},

	{"a node that is on no list takes nothing new",
		func(_ *Observed, d *Desired) { d.Host, d.Default = nil, verB },
		want{Nothing, ReasonUnregistered, verA, ReasonUnregistered, "pulley-agent bootstrap"}},
	{"and keeps its current target",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); d.Host, d.Default = nil, verB },
		want{Enforce, ReasonDue, verA, ReasonUnregistered, ""}},

	{"a node that was removed from the fleet needs another remedy",
		func(_ *Observed, d *Desired) { d.Host, d.Removed, d.Default = nil, "by ann: scrapped", verB },
		want{Nothing, ReasonRemoved, verA, ReasonRemoved, "removed from the fleet: by ann: scrapped"}},

	{"a node whose name another machine has takes nothing new",
		func(o *Observed, d *Desired) { o.Machine, d.Host.MachineID, d.Default = "aaaa", "bbbb", verB },
		want{Nothing, ReasonOtherMachine, verA, ReasonOtherMachine, "the host list has machine bbbb, this is machine aaaa"}},
	{"and keeps enforcing its current target",
		func(o *Observed, d *Desired) {
			o.Machine, d.Host.MachineID, d.Default = "aaaa", "bbbb", verB
			notRunFor(o, time.Hour)
		},
		want{Enforce, ReasonDue, verA, ReasonOtherMachine, ""}},
	{"a list that an operator wrote says nothing of machines",
		func(o *Observed, d *Desired) { o.Machine, d.Default = "aaaa", verB },
		want{Take, ReasonNew, verB, "", ""}},
	{"and a machine without an id is taken for the one that is meant",
		func(_ *Observed, d *Desired) { d.Host.MachineID, d.Default = "bbbb", verB },
		want{Take, ReasonNew, verB, "", ""}},
	{"before the first release there is nothing to do",
		func(o *Observed, d *Desired) { o.State, d.Default = State{}, Target{} },
		want{Nothing, ReasonNoTarget, Target{}, ReasonNoTarget, ""}},
	{"data without a release is no target",
		func(o *Observed, d *Desired) { o.State, d.Default = State{}, Target{Data: 3, DataDigest: "d"} },
		want{Nothing, ReasonNoTarget, Target{}, ReasonNoTarget, ""}},
	{"when no release is desired any more, the last one stays enforced",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); d.Default = Target{} },
		want{Enforce, ReasonDue, verA, ReasonNoTarget, ""}},

	{"a first target is taken at once",
		func(o *Observed, _ *Desired) { o.State = State{} },
		want{Take, ReasonNew, verA, "", ""}},
	{"a new target is taken at once",
		func(_ *Observed, d *Desired) { d.Default = verB },
		want{Take, ReasonNew, verB, "", ""}},
	{"the same release with newer data is a new target",
		func(_ *Observed, d *Desired) { d.Default.Data, d.Default.DataDigest = 8, "new" },
		want{Take, ReasonNew, Target{verA.Release, verA.Tree, 8, "new"}, "", ""}},
	{"a role's target wins over the default",
		func(_ *Observed, d *Desired) { d.Default, d.ForRole = verB, verC },
		want{Take, ReasonNew, verC, "", ""}},
	{"a node's target wins over its role's",
		func(_ *Observed, d *Desired) { d.ForRole, d.ForNode = verB, verC },
		want{Take, ReasonNew, verC, "", ""}},
	{"a release pinned at the role still gets the fleet's new data",
		func(_ *Observed, d *Desired) {
			d.Default = verB
			d.ForRole = Target{Release: verA.Release, Tree: verA.Tree}
		},
		want{Take, ReasonNew, Target{verA.Release, verA.Tree, verB.Data, verB.DataDigest}, "", ""}},
	{"data pinned at the node still gets the role's new release",
		func(_ *Observed, d *Desired) {
			d.ForRole, d.ForNode = verB, Target{Data: 3, DataDigest: "three"}
		},
		want{Take, ReasonNew, Target{verB.Release, verB.Tree, 3, "three"}, "", ""}},

	{"an assignment of the gate's epoch wins over all that is desired",
		func(_ *Observed, d *Desired) {
			d.ForNode, d.Assigned = verB, &Assignment{Target: verC, Epoch: 4}
		},
		want{Take, ReasonNew, verC, "", ""}},
	{"an assignment of an older epoch is void",
		func(_ *Observed, d *Desired) { d.Assigned = &Assignment{Target: verC, Epoch: 3} },
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"so is one of an epoch that the gate has not reached",
		func(_ *Observed, d *Desired) { d.Assigned = &Assignment{Target: verC, Epoch: 5} },
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"an assignment of a release alone inherits the data",
		func(_ *Observed, d *Desired) {
			d.Assigned = &Assignment{Target: Target{Release: verB.Release, Tree: verB.Tree}, Epoch: 4}
		},
		want{Take, ReasonNew, Target{verB.Release, verB.Tree, verA.Data, verA.DataDigest}, "", ""}},

	{"an assignment to another machine of this name is void",
		func(o *Observed, d *Desired) {
			o.Machine, d.Host.MachineID = "aaaa", "aaaa"
			d.Assigned = &Assignment{Machine: "bbbb", Target: verC, Epoch: 4}
		},
		want{Nothing, ReasonUpToDate, verA, "", ""}},
	{"the closed gate of a rollout stops its assignments",
		func(_ *Observed, d *Desired) {
			d.Gate.State, d.Gate.Rollout, d.Assigned = GatePaused, "r1", &Assignment{Target: verC, Epoch: 4}
		},
		want{Nothing, ReasonGateClosed, verA, ReasonGateClosed, ""}},
	{"who took its assignment keeps it while the gate is closed",
		func(o *Observed, d *Desired) {
			d.Gate.State, d.Gate.Rollout, d.Assigned = GateAborted, "r1", &Assignment{Target: verC, Epoch: 4}
			o.State.LastGood, o.State.Enforcing = verC, verC
		},
		want{Nothing, ReasonUpToDate, verC, "", ""}},
	{"the closed gate of a rollout stops nothing else: a node without an assignment takes what is desired",
		func(_ *Observed, d *Desired) { d.Default, d.Gate.State, d.Gate.Rollout = verB, GatePaused, "r1" },
		want{Take, ReasonNew, verB, "", ""}},
	{"no assignment of an epoch that this node passed starts: etcd went back in time",
		func(o *Observed, d *Desired) {
			o.State.Epoch, d.Gate.Rollout, d.Assigned = 5, "r1", &Assignment{Target: verC, Epoch: 4}
		},
		want{Nothing, ReasonEpochPassed, verA, ReasonEpochPassed, ""}},

	{"a node waits while a job runs others, although enforcement is due",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); inJob(d, AssignWait, "j4.wait") },
		want{Nothing, ReasonWaits, verA, ReasonWaits, ""}},
	{"it waits also with force, with a requested run, and with a new target",
		func(o *Observed, d *Desired) {
			o.Force, d.Default, d.Host.Request = true, verB, &Request{ID: "1", Do: RequestRun}
			inJob(d, AssignWait, "j4.wait")
		},
		want{Nothing, ReasonWaits, verA, ReasonWaits, ""}},
	{"an order that this agent does not know is a wait",
		func(_ *Observed, d *Desired) { inJob(d, "drain", "j4.1") },
		want{Nothing, ReasonWaits, verA, ReasonWaits, ""}},
	{"at its turn it runs what it has",
		func(_ *Observed, d *Desired) { inJob(d, AssignRun, "j4.1") },
		want{Enforce, ReasonTurn, verA, "", ""}},
	{"or takes what is desired for it, without the wait after a failure",
		func(o *Observed, d *Desired) {
			d.Default, o.State.Attempts = verB, []Attempt{{Target: verB, Started: 3, Finished: 3, Last: start}}
			inJob(d, AssignRun, "j4.1")
		},
		want{Take, ReasonTurn, verB, "", ""}},
	{"after its run it waits again",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			o.State.Ran = &Answer{ID: "j4.1"}
			inJob(d, AssignRun, "j4.1")
		},
		want{Nothing, ReasonWaits, verA, ReasonWaits, ""}},
	{"the answer to an earlier job is none",
		func(o *Observed, d *Desired) {
			o.State.Ran = &Answer{ID: "j3.1"}
			inJob(d, AssignRun, "j4.1")
		},
		want{Enforce, ReasonTurn, verA, "", ""}},
	{"a hold goes before the turn",
		func(_ *Observed, d *Desired) {
			inJob(d, AssignRun, "j4.1")
			d.Holds = []Hold{{Scope: "all", Mode: Stop, Who: "ann"}}
		},
		want{Nothing, ReasonStopped, verA, ReasonStopped, ""}},
	{"nobody waits for a job that nothing advances: its key is gone",
		func(o *Observed, d *Desired) { notRunFor(o, time.Hour); inJob(d, AssignWait, "j4.wait"); d.Job = nil },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"nor for another job than that of the order",
		func(o *Observed, d *Desired) {
			notRunFor(o, time.Hour)
			inJob(d, AssignWait, "j4.wait")
			d.Job = &LiveJob{"j9"}
		},
		want{Enforce, ReasonDue, verA, "", ""}},

	{"while the gate is paused nothing new starts, not even with force",
		func(o *Observed, d *Desired) {
			d.Default, d.Gate.State, d.Gate.By, d.Gate.Why = verB, GatePaused, "ann", "errors in batch 2"
			o.Force = true
		},
		want{Enforce, ReasonForced, verA, ReasonGateClosed, "paused by ann: errors in batch 2"}},
	{"an aborted gate permits enforcement",
		func(o *Observed, d *Desired) {
			d.Default, d.Gate.State = verB, GateAborted
			notRunFor(o, time.Hour)
		},
		want{Enforce, ReasonDue, verA, ReasonGateClosed, "aborted"}},
	{"a closed gate is the reason when nothing is due",
		func(_ *Observed, d *Desired) { d.Default, d.Gate.State = verB, GatePaused },
		want{Nothing, ReasonGateClosed, verA, ReasonGateClosed, ""}},
	{"a gate state that this agent does not know is closed",
		func(_ *Observed, d *Desired) { d.Default, d.Gate.State = verB, "ajar" },
		want{Nothing, ReasonGateClosed, verA, ReasonGateClosed, "ajar"}},
	{"a missing gate is open",
		func(_ *Observed, d *Desired) { d.Default, d.Gate = verB, Gate{} },
		want{Take, ReasonNew, verB, "", ""}},
	{"a closed gate permits a node between targets to continue",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default, d.Gate.State = verB, verB, GatePaused
			attempts(o, verB, 1, 1, 5*time.Minute)
		},
		want{Enforce, ReasonRetry, verB, "", ""}},

	{"a target that was refused a moment ago is not taken",
		func(o *Observed, d *Desired) { d.Default = verB; refused(o, verB, time.Minute) },
		want{Nothing, ReasonRefused, verA, ReasonRefused, "it is not signed"}},
	{"and what is in place is enforced when that is due",
		func(o *Observed, d *Desired) {
			d.Default = verB
			refused(o, verB, time.Minute)
			notRunFor(o, time.Hour)
		},
		want{Enforce, ReasonDue, verA, ReasonRefused, "it is not signed"}},
	{"a first target that is refused leaves the machine alone",
		func(o *Observed, d *Desired) {
			o.State, d.Default = State{}, verB
			refused(o, verB, time.Minute)
		},
		want{Nothing, ReasonRefused, Target{}, ReasonRefused, ""}},
	{"by cron's next start it is looked at again",
		func(o *Observed, d *Desired) { d.Default = verB; refused(o, verB, 5*time.Minute-10*time.Second) },
		want{Take, ReasonNew, verB, "", ""}},
	{"a refusal of one target says nothing about the next",
		func(o *Observed, d *Desired) { d.Default = verC; refused(o, verB, time.Minute) },
		want{Take, ReasonNew, verC, "", ""}},
	{"a refusal of what is in place (its signer was revoked since) changes nothing",
		func(o *Observed, _ *Desired) { refused(o, verA, time.Minute); notRunFor(o, time.Hour) },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"force looks at a refused target at once",
		func(o *Observed, d *Desired) { o.Force, d.Default = true, verB; refused(o, verB, time.Second) },
		want{Take, ReasonForced, verB, "", ""}},
	{"and enforces the current target after the check",
		func(o *Observed, d *Desired) {
			o.Force, o.Looked, d.Default = true, true, verB
			refused(o, verB, 0)
		},
		want{Enforce, ReasonForced, verA, ReasonRefused, "it is not signed"}},
	{"a noop looks at once too",
		func(o *Observed, d *Desired) { o.Noop, d.Default = true, verB; refused(o, verB, time.Second) },
		want{Take, ReasonNoop, verB, "", ""}},
	{"a refusal a year from now (the clock was wrong) delays no check for a year",
		func(o *Observed, d *Desired) { d.Default = verB; refused(o, verB, -365*24*time.Hour) },
		want{Take, ReasonNew, verB, "", ""}},
	{"without etcd a refusal is nothing to speak of",
		func(o *Observed, d *Desired) { refused(o, verB, time.Minute); *d = Desired{Unreachable: "timeout"} },
		want{Nothing, ReasonUnreachable, verA, ReasonUnreachable, ""}},

	{"a target whose Puppet server did not answer a moment ago is not taken",
		func(o *Observed, d *Desired) { d.Default = verB; away(o, verB, 10*time.Second) },
		want{Nothing, ReasonServerAway, verA, ReasonServerAway, "since 2026-03-04T04:06:07Z; the node keeps its last good state: no Puppet server answered: eu1: connection refused"}},
	{"and what is in place is enforced when that is due",
		func(o *Observed, d *Desired) {
			d.Default = verB
			away(o, verB, 10*time.Second)
			notRunFor(o, time.Hour)
		},
		want{Enforce, ReasonDue, verA, ReasonServerAway, "connection refused"}},
	{"by cron's next start the server is tried again",
		func(o *Observed, d *Desired) { d.Default = verB; away(o, verB, 5*time.Minute-10*time.Second) },
		want{Take, ReasonNew, verB, "", ""}},
	{"what is in place is not enforced while its Puppet server is away, and nothing else becomes due",
		func(o *Observed, _ *Desired) { away(o, verA, 10*time.Second); notRunFor(o, time.Hour) },
		want{Nothing, ReasonServerAway, verA, ReasonServerAway, "connection refused"}},
	{"then it is enforced",
		func(o *Observed, _ *Desired) { away(o, verA, 30*time.Second); notRunFor(o, time.Hour) },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"force tries the server at once",
		func(o *Observed, _ *Desired) { o.Force = true; away(o, verA, time.Second) },
		want{Enforce, ReasonForced, verA, "", ""}},
	{"and not twice in one tick",
		func(o *Observed, _ *Desired) { o.Force, o.Looked = true, true; away(o, verA, 0) },
		want{Nothing, ReasonServerAway, verA, ReasonServerAway, ""}},
	{"a server that is away for one target says nothing about the next",
		func(o *Observed, d *Desired) { d.Default = verC; away(o, verB, time.Second) },
		want{Take, ReasonNew, verC, "", ""}},
	{"a try a year from now (the clock was wrong) delays no try for a year",
		func(o *Observed, d *Desired) { d.Default = verB; away(o, verB, -365*24*time.Hour) },
		want{Take, ReasonNew, verB, "", ""}},

	{"without enforcement, nothing becomes due by time",
		func(o *Observed, _ *Desired) { o.State.Enforce = EnforceOff; notRunFor(o, 24*time.Hour) },
		want{Nothing, ReasonNotEnforced, verA, "", "turns enforcement off"}},
	{"and a new target is taken, as always",
		func(o *Observed, d *Desired) { o.State.Enforce, d.Default = EnforceOff, verB },
		want{Take, ReasonNew, verB, "", ""}},
	{"and a requested run runs",
		func(o *Observed, d *Desired) { o.State.Enforce, d.Host.Request = EnforceOff, askedFor(RequestRun) },
		want{Enforce, ReasonAsked, verA, "", ""}},
	{"beside Puppet's own daemon, the agent never runs Puppet",
		func(o *Observed, d *Desired) {
			o.State.Enforce, d.Default = EnforceDaemon, verB
			notRunFor(o, 24*time.Hour)
		},
		want{Nothing, ReasonDaemon, verA, ReasonDaemon, "Puppet's own daemon"}},
	{"except for a run that is forced on the machine",
		func(o *Observed, d *Desired) { o.Force, o.State.Enforce, d.Default = true, EnforceDaemon, verB },
		want{Take, ReasonForced, verB, "", ""}},

	{"what was applied without etcd is verified once etcd is back",
		func(o *Observed, d *Desired) { o.State.Enforcing, d.Default = verB, verB },
		want{Enforce, ReasonUnverified, verB, "", ""}},
	{"and not before: offline it counts as enforced",
		func(o *Observed, d *Desired) { o.State.Enforcing, d.Unreachable = verB, "no answer" },
		want{Nothing, ReasonUnreachable, verB, ReasonUnreachable, "no answer"}},
	{"after a failure that left the machine untouched the new target waits",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 1, 1, 30*time.Second) },
		want{Nothing, ReasonBackoff, verA, ReasonBackoff, "attempt 1 at 2.0.0 with data 7 failed: it does not compile"}},
	{"meanwhile the old one is enforced when that is due",
		func(o *Observed, d *Desired) {
			d.Default = verB
			attempts(o, verB, 1, 1, 30*time.Second)
			notRunFor(o, time.Hour)
		},
		want{Enforce, ReasonDue, verA, ReasonBackoff, ""}},
	{"when the wait is over it is tried again",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 1, 1, 67*time.Second) },
		want{Take, ReasonRetry, verB, "", "it does not compile"}},
	{"a failure that left the machine between is retried as what is enforced",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 2, 3*time.Minute)
		},
		want{Enforce, ReasonRetry, verB, "", ""}},
	{"and waits there too",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 2, time.Minute)
		},
		want{Nothing, ReasonBackoff, verB, ReasonBackoff, ""}},
	{"after the last permitted attempt a node is stuck, with that reason",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 5, 5, 5*time.Minute) },
		want{Nothing, ReasonStuck, verA, ReasonStuck, "attempt 5"}},
	{"a stuck node still tries, at the pace of enforcing",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 9, 9, 34*time.Minute) },
		want{Take, ReasonRetry, verB, "", ""}},
	{"attempts at one target say nothing about the next",
		func(o *Observed, d *Desired) { d.Default = verC; attempts(o, verB, 9, 9, time.Second) },
		want{Take, ReasonNew, verC, "", ""}},
	{"force skips the wait",
		func(o *Observed, d *Desired) {
			o.Force, d.Default = true, verB
			attempts(o, verB, 9, 9, time.Second)
		},
		want{Take, ReasonForced, verB, "", ""}},
	{"force enforces what is up to date",
		func(o *Observed, _ *Desired) { o.Force = true },
		want{Enforce, ReasonForced, verA, "", ""}},
	{"a noop shows what the new target would change",
		func(o *Observed, d *Desired) { o.Noop, d.Default = true, verB },
		want{Take, ReasonNoop, verB, "", ""}},
	{"or what is off on the present one",
		func(o *Observed, _ *Desired) { o.Noop = true },
		want{Enforce, ReasonNoop, verA, "", ""}},
	{"a look shows a release that is not promoted, also while the gate is closed, with the promoted data",
		func(o *Observed, d *Desired) {
			o.Noop, o.Look = true, Target{Release: verB.Release, Tree: verB.Tree}
			d.Gate.State, d.Default.Data, d.Default.DataDigest = GatePaused, verB.Data, verB.DataDigest
		},
		want{Take, ReasonNoop, verB, "", ""}},
	{"a look without etcd shows nothing instead of another release",
		func(o *Observed, d *Desired) { o.Noop, o.Look = true, verB; *d = Desired{Unreachable: "timeout"} },
		want{Nothing, ReasonUnreachable, verA, ReasonUnreachable, "timeout"}},
	{"a run with tags takes no new target, and needs none to be due",
		func(o *Observed, d *Desired) { o.Partial, d.Default = true, verB },
		want{Enforce, ReasonPartial, verA, "", ""}},
	{"nor does it run where nothing is in place",
		func(o *Observed, d *Desired) { o.Partial, o.State = true, State{} },
		want{Nothing, ReasonPartial, Target{}, "", "tags"}},

	{"a node between two targets goes back at once when the last good one is wanted again",
		func(o *Observed, _ *Desired) { o.State.Enforcing = verB; attempts(o, verB, 4, 4, time.Second) },
		want{Take, ReasonReturn, verA, "", ""}},

	{"a run that was cut off is done again at once",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 1, 0, time.Second)
		},
		want{Enforce, ReasonInterrupted, verB, "", ""}},
	{"so is the first one that was cut off after failures",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 3, 2, time.Second) },
		want{Take, ReasonInterrupted, verB, "", ""}},
	{"one that is cut off again and again waits: the target may be what kills it",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 0, time.Minute)
		},
		want{Nothing, ReasonBackoff, verB, ReasonBackoff, "was interrupted"}},
	{"and retries when the retry is due",
		func(o *Observed, d *Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 0, 3*time.Minute)
		},
		want{Enforce, ReasonInterrupted, verB, "", ""}},

	{"a last run a year from now (the clock was wrong, and was corrected) does not stop enforcement",
		func(o *Observed, _ *Desired) { notRunFor(o, -365*24*time.Hour) },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"nor does a last attempt a year from now stop attempts",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, 9, 9, -365*24*time.Hour) },
		want{Take, ReasonRetry, verB, "", ""}},
	{"a last run a year ago is due",
		func(o *Observed, _ *Desired) { notRunFor(o, 365*24*time.Hour) },
		want{Enforce, ReasonDue, verA, "", ""}},
	{"a hold whose end has passed by this node's clock still holds: etcd ends it, not a clock that may be wrong",
		func(_ *Observed, d *Desired) {
			h := stop
			h.Until = start.Add(-time.Hour)
			d.Holds = []Hold{h}
		},
		want{Nothing, ReasonStopped, verA, ReasonStopped, "until 2026-03-04T04:06:07Z"}},
	{"an attempt count that is no count (a damaged status) is none",
		func(o *Observed, d *Desired) { d.Default = verB; attempts(o, verB, -3, 0, 0) },
		want{Take, ReasonRetry, verB, "", ""}},
}

// away records that the Puppet server of t did not answer some time ago, and since an hour.
func away(o *Observed, t Target, ago time.Duration) {
	o.State.Away = append(o.State.Away, Away{Target: t, Problem: Problem{Code: PuppetServerAway, Text: "eu1: connection refused"}, Since: start.Add(-time.Hour), At: start.Add(-ago)})
}

// The complete policy of a node, one sentence per case. A wrong case makes a fleet run an unwanted release, or none.
func TestDecisions(t *testing.T) {
	seen := map[Reason]bool{}
	rungs := map[Question]map[bool]bool{}
	for _, c := range decisions {
		t.Run(c.say, func(t *testing.T) {
			o, d := onA()
			c.when(&o, &d)
			got := Decide(o, d, start)
			w := c.want
			if got.Action != w.action || got.Reason != w.reason || got.Target != w.target || got.Blocked.Reason != w.blocked {
				t.Errorf("got  %s %s, because %s; blocked: %q\nwant %s %s, because %s; blocked: %q",
					got.Action, got.Target, got.Reason, got.Blocked.Reason, w.action, w.target, w.reason, w.blocked)
			}
			coherent(t, o, d, start)
			if !strings.Contains(got.main().Sentence(), w.detail) {
				t.Errorf("detail %q lacks %q", got.main().Sentence(), w.detail)
			}
			for _, r := range got.Ladder {
				if rungs[r.Question] == nil {
					rungs[r.Question] = map[bool]bool{}
				}
				rungs[r.Question][r.OK] = true
			}
			seen[got.Reason], seen[got.Blocked.Reason] = true, true
		})
	}
	for _, r := range reasons(t) {
		if !seen[r] && !slices.Contains(viewReasons, r) && r != ReasonFirstBoot { // only a first boot records it
			t.Errorf("no case is about: %s", r)
		}
	}
	ladder := []Question{
		AskEnabled, AskRetiring, AskHooks, AskPuppet, AskStopped, AskEtcd, AskRegistered, AskMachine, AskTurn, AskPromoted, AskCurrent, AskInPlace,
		AskFrozen, AskGate, AskAuthentic, AskAttempt, AskEnforcing,
	}
	if !rungs[AskServer][false] {
		t.Errorf("no case answers no to: %s", AskServer)
	}
	delete(rungs, AskServer) // nothing passes it: only a run shows that the server answers
	for _, q := range ladder {
		if !rungs[q][true] || !rungs[q][false] {
			t.Errorf("the cases don't answer both yes and no to: %s", q)
		}
		delete(rungs, q)
	}
	if len(rungs) > 0 {
		t.Errorf("questions that this test does not know: %v", rungs)
	}
}

// reasons returns the constants of type Reason from the source: each new one needs a case.
func reasons(t *testing.T) (found []Reason) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Reason" {
				s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, Reason(s))
			}
		}
		return true
	})
	if len(found) < 15 {
		t.Fatalf("only %d reasons found in decide.go", len(found))
	}
	return found
}

// Without growing gaps with jitter, a complete fleet compiles a broken release simultaneously, again and again.
func TestGapsBetweenAttemptsGrow(t *testing.T) {
	gap := func(node string, started int) time.Duration {
		o, d := onA()
		o.Node, d.Default = node, verB
		attempts(&o, verB, started, started, 0)
		dec := Decide(o, d, start)
		if dec.Action == Take || dec.Blocked.Reason != ReasonBackoff && dec.Blocked.Reason != ReasonStuck {
			t.Fatalf("%s does not wait after attempt %d: %s", node, started, dec.Reason)
		}
		if again := Decide(o, d, start.Add(time.Second)); !again.Next.Equal(dec.Next) {
			t.Fatalf("%s: the wait moves from %s to %s as time passes", node, dec.Next, again.Next)
		}
		if early := Decide(o, d, dec.Next.Add(-time.Nanosecond)); early.Action == Take {
			t.Fatalf("%s takes its target before the time that it names", node)
		}
		if due := Decide(o, d, dec.Next); due.Action != Take {
			t.Fatalf("%s does not take its target at the time that it names: %s", node, due.Reason)
		}
		return dec.Next.Sub(start)
	}
	for i, minutes := range []int{1, 2, 5, 10, 30, 30, 30} {
		want := time.Duration(minutes) * time.Minute
		low, high := time.Hour, time.Duration(0)
		for n := range 200 {
			g := gap(fmt.Sprintf("web%d", n), i+1)
			if d := (g - want).Abs(); d > want/10 {
				t.Fatalf("after attempt %d web%d waits %s, want %s ±10%%", i+1, n, g, want)
			}
			low, high = min(low, g), max(high, g)
		}
		if high-low < want/10 {
			t.Errorf("after attempt %d all nodes wait between %s and %s: they would come in step", i+1, low, high)
		}
	}
}

// A wait must never exceed the operator's enforce interval.
func TestEnforceIntervalLimitsGaps(t *testing.T) {
	o, d := onA()
	d.Default = verB
	o.Settings.EnforceInterval = 3 * time.Minute
	o.State.RanAt = start
	attempts(&o, verB, 4, 4, 0)
	if got := Decide(o, d, start).Next.Sub(start); got > 200*time.Second {
		t.Errorf("it waits %s", got)
	}
}

func drawTarget(t *rapid.T, name string) Target {
	return rapid.SampledFrom([]Target{
		{}, verA, verB, verC,
		{Release: verA.Release, Tree: verA.Tree}, {Data: 3, DataDigest: "three"}, {Release: "named without a tree"},
	}).Draw(t, name)
}

func drawTime(t *rapid.T, name string) time.Time {
	if rapid.IntRange(0, 9).Draw(t, name+" never") == 0 {
		return time.Time{}
	}
	around := rapid.SampledFrom([]time.Duration{time.Minute, time.Hour, 400 * 24 * time.Hour}).Draw(t, name+" scale")
	return start.Add(time.Duration(rapid.Int64Range(-int64(around), int64(around)).Draw(t, name)))
}

func drawHolds(t *rapid.T, name string) []Hold {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Hold {
		return Hold{
			Scope: rapid.SampledFrom([]string{"all", "roles/web", "nodes/web1"}).Draw(t, "scope"),
			Mode:  rapid.SampledFrom([]HoldMode{Freeze, Stop, "", "squeeze"}).Draw(t, "mode"),
			Why:   Prose(rapid.String().Draw(t, "why")), Until: drawTime(t, "until"),
		}
	}), 0, 3).Draw(t, name)
}

func drawBlocked(t *rapid.T) *Blocked {
	if rapid.IntRange(0, 3).Draw(t, "is blocked") > 0 {
		return nil
	}
	return &Blocked{Code: rapid.SampledFrom([]BlockCode{PuppetDisabled, PuppetBusy, PuppetLockUnknown, "newer"}).Draw(t, "blocked by"), Text: Prose(rapid.String().Draw(t, "blocked"))}
}

func drawProblem(t *rapid.T) Problem {
	code := rapid.SampledFrom([]ProblemCode{"", HookFailed, CatalogRefused, "newer"}).Draw(t, "problem code")
	return Problem{Code: code, Text: Prose(rapid.String().Draw(t, "problem"))}
}

func drawObserved(t *rapid.T) Observed {
	words := rapid.SampledFrom([]string{"", "", "", "because"})
	o := Observed{
		Identity: Identity{Node: rapid.SampledFrom([]string{"web1", "db7", ""}).Draw(t, "node")},
		Settings: Settings{
			EnforceInterval: rapid.SampledFrom([]time.Duration{0, -time.Hour, time.Second, 30 * time.Minute, math.MaxInt64}).Draw(t, "interval"),
			MaxAttempts:     rapid.IntRange(-1, 6).Draw(t, "max attempts"),
		},
		Disabled: Prose(words.Draw(t, "disabled")), PuppetBlocked: drawBlocked(t),
		Force: rapid.IntRange(0, 4).Draw(t, "force") == 0, Noop: rapid.IntRange(0, 4).Draw(t, "noop") == 0,
		State: State{
			LastGood: drawTarget(t, "last good"), Enforcing: drawTarget(t, "enforcing"), RanAt: drawTime(t, "ran at"),
			Holds: drawHolds(t, "seen holds"),
			Attempts: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Attempt {
				return Attempt{
					Target: drawTarget(t, "attempted"), Started: rapid.IntRange(-3, 12).Draw(t, "started"),
					Finished: rapid.IntRange(-3, 12).Draw(t, "finished"), Open: rapid.Bool().Draw(t, "open"),
					Last: drawTime(t, "last"), Problem: drawProblem(t),
				}
			}), 0, 3).Draw(t, "attempts"),
		},
		Looked: rapid.Bool().Draw(t, "looked"),
	}
	o.Partial = !o.Noop && rapid.Bool().Draw(t, "partial")
	if o.Noop && rapid.Bool().Draw(t, "looks at another release") {
		o.Look = drawTarget(t, "look")
	}
	if rapid.Bool().Draw(t, "is refused") {
		o.State.Refusal = &Refusal{Target: drawTarget(t, "refused"), Error: *refusedFor(rapid.String().Draw(t, "refused why")), At: drawTime(t, "refused at")}
	}
	o.State.Epoch = Epoch(rapid.Int64Range(0, 3).Draw(t, "passed"))
	ids := rapid.SampledFrom([]string{"", "", "a", "b"})
	o.State.Retire = ids.Draw(t, "retires")
	if id := ids.Draw(t, "answered"); id != "" {
		o.State.Answer = &Answer{ID: id, Problem: drawProblem(t)}
	}
	return o
}

func drawDesired(t *rapid.T) Desired {
	words := rapid.SampledFrom([]string{"", "", "", "because"})
	d := Desired{
		Unreachable: Prose(words.Draw(t, "unreachable")), Unreadable: Prose(words.Draw(t, "unreadable")),
		Gate: Gate{
			Epoch: Epoch(rapid.Int64Range(0, 3).Draw(t, "epoch")),
			State: rapid.SampledFrom([]GateState{GateOpen, GateOpen, GatePaused, GateAborted, "", "ajar"}).Draw(t, "gate"),

			Rollout: rapid.SampledFrom([]string{"", "r1"}).Draw(t, "rollout"),
		},
		Default: drawTarget(t, "default"), ForRole: drawTarget(t, "for role"), ForNode: drawTarget(t, "for node"),
		Holds: drawHolds(t, "holds"),
	}
	if rapid.IntRange(0, 4).Draw(t, "host") > 0 {
		d.Host = &Host{Node: "web1", Role: "web"}
		if rapid.Bool().Draw(t, "is asked") {
			d.Host.Request = &Request{
				ID: rapid.SampledFrom([]string{"", "a", "b", strings.Repeat("z", 1000)}).Draw(t, "request"),
				Do: rapid.SampledFrom([]RequestKind{RequestRun, RequestNoop, RequestRetire, "", "dance"}).Draw(t, "kind"),
			}
		}
	}
	if rapid.Bool().Draw(t, "is assigned") {
		d.Assigned = &Assignment{Target: drawTarget(t, "assigned"), Epoch: Epoch(rapid.Int64Range(0, 3).Draw(t, "its epoch"))}
		if rapid.IntRange(0, 2).Draw(t, "of a job") == 0 {
			kind := rapid.SampledFrom([]AssignmentKind{AssignRun, AssignNoop, AssignWait, "newer"}).Draw(t, "ordered")
			d.Assigned.ID, d.Assigned.Rollout, d.Assigned.Kind = "j1.1", "j1", kind
			d.Job = rapid.SampledFrom([]*LiveJob{nil, {"j1"}, {"j1"}, {"j2"}}).Draw(t, "job")
		}
	}
	return d
}

// Properties beyond the table: a decision must not panic, contradict itself, or take an unwanted target.
func TestDecisionsKeepInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		coherent(t, drawObserved(t), drawDesired(t), drawTime(t, "now"))
	})
}

// coherent checks the invariants of every decision.
func coherent(t rapid.TB, o Observed, d Desired, now time.Time) {
	t.Helper()
	before, err := json.Marshal([]any{o, d})
	if err != nil {
		t.Fatal(err)
	}
	got := Decide(o, d, now)
	if again := Decide(o, d, now); !reflect.DeepEqual(got, again) {
		t.Fatalf("asked twice it says %+v and %+v", got, again)
	}
	if after, _ := json.Marshal([]any{o, d}); string(before) != string(after) {
		t.Fatal("deciding changed what it decided on")
	}
	known := d.Unreachable == "" && d.Unreadable == ""
	holds := d.Holds
	if !known {
		holds = o.State.Holds
	}
	stopped := false
	for _, h := range holds {
		stopped = stopped || h.Mode == Stop
	}
	r, known := o.asked(d)
	retires := known && r != nil && r.Do == RequestRetire && (o.State.Retire != "" || o.pending(d, RequestRetire) != nil) || !known && o.State.Retire != ""
	waits := d.known() && d.Host != nil && !anotherMachine(d.Host, o.Machine) && d.job() != nil && d.turn(&o.State) == nil
	forbidden := o.Disabled != "" || o.PuppetBlocked != nil || stopped || retires || waits

	switch got.Action {
	case Retire:
		if o.Disabled != "" || o.Noop || o.Partial || !known || o.pending(d, RequestRetire) == nil {
			t.Fatalf("it retires without a request: %+v", got.Ladder)
		}
	case Take:
		if o.Partial {
			t.Fatal("a part is not a target")
		}
		if !o.Look.IsZero() {
			if forbidden || !known || d.Host == nil || !o.Noop || got.Target != o.Look.Overlay(d.Wanted()) {
				t.Fatalf("it looks at %s: %+v", got.Target, got.Ladder)
			}
			break
		}
		a := d.Assigned
		assigned := a != nil && a.Epoch == d.Gate.Epoch && (a.Machine == "" || a.Machine == d.Host.MachineID)
		closed := d.Gate.State != "" && d.Gate.State != GateOpen && (d.Gate.Rollout == "" || assigned)
		if assigned && d.Gate.Epoch < o.State.Epoch {
			t.Fatalf("it takes an assignment of epoch %d after epoch %d", d.Gate.Epoch, o.State.Epoch)
		}
		if forbidden || !known || d.Host == nil || len(holds) > 0 || closed {
			t.Fatalf("it takes %s although that is forbidden: %+v", got.Target, got.Ladder)
		}
		if got.Target != d.Wanted() || got.Target != got.Wanted || got.Target.IsZero() || got.Target == o.State.Enforcing {
			t.Fatalf("it takes %s, is on %s and is to be on %s", got.Target, o.State.Enforcing, d.Wanted())
		}
		if got.Blocked.Reason != "" {
			t.Fatalf("it takes what is blocked: %+v", got.Blocked)
		}
	case Enforce:
		if forbidden || got.Target != o.State.Enforcing || got.Target.IsZero() {
			t.Fatalf("it enforces %s, and was enforcing %s", got.Target, o.State.Enforcing)
		}
	case Nothing:
		if forbidden || o.State.Enforcing.IsZero() || !o.Look.IsZero() || o.State.Away != nil || o.State.Enforce != "" {
			break // only an operator, or a first target, ends that; a look shows no other release instead
		}
		if o.Force || o.Noop || o.Partial || o.pending(d, RequestRun) != nil {
			t.Fatalf("it was asked for a run and does nothing: %s", got.Reason)
		}
		if !got.Next.After(now) {
			t.Fatalf("it does nothing (%s) and waits for no time to come: %s", got.Reason, got.Next)
		}
	default:
		t.Fatalf("an action that does not exist: %q", got.Action)
	}
	runs, turn := got.Action == Take || got.Action == Enforce, d.turn(&o.State)
	here := d.known() && d.Host != nil && !anotherMachine(d.Host, o.Machine)
	if got.Noop && (o.Noop || o.Partial || !runs || !here || (turn == nil || turn.Kind != AssignNoop) && o.pending(d, RequestNoop) == nil) {
		t.Fatalf("nobody ordered a noop run: %+v", got)
	} else if here && runs && turn != nil && turn.Kind == AssignNoop && !got.Noop && !o.Noop && !o.Partial {
		t.Fatalf("a noop run was ordered, and it runs: %+v", got)
	}
	longest := max(30*time.Minute, o.Settings.EnforceInterval)
	if wait := got.Next.Sub(now); !got.Next.IsZero() && longest < time.Hour && wait > longest+longest/10 {
		t.Fatalf("it waits for %s", wait)
	}
	explained(t, got)
}

// explained checks that the ladder explains the decision. Its last answer is yes if the node acts, and no otherwise.
// The cause that blocks the target must belong to a question with the answer no.
func explained(t rapid.TB, d Decision) {
	t.Helper()
	if len(d.Ladder) == 0 || d.Reason == "" {
		t.Fatal("it does not say why")
	}
	last := d.Ladder[len(d.Ladder)-1]
	if last.OK != (d.Action != Nothing) {
		t.Fatalf("it does %s, and the last rung says %+v", d.Action, last)
	}
	if d.Action != Nothing && last.Reason != d.Reason {
		t.Fatalf("it acts because %q, and the last rung says %+v", d.Reason, last)
	}
	if d.Blocked.Reason == "" {
		return
	}
	for _, r := range d.Ladder {
		if !r.OK && r.Reason == d.Blocked.Reason {
			return
		}
	}
	t.Fatalf("nothing on the ladder says %q: %+v", d.Blocked.Reason, d.Ladder)
}

// A splay that changes between ticks would synchronise a fleet. One above its limit would skip ticks.
func TestSplayIsConstantAndUniform(t *testing.T) {
	const limit = 4 * time.Minute
	buckets := make([]int, 8)
	for n := range 8000 {
		node := fmt.Sprintf("compute%d", n)
		s := Splay(node, limit)
		if s < 0 || s >= limit || s != Splay(node, limit) {
			t.Fatalf("%s: %s", node, s)
		}
		buckets[int(s*8/limit)]++
	}
	for i, n := range buckets {
		if n < 800 || n > 1200 {
			t.Errorf("bucket %d of 8 has %d of 8000 nodes", i, n)
		}
	}
}
