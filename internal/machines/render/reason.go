// Package render makes sentences of the codes of machines: of reasons, plans and differences. It is the only
// place that does, and it must never decide anything. Its results contain no control characters.
package render

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/model"
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
	if r.Code == machines.MachineMissing {
		return missing(r)
	}
	return cmp.Or(expand(sentences[r.Code], r), clean(string(r.Code)))
}

const (
	nothing = "; nothing is done to it"
	outage  = ": that looks like an outage of the provider, and nothing is done; `pulley env plan` shows them"
)

// sentences are the sentences of reasons. param gives the values of their parameters.
var sentences = map[machines.Code]string{
	// of nodes of an environment
	machines.DriverChanged:       "the provider $was made its machine, and the file names the provider $now",
	machines.PlaceChanged:        "its machine was made at $was, and the provider is now at $now",
	machines.PlaceRenamed:        "its machine was made at $was, and is now listed at $now",
	machines.RetirementBegun:     "$by began to retire it at $at and did not finish",
	machines.WantedAgain:         "it is wanted again",
	machines.RetirementCancelled: "it is wanted again, and nothing was deleted yet: its retirement is cancelled",
	machines.MachineStays:        "Pulley made its machine $machine, which stays",
	machines.NoMachine:           "it has no machine",
	machines.NotOurs:             "this provider did not make its machine",
	machines.Claimed:             "$by claimed its name at $at, and it has no machine yet$because",
	machines.MachineGone:         "its machine $machine, made at $at, is gone",
	machines.MachineDeleting:     "the provider is deleting its machine $machine; then a new one is made",
	machines.MachineFailed:       "the provider reports of its machine: $failure",
	machines.MachineOff:          "the provider reports that its machine $machine is off",
	machines.OffHostList:         "its machine $machine is $state, and the node was removed from the host list",
	machines.ReplaceRequested:    "its machine $machine is $state, and an operator replaces it",
	machines.NeverJoined:         "its machine $machine was ordered at $at, is $state and did not join within $span",
	machines.FlavorChanged:       "flavor $was → $now",
	machines.ImageChanged:        "image $was → $now",
	machines.NotRecorded:         "its machine $machine has the mark of this fleet and no machine record",
	machines.Joining:             "its machine $machine was ordered at $at, is $state and has not joined yet$because",
	machines.JoinedUnrecorded:    "its machine $machine has joined; its record does not have that yet",
	machines.Converging:          "it joined, and has not converged yet",
	machines.NodeState:           "it is registered and $view",

	// notes on nodes that stay
	machines.NeverConverged:  "it has never converged since its machine was made; roles that come after $role no longer wait for it",
	machines.AddressDiffers:  "it is registered from $was, and its machine has $now: that may be another machine",
	machines.SettingsKept:    "the file changes its $settings, and its machine keeps the old settings",
	machines.SilentMachine:   "it is silent, and the provider reports that its machine is $state",
	machines.SilentUnseen:    "it is silent, and no provider lists its machine",
	machines.StateUnknown:    "the provider does not know the state of its machine",
	machines.OffHostListNote: "it was removed from the host list: `pulley env apply $env --replace $node` makes a new machine, `pulley nodes add $node -e $env` adds it again; to delete its machine, apply a file that does not call for the node",
	machines.LockedOutNote: "it was removed from the host list: `pulley env apply $env --replace $node` makes a new machine; for this one to join again, create a token, " +
		"`pulley token create -e $env --node $node`, and run `pulley-agent bootstrap --token TOKEN` there; to delete its machine, apply a file that does not call for the node",
	machines.ListedLater:     "the provider does not list its machine yet: apply again in a while",
	machines.ReportsUnlisted: "the provider has no machine of it, and the node still reports: nothing is done until it is silent or off the host list",

	// of nodes that are not in the environment, and of unlisted, unknown or duplicate machines
	machines.EnvironmentDestroyed: "the environment is destroyed",
	machines.RoleUnknown:          "its role is unknown, and the file does not call for it",
	machines.RoleRemoved:          "the file has no role $role",
	machines.Surplus:              "the file calls for $count of $role",
	machines.NotWanted:            "the file does not call for it",
	machines.MadeElsewhere:        "the environment has no provider: delete its machine, then run `pulley nodes remove $node -e $env`",
	machines.HostRemains:          "the environment is destroyed; Pulley did not make its machine, which runs on: --forget-hosts removes the node",
	machines.NotMember:            "it is no longer a member; its machine stays",
	machines.HostForgotten:        "the environment is destroyed; Pulley did not make its machine, which stays",
	machines.NotMadeByPulley:      "Pulley did not make its machine: `pulley nodes remove $node -e $env` removes the node",
	machines.HooksUnlikely:        "its retire hooks may not run: it is $view",
	machines.UnderHold:            "it is under a hold: $hold",
	machines.Unlisted:             "its machine $machine was ordered at $at, and the provider does not list it yet",
	machines.UnlistedReporting: "the provider has no machine of it, but it reported at $at: nothing is done until it is silent, which is from $until; " +
		"if its machine is gone for good, run `pulley nodes remove $node -e $env`",
	machines.DuplicateMachine:  "$count machines have its name, and $machine is the node, by $evidence",
	machines.NameNotNode:       "it has the mark of this fleet, and its name is not a node's" + nothing,
	machines.NameOtherStack:    "it has the mark of this fleet, and its name is of another stack" + nothing,
	machines.OrderLost:         "the provider has lost it",
	machines.DependencyChanged: "nodes that it reacts to came or went",

	// why a step is blocked; remedies has what to do
	machines.ProtectedRole:    "$role is protected",
	machines.ProtectedStored:  "$role is protected in the stored environment",
	machines.ProtectedRemoved: "$role is protected, and the file no longer has it",
	machines.DriverBlind:      "$now does not list the machines of $was",
	machines.PlaceBlind:       "this place does not list machines of another place",
	machines.NoMachineIDs:     "the provider gives its machines no ids: none can be deleted alone",
	machines.MayStillRun:      "the provider does not list its machine, which may still run: the node reported at $at, and counts as silent from $until",
	machines.MayBeGone:        "the provider does not list its machine, which was ordered at $at and counts as gone from $until",
	machines.MayBeListed:      "the provider does not list its machine, which was ordered at $at and may be listed until $until",
	machines.TooFewListed:     "the provider lists $count of $machines",

	// the causes of a wait
	machines.WaitsForNothingSeen: "nothing was read yet",
	machines.WaitsForProvider:    "the provider throttles requests: waiting $span",
	machines.WaitsForProblem:     "$problem",
	machines.WaitsForRetry:       "the provider answered: $problem; retrying",
	machines.WaitsForPlace:       "it waits for $nodes of $place$deadline: `rollout:` of the environment file allows no further unavailable node",
	machines.WaitsForHooks:       "waiting for its retire hooks",
	machines.WaitsForEnd:         "its machine is not gone yet",
	machines.WaitsForEndAgain:    "its machine still exists: deleting it again",
	machines.WaitsForList:        "the provider does not list it yet",
	machines.WaitsForJoin:        "it is $state, and has not joined yet$because",
	machines.WaitsForReport:      "it joined, and has not reported yet",
	machines.WaitsForFirstBoot:   "it joined, and its first boot is at step $was$cause",
	machines.WaitsForConvergence: "$view",
	machines.WaitsForRuns:        "nodes that have not run yet: $count",

	// the notes of an apply or a watch
	machines.ApplyStopped:       "stopped: $problem",
	machines.ApplyInterrupted:   "interrupted; what was begun is recorded",
	machines.OrderedAgain:       "its machine is ordered again",
	machines.NothingPromoted:    "no release is promoted in $env: machines are only waited for until they join",
	machines.NotWaitedFor:       "$node is under a hold and is not waited for: $hold",
	machines.RunNotRequested:    "cannot request a run of $node: $problem",
	machines.RunFailed:          "the requested run of $node failed: $problem",
	machines.RunsUnanswered:     "a run was requested and not answered within $span: $nodes",
	machines.ProtectionRemoved:  "protection is removed, and nothing else was done: apply again",
	machines.QuotaReached:       "the provider's quota was reached with $node",
	machines.TooManyFailed:      "$nodes failed, and replace.failures of $role is $count",
	machines.DependencyFailed:   "$role comes after $was, and not all of $was could be made",
	machines.CreationFailed:     "nothing is retired before the new machines are healthy, and $node failed",
	machines.RetirementsFailed:  "other nodes retire first, and some of their retirements failed",
	machines.DeadNotRecorded:    "$node is left to an apply: it has no machine record",
	machines.DeadButReporting:   "$node is skipped: it reported at $at; it counts as silent from $until",
	machines.ReplacedButReports: "$node is skipped: it was to be made again, and reported at $at; `pulley nodes run $node -e $env --cancel-retirement` keeps its machine",
	machines.LeftToApply:        "left to an apply: $nodes; `pulley env plan` shows why",
	machines.RoleIsProtected:    "$node is skipped: $role is protected",
	machines.NodeIsHeld:         "$node is skipped: $hold",
	machines.StepBlocked:        "$node is skipped: it is blocked",
	machines.BudgetSpent:        "$nodes wait: the budget is $machines an hour, and $count were made again",
	machines.NoneListed:         "the provider lists none of $machines" + outage,
	machines.MostDead:           "$count of $machines look dead" + outage,
	machines.FewListed:          "the provider does not list $count of $machines" + outage,
}

