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

	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

var (
	verA, verB, verC = version("1.0.0"), version("2.0.0"), version("3.0.0")

	freeze = model.Hold{Scope: "nodes/web1", Mode: model.Freeze, Who: "ann", Why: "I am looking at it"}
	stop   = model.Hold{Scope: "roles/web", Mode: model.Stop, Who: "bob", Why: "moving racks"}
)

// viewReasons are the reasons that only Look returns.
var viewReasons = []model.Reason{model.ReasonSilent, model.ReasonNeverReported, model.ReasonNotReported, model.ReasonUnknownNode, model.ReasonNotTaken}

func refusedFor(detail string) *refusal.Error {
	return &refusal.Error{Code: refusal.RecordUnreadable, Params: refusal.Params{"detail": detail}}
}

var disabledPuppet = &model.Blocked{Code: model.PuppetDisabled, Path: "agent_disabled.lock"}

// failedHook returns the problem of a hook, or the zero Problem for an empty text.
func failedHook(text model.Prose) model.Problem {
	if text == "" {
		return model.Problem{}
	}
	return model.Problem{Code: model.HookFailed, Text: text}
}

// onA returns a healthy node that reached A ten minutes ago, in a fleet whose target is A.
func onA() (model.Observed, model.Desired) {
	o := model.Observed{
		Identity: model.Identity{Node: "web1", Role: "web", Environment: "dev"}, Settings: model.DefaultSettings(),
		State: model.State{LastGood: verA, Enforcing: verA, RanAt: start.Add(-10 * time.Minute)},
	}
	return o, model.Desired{Revision: 9, Host: &model.Host{Node: "web1", Role: "web"}, Gate: model.Gate{Epoch: 4, State: model.GateOpen}, Default: verA}
}

func attempts(o *model.Observed, target model.Target, started, finished int, ago time.Duration) {
	a := model.Attempt{Target: target, Started: started, Finished: finished, Open: started > finished, Last: start.Add(-ago)}
	if finished > 0 {
		a.Kind, a.Problem = model.Untouched, model.Problem{Code: model.CatalogRefused, Text: "it does not compile"}
	}
	o.State.Attempts = append(o.State.Attempts, a)
}

func refused(o *model.Observed, target model.Target, ago time.Duration) {
	o.State.Refuse(target, refusedFor("it is not signed"), start.Add(-ago))
}

// inJob orders the node something for the job in progress.
func inJob(d *model.Desired, kind model.AssignmentKind, id string) {
	d.Gate.Rollout, d.Job = "j4", &model.LiveJob{ID: "j4"}
	d.Assigned = &model.Assignment{ID: id, Kind: kind, Rollout: "j4", Epoch: 4}
}

func notRunFor(o *model.Observed, d time.Duration) { o.State.RanAt = start.Add(-d) }

// askedFor returns a new request of this kind.
func askedFor(do model.RequestKind) *model.Request {
	return &model.Request{ID: "00112233aabbccdd", Do: do, Why: "fewer are needed", By: "ann", At: start}
}

// answered adds a request that the node has answered.
func answered(o *model.Observed, d *model.Desired, do model.RequestKind, problem model.Prose) {
	d.Host.Request = askedFor(do)
	o.State.Settle(d.Host.Request.ID, failedHook(problem))
	if do == model.RequestRetire {
		o.State.Retire = d.Host.Request.ID
	}
}

type want struct {
	action  model.Action
	reason  model.Reason
	target  model.Target // default: the enforced target
	blocked model.Reason
	detail  string // a substring
}

type decision struct {
	say  string
	when func(*model.Observed, *model.Desired)
	want want
}

func staleAt(t model.Target, code refusal.Code) *model.Refusal {
	return &model.Refusal{Target: t, Error: *refusal.New(code, "statement", "dev", "at", "2026-06-15T12:00:00Z"), At: start}
}

