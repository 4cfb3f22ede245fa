// Package render makes sentences of the codes of machines: of reasons, plans, differences and health. It is the only
// place that does, and it must never decide anything. Its results contain no control characters.
package render

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"pulley/agent"
	"pulley/internal/clip"
	"pulley/internal/machines"
)

// maxWord limits the length of a displayed word from another source.
const maxWord = 200

func clean(s string) string { return clip.Line(s, maxWord) }

// Reasons joins the sentences of several reasons.
func Reasons(all []machines.Reason) string {
	parts := make([]string, len(all))
	for i, r := range all {
		parts[i] = Reason(r)
	}
	return strings.Join(parts, "; ")
}

// Reason returns the sentence of one reason, without a full stop. A code that this version does not know is its own
// sentence.
func Reason(r machines.Reason) string {
	if text := ofNode(r); text != "" {
		return text
	}
	if text := ofLeaving(r); text != "" {
		return text
	}
	if text := ofWaiting(r); text != "" {
		return text
	}
	if text := ofNote(r); text != "" {
		return text
	}
	if why, _ := Blocked(r, false); why != "" {
		return why
	}
	return clean(string(r.Code))
}

// ofNode returns the sentences about nodes of an environment.
func ofNode(r machines.Reason) string {
	machine := clean(r.Machine.String())
	switch r.Code {
	case machines.DriverChanged:
		return fmt.Sprintf("the provider %s made its machine, and the file names the provider %s", clean(r.Was), clean(r.Now))
	case machines.PlaceChanged:
		return fmt.Sprintf("its machine was made at %s, and the provider is now at %s", clean(r.Was), clean(r.Now))
	case machines.PlaceRenamed:
		return fmt.Sprintf("its machine was made at %s, and is now listed at %s", clean(r.Was), clean(r.Now))
	case machines.RetirementBegun:
		return fmt.Sprintf("%s began to retire it at %s and did not finish", clean(r.By), clock(r.At))
	case machines.WantedAgain:
		return "it is wanted again"
	case machines.RetirementCancelled:
		return "it is wanted again, and nothing was taken down yet: its retirement is cancelled"
	case machines.MachineMissing:
		return missing(r)
	case machines.MachineStays:
		return fmt.Sprintf("Pulley made its machine %s, which stays", machine)
	case machines.NoMachine:
		return "it has no machine"
	case machines.NotOurs:
		return "this provider did not make its machine"
	case machines.Claimed:
		return fmt.Sprintf("%s claimed its name at %s, and it has no machine yet%s", clean(r.By), clock(r.At), because(r.Problem))
	case machines.MachineGone:
		return fmt.Sprintf("its machine %s, made at %s, is gone", machine, clock(r.At))
	case machines.MachineDeleting:
		return fmt.Sprintf("the provider is deleting its machine %s; then a new one is made", machine)
	case machines.MachineFailed:
		return "the provider reports of its machine: " + cmp.Or(clean(string(r.Problem)), string(r.State))
	case machines.MachineOff:
		return fmt.Sprintf("the provider reports that its machine %s is off", machine)
	case machines.OffHostList:
		return fmt.Sprintf("its machine %s is %s, and the node was removed from the host list: `pulley nodes add %s` adds it", machine, r.State, clean(r.Node))
	case machines.NeverJoined:
		return fmt.Sprintf("its machine %s was ordered at %s, is %s and did not join within %s", machine, clock(r.At), r.State, span(r.Span()))
	case machines.FlavorChanged:
		return fmt.Sprintf("flavor %s → %s", word(r.Was), word(r.Now))
	case machines.ImageChanged:
		return fmt.Sprintf("image %s → %s", word(r.Was), word(r.Now))
	case machines.NotRecorded:
		return fmt.Sprintf("its machine %s has the mark of this fleet and no machine record", machine)
	case machines.Joining:
		if r.State == machines.Unknown {
			return fmt.Sprintf("its machine %s was ordered at %s and has not joined; the provider does not know its state%s", machine, clock(r.At), because(r.Problem))
		}
		return fmt.Sprintf("its machine %s was ordered at %s, is %s and has not joined yet", machine, clock(r.At), r.State)
	case machines.JoinedUnrecorded:
		return fmt.Sprintf("its machine %s has joined; its record does not have that yet", machine)
	case machines.Converging:
		return "it joined, and has not converged yet"
	case machines.NodeUnregistered:
		return "it is not registered"
	case machines.NodeNotReported:
		return "it is registered, and has not reported yet"
	case machines.NodeState:
		if r.NodeState == agent.Converged {
			return "it is registered and converged"
		}
		return "it is registered and " + view(r)
	case machines.NeverConverged:
		return fmt.Sprintf("it has never converged since its machine was made; roles that come after %s no longer wait for it", clean(r.Role))
	case machines.AddressDiffers:
		return fmt.Sprintf("it is registered from %s, and its machine has %s: that may be another machine", clean(r.Was), clean(r.Now))
	case machines.SettingsKept:
		return "the file changes its " + strings.Join(r.Settings, ", ") + ", and its machine keeps the old settings"
	case machines.SilentMachine:
		return "it is silent, and the provider reports that its machine is " + string(r.State)
	case machines.SilentUnseen:
		return "it is silent, and no provider lists its machine"
	case machines.StateUnknown:
		return "the provider does not know the state of its machine"
	case machines.OffHostListNote:
		return "it was removed from the host list: `pulley nodes add` adds it; to delete its machine, use the provider"
	case machines.ListedLater:
		return "the provider does not list its machine yet: apply again in a while"
	case machines.ReportsUnlisted:
		return "the provider has no machine of it, and the node still reports: nothing is done until it is silent or off the host list"
	}
	return ""
}

