package model

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"pulley/internal/model/refusal"
)

// Generation numbers the states of an environment's live data, from 1. 0 means no live data.
type Generation int64

// Epoch counts the decisions of an environment's operators: each promotion and each rollback raises it by one.
type Epoch int64

// Target is the unit that is desired, attempted, last good and rolled back: a release and a data generation. Two
// targets are the same when their values are equal.
type Target struct {
	Release    string     `json:"release,omitempty"`     // version, as `pulley releases` lists it
	Tree       string     `json:"tree,omitempty"`        // tree hash of the release: 64 hex digits
	Data       Generation `json:"data,omitempty"`        // 0: no live data
	DataDigest string     `json:"data_digest,omitempty"` // sha256 of the generation's record: 64 hex digits
}

// IsZero reports whether the target names no release. Such a target cannot be enforced.
func (t Target) IsZero() bool { return t.Tree == "" }

// String formats a target for people: "1.4.0 with data 12", "1.4.0", "data 12" or "nothing".
func (t Target) String() string {
	data := "data " + strconv.FormatInt(int64(t.Data), 10)
	switch {
	case t.IsZero() && t.Data == 0:
		return "nothing"
	case t.IsZero():
		return data
	case t.Data == 0:
		return t.Release
	}
	return t.Release + " with " + data
}

// Overlay returns t with its empty parts taken from under. A role's or node's target inherits this way.
func (t Target) Overlay(under Target) Target {
	if t.Tree == "" {
		t.Release, t.Tree = under.Release, under.Tree
	}
	if t.Data == 0 {
		t.Data, t.DataDigest = under.Data, under.DataDigest
	}
	return t
}

// Identity identifies this node. Environment is the key segment of the fleet ("dev", or "dev@t42" for a stack of it).
// PuppetEnvironment is the part that Puppet sees ("dev").
type Identity struct {
	Node              string `json:"node"`
	Certname          string `json:"certname"`
	Role              string `json:"role"`
	Environment       string `json:"environment"`
	PuppetEnvironment string `json:"puppet_environment"`
}

// Outcome is the effect of a Puppet run.
type Outcome string

// The outcomes of a run.
const (
	Changed   Outcome = "changed"   // Puppet changed at least one resource
	Unchanged Outcome = "unchanged" // no resource was out of sync
	Failed    Outcome = "failed"    // the run, or its verification, failed
)

// Outcomes lists all outcomes.
func Outcomes() []Outcome { return []Outcome{Changed, Unchanged, Failed} }

// Kind is the state of the machine after a run.
type Kind string

// The kinds of states after a run.
const (
	Success   Kind = "success"   // the complete target was applied
	Untouched Kind = "untouched" // certainly no catalog was applied
	Between   Kind = "between"   // part of the catalog may have been applied
)

// Counts are Puppet's own resource counts of one run.
type Counts struct {
	Total           int `json:"total"`
	Changed         int `json:"changed"`
	Failed          int `json:"failed"`
	Skipped         int `json:"skipped"`
	OutOfSync       int `json:"out_of_sync"`
	FailedToRestart int `json:"failed_to_restart"`
	Pending         int `json:"pending,omitempty"` // out of sync, and unchanged because of noop
}

// ResourceEvent is one resource that a run changed or could not apply.
type ResourceEvent struct {
	Resource string   `json:"resource"`       // File[/etc/motd]
	Status   string   `json:"status"`         // changed, failed, skipped (because a dependency failed) or noop
	File     string   `json:"file,omitempty"` // manifest, relative to the release, and its line
	Line     int      `json:"line,omitempty"`
	Messages []string `json:"messages,omitempty"`

	// Only in previews. The messages are then those that belong to no property.
	Properties []PropertyChange `json:"properties,omitempty"`

	// In previews, and with Puppet's setting show_diff.
	Diff   string `json:"diff,omitempty"`   // unified, of a file's content
	Cut    bool   `json:"cut,omitempty"`    // the diff exceeds the limits
	Hidden bool   `json:"hidden,omitempty"` // the diff is left out: not every user may read the file
}

