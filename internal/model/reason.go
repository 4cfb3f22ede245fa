package model

import (
	"time"

	"pulley/internal/clip"
	"pulley/internal/model/refusal"
)

// Reason is the code of a node's decision or state. words.go contains the sentence of each.
type Reason string

// The reasons of a decision, in the order of the ladder, each with its parameters.
const (
	ReasonDisabled      Reason = "disabled"          // text
	ReasonRetire        Reason = "retire_requested"  // request
	ReasonRetired       Reason = "retired"           // problem of its hooks
	ReasonPuppetBlocked Reason = "puppet_blocked"    // blocked
	ReasonDaemon        Reason = "puppet_daemon"     //
	ReasonStopped       Reason = "stopped"           // hold
	ReasonClock         Reason = "clock_wrong"       // text; or refusal of a statement
	ReasonUnreachable   Reason = "etcd_unreachable"  // text
	ReasonLockedOut     Reason = "locked_out"        // at: since when; only an operator's view has it
	ReasonUnreadable    Reason = "etcd_unreadable"   // text
	ReasonUnregistered  Reason = "unregistered"      // node
	ReasonRemoved       Reason = "removed"           // node, text
	ReasonOtherMachine  Reason = "other_machine"     // machine, listed
	ReasonWaits         Reason = "waits_for_job"     // gate
	ReasonNoTarget      Reason = "no_target"         //
	ReasonStale         Reason = "stale_statement"   // refusal
	ReasonFrozen        Reason = "frozen"            // hold
	ReasonGateClosed    Reason = "gate_closed"       // gate
	ReasonEpochPassed   Reason = "epoch_passed"      // gate, epoch
	ReasonRefused       Reason = "target_refused"    // refusal, next
	ReasonServerAway    Reason = "server_away"       // problem, at: since when
	ReasonBackoff       Reason = "backoff"           // attempt, next
	ReasonStuck         Reason = "stuck"             // attempt, next
	ReasonForced        Reason = "forced"            //
	ReasonTurn          Reason = "turn_of_job"       // gate
	ReasonAsked         Reason = "run_requested"     // request
	ReasonNoop          Reason = "noop_requested"    //
	ReasonPartial       Reason = "part_requested"    //
	ReasonNew           Reason = "new_target"        //
	ReasonReturn        Reason = "return_to_last"    //
	ReasonInterrupted   Reason = "run_interrupted"   //
	ReasonUnverified    Reason = "target_unverified" //
	ReasonRetry         Reason = "retry"             // attempt
	ReasonHosts         Reason = "hosts_changed"     //
	ReasonDue           Reason = "enforcement_due"   //
	ReasonUpToDate      Reason = "up_to_date"        //
	ReasonNotEnforced   Reason = "not_enforced"      //
	ReasonFirstBoot     Reason = "first_boot"        // only in the record of a run
)

// The reasons that only an operator's view of a node has.
const (
	ReasonSilent        Reason = "silent"           // at: when the node last reported
	ReasonNeverReported Reason = "never_reported"   // at: when the node registered
	ReasonNotReported   Reason = "not_reported"     // the node registered a short time ago
	ReasonUnknownNode   Reason = "unknown_node"     // neither a host nor a status
	ReasonNotTaken      Reason = "target_not_taken" // target, last_good
)

// Params are the parameters of a reason. Each reason sets those that its comment names.
type Params struct {
	Text     Prose     `json:"text,omitempty"`
	Node     string    `json:"node,omitempty"`
	Role     string    `json:"role,omitempty"`
	Machine  string    `json:"machine,omitempty"` // id of this machine
	Listed   string    `json:"listed,omitempty"`  // id of the machine in the host list
	Revision int64     `json:"revision,omitempty"`
	Epoch    Epoch     `json:"epoch,omitempty"` // the highest that came to this node with an assignment
	Target   *Target   `json:"target,omitempty"`
	LastGood *Target   `json:"last_good,omitempty"` // or the enforced target
	Hold     *Hold     `json:"hold,omitempty"`
	Gate     *Gate     `json:"gate,omitempty"`
	Attempt  *Attempt  `json:"attempt,omitempty"`
	Refusal  *Refusal  `json:"refusal,omitempty"`
	Request  *Request  `json:"request,omitempty"`
	Problem  *Problem  `json:"problem,omitempty"`
	Blocked  *Blocked  `json:"blocked,omitempty"`
	At       time.Time `json:"at,omitzero"`
	Next     time.Time `json:"next,omitzero"` // when the wait ends
}

// Cause is a reason with its parameters.
type Cause struct {
	Reason Reason `json:"reason"`
	Params Params `json:"params,omitzero"`
}

// BlockCode is the code of a lock of the machine's own Puppet that forbids a run.
type BlockCode string

// The causes of a forbidden run.
const (
	PuppetDisabled    BlockCode = "puppet_disabled"     // path, text: `puppet agent --disable`
	PuppetBusy        BlockCode = "puppet_busy"         // path, pid: another Puppet applies a catalog
	PuppetLockUnknown BlockCode = "puppet_lock_unknown" // text: the locks cannot be read
)

