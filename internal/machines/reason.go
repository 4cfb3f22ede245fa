package machines

import (
	"slices"
	"time"

	"pulley/internal/clip"
	"pulley/internal/model"
)

// Reason is why a machine is changed, left alone or waited for. It is a code with its parameters, which the comment on
// the code lists. Package render makes the sentence.
type Reason struct {
	Code        Code        `json:"code"`
	Environment string      `json:"environment,omitempty"`
	Node        string      `json:"node,omitempty"`
	Nodes       []string    `json:"nodes,omitempty"`
	Role        string      `json:"role,omitempty"`
	Place       string      `json:"place,omitempty"` // of a limit for unavailable nodes: "rack=r1"
	Machine     Ref         `json:"machine,omitzero"`
	State       State       `json:"state,omitempty"` // of the machine
	Was         string      `json:"was,omitempty"`
	Now         string      `json:"now,omitempty"`
	Settings    []string    `json:"settings,omitempty"`
	Member      bool        `json:"member,omitempty"`
	Servers     bool        `json:"servers,omitempty"`
	Count       int         `json:"count,omitempty"`
	Of          int         `json:"of,omitempty"`
	At          time.Time   `json:"at,omitzero"`
	Until       time.Time   `json:"until,omitzero"`
	Seconds     int         `json:"seconds,omitempty"`
	By          string      `json:"by,omitempty"`
	Hold        *model.Hold `json:"hold,omitempty"`    // that the node is under
	Problem     model.Prose `json:"problem,omitempty"` // as the provider or the node reported it

	NodeState model.NodeState `json:"node_state,omitempty"`
	View      *model.View     `json:"-"` // of the node; not stored
}

// WithView returns the reason with a node's view as its parameter.
func (r Reason) WithView(v model.View) Reason {
	r.NodeState, r.View = v.State, &v
	return r
}

// Span returns Seconds as a duration.
func (r Reason) Span() time.Duration { return time.Duration(r.Seconds) * time.Second }

// Quote returns the text of a provider or a node as a parameter: one line of limited length.
func Quote(s string) model.Prose { return model.Prose(clip.Line(s, 200)) }

// Has reports whether one of the reasons has a code.
func Has(all []Reason, c Code) bool {
	return slices.ContainsFunc(all, func(r Reason) bool { return r.Code == c })
}

// Code is the code of a reason.
type Code string

// The reasons of a node that is in the environment.
const (
	DriverChanged       Code = "driver_changed"       // Was, Now: the machine was made by another driver
	PlaceChanged        Code = "place_changed"        // Was, Now: the machine was made at another place
	PlaceRenamed        Code = "place_renamed"        // Was, Now: the same machine is listed at another place
	RetirementBegun     Code = "retirement_begun"     // At, By: it is not finished; the retirement's reasons follow
	WantedAgain         Code = "wanted_again"         // its retirement has begun
	RetirementCancelled Code = "retirement_cancelled" // nothing was removed yet
	// Environment, Node, Role, Member, Servers: its owner must make or join it.
	MachineMissing   Code = "machine_missing"
	MachineStays     Code = "machine_stays"     // Machine: Pulley made it, and the file no longer has a provider
	NoMachine        Code = "no_machine"        //
	NotOurs          Code = "not_ours"          // this provider did not make its machine
	Claimed          Code = "claimed"           // At, By, Problem: its name is claimed, and it has no machine
	MachineGone      Code = "machine_gone"      // Machine, At
	MachineDeleting  Code = "machine_deleting"  // Machine: at the provider; a new one follows
	MachineFailed    Code = "machine_failed"    // Problem
	MachineOff       Code = "machine_off"       // Machine
	OffHostList      Code = "off_host_list"     // Machine, State, Node
	ReplaceRequested Code = "replace_requested" // Machine, State: an operator replaces it
	NeverJoined      Code = "never_joined"      // Machine, At, Seconds, State
	FlavorChanged    Code = "flavor_changed"    // Was, Now
	ImageChanged     Code = "image_changed"     // Was, Now
	NotRecorded      Code = "not_recorded"      // Machine: it has the fleet's mark, and no record
	Joining          Code = "joining"           // Machine, At, State, Problem
	JoinedUnrecorded Code = "joined_unrecorded" // Machine
	Converging       Code = "converging"        // it joined, and has not converged yet
	NodeState        Code = "node_state"        // View: it is registered
)

// Notes about a node that stays.
const (
	NeverConverged  Code = "never_converged"    // Role
	AddressDiffers  Code = "address_differs"    // Was: the node's, Now: its machine's
	SettingsKept    Code = "settings_kept"      // Settings: changed by the file; the machine keeps the old values
	SilentMachine   Code = "silent_machine"     // State
	SilentUnseen    Code = "silent_unseen"      // no provider lists its machine
	StateUnknown    Code = "state_unknown"      // the provider does not know
	OffHostListNote Code = "off_host_list_note" // Node, Environment; the machine joined without a token
	LockedOutNote   Code = "locked_out_note"    // Node, Environment; etcd rejects its certificate
	ListedLater     Code = "listed_later"       // the provider does not list its machine yet
	ReportsUnlisted Code = "reports_unlisted"   // the provider lists no machine, and the node reports
)