// LogLine is one line of Puppet's log.
type LogLine struct {
	Level   string    `json:"level"` // debug, info, notice, warning, err, alert, emerg, crit
	Source  string    `json:"source,omitempty"`
	Message string    `json:"message"`
	Time    time.Time `json:"time,omitzero"`
}

// Part selects resources of a catalog by Puppet's tags. The zero Part selects all.
type Part struct {
	Tags     []string `json:"tags,omitempty"`      // apply only resources with one of them
	SkipTags []string `json:"skip_tags,omitempty"` // apply no resource with one of them
}

// Partial reports whether the part may leave out resources.
func (p Part) Partial() bool { return len(p.Tags)+len(p.SkipTags) > 0 }

// Job is the order for one Puppet run.
type Job struct {
	Identity
	Part
	ID     string // names the run's folder under runs/
	Target Target // target to apply
	Tree   string // absolute folder of the release, as Puppet will see it
	Data   string // absolute folder of the data layers; "" when there is no live data
	Code   string // Puppet code instead of the release's site manifest and external nodes; "": none
	Hosts  string // absolute path of the data file with the nodes that this node sees; "" when it sees none
	Noop   bool   // show changes, make none

	Preview  bool          // noop for every resource, whatever the release sets, with properties and diffs
	Deadline time.Duration // of Puppet's run, if it is shorter than the agent's own; 0: none
}

// PreviewRun is the ID of each job of a preview.
const PreviewRun = "preview"

// Result is the result of one Puppet run.
type Result struct {
	Kind      Kind                     `json:"kind"`
	Outcome   Outcome                  `json:"outcome"`
	Problem   Problem                  `json:"problem,omitzero"` // cause of any kind other than success
	ExitCode  int                      `json:"exit_code"`        // Puppet's; 128+n when signal n ended it
	Noop      bool                     `json:"noop,omitempty"`
	Counts    Counts                   `json:"counts"`
	Durations map[string]time.Duration `json:"durations,omitempty"` // Puppet's own time metrics, by name
	Resources []ResourceEvent          `json:"resources,omitempty"` // failed first, then changed
	Log       []LogLine                `json:"log,omitempty"`
	// Unclassified: the catalog has no class, and no node declaration has a resource. Something that should select
	// classes selected none.
	Unclassified bool   `json:"unclassified,omitempty"`
	Report       string `json:"report,omitempty"` // path of Puppet's own report; "" when it wrote none

	Left    int  `json:"-"` // resources beyond the limit of Resources
	NoDiffs bool `json:"-"` // Puppet shows no diffs, because the release or its data has secrets

	ConfigVersion string  `json:"config_version,omitempty"` // of the catalog, as in Puppet's report
	Served        *Served `json:"served,omitempty"`         // nil: the catalog came from the release

	Commit string `json:"commit,omitempty"` // that the release names; with "-dirty" for uncommitted changes
}

// Served is the source of a catalog that did not come from the release: an environment of an existing Puppet server.
type Served struct {
	Environment string `json:"environment"`
	Server      string `json:"server"`              // its name in the environment file, or its address
	Reason      string `json:"reason"`              // why this server: a code of package settings, or failover
	Criterion   string `json:"criterion,omitempty"` // that chose it
	Value       string `json:"value,omitempty"`     // the node's value of the criterion
	Code        string `json:"code,omitempty"`      // code id or config_version of the catalog; "": the server names none
}

// Run is the record of one run, as `pulley runs NODE ID` shows it.
type Run struct {
	ID         string                   `json:"id"`
	Node       string                   `json:"node"`
	Target     Target                   `json:"target"`
	Action     Action                   `json:"action"`
	Reason     Reason                   `json:"reason"`
	Assignment string                   `json:"assignment,omitempty"` // id of the assignment that Target is from
	Drift      bool                     `json:"drift,omitempty"`      // the target was in place, its code was the same, and the run changed something
	Part                                // never the result of a target, which only a complete run reaches
	Started    time.Time                `json:"started"`
	Duration   time.Duration            `json:"duration"`
	Steps      map[string]time.Duration `json:"steps,omitempty"`
	Result
}