// missing names the command that makes the userdata of a machine that Pulley does not make.
func missing(r machines.Reason) string {
	call := fmt.Sprintf("pulley userdata %s -e %s", clean(r.Node), clean(r.Environment))
	if r.Member {
		call += fmt.Sprintf(" --role %s --hostname keep", clean(r.Role))
	}
	joins := ", with `--servers URL --new-token` where machines join"
	if r.Servers {
		call, joins = call+" --new-token", ""
	}
	if r.Member {
		return fmt.Sprintf("it is a member that has not joined: run on it the output of `%s`%s", call, joins)
	}
	return fmt.Sprintf("it has not joined: make its machine, with the output of `%s` as its userdata%s", call, joins)
}

// ofLeaving returns the sentences about nodes that are not in the environment, and about unlisted, unknown or duplicate
// machines.
func ofLeaving(r machines.Reason) string {
	machine := clean(r.Machine.String())
	switch r.Code {
	case machines.EnvironmentDestroyed:
		return "the environment is destroyed"
	case machines.RoleUnknown:
		return "its role is unknown, and the file does not call for it"
	case machines.RoleRemoved:
		return "the file has no role " + clean(r.Role)
	case machines.Surplus:
		return fmt.Sprintf("the file calls for %d of %s", r.Count, clean(r.Role))
	case machines.NotWanted:
		return "the file does not call for it"
	case machines.MadeElsewhere:
		return fmt.Sprintf("the environment has no provider: delete its machine, then run `pulley nodes remove %s`", clean(r.Node))
	case machines.HostRemains:
		return "the environment is destroyed; Pulley did not make its machine, which runs on: --forget-hosts removes the node"
	case machines.NotMember:
		return "it is no longer a member; its machine stays"
	case machines.HostForgotten:
		return "the environment is destroyed; Pulley did not make its machine, which stays"
	case machines.NotMadeByPulley:
		return fmt.Sprintf("Pulley did not make its machine: `pulley nodes remove %s` removes the node", clean(r.Node))
	case machines.HooksUnlikely:
		return "its retire hooks may not run: it is " + view(r)
	case machines.UnderHold:
		return "it is under a hold: " + hold(r.Hold)
	case machines.Unlisted:
		return fmt.Sprintf("its machine %s was ordered at %s, and the provider does not list it yet", machine, clock(r.At))
	case machines.UnlistedReporting:
		return fmt.Sprintf("the provider has no machine of it, but it reported at %s: nothing is done until it is silent, which is from %s; if its machine is gone for good, run `pulley nodes remove %s`", clock(r.At), clock(r.Until), clean(r.Node))
	case machines.DuplicateMachine:
		return fmt.Sprintf("%d machines have its name, and %s is the node, by %s", r.Count, machine, evidence(machines.Evidence(r.By)))
	case machines.NameNotNode:
		return "it has the mark of this fleet, and its name is not a node's; nothing is done to it"
	case machines.NameNoStack:
		return "it has the mark of this fleet, and its name has no stack; nothing is done to it"
	case machines.NameOtherStack:
		return fmt.Sprintf("it has the mark of this fleet, and its name is of the stack %s; nothing is done to it", clean(r.Now))
	case machines.MachineReplaced:
		return "the provider reports: " + cmp.Or(clean(string(r.Problem)), "failed")
	case machines.OrderLost:
		return "the provider has lost it"
	case machines.DependencyChanged:
		return "nodes that it reacts to came or went"
	case machines.CancelledByApply, machines.CancelledByOperator:
		return "its retirement was cancelled"
	}
	return ""
}