const checkProvider = "check the provider, its place and its owner"

// remedies are what to do about a blocked step; $apply is the command: apply or destroy.
var remedies = map[machines.Code]string{
	machines.ProtectedRole:    "remove `protected` from it in the file, and apply that first",
	machines.ProtectedStored:  "apply the file without `protected` and with no other change first",
	machines.ProtectedRemoved: "put it back without `protected`, apply that, and remove it then",
	machines.DriverBlind:      "put `provider: $was` back and lower the cardinality, apply that, and change the provider then",
	machines.PlaceBlind:       "$apply with the previous cloud, provider and owner, or use --same-place if these are the same machines",
	machines.NoMachineIDs:     "delete one of them at the provider",
	machines.MayStillRun:      checkProvider + "; destroy again when it is silent, or after `pulley nodes remove NODE -e ENVIRONMENT` if its machine is gone for good",
	machines.MayBeGone:        checkProvider + "; destroy again then, or confirm with --accept-lost that it is gone",
	machines.MayBeListed:      checkProvider + ", and destroy again after that time",
	machines.TooFewListed:     checkProvider + "; confirm with --accept-lost that the others are gone",
}

// remedy returns what to do about a blocked step; "" for a reason that blocks nothing.
func remedy(r machines.Reason, destroys bool) string {
	if r.Code == machines.DriverBlind && destroys {
		return expand("destroy with a file that has `provider: $was`", r)
	}
	return expand(strings.ReplaceAll(remedies[r.Code], "$apply", Command(destroys)), r)
}