// Attempt counts this node's runs at a target that it has not reached.
type Attempt struct {
	Target   Target    `json:"target"`
	Started  int       `json:"started"`          // runs begun since the last success, new target or --force
	Finished int       `json:"finished"`         // runs that ended by themselves, not interrupted
	Open     bool      `json:"open,omitempty"`   // the last run has not ended, or was interrupted
	Last     time.Time `json:"last"`             // when the last one began
	Kind     Kind      `json:"kind,omitempty"`   // how the last finished one ended
	Problem  Problem   `json:"problem,omitzero"` // cause of that kind
}

// Refusal records a target that this node refused because it is not verified as authentic.
type Refusal struct {
	Target        Target    `json:"target"`
	refusal.Error           // code and params, clipped
	At            time.Time `json:"at"` // when the node last checked it, to the second
}

// Prose is text for people in a stored value: an operator's reason, the message of a program. Code must never compare,
// split or parse it.
type Prose string

// HoldMode names the action that a hold forbids.
type HoldMode string

// The modes of a hold.
const (
	Freeze HoldMode = "freeze" // stay on the target, keep enforcing it
	Stop   HoldMode = "stop"   // do not run Puppet
)

// HoldModes lists the modes, the weakest first.
func HoldModes() []HoldMode { return []HoldMode{Freeze, Stop} }

// HoldKind names the setter and the purpose of a hold.
type HoldKind string

// The kinds of holds.
const (
	OperatorHold   HoldKind = "operator"   // `pulley hold`; only an operator ends it
	RetirementHold HoldKind = "retirement" // set for the retire hooks; the retirement's cancellation ends it
	DuplicateHold  HoldKind = "duplicate"  // serve saw two machines run as one node; an operator ends it
)

// Hold restricts a node, a role or an environment.
type Hold struct {
	Scope    string    `json:"scope"` // all, roles/<role> or nodes/<node>
	Mode     HoldMode  `json:"mode"`
	Kind     HoldKind  `json:"kind"`
	Who      string    `json:"who,omitempty"`
	Why      Prose     `json:"why,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`     // for people only: an etcd lease ends the hold
	Replaced *Hold     `json:"replaced,omitempty"` // by a retirement; it never has a Replaced of its own
}

// GateState tells whether nodes may take new targets.
type GateState string

// The states of a gate.
const (
	GateOpen    GateState = "open"
	GatePaused  GateState = "paused"
	GateAborted GateState = "aborted"
)

// Gate is one key per environment that stops all assignments at once.
type Gate struct {
	Epoch   Epoch     `json:"epoch"`
	State   GateState `json:"state"`
	Rollout string    `json:"rollout,omitempty"`
	By      string    `json:"by,omitempty"`
	Why     Prose     `json:"why,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// AssignmentKind is what an assignment orders. A node waits at a kind that it does not know.
type AssignmentKind string

// The kinds of assignments. Those of a job count only while the key of the job exists.
const (
	AssignTake AssignmentKind = ""     // take the target, for a rollout
	AssignRun  AssignmentKind = "run"  // run Puppet once, for a job; then wait
	AssignNoop AssignmentKind = "noop" // the same as a noop run
	AssignWait AssignmentKind = "wait" // do not run Puppet, for a job
)

// Assignment is what a rollout or a job orders one node. It counts only while its epoch equals the gate's epoch, and only for the
// machine that it names.
type Assignment struct {
	ID      string         `json:"id,omitempty"` // the node's status and run record answer with it
	Kind    AssignmentKind `json:"kind,omitempty"`
	Machine string         `json:"machine,omitempty"` // machine id of the host list when it was written
	Target  Target         `json:"target"`            // the node inherits its empty parts
	Rollout string         `json:"rollout"`           // or the job
	Epoch   Epoch          `json:"epoch"`

	Agent AgentChoice `json:"agent,omitzero"` // instead of the desired version of the agent; zero: that one
}

// LiveJob is the job in progress. A lease of etcd ends its key when nothing advances the job, and its nodes then wait no longer.
type LiveJob struct {
	ID string `json:"id"`
}

// Host is a node's entry in the host list.
type Host struct {
	Node      string    `json:"node"`
	Role      string    `json:"role"`
	Hostname  string    `json:"hostname,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	MachineID string    `json:"machine_id,omitempty"`
	Checked   string    `json:"checked,omitempty"` // the one of Addresses that `pulley serve` saw the machine use; "" behind NAT or a proxy
	Refused   []Claim   `json:"refused,omitempty"` // what the machine said of itself, and what belongs to another node
	At        time.Time `json:"at,omitzero"`
	By        string    `json:"by,omitempty"` // bootstrap, or the operator who added it
	Request   *Request  `json:"request,omitempty"`
}

