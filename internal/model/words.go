package model

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Only this file turns codes into sentences. The sentence of a code from a newer version is the code itself.

// reasonWords are the sentences of the reasons. The text of a parameter replaces {its name}.
var reasonWords = map[Reason]string{
	ReasonDisabled:      "runs are disabled on the machine",
	ReasonRetire:        "retirement is requested",
	ReasonRetired:       "the node is retired and runs nothing",
	ReasonPuppetBlocked: "the machine's own Puppet forbids a run",
	ReasonDaemon:        "Puppet's own daemon runs on the machine, by puppet.enforce of the environment file; `pulley-agent run --force` takes what is desired",
	ReasonStopped:       "a hold stops Puppet",
	ReasonClock:         "a clock is wrong; the node keeps enforcing its target",
	ReasonUnreachable:   "etcd is unreachable; the node keeps enforcing its target",
	ReasonUnreadable:    "etcd has a value that this agent cannot read; the node keeps enforcing its target",
	ReasonUnregistered:  "the node is not on the host list: `pulley nodes add {node} -e ENVIRONMENT` adds it; in a fleet with certificates, run `pulley-agent bootstrap --token TOKEN` on it, with a token of `pulley token create --node {node} -e ENVIRONMENT`",
	ReasonRemoved:       "the node was removed from the fleet",
	ReasonOtherMachine: "another machine has this node's name; the node keeps enforcing its target: " +
		"the host list has machine {listed}, this is machine {machine}",
	ReasonLockedOut:     "etcd has refused the certificate of its machine since {at}, as after a restore from an older backup",
	ReasonStale:         "no valid statement covers the target; the node keeps enforcing the target in place",
	ReasonWaits:         "a job runs nodes in order, and this node waits",
	ReasonNoTarget:      "no release is promoted for the node",
	ReasonFrozen:        "a hold freezes the node on its target",
	ReasonGateClosed:    "the environment's gate is closed",
	ReasonEpochPassed:   "the assignment is of an older rollout; etcd went back in time",
	ReasonRefused:       "the target is refused",
	ReasonServerAway:    "no Puppet server has answered since {at}; the node keeps its last good state",
	ReasonBackoff:       "the last attempt at the target failed; the node waits before the next one",
	ReasonStuck:         "the target failed too often; the node retries it rarely",
	ReasonForced:        "a run was forced on the machine",
	ReasonTurn:          "it is the node's turn in a job",
	ReasonAsked:         "an operator requested a run",
	ReasonNoop:          "a noop run was requested",
	ReasonPartial:       "a run with tags was requested, which applies only the target in place",
	ReasonNew:           "the target is new",
	ReasonReturn:        "the node returns to its last good target",
	ReasonInterrupted:   "the last run was interrupted",
	ReasonUnverified:    "the target was applied without etcd and is not verified yet",
	ReasonRetry:         "the last attempt failed and its retry is due",
	ReasonHosts:         "nodes that it sees changed",
	ReasonDue:           "enforcement is due",
	ReasonNotEnforced:   "the node is on its target, and puppet.enforce of the environment file turns enforcement off",
	ReasonUpToDate:      "the node is on its target, enforced recently",
	ReasonFirstBoot:     "the first boot runs the bootstrap environment of the Puppet server",
	ReasonSilent:        "the node last reported at {at}",
	ReasonNeverReported: "the node registered at {at} and has never reported",
	ReasonNotReported:   "the node is registered and has not reported yet",
	ReasonUnknownNode:   "the node is not registered and has never reported",
	ReasonNotTaken:      "the node is on {last_good} and has not taken {target} yet",
}

// UnclassifiedWords is the warning about a catalog without classes, and its remedy. See Result.Unclassified.
const UnclassifiedWords = "the catalog has 0 classes: nothing selects a class for the node\n" +
	"check what selects classes: node declarations, Hiera data, facts and trusted extensions"

// RivalsWords is the warning about what starts another Puppet on a machine, and its remedy. See Status.Rivals.
func RivalsWords(rivals string) string {
	return "another Puppet changes this machine: it is started by " + rivals + "\n" +
		"run `pulley-agent takeover look` there: it shows each; remove it from the release if the release brings it"
}

// NoopWords is the warning about resources that noop in the code keeps out of sync.
func NoopWords(resources int) string {
	return plural(resources, "resource") + " out of sync: noop in the code keeps Puppet from changing what differs"
}

// Sentence returns the reason with its parameters, for people.
func (c Cause) Sentence() string {
	p := c.Params
	words := fill(cmp.Or(reasonWords[c.Reason], string(c.Reason)), "node", cmp.Or(p.Node, "NODE"), "listed", p.Listed,
		"machine", p.Machine, "at", stamp(p.At), "last_good", p.LastGood.words(), "target", p.Target.words())
	return with(words, p.detail())
}