// expand replaces the parameters of a sentence by their values.
func expand(sentence string, r machines.Reason) string {
	return os.Expand(sentence, func(name string) string { return param(r, name) })
}

// param returns a parameter of a reason by its name in sentences.
func param(r machines.Reason, name string) string {
	switch name {
	case "machine":
		return clean(r.Machine.String())
	case "machines":
		return Count(r.Of, "machine")
	case "count":
		return strconv.Itoa(r.Count)
	case "node":
		return clean(r.Node)
	case "nodes":
		return names(r.Nodes)
	case "place":
		return clean(r.Place)
	case "role":
		return clean(r.Role)
	case "env":
		return clean(r.Environment)
	case "was":
		return word(r.Was)
	case "now":
		return word(r.Now)
	case "by":
		return clean(r.By)
	case "at":
		return clock(r.At)
	case "until":
		return clock(r.Until)
	case "deadline":
		if r.Until.IsZero() {
			return ""
		}
		return ", at most until " + clock(r.Until)
	case "span":
		return span(r.Span())
	case "settings":
		return strings.Join(r.Settings, ", ")
	case "problem":
		return clean(string(r.Problem))
	case "because":
		if r.Problem == "" {
			return ""
		}
		return ": " + clean(string(r.Problem))
	case "cause": // of a first boot, whole: what to do is at its end
		if r.Problem == "" {
			return ""
		}
		return ": " + clip.Line(strings.ReplaceAll(string(r.Problem), "\n", "; "), len(r.Problem)*2)
	case "failure":
		return cmp.Or(clean(string(r.Problem)), string(machines.Failed))
	case "state":
		if r.State == machines.Unknown {
			return "in a state that the provider does not know"
		}
		return string(r.State)
	case "view":
		return view(r)
	case "hold":
		if r.Hold == nil {
			return ""
		}
		return clean(r.Hold.String())
	case "evidence":
		return cmp.Or(evidence[machines.Evidence(r.By)], clean(r.By))
	}
	return "$" + name
}

var evidence = map[machines.Evidence]string{
	machines.ByInventory: "its machine record",
	machines.ByAddress:   "the address that it is registered from",
	machines.ByAge:       "age",
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

// Command returns the verb of the command: apply or destroy.
func Command(destroys bool) string {
	if destroys {
		return "destroy"
	}
	return "apply"
}

// Count returns a number of things: "1 machine", "3 machines".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// names joins the first few names.
func names(all []string) string {
	const most = 5
	more := ""
	if len(all) > most {
		more = fmt.Sprintf(" and %d more", len(all)-most)
		all = all[:most]
	}
	shown := make([]string, len(all))
	for i, n := range all {
		shown[i] = clean(n)
	}
	return strings.Join(shown, ", ") + more
}

// view returns a node's state, with its reason if known. A converged node needs none.
func view(r machines.Reason) string {
	if r.NodeState == model.Converged || r.View == nil || r.View.Sentence() == "" {
		return string(r.NodeState)
	}
	return string(r.NodeState) + ": " + clean(r.View.Sentence())
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