// OtherName reports whether the machine has another hostname than its node's name calls for: web1_t42 is web1-t42, with any domain.
func (h Host) OtherName() bool {
	name, _, _ := strings.Cut(strings.ReplaceAll(h.Node, "_", "-"), ".")
	label, _, _ := strings.Cut(h.Hostname, ".")
	return h.Hostname != "" && !strings.EqualFold(label, name)
}

// Claim is a hostname or an address of another node.
type Claim struct {
	Value string `json:"value"`
	Of    string `json:"of"` // node
}

// Export are the facts of one node that the nodes that see it may read, and its sign of life. The machine's owner chose every byte.
type Export struct {
	Facts map[string]json.RawMessage `json:"facts"` // by path

	Alive    time.Duration `json:"alive,omitempty"` // hosts.alive: the node writes the export several times within it; 0: no sign of life
	Revision int64         `json:"-"`               // of the last write
}

// Request is an operator's request that a node acts on once, in its next tick. A newer one replaces an older one.
type Request struct {
	ID  string      `json:"id"` // 16 hex digits; the answer names it
	Do  RequestKind `json:"do"`
	Why Prose       `json:"why,omitempty"`
	By  string      `json:"by,omitempty"`
	At  time.Time   `json:"at,omitzero"`
}

// RequestKind is the kind of work that a request orders.
type RequestKind string

// The kinds of requests. An agent answers a kind that it does not know with a problem.
const (
	RequestRun    RequestKind = "run"    // run Puppet now on the target in place; holds and gates count
	RequestNoop   RequestKind = "noop"   // the same as a noop run, which takes no new target
	RequestRetire RequestKind = "retire" // run the hooks in retire.d of the release in place; run nothing afterwards
)