// The reasons of a node that is not in the environment.
const (
	EnvironmentDestroyed Code = "environment_destroyed"
	RoleUnknown          Code = "role_unknown"
	RoleRemoved          Code = "role_removed"       // Role
	Surplus              Code = "surplus"            // Role, Count: the wanted number
	NotWanted            Code = "not_wanted"         //
	MadeElsewhere        Code = "made_elsewhere"     // Node: the environment has no provider
	HostRemains          Code = "host_remains"       // destroyed without --forget-hosts
	NotMember            Code = "not_member"         // its machine stays
	HostForgotten        Code = "host_forgotten"     // its machine stays
	NotMadeByPulley      Code = "not_made_by_pulley" // Node
	HooksUnlikely        Code = "hooks_unlikely"     // View: the node may not run its hooks
	UnderHold            Code = "under_hold"         // Hold
	Unlisted             Code = "unlisted"           // Machine, At: ordered, and not listed yet
	UnlistedReporting    Code = "unlisted_reporting" // At, Until, Node: not listed, and it reported
	DuplicateMachine     Code = "duplicate_machine"  // Count, Machine: the node's own; By: an Evidence
	NameNotNode          Code = "name_not_node"      // unknown machine
	NameOtherStack       Code = "name_other_stack"   // unknown machine
	ProtectedRole        Code = "protected_role"     // Role: protected in the file
	ProtectedStored      Code = "protected_stored"   // Role: still protected in the stored environment
	ProtectedRemoved     Code = "protected_removed"  // Role: removed from the file
	DriverBlind          Code = "driver_blind"       // Was, Now: a driver cannot list machines of another
	PlaceBlind           Code = "place_blind"        // Was, Now
	NoMachineIDs         Code = "no_machine_ids"     // one of two cannot be deleted alone
	MayStillRun          Code = "may_still_run"      // At, Until: not listed, and it reported
	MayBeGone            Code = "may_be_gone"        // At, Until: not listed; --accept-lost confirms
	MayBeListed          Code = "may_be_listed"      // At, Until: ordered just now
	TooFewListed         Code = "too_few_listed"     // Count, Of
	OrderLost            Code = "order_lost"         // the provider no longer lists it, within one apply
	DependencyChanged    Code = "dependency_changed" // nodes that it reacts to were added or removed
)

// Evidence is the property by which a machine is chosen among several of one name.
type Evidence string

// The kinds of evidence.
const (
	ByInventory Evidence = "inventory"
	ByAddress   Evidence = "address"
	ByAge       Evidence = "age" // the oldest that is alive
)

// The causes for which an apply waits.
const (
	WaitsForProblem     Code = "waits_for_problem"     // Problem: of a read, or of this machine alone
	WaitsForNothingSeen Code = "waits_for_first_read"  //
	WaitsForProvider    Code = "waits_for_provider"    // Seconds: the provider throttles
	WaitsForRetry       Code = "waits_for_retry"       // Problem
	WaitsForPlace       Code = "waits_for_place"       // Place, Nodes: unavailable, and the policy for rollouts allows no further one; Until: the end of the wait, in an apply
	WaitsForHooks       Code = "waits_for_hooks"       //
	WaitsForEnd         Code = "waits_for_end"         // of a machine
	WaitsForEndAgain    Code = "waits_for_end_again"   // deleted a second time
	WaitsForList        Code = "waits_for_list"        // the provider does not list it yet
	WaitsForJoin        Code = "waits_for_join"        // State; Problem: of the machine, as the provider reports it
	WaitsForReport      Code = "waits_for_report"      //
	WaitsForFirstBoot   Code = "waits_for_first_boot"  // Was: the step; Problem: of that step
	WaitsForConvergence Code = "waits_for_convergence" // View
	WaitsForRuns        Code = "waits_for_runs"        // Count
)

// The notes of an apply.
const (
	ApplyStopped       Code = "apply_stopped"        // Problem
	ApplyInterrupted   Code = "apply_interrupted"    //
	OrderedAgain       Code = "ordered_again"        // the causes follow
	NothingPromoted    Code = "nothing_promoted"     // Environment: the apply only waits until machines have joined
	NotWaitedFor       Code = "not_waited_for"       // Node, Hold
	RunNotRequested    Code = "run_not_requested"    // Node, Problem
	RunFailed          Code = "run_failed"           // Node, Problem
	RunsUnanswered     Code = "runs_unanswered"      // Nodes, Seconds
	ProtectionRemoved  Code = "protection_removed"   // nothing else was changed
	QuotaReached       Code = "quota_reached"        // Node: nothing more of its role is begun
	TooManyFailed      Code = "too_many_failed"      // Nodes, Role, Count: tolerated failures
	DependencyFailed   Code = "dependency_failed"    // Role, Was: the role that it depends on
	CreationFailed     Code = "creation_failed"      // Node: nothing of its role is retired
	RetirementsFailed  Code = "retirements_failed"   // of the layer that retires first
	DeadNotRecorded    Code = "dead_not_recorded"    // Node
	DeadButReporting   Code = "dead_but_reporting"   // Node, At, Until
	ReplacedButReports Code = "replaced_but_reports" // Node, At
	LeftToApply        Code = "left_to_apply"        // Nodes
	RoleIsProtected    Code = "role_is_protected"    // Node, Role
	NodeIsHeld         Code = "node_is_held"         // Node, Hold
	StepBlocked        Code = "step_blocked"         // Node; the cause follows
	BudgetSpent        Code = "budget_spent"         // Nodes, Count: made again in the last hour, Of: the budget
	NoneListed         Code = "none_listed"          // Of: an outage of the provider
	MostDead           Code = "most_dead"            // Count, Of: an outage of the provider
	FewListed          Code = "few_listed"           // Count, Of: an outage of the provider
)