var decisions = []decision{
	{"a node on its target, enforced recently, runs nothing",
		func(*model.Observed, *model.Desired) {},
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"a node on its target is enforced again when the interval is over",
		func(o *model.Observed, _ *model.Desired) { notRunFor(o, 30*time.Minute) },
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"and not a second before",
		func(o *model.Observed, _ *model.Desired) { notRunFor(o, 30*time.Minute-time.Second) },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},

	{"a node that sees changed nodes runs, before enforcement is due",
		func(o *model.Observed, _ *model.Desired) { o.State.Hosts = model.HostView{Shown: "b", Applied: "a"} },
		want{model.Enforce, model.ReasonHosts, verA, "", ""}},
	{"a disabled node runs nothing, whatever is due, forced or new",
		func(o *model.Observed, d *model.Desired) {
			o.Disabled, o.Force, d.Default = "kernel debugging", true, verB
		},
		want{model.Nothing, model.ReasonDisabled, verA, model.ReasonDisabled, "kernel debugging"}},
	{"a node whose own Puppet is disabled or at work runs nothing",
		func(o *model.Observed, d *model.Desired) {
			o.PuppetBlocked, o.Force, d.Default = disabledPuppet, true, verB
		},
		want{model.Nothing, model.ReasonPuppetBlocked, verA, model.ReasonPuppetBlocked, "agent_disabled.lock"}},

	{"a node on a target whose statement ended enforces it, and reports that it may be old",
		func(o *model.Observed, _ *model.Desired) {
			notRunFor(o, 30*time.Minute)
			o.Stale = staleAt(verA, refusal.StatementExpired)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonStale, "the statement of the targets of dev ended at 2026"}},
	{"a target that no statement covers is not taken, not even by force",
		func(o *model.Observed, d *model.Desired) {
			o.Force, d.Default, o.Stale = true, verB, staleAt(verB, refusal.StatementDiffers)
		},
		want{model.Enforce, model.ReasonForced, verA, model.ReasonStale, "covers the target"}},
	{"a statement from the future proves a wrong clock",
		func(o *model.Observed, _ *model.Desired) { o.Stale = staleAt(verA, refusal.StatementFuture) },
		want{model.Nothing, model.ReasonClock, verA, model.ReasonClock, "in the future by this machine's clock"}},
	{"a statement about another target is not about this one",
		func(o *model.Observed, _ *model.Desired) { o.Stale = staleAt(verB, refusal.StatementMissing) },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},

	{"a stop hold stops Puppet on a node that is due",
		func(o *model.Observed, d *model.Desired) { notRunFor(o, time.Hour); d.Holds = []model.Hold{stop} },
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "stop on roles/web by bob: moving racks"}},
	{"force does not pass a stop hold",
		func(o *model.Observed, d *model.Desired) { o.Force = true; d.Holds = []model.Hold{stop} },
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, ""}},
	{"a freeze on the node and a stop on its role: the stop is the stricter one",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			d.Holds = []model.Hold{freeze, stop}
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "roles/web"}},
	{"a stop on the node and a freeze on all: the stop is the stricter one, in whatever order they come",
		func(_ *model.Observed, d *model.Desired) {
			d.Holds = []model.Hold{{Scope: "nodes/web1", Mode: model.Stop}, {Scope: "all", Mode: model.Freeze}}
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "nodes/web1"}},
	{"a stop on all stops",
		func(_ *model.Observed, d *model.Desired) { d.Holds = []model.Hold{{Scope: "all", Mode: model.Stop}} },
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "stop on all"}},
	{"a freeze keeps a node from its new target",
		func(_ *model.Observed, d *model.Desired) { d.Default = verB; d.Holds = []model.Hold{freeze} },
		want{model.Nothing, model.ReasonFrozen, verA, model.ReasonFrozen, "I am looking at it"}},
	{"force under a freeze enforces the current target",
		func(o *model.Observed, d *model.Desired) {
			o.Force = true
			d.Default = verB
			d.Holds = []model.Hold{freeze}
		},
		want{model.Enforce, model.ReasonForced, verA, model.ReasonFrozen, ""}},
	{"a freeze does not keep a node from being enforced",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			d.Default = verB
			d.Holds = []model.Hold{freeze}
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonFrozen, ""}},
	{"a freeze of a node that is where it should be blocks nothing",
		func(_ *model.Observed, d *model.Desired) { d.Holds = []model.Hold{freeze} },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"a hold that etcd no longer has does not count, although it was seen",
		func(o *model.Observed, d *model.Desired) { o.State.Holds = []model.Hold{stop}; d.Default = verB },
		want{model.Take, model.ReasonNew, verB, "", ""}},

	{"a node that is asked for a run enforces what it has, although that is not due",
		func(_ *model.Observed, d *model.Desired) { d.Host.Request = askedFor(model.RequestRun) },
		want{model.Enforce, model.ReasonAsked, verA, "", "by ann: fewer are needed"}},
	{"after the answer it is up to date again",
		func(o *model.Observed, d *model.Desired) { answered(o, d, model.RequestRun, "") },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"one that has answered another request answers this one",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRun, "")
			d.Host.Request.ID = "ffff"
		},
		want{model.Enforce, model.ReasonAsked, verA, "", ""}},
	{"asked for a run it takes what is new first",
		func(_ *model.Observed, d *model.Desired) {
			d.Default, d.Host.Request = verB, askedFor(model.RequestRun)
		},
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"asked for a run it does not cut the wait for what failed: it enforces what it has",
		func(o *model.Observed, d *model.Desired) {
			d.Default, d.Host.Request = verB, askedFor(model.RequestRun)
			attempts(o, verB, 1, 1, 30*time.Second)
		},
		want{model.Enforce, model.ReasonAsked, verA, model.ReasonBackoff, "it does not compile"}},
	{"what it stands between is run again at once",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default, d.Host.Request = verB, verB, askedFor(model.RequestRun)
			attempts(o, verB, 2, 2, time.Second)
		},
		want{model.Enforce, model.ReasonAsked, verB, "", ""}},
	{"a freeze lets it run what it has",
		func(_ *model.Observed, d *model.Desired) {
			d.Default, d.Holds, d.Host.Request = verB, []model.Hold{freeze}, askedFor(model.RequestRun)
		},
		want{model.Enforce, model.ReasonAsked, verA, model.ReasonFrozen, "I am looking at it"}},
	{"a stop permits no run, for any requester",
		func(_ *model.Observed, d *model.Desired) {
			d.Holds, d.Host.Request = []model.Hold{stop}, askedFor(model.RequestRun)
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, ""}},
	{"before the first release there is nothing to run",
		func(o *model.Observed, d *model.Desired) {
			o.State, d.Default, d.Host.Request = model.State{}, model.Target{}, askedFor(model.RequestRun)
		},
		want{model.Nothing, model.ReasonNoTarget, model.Target{}, model.ReasonNoTarget, ""}},
	{"what another machine of its name is asked for does not concern it",
		func(o *model.Observed, d *model.Desired) {
			o.Machine, d.Host.MachineID, d.Host.Request = "aaaa", "bbbb", askedFor(model.RequestRetire)
		},
		want{model.Nothing, model.ReasonOtherMachine, verA, model.ReasonOtherMachine, ""}},
	{"a request without a name could not be answered: it is none",
		func(_ *model.Observed, d *model.Desired) { d.Host.Request = &model.Request{Do: model.RequestRetire} },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"an unknown request changes nothing",
		func(_ *model.Observed, d *model.Desired) { d.Host.Request = askedFor("dance") },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},

	{"a retirement request precedes everything else, under the hold of its requester",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			d.Default, d.Holds, d.Host.Request = verB, []model.Hold{stop}, askedFor(model.RequestRetire)
		},
		want{model.Retire, model.ReasonRetire, verA, "", "by ann: fewer are needed"}},
	{"the machine's own Puppet forbids no hooks",
		func(o *model.Observed, d *model.Desired) {
			o.PuppetBlocked, d.Host.Request = disabledPuppet, askedFor(model.RequestRetire)
		},
		want{model.Retire, model.ReasonRetire, verA, "", ""}},
	{"a node that stands between uses the hooks that were good",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Host.Request = verB, askedFor(model.RequestRetire)
		},
		want{model.Retire, model.ReasonRetire, verA, "", ""}},
	{"and one that never had a good release those that it was part way to",
		func(o *model.Observed, d *model.Desired) {
			o.State = model.State{Enforcing: verB}
			d.Host.Request = askedFor(model.RequestRetire)
		},
		want{model.Retire, model.ReasonRetire, verB, "", ""}},
	{"a node that was disabled on the machine does not retire",
		func(o *model.Observed, d *model.Desired) {
			o.Disabled, d.Host.Request = "kernel debugging", askedFor(model.RequestRetire)
		},
		want{model.Nothing, model.ReasonDisabled, verA, model.ReasonDisabled, "kernel debugging"}},
	{"a node with that answer runs again once it is enabled: its hooks never ran",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "disabled on the machine itself: kernel debugging")
			o.State.Retire, d.Default = "", verB
		},
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"one that retired before it was disabled, and is asked anew meanwhile, stays retired",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "disabled on the machine itself: kernel debugging")
			o.State.Retire = "ffff"
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, "kernel debugging"}},
	{"to look at what a run would change runs no hooks",
		func(o *model.Observed, d *model.Desired) {
			o.Noop, d.Host.Request = true, askedFor(model.RequestRetire)
		},
		want{model.Nothing, model.ReasonRetire, verA, model.ReasonRetire, "retirement is requested"}},
	{"a node that has retired runs nothing, whatever is due, forced or new",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			o.Force, d.Default = true, verB
			notRunFor(o, time.Hour)
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, "the node is retired"}},
	{"a node whose hooks failed runs nothing: its requester decides",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "retire.d/10-drain: exit status 1")
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, "10-drain"}},
	{"asked anew, it runs its hooks anew",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "retire.d/10-drain: exit status 1")
			d.Host.Request.ID = "ffff"
		},
		want{model.Retire, model.ReasonRetire, verA, "", ""}},
	{"without etcd what was begun stays begun",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			notRunFor(o, time.Hour)
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, "the node is retired"}},
	{"so it does once it is taken off the list of hosts",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			notRunFor(o, time.Hour)
			d.Host = nil
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, ""}},
	{"and once another machine has its name",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			notRunFor(o, time.Hour)
			o.Machine, d.Host = "aaaa", &model.Host{MachineID: "bbbb"}
		},
		want{model.Nothing, model.ReasonRetired, verA, model.ReasonRetired, ""}},
	{"after a canceled retirement it runs again",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			notRunFor(o, time.Hour)
			d.Host.Request = nil
		},
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"so it does when it is asked for something else",
		func(o *model.Observed, d *model.Desired) {
			answered(o, d, model.RequestRetire, "")
			d.Host.Request = &model.Request{ID: "ffff", Do: model.RequestRun}
		},
		want{model.Enforce, model.ReasonAsked, verA, "", "by an unknown operator"}},

	{"without etcd a node that never had a target does nothing",
		func(o *model.Observed, d *model.Desired) {
			o.State = model.State{}
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonUnreachable, model.Target{}, model.ReasonUnreachable, "timeout"}},
	{"without etcd a node is enforced when that is due",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, 31*time.Minute)
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonUnreachable, "timeout"}},
	{"with a wrong clock a node is enforced when that is due, too",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, 31*time.Minute)
			*d = model.Desired{Unreachable: "the clock shows 1970", Clock: true}
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonClock, "the clock shows 1970"}},
	{"and left alone when it is not due",
		func(_ *model.Observed, d *model.Desired) { *d = model.Desired{Unreachable: "timeout"} },
		want{model.Nothing, model.ReasonUnreachable, verA, model.ReasonUnreachable, ""}},
	{"without etcd a node that stands between stays on the new target",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing = verB
			attempts(o, verB, 1, 1, 10*time.Minute)
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Enforce, model.ReasonRetry, verB, model.ReasonUnreachable, ""}},
	{"and there, too, its attempts keep their distance",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing = verB
			attempts(o, verB, 3, 3, 3*time.Minute)
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonUnreachable, verB, model.ReasonUnreachable, ""}},
	{"without etcd the stop that was seen last is obeyed",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []model.Hold{freeze, stop}
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "moving racks"}},
	{"without etcd the last known freeze permits enforcement",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []model.Hold{freeze}
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonUnreachable, ""}},
	{"without etcd a forced run enforces the current target",
		func(o *model.Observed, d *model.Desired) { o.Force = true; *d = model.Desired{Unreachable: "timeout"} },
		want{model.Enforce, model.ReasonForced, verA, model.ReasonUnreachable, ""}},
	{"what etcd says beside a value that can't be read is not acted on",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			o.State.Holds = []model.Hold{freeze}
			d.Default, d.Unreadable = verB, "the gate is of format 9"
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonUnreadable, "format 9"}},
	{"and when nothing is due the node says what it can't read",
		func(_ *model.Observed, d *model.Desired) { d.Unreadable = "the gate is of format 9" },
		want{model.Nothing, model.ReasonUnreadable, verA, model.ReasonUnreadable, "format 9"}},
	{"etcd refuses its machine", func(_ *model.Observed, d *model.Desired) { d.LockedOut = &model.Lockout{} },
		want{model.Nothing, model.ReasonLockedOut, verA, model.ReasonLockedOut, "etcd has refused"}},
	{"a node whose certificate etcd refuses keeps its current target",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			*d = model.Desired{Unreadable: "no such user", Removed: "no such user"}
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonRemoved, "the node was removed from the fleet: no such user"}},

	{"a node that is on no list takes nothing new",
		func(_ *model.Observed, d *model.Desired) { d.Host, d.Default = nil, verB },
		want{model.Nothing, model.ReasonUnregistered, verA, model.ReasonUnregistered, "pulley-agent bootstrap"}},
	{"and keeps its current target",
		func(o *model.Observed, d *model.Desired) { notRunFor(o, time.Hour); d.Host, d.Default = nil, verB },
		want{model.Enforce, model.ReasonDue, verA, model.ReasonUnregistered, ""}},

	{"a node that was removed from the fleet needs another remedy",
		func(_ *model.Observed, d *model.Desired) {
			d.Host, d.Removed, d.Default = nil, "by ann: scrapped", verB
		},
		want{model.Nothing, model.ReasonRemoved, verA, model.ReasonRemoved, "removed from the fleet: by ann: scrapped"}},

	{"a node whose name another machine has takes nothing new",
		func(o *model.Observed, d *model.Desired) {
			o.Machine, d.Host.MachineID, d.Default = "aaaa", "bbbb", verB
		},
		want{model.Nothing, model.ReasonOtherMachine, verA, model.ReasonOtherMachine, "the host list has machine bbbb, this is machine aaaa"}},
	{"and keeps enforcing its current target",
		func(o *model.Observed, d *model.Desired) {
			o.Machine, d.Host.MachineID, d.Default = "aaaa", "bbbb", verB
			notRunFor(o, time.Hour)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonOtherMachine, ""}},
	{"a list that an operator wrote says nothing of machines",
		func(o *model.Observed, d *model.Desired) { o.Machine, d.Default = "aaaa", verB },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"and a machine without an id is taken for the one that is meant",
		func(_ *model.Observed, d *model.Desired) { d.Host.MachineID, d.Default = "bbbb", verB },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"before the first release there is nothing to do",
		func(o *model.Observed, d *model.Desired) { o.State, d.Default = model.State{}, model.Target{} },
		want{model.Nothing, model.ReasonNoTarget, model.Target{}, model.ReasonNoTarget, ""}},
	{"data without a release is no target",
		func(o *model.Observed, d *model.Desired) {
			o.State, d.Default = model.State{}, model.Target{Data: 3, DataDigest: "d"}
		},
		want{model.Nothing, model.ReasonNoTarget, model.Target{}, model.ReasonNoTarget, ""}},
	{"when no release is desired any more, the last one stays enforced",
		func(o *model.Observed, d *model.Desired) { notRunFor(o, time.Hour); d.Default = model.Target{} },
		want{model.Enforce, model.ReasonDue, verA, model.ReasonNoTarget, ""}},

	{"a first target is taken at once",
		func(o *model.Observed, _ *model.Desired) { o.State = model.State{} },
		want{model.Take, model.ReasonNew, verA, "", ""}},
	{"a new target is taken at once",
		func(_ *model.Observed, d *model.Desired) { d.Default = verB },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"the same release with newer data is a new target",
		func(_ *model.Observed, d *model.Desired) { d.Default.Data, d.Default.DataDigest = 8, "new" },
		want{model.Take, model.ReasonNew, model.Target{Release: verA.Release, Tree: verA.Tree, Data: 8, DataDigest: "new"}, "", ""}},
	{"a role's target wins over the default",
		func(_ *model.Observed, d *model.Desired) { d.Default, d.ForRole = verB, verC },
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"a node's target wins over its role's",
		func(_ *model.Observed, d *model.Desired) { d.ForRole, d.ForNode = verB, verC },
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"a release pinned at the role still gets the fleet's new data",
		func(_ *model.Observed, d *model.Desired) {
			d.Default = verB
			d.ForRole = model.Target{Release: verA.Release, Tree: verA.Tree}
		},
		want{model.Take, model.ReasonNew, model.Target{Release: verA.Release, Tree: verA.Tree, Data: verB.Data, DataDigest: verB.DataDigest}, "", ""}},
	{"data pinned at the node still gets the role's new release",
		func(_ *model.Observed, d *model.Desired) {
			d.ForRole, d.ForNode = verB, model.Target{Data: 3, DataDigest: "three"}
		},
		want{model.Take, model.ReasonNew, model.Target{Release: verB.Release, Tree: verB.Tree, Data: 3, DataDigest: "three"}, "", ""}},

	{"an assignment of the gate's epoch wins over all that is desired",
		func(_ *model.Observed, d *model.Desired) {
			d.ForNode, d.Assigned = verB, &model.Assignment{Target: verC, Epoch: 4}
		},
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"an assignment of an older epoch is void",
		func(_ *model.Observed, d *model.Desired) { d.Assigned = &model.Assignment{Target: verC, Epoch: 3} },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"so is one of an epoch that the gate has not reached",
		func(_ *model.Observed, d *model.Desired) { d.Assigned = &model.Assignment{Target: verC, Epoch: 5} },
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"an assignment of a release alone inherits the data",
		func(_ *model.Observed, d *model.Desired) {
			d.Assigned = &model.Assignment{Target: model.Target{Release: verB.Release, Tree: verB.Tree}, Epoch: 4}
		},
		want{model.Take, model.ReasonNew, model.Target{Release: verB.Release, Tree: verB.Tree, Data: verA.Data, DataDigest: verA.DataDigest}, "", ""}},

	{"an assignment to another machine of this name is void",
		func(o *model.Observed, d *model.Desired) {
			o.Machine, d.Host.MachineID = "aaaa", "aaaa"
			d.Assigned = &model.Assignment{Machine: "bbbb", Target: verC, Epoch: 4}
		},
		want{model.Nothing, model.ReasonUpToDate, verA, "", ""}},
	{"the closed gate of a rollout stops its assignments",
		func(_ *model.Observed, d *model.Desired) {
			d.Gate.State, d.Gate.Rollout, d.Assigned = model.GatePaused, "r1", &model.Assignment{Target: verC, Epoch: 4}
		},
		want{model.Nothing, model.ReasonGateClosed, verA, model.ReasonGateClosed, ""}},
	{"who took its assignment keeps it while the gate is closed",
		func(o *model.Observed, d *model.Desired) {
			d.Gate.State, d.Gate.Rollout, d.Assigned = model.GateAborted, "r1", &model.Assignment{Target: verC, Epoch: 4}
			o.State.LastGood, o.State.Enforcing = verC, verC
		},
		want{model.Nothing, model.ReasonUpToDate, verC, "", ""}},
	{"the closed gate of a rollout stops nothing else: a node without an assignment takes what is desired",
		func(_ *model.Observed, d *model.Desired) {
			d.Default, d.Gate.State, d.Gate.Rollout = verB, model.GatePaused, "r1"
		},
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"no assignment of an epoch that this node passed starts: etcd went back in time",
		func(o *model.Observed, d *model.Desired) {
			o.State.Epoch, d.Gate.Rollout, d.Assigned = 5, "r1", &model.Assignment{Target: verC, Epoch: 4}
		},
		want{model.Nothing, model.ReasonEpochPassed, verA, model.ReasonEpochPassed, ""}},

	{"a node waits while a job runs others, although enforcement is due",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			inJob(d, model.AssignWait, "j4.wait")
		},
		want{model.Nothing, model.ReasonWaits, verA, model.ReasonWaits, ""}},
	{"it waits also with force, with a requested run, and with a new target",
		func(o *model.Observed, d *model.Desired) {
			o.Force, d.Default, d.Host.Request = true, verB, &model.Request{ID: "1", Do: model.RequestRun}
			inJob(d, model.AssignWait, "j4.wait")
		},
		want{model.Nothing, model.ReasonWaits, verA, model.ReasonWaits, ""}},
	{"an order that this agent does not know is a wait",
		func(_ *model.Observed, d *model.Desired) { inJob(d, "drain", "j4.1") },
		want{model.Nothing, model.ReasonWaits, verA, model.ReasonWaits, ""}},
	{"at its turn it runs what it has",
		func(_ *model.Observed, d *model.Desired) { inJob(d, model.AssignRun, "j4.1") },
		want{model.Enforce, model.ReasonTurn, verA, "", ""}},
	{"or takes what is desired for it, without the wait after a failure",
		func(o *model.Observed, d *model.Desired) {
			d.Default, o.State.Attempts = verB, []model.Attempt{{Target: verB, Started: 3, Finished: 3, Last: start}}
			inJob(d, model.AssignRun, "j4.1")
		},
		want{model.Take, model.ReasonTurn, verB, "", ""}},
	{"after its run it waits again",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			o.State.Ran = &model.Answer{ID: "j4.1"}
			inJob(d, model.AssignRun, "j4.1")
		},
		want{model.Nothing, model.ReasonWaits, verA, model.ReasonWaits, ""}},
	{"the answer to an earlier job is none",
		func(o *model.Observed, d *model.Desired) {
			o.State.Ran = &model.Answer{ID: "j3.1"}
			inJob(d, model.AssignRun, "j4.1")
		},
		want{model.Enforce, model.ReasonTurn, verA, "", ""}},
	{"a hold goes before the turn",
		func(_ *model.Observed, d *model.Desired) {
			inJob(d, model.AssignRun, "j4.1")
			d.Holds = []model.Hold{{Scope: "all", Mode: model.Stop, Who: "ann"}}
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, ""}},
	{"nobody waits for a job that nothing advances: its key is gone",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			inJob(d, model.AssignWait, "j4.wait")
			d.Job = nil
		},
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"nor for another job than that of the order",
		func(o *model.Observed, d *model.Desired) {
			notRunFor(o, time.Hour)
			inJob(d, model.AssignWait, "j4.wait")
			d.Job = &model.LiveJob{ID: "j9"}
		},
		want{model.Enforce, model.ReasonDue, verA, "", ""}},

	{"while the gate is paused nothing new starts, not even with force",
		func(o *model.Observed, d *model.Desired) {
			d.Default, d.Gate.State, d.Gate.By, d.Gate.Why = verB, model.GatePaused, "ann", "errors in batch 2"
			o.Force = true
		},
		want{model.Enforce, model.ReasonForced, verA, model.ReasonGateClosed, "paused by ann: errors in batch 2"}},
	{"an aborted gate permits enforcement",
		func(o *model.Observed, d *model.Desired) {
			d.Default, d.Gate.State = verB, model.GateAborted
			notRunFor(o, time.Hour)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonGateClosed, "aborted"}},
	{"a closed gate is the reason when nothing is due",
		func(_ *model.Observed, d *model.Desired) { d.Default, d.Gate.State = verB, model.GatePaused },
		want{model.Nothing, model.ReasonGateClosed, verA, model.ReasonGateClosed, ""}},
	{"a gate state that this agent does not know is closed",
		func(_ *model.Observed, d *model.Desired) { d.Default, d.Gate.State = verB, "ajar" },
		want{model.Nothing, model.ReasonGateClosed, verA, model.ReasonGateClosed, "ajar"}},
	{"a missing gate is open",
		func(_ *model.Observed, d *model.Desired) { d.Default, d.Gate = verB, model.Gate{} },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"a closed gate permits a node between targets to continue",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default, d.Gate.State = verB, verB, model.GatePaused
			attempts(o, verB, 1, 1, 5*time.Minute)
		},
		want{model.Enforce, model.ReasonRetry, verB, "", ""}},

	{"a target that was refused a moment ago is not taken",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; refused(o, verB, time.Minute) },
		want{model.Nothing, model.ReasonRefused, verA, model.ReasonRefused, "it is not signed"}},
	{"and what is in place is enforced when that is due",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			refused(o, verB, time.Minute)
			notRunFor(o, time.Hour)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonRefused, "it is not signed"}},
	{"a first target that is refused leaves the machine alone",
		func(o *model.Observed, d *model.Desired) {
			o.State, d.Default = model.State{}, verB
			refused(o, verB, time.Minute)
		},
		want{model.Nothing, model.ReasonRefused, model.Target{}, model.ReasonRefused, ""}},
	{"by cron's next start it is looked at again",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			refused(o, verB, 5*time.Minute-10*time.Second)
		},
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"a refusal of one target says nothing about the next",
		func(o *model.Observed, d *model.Desired) { d.Default = verC; refused(o, verB, time.Minute) },
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"a refusal of what is in place (its signer was revoked since) changes nothing",
		func(o *model.Observed, _ *model.Desired) { refused(o, verA, time.Minute); notRunFor(o, time.Hour) },
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"force looks at a refused target at once",
		func(o *model.Observed, d *model.Desired) {
			o.Force, d.Default = true, verB
			refused(o, verB, time.Second)
		},
		want{model.Take, model.ReasonForced, verB, "", ""}},
	{"and enforces the current target after the check",
		func(o *model.Observed, d *model.Desired) {
			o.Force, o.Looked, d.Default = true, true, verB
			refused(o, verB, 0)
		},
		want{model.Enforce, model.ReasonForced, verA, model.ReasonRefused, "it is not signed"}},
	{"a noop looks at once too",
		func(o *model.Observed, d *model.Desired) {
			o.Noop, d.Default = true, verB
			refused(o, verB, time.Second)
		},
		want{model.Take, model.ReasonNoop, verB, "", ""}},
	{"a refusal a year from now (the clock was wrong) delays no check for a year",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; refused(o, verB, -365*24*time.Hour) },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"without etcd a refusal is nothing to speak of",
		func(o *model.Observed, d *model.Desired) {
			refused(o, verB, time.Minute)
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonUnreachable, verA, model.ReasonUnreachable, ""}},

	{"a target whose Puppet server did not answer a moment ago is not taken",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; away(o, verB, 10*time.Second) },
		want{model.Nothing, model.ReasonServerAway, verA, model.ReasonServerAway, "since 2026-03-04T04:06:07Z; the node keeps its last good state: no Puppet server answered: eu1: connection refused"}},
	{"and what is in place is enforced when that is due",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			away(o, verB, 10*time.Second)
			notRunFor(o, time.Hour)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonServerAway, "connection refused"}},
	{"by cron's next start the server is tried again",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			away(o, verB, 5*time.Minute-10*time.Second)
		},
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"what is in place is not enforced while its Puppet server is away, and nothing else becomes due",
		func(o *model.Observed, _ *model.Desired) { away(o, verA, 10*time.Second); notRunFor(o, time.Hour) },
		want{model.Nothing, model.ReasonServerAway, verA, model.ReasonServerAway, "connection refused"}},
	{"then it is enforced",
		func(o *model.Observed, _ *model.Desired) { away(o, verA, 30*time.Second); notRunFor(o, time.Hour) },
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"force tries the server at once",
		func(o *model.Observed, _ *model.Desired) { o.Force = true; away(o, verA, time.Second) },
		want{model.Enforce, model.ReasonForced, verA, "", ""}},
	{"and not twice in one tick",
		func(o *model.Observed, _ *model.Desired) { o.Force, o.Looked = true, true; away(o, verA, 0) },
		want{model.Nothing, model.ReasonServerAway, verA, model.ReasonServerAway, ""}},
	{"a server that is away for one target says nothing about the next",
		func(o *model.Observed, d *model.Desired) { d.Default = verC; away(o, verB, time.Second) },
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"a try a year from now (the clock was wrong) delays no try for a year",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; away(o, verB, -365*24*time.Hour) },
		want{model.Take, model.ReasonNew, verB, "", ""}},

	{"without enforcement, nothing becomes due by time",
		func(o *model.Observed, _ *model.Desired) {
			o.State.Enforce = model.EnforceOff
			notRunFor(o, 24*time.Hour)
		},
		want{model.Nothing, model.ReasonNotEnforced, verA, "", "turns enforcement off"}},
	{"and a new target is taken, as always",
		func(o *model.Observed, d *model.Desired) { o.State.Enforce, d.Default = model.EnforceOff, verB },
		want{model.Take, model.ReasonNew, verB, "", ""}},
	{"and a requested run runs",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforce, d.Host.Request = model.EnforceOff, askedFor(model.RequestRun)
		},
		want{model.Enforce, model.ReasonAsked, verA, "", ""}},
	{"beside Puppet's own daemon, the agent never runs Puppet",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforce, d.Default = model.EnforceDaemon, verB
			notRunFor(o, 24*time.Hour)
		},
		want{model.Nothing, model.ReasonDaemon, verA, model.ReasonDaemon, "Puppet's own daemon"}},
	{"except for a run that is forced on the machine",
		func(o *model.Observed, d *model.Desired) {
			o.Force, o.State.Enforce, d.Default = true, model.EnforceDaemon, verB
		},
		want{model.Take, model.ReasonForced, verB, "", ""}},

	{"what was applied without etcd is verified once etcd is back",
		func(o *model.Observed, d *model.Desired) { o.State.Enforcing, d.Default = verB, verB },
		want{model.Enforce, model.ReasonUnverified, verB, "", ""}},
	{"and not before: offline it counts as enforced",
		func(o *model.Observed, d *model.Desired) { o.State.Enforcing, d.Unreachable = verB, "no answer" },
		want{model.Nothing, model.ReasonUnreachable, verB, model.ReasonUnreachable, "no answer"}},
	{"after a failure that left the machine untouched the new target waits",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, 1, 1, 30*time.Second) },
		want{model.Nothing, model.ReasonBackoff, verA, model.ReasonBackoff, "attempt 1 at 2.0.0 with data 7 failed: it does not compile"}},
	{"meanwhile the old one is enforced when that is due",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			attempts(o, verB, 1, 1, 30*time.Second)
			notRunFor(o, time.Hour)
		},
		want{model.Enforce, model.ReasonDue, verA, model.ReasonBackoff, ""}},
	{"when the wait is over it is tried again",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, 1, 1, 67*time.Second) },
		want{model.Take, model.ReasonRetry, verB, "", "it does not compile"}},
	{"a failure that left the machine between is retried as what is enforced",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 2, 3*time.Minute)
		},
		want{model.Enforce, model.ReasonRetry, verB, "", ""}},
	{"and waits there too",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 2, time.Minute)
		},
		want{model.Nothing, model.ReasonBackoff, verB, model.ReasonBackoff, ""}},
	{"after the last permitted attempt a node is stuck, with that reason",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, 5, 5, 5*time.Minute) },
		want{model.Nothing, model.ReasonStuck, verA, model.ReasonStuck, "attempt 5"}},
	{"a stuck node still tries, at the pace of enforcing",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, 9, 9, 34*time.Minute) },
		want{model.Take, model.ReasonRetry, verB, "", ""}},
	{"attempts at one target say nothing about the next",
		func(o *model.Observed, d *model.Desired) { d.Default = verC; attempts(o, verB, 9, 9, time.Second) },
		want{model.Take, model.ReasonNew, verC, "", ""}},
	{"force skips the wait",
		func(o *model.Observed, d *model.Desired) {
			o.Force, d.Default = true, verB
			attempts(o, verB, 9, 9, time.Second)
		},
		want{model.Take, model.ReasonForced, verB, "", ""}},
	{"force enforces what is up to date",
		func(o *model.Observed, _ *model.Desired) { o.Force = true },
		want{model.Enforce, model.ReasonForced, verA, "", ""}},
	{"a noop shows what the new target would change",
		func(o *model.Observed, d *model.Desired) { o.Noop, d.Default = true, verB },
		want{model.Take, model.ReasonNoop, verB, "", ""}},
	{"or what is off on the present one",
		func(o *model.Observed, _ *model.Desired) { o.Noop = true },
		want{model.Enforce, model.ReasonNoop, verA, "", ""}},
	{"a look shows a release that is not promoted, also while the gate is closed, with the promoted data",
		func(o *model.Observed, d *model.Desired) {
			o.Noop, o.Look = true, model.Target{Release: verB.Release, Tree: verB.Tree}
			d.Gate.State, d.Default.Data, d.Default.DataDigest = model.GatePaused, verB.Data, verB.DataDigest
		},
		want{model.Take, model.ReasonNoop, verB, "", ""}},
	{"a look without etcd shows nothing instead of another release",
		func(o *model.Observed, d *model.Desired) {
			o.Noop, o.Look = true, verB
			*d = model.Desired{Unreachable: "timeout"}
		},
		want{model.Nothing, model.ReasonUnreachable, verA, model.ReasonUnreachable, "timeout"}},
	{"a run with tags takes no new target, and needs none to be due",
		func(o *model.Observed, d *model.Desired) { o.Partial, d.Default = true, verB },
		want{model.Enforce, model.ReasonPartial, verA, "", ""}},
	{"nor does it run where nothing is in place",
		func(o *model.Observed, d *model.Desired) { o.Partial, o.State = true, model.State{} },
		want{model.Nothing, model.ReasonPartial, model.Target{}, "", "tags"}},

	{"a node between two targets goes back at once when the last good one is wanted again",
		func(o *model.Observed, _ *model.Desired) {
			o.State.Enforcing = verB
			attempts(o, verB, 4, 4, time.Second)
		},
		want{model.Take, model.ReasonReturn, verA, "", ""}},

	{"a run that was cut off is done again at once",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 1, 0, time.Second)
		},
		want{model.Enforce, model.ReasonInterrupted, verB, "", ""}},
	{"so is the first one that was cut off after failures",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, 3, 2, time.Second) },
		want{model.Take, model.ReasonInterrupted, verB, "", ""}},
	{"one that is cut off again and again waits: the target may be what kills it",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 0, time.Minute)
		},
		want{model.Nothing, model.ReasonBackoff, verB, model.ReasonBackoff, "was interrupted"}},
	{"and retries when the retry is due",
		func(o *model.Observed, d *model.Desired) {
			o.State.Enforcing, d.Default = verB, verB
			attempts(o, verB, 2, 0, 3*time.Minute)
		},
		want{model.Enforce, model.ReasonInterrupted, verB, "", ""}},

	{"a last run a year from now (the clock was wrong, and was corrected) does not stop enforcement",
		func(o *model.Observed, _ *model.Desired) { notRunFor(o, -365*24*time.Hour) },
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"nor does a last attempt a year from now stop attempts",
		func(o *model.Observed, d *model.Desired) {
			d.Default = verB
			attempts(o, verB, 9, 9, -365*24*time.Hour)
		},
		want{model.Take, model.ReasonRetry, verB, "", ""}},
	{"a last run a year ago is due",
		func(o *model.Observed, _ *model.Desired) { notRunFor(o, 365*24*time.Hour) },
		want{model.Enforce, model.ReasonDue, verA, "", ""}},
	{"a hold whose end has passed by this node's clock still holds: etcd ends it, not a clock that may be wrong",
		func(_ *model.Observed, d *model.Desired) {
			h := stop
			h.Until = start.Add(-time.Hour)
			d.Holds = []model.Hold{h}
		},
		want{model.Nothing, model.ReasonStopped, verA, model.ReasonStopped, "until 2026-03-04T04:06:07Z"}},
	{"an attempt count that is no count (a damaged status) is none",
		func(o *model.Observed, d *model.Desired) { d.Default = verB; attempts(o, verB, -3, 0, 0) },
		want{model.Take, model.ReasonRetry, verB, "", ""}},
}