// detail returns the parameter that follows a reason's sentence. A reason has at most one.
func (p Params) detail() Prose {
	switch {
	case p.Request != nil:
		return p.Request.words()
	case p.Problem != nil:
		return Prose(p.Problem.String())
	case p.Blocked != nil:
		return p.Blocked.Words()
	case p.Hold != nil:
		return Prose(p.Hold.String())
	case p.Gate != nil && p.Gate.State == GateOpen: // of a job
		return Prose(with(fmt.Sprintf("%s of %s, since %s", p.Gate.Rollout, p.Gate.By, stamp(p.Gate.At)), p.Gate.Why))
	case p.Gate != nil:
		return Prose(with(fmt.Sprintf("%s by %s", p.Gate.State, p.Gate.By), p.Gate.Why))
	case p.Refusal != nil:
		return Prose(p.Refusal.Error.Error())
	case p.Attempt != nil:
		return p.Attempt.words(p.Next)
	}
	return p.Text
}

// Sentence returns the node's state, for people.
func (v View) Sentence() string {
	s := v.Cause.Sentence()
	switch v.State {
	case InRun:
		s = "Puppet is running: " + s
	case Stuck, FailedState:
		if v.Reason == ReasonBackoff || v.Reason == ReasonStuck {
			s = string(v.Params.detail())
		}
	}
	if v.ClockAhead > 0 {
		s += fmt.Sprintf("; its clock is %s ahead", strings.TrimSuffix(v.ClockAhead.Round(time.Minute).String(), "0s"))
	}
	return s
}

// questions are the questions as `pulley explain` prints them.
var questions = map[Question]string{
	AskEnabled: "runs are enabled on the machine", AskRetiring: "no retirement is requested", AskHooks: "the retire hooks have not run yet",
	AskPuppet: "Puppet may run", AskStopped: "not stopped by a hold", AskEtcd: "etcd answers", AskRegistered: "on the host list",
	AskMachine: "the host list names this machine", AskTurn: "no job makes it wait", AskPromoted: "a release is promoted", AskCurrent: "no statement contradicts the target", AskInPlace: "the target is in place",
	AskFrozen: "not frozen by a hold", AskGate: "the gate is open", AskAuthentic: "the target is authentic",
	AskServer: "the Puppet server answers", AskAttempt: "the next attempt is due", AskEnforcing: "enforcement is due",
}

func (q Question) String() string { return cmp.Or(questions[q], string(q)) }

// Answer returns the answer to a question, for people.
func (r Rung) Answer() string {
	p := r.Params
	switch {
	case r.Question == AskEnforcing && !r.OK && r.Reason == ReasonNotEnforced:
		return "puppet.enforce of the environment file turns it off"
	case r.Question == AskEnforcing && !r.OK && r.Reason == ReasonUpToDate:
		return "not before " + stamp(p.Next)
	case r.Question == AskEnforcing && !r.OK:
		return string(p.detail())
	case r.Question == AskInPlace && !r.OK:
		return fmt.Sprintf("the node enforces %s; its target is %s", p.LastGood.words(), p.Target.words())
	case r.Question == AskRetiring && r.OK && p.Problem != nil:
		return "the node answered that it cannot retire: " + p.Problem.String()
	case r.Question == AskRetiring && r.Reason == ReasonRetire:
		return with("requested", p.detail())
	case r.Question == AskHooks && !r.OK && r.Reason == ReasonRetire:
		return "a noop run does not run them"
	case r.Reason != "":
		return Cause{r.Reason, r.Params}.Sentence()
	case r.Question == AskEtcd && r.OK:
		return fmt.Sprintf("yes, at revision %d", p.Revision)
	case r.Question == AskRegistered && r.OK:
		return "yes, as " + p.Role
	case r.Question == AskPromoted && r.OK:
		return p.Target.words()
	case r.Question == AskAuthentic && !p.At.IsZero():
		return "refused at " + stamp(p.At) + "; the node checks it again"
	case r.Question == AskAuthentic:
		return "not refused so far; the node verifies it before it installs it"
	}
	return "yes"
}

// Words returns a sentence about the lock that forbids a run.
func (b *Blocked) Words() Prose {
	switch b.Code {
	case PuppetDisabled:
		return Prose(with(fmt.Sprintf("Puppet is disabled on this machine (%s)", b.Path), b.Text))
	case PuppetBusy:
		return Prose(fmt.Sprintf("another Puppet is running on this machine (pid %d, %s)", b.Pid, b.Path))
	case PuppetLockUnknown:
		return b.Text
	}
	return Prose(with(string(b.Code), b.Text))
}