// Blocked is the cause for which the machine's own Puppet forbids a run.
type Blocked struct {
	Code BlockCode `json:"code"`
	Path string    `json:"path,omitempty"`
	Pid  int       `json:"pid,omitempty"`
	Text Prose     `json:"text,omitempty"`
}

// ProblemCode is the code of a failed run, request or upgrade.
type ProblemCode string

// The problems of a run. Text is the output of Puppet or of another program.
const (
	CatalogRefused    ProblemCode = "catalog_refused"     // text: Puppet did not compile the catalog
	CoreTypeMissing   ProblemCode = "core_type_missing"   // text: Puppet's message
	EyamlMissing      ProblemCode = "eyaml_missing"       // text: Puppet's message
	NotDecrypted      ProblemCode = "not_decrypted"       // text: the key, its file and the cause
	SecretsUnusable   ProblemCode = "secrets_unusable"    // text: the cause and the remedy
	ReleaseUnusable   ProblemCode = "release_unusable"    // text: the release's settings are not usable
	PuppetNotStarted  ProblemCode = "puppet_not_started"  // text
	PuppetTooOld      ProblemCode = "puppet_too_old"      // text: its version and path, and the remedy
	PuppetUnkillable  ProblemCode = "puppet_unkillable"   // text: it survived SIGKILL
	PuppetUnfinished  ProblemCode = "puppet_unfinished"   // text: why the agent ended it
	PuppetKilled      ProblemCode = "puppet_killed"       // number: the signal
	PuppetStopped     ProblemCode = "puppet_stopped"      // text: Puppet's message about the signal
	NoReport          ProblemCode = "no_report"           // number: the exit code; text
	ResourcesFailed   ProblemCode = "resources_failed"    // number; text: the first
	RestartsFailed    ProblemCode = "restarts_failed"     // number; text: the first
	CatalogIncomplete ProblemCode = "catalog_incomplete"  // text
	RanAsNoop         ProblemCode = "ran_as_noop"         //
	RanWithTags       ProblemCode = "ran_with_tags"       // text: the tags
	ExitCode          ProblemCode = "exit_code"           // number; text
	UnknownStatus     ProblemCode = "unknown_status"      // text: the report's status
	DidNotRunAsNoop   ProblemCode = "did_not_run_as_noop" //
	NoopChanged       ProblemCode = "noop_changed"        // number of resources
	NoopFailed        ProblemCode = "noop_failed"         // text
	StageFailed       ProblemCode = "stage_failed"        // release, text
	NotVerified       ProblemCode = "not_verified"        // text
	EtcdLost          ProblemCode = "etcd_lost"           // seconds, text: the new target may have cut the node off
	StoppedEarly      ProblemCode = "stopped_early"       // the agent was stopped before it verified the run

	PreviewServed      ProblemCode = "preview_of_server"   // only the Puppet server can compile the release
	PreviewInterrupted ProblemCode = "preview_interrupted" // times: each run of it ended the agent, or its answer did not arrive
	AnswerUnreadable   ProblemCode = "answer_unreadable"   // text: why this program cannot read the answer of a node
)

// The problems of a run against a Puppet server. Text is the cause.
const (
	PuppetServerAway   ProblemCode = "puppet_server_away"         // text: it did not answer; the run counts as none
	PuppetServerLost   ProblemCode = "puppet_server_lost"         // number of resources; text: it stopped answering during the run
	PuppetServerNone   ProblemCode = "puppet_server_none"         // text: the environment file gives the node no server
	ServerUntrusted    ProblemCode = "puppet_server_untrusted"    // text: its certificate cannot be verified
	CertificateMissing ProblemCode = "puppet_certificate_missing" // text: the node has no usable certificate of the server's CA
	CertificateTime    ProblemCode = "puppet_certificate_time"    // text: by this machine's clock, the certificate is not valid
	CertificateRefused ProblemCode = "puppet_certificate_refused" // text: the server refuses it, for example because it is revoked
	EnvironmentMissing ProblemCode = "puppet_environment_missing" // text: the server does not have the environment
	EnvironmentOther   ProblemCode = "puppet_environment_other"   // text: the server gave a catalog of another environment
	CatalogCached      ProblemCode = "catalog_cached"             // text: Puppet applied an old catalog from its cache
)

// The problems of requests.
const (
	UnknownRequest ProblemCode = "unknown_request" // text: its kind
	HookFailed     ProblemCode = "hook_failed"     // text
	NotStarted     ProblemCode = "not_started"     // reason: why the node did not begin
	NotConfirmed   ProblemCode = "not_confirmed"   // a request to retire that no administrator confirmed
)