func evidence(e machines.Evidence) string {
	switch e {
	case machines.ByInventory:
		return "its machine record"
	case machines.ByAddress:
		return "the address that it is registered from"
	case machines.ByAge:
		return "age"
	}
	return clean(string(e))
}

// ofWaiting returns the sentences about the waits of an apply.
func ofWaiting(r machines.Reason) string {
	problem := clean(string(r.Problem))
	switch r.Code {
	case machines.WaitsForRead:
		return problem
	case machines.WaitsForNothingSeen:
		return "nothing was read yet"
	case machines.WaitsForProvider:
		return fmt.Sprintf("the provider throttles requests: waiting %s", span(r.Span()))
	case machines.WaitsForMachine:
		return problem
	case machines.WaitsForRetry:
		return fmt.Sprintf("the provider answered: %s; retrying", problem)
	case machines.WaitsForHooks:
		return "waiting for its retire hooks"
	case machines.WaitsForEnd:
		return "its machine is not gone yet"
	case machines.WaitsForEndAgain:
		return "its machine still exists: deleting it again"
	case machines.WaitsForOthersEnd:
		return "somebody else is deleting its machine"
	case machines.WaitsForList:
		return "the provider does not list it yet"
	case machines.WaitsForJoin:
		switch r.State {
		case machines.Running:
			return "it runs, and has not joined yet"
		case machines.Deleting:
			return "the provider is deleting it"
		}
		return "it is " + string(r.State)
	case machines.WaitsForReport:
		return "it joined, and has not reported yet"
	case machines.WaitsForConvergence:
		return view(r)
	case machines.WaitsForRuns:
		return fmt.Sprintf("%s have yet to run", Count(r.Count, "node"))
	}
	return ""
}

// ofNote returns the sentences of the notes of an apply or a watch.
func ofNote(r machines.Reason) string {
	node, problem := clean(r.Node), clean(string(r.Problem))
	switch r.Code {
	case machines.ApplyStopped:
		return "stopped: " + problem
	case machines.ApplyInterrupted:
		return "interrupted; what was begun is recorded"
	case machines.OrderedAgain:
		return "its machine is ordered again"
	case machines.NothingPromoted:
		return fmt.Sprintf("no release is promoted in %s: machines are only waited for until they join", clean(r.Environment))
	case machines.NotWaitedFor:
		return fmt.Sprintf("%s is under a hold and is not waited for: %s", node, hold(r.Hold))
	case machines.RunNotRequested:
		return fmt.Sprintf("cannot request a run of %s: %s", node, problem)
	case machines.RunFailed:
		return fmt.Sprintf("the requested run of %s failed: %s", node, problem)
	case machines.RunsUnanswered:
		return fmt.Sprintf("a run was requested and not answered within %s: %s", span(r.Span()), Names(r.Nodes))
	case machines.ProtectionRemoved:
		return "protection is removed, and nothing else was done: apply again"
	case machines.QuotaReached:
		return "the provider's quota was reached with " + node
	case machines.TooManyFailed:
		return fmt.Sprintf("%s failed, and rollout.failures of %s is %d", Names(r.Nodes), clean(r.Role), r.Count)
	case machines.DependencyFailed:
		return fmt.Sprintf("%s comes after %s, of which not all could be made", clean(r.Role), clean(r.Was))
	case machines.CreationFailed:
		return "nothing is retired before the new machines are healthy, and " + node + " failed"
	case machines.RetirementsFailed:
		return "others retire first, and not all of them could"
	case machines.DeadNotRecorded:
		return node + " is left to an apply: it has no machine record"
	case machines.DeadButReporting:
		return fmt.Sprintf("%s is left alone: it reported at %s; it counts as silent from %s", node, clock(r.At), clock(r.Until))
	case machines.ReplacedButReports:
		return fmt.Sprintf("%s is left alone: it was to be made again, and reported at %s; `pulley nodes run %s --cancel-retirement` keeps its machine", node, clock(r.At), node)
	case machines.LeftToApply:
		return "left to an apply: " + Names(r.Nodes) + "; `pulley env plan` shows why"
	case machines.RoleIsProtected:
		return fmt.Sprintf("%s is left alone: %s is protected", node, clean(r.Role))
	case machines.NodeIsHeld:
		return fmt.Sprintf("%s is left alone: %s", node, hold(r.Hold))
	case machines.StepBlocked:
		return node + " is left alone: it is blocked"
	case machines.BudgetSpent:
		return fmt.Sprintf("%s wait: the budget is %s an hour, and %d were made again", Names(r.Nodes), Count(r.Of, "machine"), r.Count)
	case machines.NoneListed:
		return outage(fmt.Sprintf("the provider lists none of %s", Count(r.Of, "machine")))
	case machines.MostDead:
		return outage(fmt.Sprintf("%d of %s look dead", r.Count, Count(r.Of, "machine")))
	case machines.FewListed:
		return outage(fmt.Sprintf("the provider does not list %d of %s", r.Count, Count(r.Of, "machine")))
	}
	return ""
}