// problemWords are the sentences of the problems. The text of a parameter replaces {its name}.
var problemWords = map[ProblemCode]string{
	PuppetUnkillable: "Puppet outlived SIGKILL",
	PuppetUnfinished: "Puppet did not finish",
	PuppetKilled:     "Puppet was ended by signal {number}",
	PuppetStopped:    "Puppet was ended by a signal",
	RanAsNoop:        "Puppet ran as noop and applied nothing",
	RanWithTags:      "Puppet ran with tags ({text}) and may have applied only a part",
	UnknownStatus:    `Puppet's report has the unknown status "{text}"`,
	DidNotRunAsNoop:  "Puppet did not run as noop",
	ResourcesFailed:  "{resources} failed",
	RestartsFailed:   "{resources} failed to restart",
	NoopChanged:      "Puppet changed {resources} although it ran as noop: the release sets `noop => false`",
	StageFailed:      "cannot stage {release}",
	CoreTypeMissing:  "a core type of Puppet is missing on the machine; Debian and Ubuntu have it in a package puppet-module-puppetlabs-TYPE-core",
	EyamlMissing:     "the release decrypts data with hiera-eyaml, which is not installed on the machine; Debian and Ubuntu have it in the package hiera-eyaml",
	NotDecrypted:     "hiera-eyaml cannot decrypt data on this machine; hiera.yaml of the release names the keys",
	NotVerified:      "the run was applied and not verified",
	EtcdLost:         "etcd answered before the run and did not answer for {number}s after it",
	StoppedEarly:     "the agent was stopped before it verified the run; the next tick repeats the run",

	PreviewInterrupted: "the preview was begun twice and never completed: the agent or its connection ended meanwhile",
	AnswerUnreadable:   "the answer of the node is not readable",

	PreviewServed: "a release that names an environment of a Puppet server has no preview: only the server can compile it. " +
		"`pulley-agent run --noop` on a node shows what it would change",

	PuppetServerAway:   "no Puppet server answered",
	PuppetServerLost:   "the Puppet server stopped answering during the run, and {resources} failed",
	PuppetServerNone:   "the node has no Puppet server",
	ServerUntrusted:    "the certificate of the Puppet server cannot be verified",
	CertificateMissing: "the node has no usable certificate for the Puppet server",
	CertificateTime:    "the certificate for the Puppet server is not valid by the clock of this machine",
	CertificateRefused: "the Puppet server refuses the certificate of the node",
	EnvironmentMissing: "the Puppet server does not have the environment",
	EnvironmentOther:   "the Puppet server gave a catalog of another environment, which was not applied",
	CatalogCached:      "Puppet applied an old catalog from its cache",

	UnknownRequest: `this agent does not know the request "{text}"; upgrade the agent`,
	NotConfirmed:   "no administrator confirmed the retirement",

	UpgradeNotStarted:   "the new agent cannot be started",
	UpgradeNotBegun:     "the new agent did not begin its tick within {limit}",
	UpgradeNotEnded:     "the new agent ended its tick and did not exit within {limit}",
	UpgradeStoodStill:   "the new agent made no progress for {limit} in step {step}",
	UpgradeStopped:      "the agent that watched the new agent was stopped",
	UpgradeKilled:       "the new agent was ended by signal {signal}",
	UpgradeNeverBegan:   "the new agent exited with code {number} and never began its tick",
	UpgradeNoEnding:     "the new agent exited with code {number} in step {step} and did not report the end of its tick",
	UpgradeOtherCode:    "the new agent exited with code {number} and had announced another code",
	UpgradeBusy:         "another run was in progress",
	UpgradeNoEtcd:       "the new agent could not reach etcd",
	UpgradeRunFailed:    "the new agent's run of Puppet failed",
	UpgradeTickFailed:   "the new agent's tick failed",
	UpgradeNoReport:     "the new agent ended its tick, and etcd has no report of it",
	UpgradeSelfTestLate: "the self-test took longer than {limit}",
	UpgradeSelfTest:     "the self-test failed",
	UpgradeSelfTestBoth: "the self-test failed, and the self-test of the agent in place also fails",
	UpgradeDamaged:      "the program of the new agent was damaged on disk",
	UpgradeRefused:      "version {version} is refused",
	UpgradeOlder: "the wanted version is older than {version}, which is in place; " +
		"`pulley agents promote VERSION -e ENVIRONMENT --allow-downgrade` permits it",
	UpgradeNoProgram:    "the wanted version has no program for {text}",
	UpgradeChanged:      "the published program of the version differs from the tested one",
	UpgradeTakenBack:    "{text} reverted it with `pulley-agent upgrade --back`",
	UpgradeNotInstalled: "an upgrade replaces {text}, and the running agent is another program",
}