// away records that the Puppet server of t did not answer some time ago, and since an hour.
func away(o *model.Observed, t model.Target, ago time.Duration) {
	o.State.Away = append(o.State.Away, model.Away{Target: t, Problem: model.Problem{Code: model.PuppetServerAway, Text: "eu1: connection refused"}, Since: start.Add(-time.Hour), At: start.Add(-ago)})
}

// The complete policy of a node, one sentence per case. A wrong case makes a fleet run an unwanted release, or none.
func TestDecisions(t *testing.T) {
	seen := map[model.Reason]bool{}
	rungs := map[model.Question]map[bool]bool{}
	for _, c := range decisions {
		t.Run(c.say, func(t *testing.T) {
			o, d := onA()
			c.when(&o, &d)
			got := model.Decide(o, d, start)
			w := c.want
			if got.Action != w.action || got.Reason != w.reason || got.Target != w.target || got.Blocked.Reason != w.blocked {
				t.Errorf("got  %s %s, because %s; blocked: %q\nwant %s %s, because %s; blocked: %q",
					got.Action, got.Target, got.Reason, got.Blocked.Reason, w.action, w.target, w.reason, w.blocked)
			}
			coherent(t, o, d, start)
			if !strings.Contains(got.Main().Sentence(), w.detail) {
				t.Errorf("detail %q lacks %q", got.Main().Sentence(), w.detail)
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
		if !seen[r] && !slices.Contains(viewReasons, r) && r != model.ReasonFirstBoot { // only a first boot records it
			t.Errorf("no case is about: %s", r)
		}
	}
	ladder := []model.Question{
		model.AskEnabled, model.AskRetiring, model.AskHooks, model.AskPuppet, model.AskStopped, model.AskEtcd, model.AskRegistered, model.AskMachine, model.AskTurn, model.AskPromoted, model.AskCurrent, model.AskInPlace,
		model.AskFrozen, model.AskGate, model.AskAuthentic, model.AskAttempt, model.AskEnforcing,
	}
	if !rungs[model.AskServer][false] {
		t.Errorf("no case answers no to: %s", model.AskServer)
	}
	delete(rungs, model.AskServer) // nothing passes it: only a run shows that the server answers
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
func reasons(t *testing.T) (found []model.Reason) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/model/reason.go", nil, 0)
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
				found = append(found, model.Reason(s))
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
		dec := model.Decide(o, d, start)
		if dec.Action == model.Take || dec.Blocked.Reason != model.ReasonBackoff && dec.Blocked.Reason != model.ReasonStuck {
			t.Fatalf("%s does not wait after attempt %d: %s", node, started, dec.Reason)
		}
		if again := model.Decide(o, d, start.Add(time.Second)); !again.Next.Equal(dec.Next) {
			t.Fatalf("%s: the wait moves from %s to %s as time passes", node, dec.Next, again.Next)
		}
		if early := model.Decide(o, d, dec.Next.Add(-time.Nanosecond)); early.Action == model.Take {
			t.Fatalf("%s takes its target before the time that it names", node)
		}
		if due := model.Decide(o, d, dec.Next); due.Action != model.Take {
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
	if got := model.Decide(o, d, start).Next.Sub(start); got > 200*time.Second {
		t.Errorf("it waits %s", got)
	}
}

func drawTarget(t *rapid.T, name string) model.Target {
	return rapid.SampledFrom([]model.Target{
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

func drawHolds(t *rapid.T, name string) []model.Hold {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) model.Hold {
		return model.Hold{
			Scope: rapid.SampledFrom([]string{"all", "roles/web", "nodes/web1"}).Draw(t, "scope"),
			Mode:  rapid.SampledFrom([]model.HoldMode{model.Freeze, model.Stop, "", "squeeze"}).Draw(t, "mode"),
			Why:   model.Prose(rapid.String().Draw(t, "why")), Until: drawTime(t, "until"),
		}
	}), 0, 3).Draw(t, name)
}

func drawBlocked(t *rapid.T) *model.Blocked {
	if rapid.IntRange(0, 3).Draw(t, "is blocked") > 0 {
		return nil
	}
	return &model.Blocked{Code: rapid.SampledFrom([]model.BlockCode{model.PuppetDisabled, model.PuppetBusy, model.PuppetLockUnknown, "newer"}).Draw(t, "blocked by"), Text: model.Prose(rapid.String().Draw(t, "blocked"))}
}

func drawProblem(t *rapid.T) model.Problem {
	code := rapid.SampledFrom([]model.ProblemCode{"", model.HookFailed, model.CatalogRefused, "newer"}).Draw(t, "problem code")
	return model.Problem{Code: code, Text: model.Prose(rapid.String().Draw(t, "problem"))}
}

func drawObserved(t *rapid.T) model.Observed {
	words := rapid.SampledFrom([]string{"", "", "", "because"})
	o := model.Observed{
		Identity: model.Identity{Node: rapid.SampledFrom([]string{"web1", "db7", ""}).Draw(t, "node")},
		Settings: model.Settings{
			EnforceInterval: rapid.SampledFrom([]time.Duration{0, -time.Hour, time.Second, 30 * time.Minute, math.MaxInt64}).Draw(t, "interval"),
			MaxAttempts:     rapid.IntRange(-1, 6).Draw(t, "max attempts"),
		},
		Disabled: model.Prose(words.Draw(t, "disabled")), PuppetBlocked: drawBlocked(t),
		Force: rapid.IntRange(0, 4).Draw(t, "force") == 0, Noop: rapid.IntRange(0, 4).Draw(t, "noop") == 0,
		State: model.State{
			LastGood: drawTarget(t, "last good"), Enforcing: drawTarget(t, "enforcing"), RanAt: drawTime(t, "ran at"),
			Holds: drawHolds(t, "seen holds"),
			Attempts: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) model.Attempt {
				return model.Attempt{
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
		o.State.Refusal = &model.Refusal{Target: drawTarget(t, "refused"), Error: *refusedFor(rapid.String().Draw(t, "refused why")), At: drawTime(t, "refused at")}
	}
	o.State.Epoch = model.Epoch(rapid.Int64Range(0, 3).Draw(t, "passed"))
	ids := rapid.SampledFrom([]string{"", "", "a", "b"})
	o.State.Retire = ids.Draw(t, "retires")
	if id := ids.Draw(t, "answered"); id != "" {
		o.State.Answer = &model.Answer{ID: id, Problem: drawProblem(t)}
	}
	return o
}

func drawDesired(t *rapid.T) model.Desired {
	words := rapid.SampledFrom([]string{"", "", "", "because"})
	d := model.Desired{
		Unreachable: model.Prose(words.Draw(t, "unreachable")), Unreadable: model.Prose(words.Draw(t, "unreadable")),
		Gate: model.Gate{
			Epoch: model.Epoch(rapid.Int64Range(0, 3).Draw(t, "epoch")),
			State: rapid.SampledFrom([]model.GateState{model.GateOpen, model.GateOpen, model.GatePaused, model.GateAborted, "", "ajar"}).Draw(t, "gate"),

			Rollout: rapid.SampledFrom([]string{"", "r1"}).Draw(t, "rollout"),
		},
		Default: drawTarget(t, "default"), ForRole: drawTarget(t, "for role"), ForNode: drawTarget(t, "for node"),
		Holds: drawHolds(t, "holds"),
	}
	if rapid.IntRange(0, 4).Draw(t, "host") > 0 {
		d.Host = &model.Host{Node: "web1", Role: "web"}
		if rapid.Bool().Draw(t, "is asked") {
			d.Host.Request = &model.Request{
				ID: rapid.SampledFrom([]string{"", "a", "b", strings.Repeat("z", 1000)}).Draw(t, "request"),
				Do: rapid.SampledFrom([]model.RequestKind{model.RequestRun, model.RequestNoop, model.RequestRetire, "", "dance"}).Draw(t, "kind"),
			}
		}
	}
	if rapid.Bool().Draw(t, "is assigned") {
		d.Assigned = &model.Assignment{Target: drawTarget(t, "assigned"), Epoch: model.Epoch(rapid.Int64Range(0, 3).Draw(t, "its epoch"))}
		if rapid.IntRange(0, 2).Draw(t, "of a job") == 0 {
			kind := rapid.SampledFrom([]model.AssignmentKind{model.AssignRun, model.AssignNoop, model.AssignWait, "newer"}).Draw(t, "ordered")
			d.Assigned.ID, d.Assigned.Rollout, d.Assigned.Kind = "j1.1", "j1", kind
			d.Job = rapid.SampledFrom([]*model.LiveJob{nil, {ID: "j1"}, {ID: "j1"}, {ID: "j2"}}).Draw(t, "job")
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
func coherent(t rapid.TB, o model.Observed, d model.Desired, now time.Time) {
	t.Helper()
	before, err := json.Marshal([]any{o, d})
	if err != nil {
		t.Fatal(err)
	}
	got := model.Decide(o, d, now)
	if again := model.Decide(o, d, now); !reflect.DeepEqual(got, again) {
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
		stopped = stopped || h.Mode == model.Stop
	}
	r, known := o.Asked(d)
	retires := known && r != nil && r.Do == model.RequestRetire && (o.State.Retire != "" || o.Pending(d, model.RequestRetire) != nil) || !known && o.State.Retire != ""
	waits := d.Known() && d.Host != nil && !model.AnotherMachine(d.Host, o.Machine) && d.JobTurn() != nil && d.Turn(&o.State) == nil
	forbidden := o.Disabled != "" || o.PuppetBlocked != nil || stopped || retires || waits

	switch got.Action {
	case model.Retire:
		if o.Disabled != "" || o.Noop || o.Partial || !known || o.Pending(d, model.RequestRetire) == nil {
			t.Fatalf("it retires without a request: %+v", got.Ladder)
		}
	case model.Take:
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
		closed := d.Gate.State != "" && d.Gate.State != model.GateOpen && (d.Gate.Rollout == "" || assigned)
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
	case model.Enforce:
		if forbidden || got.Target != o.State.Enforcing || got.Target.IsZero() {
			t.Fatalf("it enforces %s, and was enforcing %s", got.Target, o.State.Enforcing)
		}
	case model.Nothing:
		if forbidden || o.State.Enforcing.IsZero() || !o.Look.IsZero() || o.State.Away != nil || o.State.Enforce != "" {
			break // only an operator, or a first target, ends that; a look shows no other release instead
		}
		if o.Force || o.Noop || o.Partial || o.Pending(d, model.RequestRun) != nil {
			t.Fatalf("it was asked for a run and does nothing: %s", got.Reason)
		}
		if !got.Next.After(now) {
			t.Fatalf("it does nothing (%s) and waits for no time to come: %s", got.Reason, got.Next)
		}
	default:
		t.Fatalf("an action that does not exist: %q", got.Action)
	}
	runs, turn := got.Action == model.Take || got.Action == model.Enforce, d.Turn(&o.State)
	here := d.Known() && d.Host != nil && !model.AnotherMachine(d.Host, o.Machine)
	if got.Noop && (o.Noop || o.Partial || !runs || !here || (turn == nil || turn.Kind != model.AssignNoop) && o.Pending(d, model.RequestNoop) == nil) {
		t.Fatalf("nobody ordered a noop run: %+v", got)
	} else if here && runs && turn != nil && turn.Kind == model.AssignNoop && !got.Noop && !o.Noop && !o.Partial {
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
func explained(t rapid.TB, d model.Decision) {
	t.Helper()
	if len(d.Ladder) == 0 || d.Reason == "" {
		t.Fatal("it does not say why")
	}
	last := d.Ladder[len(d.Ladder)-1]
	if last.OK != (d.Action != model.Nothing) {
		t.Fatalf("it does %s, and the last rung says %+v", d.Action, last)
	}
	if d.Action != model.Nothing && last.Reason != d.Reason {
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
		s := model.Splay(node, limit)
		if s < 0 || s >= limit || s != model.Splay(node, limit) {
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