// The problems of an upgrade of the agent. Version is that of the agent in place, which passed the same check.
const (
	UpgradeNotStarted   ProblemCode = "agent_not_started"     // text
	UpgradeNotBegun     ProblemCode = "agent_not_begun"       // limit
	UpgradeStoodStill   ProblemCode = "agent_stood_still"     // step, limit
	UpgradeNotEnded     ProblemCode = "agent_not_ended"       // limit
	UpgradeStopped      ProblemCode = "agent_stopped"         // the agent that watched the new agent was stopped
	UpgradeKilled       ProblemCode = "agent_killed"          // signal, text
	UpgradeNeverBegan   ProblemCode = "agent_never_began"     // number: exit code; text
	UpgradeNoEnding     ProblemCode = "agent_no_ending"       // number: exit code; step, text
	UpgradeOtherCode    ProblemCode = "agent_other_exit_code" // number: exit code; text
	UpgradeBusy         ProblemCode = "run_in_progress"       //
	UpgradeNoEtcd       ProblemCode = "agent_without_etcd"    // version
	UpgradeRunFailed    ProblemCode = "agent_run_failed"      // version
	UpgradeTickFailed   ProblemCode = "agent_tick_failed"     // text, version
	UpgradeNoReport     ProblemCode = "agent_did_not_report"  // version: of the last agent that reported, if any
	UpgradeSelfTestLate ProblemCode = "self_test_late"        // limit
	UpgradeSelfTest     ProblemCode = "self_test_failed"      // text
	UpgradeSelfTestBoth ProblemCode = "self_test_hindered"    // text: the self-test of the agent in place fails too
	UpgradeDamaged      ProblemCode = "agent_damaged"         // its program on disk
	UpgradeUnavailable  ProblemCode = "agent_unavailable"     // text
	UpgradeRefused      ProblemCode = "agent_refused"         // version, text
	UpgradeOlder        ProblemCode = "agent_older"           // version
	UpgradeNoProgram    ProblemCode = "agent_no_program"      // text: the platform
	UpgradeChanged      ProblemCode = "agent_changed"         // another program is published under the version
	UpgradeTakenBack    ProblemCode = "taken_back"            // text: the operator
	UpgradeNotInstalled ProblemCode = "agent_not_installed"   // text: path of the program that an upgrade replaces
	UpgradeUnknown      ProblemCode = "upgrade_unknown"       // text: the state cannot be read
)

// Problem is the cause of a failure. The zero Problem means none.
type Problem struct {
	Code    ProblemCode `json:"code"`
	Number  int         `json:"number,omitempty"`
	Release string      `json:"release,omitempty"`
	Text    Prose       `json:"text,omitempty"`
	Damage  Prose       `json:"damage,omitempty"` // other damage to the machine by the failed run

	Step    string        `json:"step,omitempty"`
	Signal  string        `json:"signal,omitempty"`
	Limit   time.Duration `json:"limit,omitempty"`
	Version string        `json:"version,omitempty"`
	Times   int           `json:"times,omitempty"` // in a row; 0 for once
}

// Clipped returns p with at most n bytes of each text.
func (p Problem) Clipped(n int) Problem {
	p.Text, p.Damage = p.Text.Clipped(n), p.Damage.Clipped(n)
	return p
}

// Clipped returns a copy of c with at most n bytes of each text.
func (c Cause) Clipped(n int) *Cause {
	p := &c.Params
	p.Text = p.Text.Clipped(n)
	p.Hold = edited(p.Hold, func(h *Hold) { *h = h.clipped(n) })
	p.Gate = edited(p.Gate, func(g *Gate) { g.By, g.Why = clip.Text(g.By, n), g.Why.Clipped(n) })
	p.Attempt = edited(p.Attempt, func(a *Attempt) { a.Problem = a.Problem.Clipped(n) })
	p.Refusal = edited(p.Refusal, func(r *Refusal) { *r = r.Clipped(n) })
	p.Request = edited(p.Request, func(r *Request) { r.By, r.Why = clip.Text(r.By, n), r.Why.Clipped(n) })
	p.Problem = edited(p.Problem, func(p *Problem) { *p = p.Clipped(n) })
	p.Blocked = edited(p.Blocked, func(b *Blocked) { b.Path, b.Text = clip.Text(b.Path, n), b.Text.Clipped(n) })
	return &c
}

// edited returns a changed copy of *p, or nil for nil.
func edited[T any](p *T, change func(*T)) *T {
	if p == nil {
		return nil
	}
	v := *p
	change(&v)
	return &v
}

func (h Hold) clipped(n int) Hold {
	h.Who, h.Why = clip.Text(h.Who, n), h.Why.Clipped(n)
	h.Replaced = edited(h.Replaced, func(r *Hold) { *r = r.clipped(n) })
	return h
}

// Clipped returns r with at most n bytes of each text.
func (r Refusal) Clipped(n int) Refusal {
	params := make(refusal.Params, len(r.Params))
	for k, v := range r.Params {
		params[k] = clip.Text(v, n)
	}
	r.Params = params
	return r
}

// Clipped returns p in at most n bytes. See clip.Text.
func (p Prose) Clipped(n int) Prose { return Prose(clip.Text(string(p), n)) }