// texts are the problems whose text is the sentence, and the sentences of those without a text.
var texts = map[ProblemCode]string{
	"": "", CatalogRefused: "", ReleaseUnusable: "", SecretsUnusable: "", HookFailed: "", PuppetNotStarted: "", PuppetTooOld: "", NotStarted: "",
	UpgradeUnavailable: "", UpgradeUnknown: "",
	NoReport:          "Puppet wrote no report (exit code {number})",
	CatalogIncomplete: "Puppet did not apply the complete catalog",
	ExitCode:          "Puppet's exit code is {number} although its report is good",
	NoopFailed:        "the noop run failed",
}

// comparisons follow the problem of a new agent when the agent in place, of {version}, was compared with it.
var comparisons = map[ProblemCode]string{
	UpgradeNoEtcd:     ", and version {version} could reach it directly afterwards",
	UpgradeRunFailed:  ", and that of version {version} succeeded directly afterwards",
	UpgradeTickFailed: ", and that of version {version} succeeded directly afterwards",
	UpgradeNoReport:   "; the newest is from version {version}",
}

// String returns the problem as a sentence, or "" for none.
func (p Problem) String() string {
	s := p.sentence()
	if p.Version != "" {
		s += p.fill(comparisons[p.Code])
	}
	if p.Damage != "" {
		s += "; " + string(p.Damage)
	}
	if p.Times > 1 {
		s += fmt.Sprintf(", %d times in a row", p.Times)
	}
	return s
}

func (p Problem) sentence() string {
	if instead, ok := texts[p.Code]; ok {
		return cmp.Or(string(p.Text), p.fill(instead))
	}
	words := cmp.Or(problemWords[p.Code], string(p.Code))
	if strings.Contains(words, "{text}") {
		return p.fill(words)
	}
	return with(p.fill(words), p.Text)
}

func (p Problem) fill(words string) string {
	return fill(words, "number", strconv.Itoa(p.Number), "resources", plural(p.Number, "resource"),
		"release", p.Release, "text", string(p.Text), "step", p.Step, "signal", p.Signal,
		"limit", p.Limit.String(), "version", p.Version)
}

// String returns the hold, for people.
func (h Hold) String() string {
	s := fmt.Sprintf("%s on %s", h.Mode, h.Scope)
	if h.Who != "" {
		s += " by " + h.Who
	}
	if !h.Until.IsZero() {
		s += " until " + stamp(h.Until)
	}
	return with(s, Prose(h.Reason()))
}

// Reason returns the operator's reason for the hold.
func (h Hold) Reason() string {
	s := string(h.Why)
	switch h.Kind {
	case RetirementHold:
		s = with("the node is being retired", h.Why)
	case DuplicateHold:
		s = with("two machines run as this node", h.Why)
	}
	if b := h.Replaced; b != nil {
		s += fmt.Sprintf(" (replaces %s)", b.String())
	}
	return s
}

func (t *Target) words() string {
	if t == nil {
		return Target{}.String()
	}
	return t.String()
}

// words returns the requester and the reason.
func (r *Request) words() Prose {
	return Prose(with("by "+cmp.Or(r.By, "an unknown operator"), r.Why))
}

// Sentence returns why the node did not do the requested work; "" means success.
func (a *Answer) Sentence() string {
	if a.Cause != nil {
		return a.Cause.Sentence()
	}
	return a.Problem.String()
}

func (a *Attempt) words(next time.Time) Prose {
	s := fmt.Sprintf("attempt %d at %s", a.Started, a.Target)
	switch {
	case a.Open:
		s += " was interrupted"
	case a.Problem != Problem{}:
		s += " failed: " + a.Problem.String()
	}
	if !next.IsZero() {
		s += "; next one at " + stamp(next)
	}
	return Prose(s)
}

// fill replaces each {name} in words, by pairs of a name and its value.
func fill(words string, pairs ...string) string {
	if !strings.Contains(words, "{") {
		return words
	}
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = "{" + pairs[i] + "}"
	}
	return strings.NewReplacer(pairs...).Replace(words)
}

// with returns "text: more", or text alone if more is empty.
func with(text string, more Prose) string {
	if more == "" {
		return text
	}
	return text + ": " + string(more)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// What renders what a campaign brings to its nodes: a target, or a version of the agent.
func What(t Target, version string) string {
	if version != "" {
		return "agent " + version
	}
	return t.String()
}

// Noun is what people call the campaign with an ID.
func Noun(id string) string {
	if strings.HasPrefix(id, "j") {
		return "job"
	}
	return "rollout"
}