// Lockout means that etcd refuses the certificate of a node's machine: it is newer than what etcd knows of the node, as after a restore.
type Lockout struct {
	Node  string    `json:"node"`
	User  string    `json:"user"` // in the certificate
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Confirmation confirms a request to retire one machine. Operators can write requests into the host list. With etcd
// authentication, only an administrator can write a confirmation.
type Confirmation struct {
	ID        string `json:"id"`                   // of the request
	MachineID string `json:"machine_id,omitempty"` // of the host list at that time
}

// Confirms reports whether the confirmation is that of a request to this machine. An unknown id of the machine does not
// count.
func (c Confirmation) Confirms(r Request, machine string) bool {
	return c.ID == r.ID && (c.MachineID == "" || machine == "" || c.MachineID == machine)
}

// Retires reports whether the host list has a request to retire the node.
func (h Host) Retires() bool { return h.Request != nil && h.Request.Do == RequestRetire }

// Answer is the node's answer to the newest request. An answer without a problem and without a cause means success.
type Answer struct {
	ID      string  `json:"id"`
	Problem Problem `json:"problem,omitzero"` // cause of the failure
	Cause   *Cause  `json:"cause,omitempty"`  // why the node did not start
}

// Failed reports whether the node did not do the requested work.
func (a *Answer) Failed() bool { return a.Cause != nil || a.Problem != Problem{} }

// Desired is everything in etcd that concerns one node, read at one revision.
type Desired struct {
	Unreachable Prose            `json:"unreachable,omitempty"` // why etcd did not answer; the rest is empty
	Clock       bool             `json:"clock,omitempty"`       // with Unreachable: a clock contradicts a certificate
	Remedy      Prose            `json:"-"`                     // with Unreachable: for the person who runs the agent
	Unreadable  Prose            `json:"unreadable,omitempty"`  // the value that this agent cannot read, and the remedy
	Removed     Prose            `json:"-"`                     // the removal of the node from the fleet; "": it was not removed, or it is not known
	Silence     time.Duration    `json:"-"`                     // without a report, before the node counts as silent; 0: DefaultSilence, or not known
	LockedOut   *Lockout         `json:"-"`                     // since the node's last report; nil: not, or not known
	Revision    int64            `json:"revision,omitempty"`
	Host        *Host            `json:"host,omitempty"` // nil: not on the host list
	Gate        Gate             `json:"gate"`
	Default     Target           `json:"default"`
	ForRole     Target           `json:"for_role"`
	ForNode     Target           `json:"for_node"`
	Assigned    *Assignment      `json:"assigned,omitempty"`
	Job         *LiveJob         `json:"job,omitempty"`   // nil: none
	Holds       []Hold           `json:"holds,omitempty"` // node's, role's, all's; those that exist
	Agent       AgentChoice      `json:"agent,omitzero"`  // desired; WantedAgent adds the assignment
	Preview     *PreviewOrder    `json:"preview,omitempty"`
	Statement   []byte           `json:"-"` // signed, of the targets in force; nil: none
	HostList    int64            `json:"-"` // revision of the last change of the host list; Admit does not compare it
	Guards      map[string]int64 `json:"-"` // of its reader: key → ModRevision that Admit compares
	Ordered     int64            `json:"-"` // ModRevision of Preview, which AnswerPreview compares
}

// Status is a node's last report about itself: at most 2 KiB as JSON, and less than 1 KiB for a converged node.
type Status struct {
	Format    int      `json:"v,omitempty"` // of the codec
	Node      string   `json:"node"`
	Role      string   `json:"role"`
	Phase     Phase    `json:"phase"`
	Action    Action   `json:"action"`
	Cause              // without parameters that another field of the status contains
	Target    Target   `json:"target"` // the wanted target of the node's last tick
	LastGood  Target   `json:"last_good"`
	Enforcing Target   `json:"enforcing"`
	Attempt   *Attempt `json:"attempt,omitempty"` // for Target, or for the enforced target
	Refusal   *Refusal `json:"refusal,omitempty"` // of Target
	Hold      *Hold    `json:"hold,omitempty"`
	Outcome   Outcome  `json:"outcome,omitempty"` // of the last run
	// Unclassified: the catalog of the last good run has no class. See Result.
	Unclassified bool      `json:"unclassified,omitempty"`
	Rivals       string    `json:"rivals,omitempty"`       // units and files that start another Puppet on the machine, as of the last run, with commas
	Unscheduled  Prose     `json:"unscheduled,omitempty"`  // why cron does not start the agent, and the remedy
	NoopPending  int       `json:"noop_pending,omitempty"` // resources that the last good run left out of sync, because the code makes them noop
	LastRun      string    `json:"last_run,omitempty"`
	RanAt        time.Time `json:"ran_at,omitzero"`
	SeenAt       time.Time `json:"seen_at"` // by the node's own clock; the key's revision is the order that counts
	Before       time.Time `json:"-"`       // the earliest plausible SeenAt of the reports that etcd got after this one; zero: none, or not compared
	Settings     Settings  `json:"settings"`
	Version      string    `json:"version,omitempty"` // of the agent
	Machine      string    `json:"machine,omitempty"` // machine id
	Boot         string    `json:"boot,omitempty"`    // the kernel's id of this boot
	Disabled     Prose     `json:"disabled,omitempty"`
	Agent        *Upgrade  `json:"agent,omitempty"`      // nil when the node runs the wanted agent
	Answer       *Answer   `json:"answer,omitempty"`     // to the newest request; nil: no answer
	Ran          *Answer   `json:"ran,omitempty"`        // to the newest assignment of a job that ordered a run
	Assignment   string    `json:"assignment,omitempty"` // id of the assignment that Target is from
	Hook         Prose     `json:"hook,omitempty"`       // why a hook of hosts.d/ failed; later differences wait for it

	Signatures *Signatures `json:"signatures,omitempty"` // nil: the agent does not report it

	Enforce string `json:"enforce,omitempty"` // puppet.enforce of its last good release

	Served *Served `json:"served,omitempty"` // of the last good run; nil: its catalog came from the release
}

// SignatureState tells whether a node checks signatures.
type SignatureState string

// The states. In an unusable state, the node takes no new target.
const (
	SignaturesChecked    SignatureState = "checked"
	SignaturesNotChecked SignatureState = "not_checked"
	SignaturesUnusable   SignatureState = "unusable"
)

// Signatures is a node's report about its checks of signatures: the digest of its lists of signers, and its high-water
// mark, below which it takes no target without a permit.
type Signatures struct {
	State   SignatureState `json:"state"`
	Signers string         `json:"signers,omitempty"` // digest: the first 16 hex digits of a SHA-256
	Keys    int            `json:"keys,omitempty"`    // allowed and not revoked
	Release string         `json:"release,omitempty"` // of the high-water mark
	Data    Generation     `json:"data,omitempty"`    // of the high-water mark
	Permit  Epoch          `json:"permit,omitempty"`  // of the newest permit that the node used

	Statement Epoch `json:"statement,omitempty"` // of the newest statement that the node verified; 0: it needs none
}

// Phase tells whether a run is in progress.
type Phase string

// The phases.
const (
	Idle    Phase = "idle"
	Running Phase = "running"
)

// Settings are the node's own limits that the decision uses.
type Settings struct {
	EnforceInterval time.Duration `json:"enforce_interval"`
	Heartbeat       time.Duration `json:"heartbeat"`
	MaxAttempts     int           `json:"max_attempts"`
}

// DefaultSettings are 30 minutes between enforcing runs, 5 minutes between heartbeats, 5 attempts until stuck.
func DefaultSettings() Settings {
	return Settings{EnforceInterval: 30 * time.Minute, Heartbeat: 5 * time.Minute, MaxAttempts: 5}
}

// AgentChoice is the wanted version of pulley-agent. Without a version, the node keeps its agent.
type AgentChoice struct {
	Version   string `json:"version,omitempty"`   // as `pulley agents list` shows it
	Downgrade bool   `json:"downgrade,omitempty"` // also accept a version older than the node's own
	Try       int64  `json:"try,omitempty"`       // a version that was dropped at a lower number is retried
	Order     string `json:"-"`                   // id of the assignment that it is from; "": it is the desired version
	Unknown   bool   `json:"-"`                   // this agent cannot read the choice in etcd: it changes nothing
}

// UpgradePhase is the progress of an agent upgrade.
type UpgradePhase string

// The phases of an upgrade.
const (
	UpgradeWaiting   UpgradePhase = "waiting"   // the agent must be fetched and tested; Problem is the obstacle
	UpgradeProbation UpgradePhase = "probation" // the new agent runs the ticks; the agent in place watches it
	UpgradeDropped   UpgradePhase = "dropped"   // the new agent failed; the agent in place stays
)

// Upgrade is the state of a node's own agent. The status has none when the node runs the wanted agent.
type Upgrade struct {
	Wanted  string       `json:"wanted"` // version
	Phase   UpgradePhase `json:"phase"`
	Problem Problem      `json:"problem,omitzero"`
}

// AskedBefore returns the pending request that an entry keeps when it replaces old. It returns nil for another
// machine.
func (h Host) AskedBefore(old *Host) *Request {
	if old == nil || old.MachineID != "" && h.MachineID != "" && old.MachineID != h.MachineID {
		return nil
	}
	return old.Request
}