func outage(what string) string {
	return what + ": that looks like an outage of the provider, and nothing is done; `pulley env plan` shows them"
}

// Blocked returns why a step is blocked, and the remedy; both are "" for a reason that blocks nothing.
func Blocked(r machines.Reason, destroys bool) (why, remedy string) {
	const look = "check the provider, its place and its owner"
	role := clean(r.Role)
	switch r.Code {
	case machines.ProtectedRole:
		return role + " is protected", "remove `protected` from it in the file, and apply that first"
	case machines.ProtectedStored:
		return role + " is protected in the stored environment", "apply the file without `protected` and with no other change first"
	case machines.ProtectedRemoved:
		return role + " is protected, and the file no longer has it", "put it back without `protected`, apply that, and remove it then"
	case machines.DriverBlind:
		why = fmt.Sprintf("%s does not see the machines of %s", clean(r.Now), clean(r.Was))
		if destroys {
			return why, fmt.Sprintf("destroy with a file that has `provider: %s`", clean(r.Was))
		}
		return why, fmt.Sprintf("put `provider: %s` back and lower the cardinality, apply that, and change the provider then", clean(r.Was))
	case machines.PlaceBlind:
		return "machines that were made at another place are not seen at this one",
			Deed(destroys) + " with the previous cloud, provider and owner, or use --same-place if these are the same machines"
	case machines.NoMachineIDs:
		return "the provider gives its machines no ids: none can be deleted alone", "delete one of them at the provider"
	case machines.MayStillRun:
		return fmt.Sprintf("the provider does not list its machine, which may still run: the node reported at %s, and counts as silent from %s", clock(r.At), clock(r.Until)),
			look + "; destroy again when it is silent, or after `pulley nodes remove` if its machine is gone for good"
	case machines.MayBeGone:
		return fmt.Sprintf("the provider does not list its machine, which was ordered at %s and counts as gone from %s", clock(r.At), clock(r.Until)),
			look + "; destroy again then, or confirm with --accept-lost that it is gone"
	case machines.MayBeListed:
		return fmt.Sprintf("the provider does not list its machine, which was ordered at %s and may be listed until %s", clock(r.At), clock(r.Until)),
			look + ", and destroy again after that time"
	case machines.TooFewListed:
		return fmt.Sprintf("the provider lists %d of %s", r.Count, Count(r.Of, "machine")), look + "; confirm with --accept-lost that the others are gone"
	}
	return "", ""
}

// Deed returns the verb of the command: apply or destroy.
func Deed(destroys bool) string {
	if destroys {
		return "destroy"
	}
	return "apply"
}

// Act returns the reasons of an act.
func Act(a machines.Act) string { return Reasons(a.Reasons) }

// Count returns a number of things: "1 machine", "3 machines".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Names joins the first few names.
func Names(all []string) string {
	const most = 5
	var text strings.Builder
	for i, n := range all {
		switch {
		case i == most:
			return fmt.Sprintf("%s and %d more", text.String(), len(all)-most)
		case i > 0:
			text.WriteString(", ")
		}
		text.WriteString(clean(n))
	}
	return text.String()
}

// view returns a node's state, with its reason if known.
func view(r machines.Reason) string {
	if r.View == nil || r.View.Sentence() == "" {
		return string(r.NodeState)
	}
	return string(r.NodeState) + ": " + clean(r.View.Sentence())
}

func hold(h *agent.Hold) string {
	if h == nil {
		return ""
	}
	return clean(h.String())
}

func because(problem agent.Prose) string {
	if problem == "" {
		return ""
	}
	return ": " + clean(string(problem))
}

// word returns a word from the provider, safe for a terminal.
func word(s string) string {
	if s == "" {
		return "(the provider's default)"
	}
	return clean(s)
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// span formats a duration without parts that are zero: "30m", "1h30m".
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
