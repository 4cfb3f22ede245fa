package agent

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Only this file turns codes into sentences. The sentence of a code from a newer version is the code itself.

// Sentence returns the reason with its parameters, for people.
func (c Cause) Sentence() string {
	p := c.Params
	switch c.Reason {
	case ReasonDisabled:
		return with("runs are disabled on the machine", p.Text)
	case ReasonRetire:
		return with("retirement is requested", p.Request.words())
	case ReasonRetired:
		return with("the node is retired and runs nothing", p.Problem.words())
	case ReasonPuppetBlocked:
		return with("the machine's own Puppet forbids a run", p.Blocked.words())
	case ReasonStopped:
		return with("a hold stops Puppet", p.Hold.words())
	case ReasonUnreachable:
		return with("etcd is unreachable; the node keeps enforcing its target", p.Text)
	case ReasonUnreadable:
		return with("etcd holds a value that this agent cannot read; the node keeps enforcing its target", p.Text)
	case ReasonUnregistered:
		return "the node is not on the host list: run `pulley-agent bootstrap` on it, or `pulley nodes add " + cmp.Or(p.Node, "NODE") + "`"
	case ReasonOtherMachine:
		return fmt.Sprintf("another machine has this node's name; the node keeps enforcing its target: the host list has machine %s, this is machine %s", p.Listed, p.Machine)
	case ReasonNoTarget:
		return "no release is promoted for the node"
	case ReasonFrozen:
		return with("a hold freezes the node on its target", p.Hold.words())
	case ReasonGateClosed:
		return with("the environment's gate is closed", p.Gate.words())
	case ReasonRefused:
		return with("the target is refused", p.Refusal.words())
	case ReasonBackoff:
		return with("the last attempt at the target failed; the node waits before the next one", p.Attempt.words(p.Next))
	case ReasonStuck:
		return with("the target failed too often; the node retries it rarely", p.Attempt.words(p.Next))
	case ReasonForced:
		return "a run was forced on the machine"
	case ReasonAsked:
		return with("an operator requested a run", p.Request.words())
	case ReasonNoop:
		return "a noop run was requested"
	case ReasonNew:
		return "the target is new"
	case ReasonReturn:
		return "the node returns to its last good target"
	case ReasonInterrupted:
		return "the last run was interrupted"
	case ReasonUnverified:
		return "the target was applied without etcd and is not verified yet"
	case ReasonRetry:
		return with("the last attempt failed and its wait is over", p.Attempt.words(time.Time{}))
	case ReasonDue:
		return "enforcement is due"
	case ReasonUpToDate:
		return "the node is on its target, enforced recently"
	case ReasonSilent:
		return "the node last reported at " + stamp(p.At)
	case ReasonNeverReported:
		return "the node registered at " + stamp(p.At) + " and has never reported"
	case ReasonNotReported:
		return "the node is registered and has not reported yet"
	case ReasonUnknownNode:
		return "etcd has no record of the node"
	case ReasonNotTaken:
		return fmt.Sprintf("the node is on %s and has not taken %s yet", p.LastGood.words(), p.Target.words())
	}
	return with(string(c.Reason), p.Text)
}

// Sentence returns the node's state, for people.
func (v View) Sentence() string {
	s := v.Cause.Sentence()
	switch v.State {
	case InRun:
		s = "Puppet is running: " + s
	case Stuck, FailedState:
		if v.Reason == ReasonBackoff || v.Reason == ReasonStuck {
			s = string(v.Params.Attempt.words(v.Params.Next))
		}
	}
	if v.ClockAhead > 0 {
		s += fmt.Sprintf("; its clock is %s ahead", strings.TrimSuffix(v.ClockAhead.Round(time.Minute).String(), "0s"))
	}
	return s
}

// questions are the questions as `pulley explain` prints them.
var questions = map[Question]string{
	AskEnabled: "runs are enabled on the machine", AskRetiring: "no retirement is requested", AskHooks: "the retire hooks have yet to run",
	AskPuppet: "Puppet may run", AskStopped: "not stopped by a hold", AskEtcd: "etcd answers", AskRegistered: "on the host list",
	AskMachine: "the host list names this machine", AskPromoted: "a release is promoted", AskInPlace: "the target is in place",
	AskFrozen: "not frozen by a hold", AskGate: "the gate is open", AskAuthentic: "the target is authentic",
	AskAttempt: "the next attempt is due", AskEnforcing: "enforcement is due",
}

func (q Question) String() string { return cmp.Or(questions[q], string(q)) }

// Answer returns the answer to a question, for people.
func (r Rung) Answer() string {
	p := r.Params
	switch {
	case r.Question == AskEnforcing && !r.OK && r.Reason == ReasonUpToDate:
		return "not before " + stamp(p.Next)
	case r.Question == AskEnforcing && !r.OK:
		return string(p.Attempt.words(p.Next))
	case r.Question == AskInPlace && !r.OK:
		return fmt.Sprintf("the node enforces %s and is to be on %s", p.LastGood.words(), p.Target.words())
	case r.Question == AskRetiring && r.OK && p.Problem != nil:
		return "the node answered that it cannot retire: " + p.Problem.String()
	case r.Question == AskRetiring && r.Reason == ReasonRetire:
		return with("requested", p.Request.words())
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

// words returns a sentence about the lock that forbids a run.
func (b *Blocked) words() Prose {
	switch {
	case b == nil:
		return ""
	case b.Code == PuppetDisabled:
		return Prose(with(fmt.Sprintf("Puppet is disabled on this machine (%s)", b.Path), b.Text))
	case b.Code == PuppetBusy:
		return Prose(fmt.Sprintf("another Puppet is running on this machine (pid %d, %s)", b.Pid, b.Path))
	case b.Code == PuppetLockUnknown:
		return b.Text
	}
	return Prose(with(string(b.Code), b.Text))
}

// String returns the problem as a sentence, or "" for none.
func (p Problem) String() string {
	s := p.sentence()
	if p.Spoiled != "" {
		s += "; " + string(p.Spoiled)
	}
	if p.Times > 1 {
		s += fmt.Sprintf(", %d times in a row", p.Times)
	}
	return s
}

func (p Problem) sentence() string {
	n := strconv.Itoa(p.Number)
	switch p.Code {
	case "":
		return string(p.Text)
	case CatalogRefused, ReleaseUnusable, HookFailed, PuppetNotStarted:
		return string(p.Text)
	case PuppetUnkillable:
		return with("Puppet outlived SIGKILL", p.Text)
	case PuppetUnfinished:
		return with("Puppet did not finish", p.Text)
	case PuppetKilled:
		return "Puppet was ended by signal " + n
	case PuppetStopped:
		return with("Puppet was ended by a signal", p.Text)
	case NoReport:
		return cmp.Or(string(p.Text), "Puppet wrote no report (exit code "+n+")")
	case ResourcesFailed:
		return with(plural(p.Number, "resource")+" failed", p.Text)
	case RestartsFailed:
		return with(plural(p.Number, "resource")+" failed to restart", p.Text)
	case CatalogIncomplete:
		return cmp.Or(string(p.Text), "Puppet did not apply the whole catalog")
	case RanAsNoop:
		return "Puppet ran as noop and applied nothing"
	case RanWithTags:
		return fmt.Sprintf("Puppet ran with tags (%s) and may have applied only a part", p.Text)
	case ExitCode:
		return cmp.Or(string(p.Text), "Puppet's exit code is "+n+" although its report is good")
	case UnknownStatus:
		return fmt.Sprintf("Puppet's report has the unknown status %q", p.Text)
	case DidNotRunAsNoop:
		return "Puppet did not run as noop"
	case NoopChanged:
		return fmt.Sprintf("Puppet changed %s although it ran as noop: the release sets `noop => false`", plural(p.Number, "resource"))
	case NoopFailed:
		return cmp.Or(string(p.Text), "the noop run failed")
	case StageFailed:
		return with("cannot stage "+p.Release, p.Text)
	case NotVerified:
		return with("the run was applied and not verified", p.Text)
	case EtcdLost:
		return with(fmt.Sprintf("etcd answered before the run and did not answer for %ss after it", n), p.Text)
	case StoppedEarly:
		return "the agent was stopped before it verified the run; the next tick repeats the run"
	case UnknownRequest:
		return fmt.Sprintf("this agent does not know the request %q; upgrade the agent", p.Text)
	case NotStarted:
		return string(p.Text)
	}
	return p.upgrade()
}

func (p Problem) upgrade() string {
	than := ""
	if p.Version != "" {
		than = ", and that of version " + p.Version + " right after did not"
	}
	switch p.Code {
	case UpgradeNotStarted:
		return with("the new agent cannot be started", p.Text)
	case UpgradeStoodStill:
		switch p.Step {
		case "start":
			return fmt.Sprintf("the new agent did not begin its tick within %s", p.Limit)
		case "end":
			return fmt.Sprintf("the new agent did not exit within %s of its tick's end", p.Limit)
		}
		return fmt.Sprintf("the new agent stood still in the step %s for %s", p.Step, p.Limit)
	case UpgradeStopped:
		return "the agent that watched was stopped"
	case UpgradeKilled:
		return with("the new agent was ended by the signal "+p.Signal, p.Text)
	case UpgradeNeverBegan:
		return with(fmt.Sprintf("the new agent exited with code %d and never began its tick", p.Number), p.Text)
	case UpgradeNoEnding:
		return with(fmt.Sprintf("the new agent exited with code %d in the step %s and did not report the end of its tick", p.Number, p.Step), p.Text)
	case UpgradeOtherCode:
		return with(fmt.Sprintf("the new agent exited with code %d and had announced another", p.Number), p.Text)
	case UpgradeBusy:
		return "another run was in progress"
	case UpgradeNoEtcd:
		if p.Version != "" {
			return "the new agent could not reach etcd, and version " + p.Version + " could right after"
		}
		return "the new agent could not reach etcd"
	case UpgradeRunFailed:
		return "the new agent's run of Puppet failed" + than
	case UpgradeTickFailed:
		return with("the new agent's tick failed", p.Text) + than
	case UpgradeNoReport:
		if p.Version != "" {
			return "the new agent announced its report, and the newest that etcd has is from version " + p.Version
		}
		return "the new agent ended its tick, and etcd has no report of it"
	case UpgradeSelfTestLate:
		return fmt.Sprintf("the self-test took longer than %s", p.Limit)
	case UpgradeSelfTest:
		return with("the self-test failed", p.Text)
	case UpgradeSelfTestBoth:
		return with("the self-test failed, and that of the agent in place fails too", p.Text)
	case UpgradeDamaged:
		return "the program of the new agent was damaged on disk"
	case UpgradeUnavailable:
		return string(p.Text)
	case UpgradeRefused:
		return with("version "+p.Version+" is refused", p.Text)
	case UpgradeOlder:
		return "the wanted version is older than " + p.Version + ", which is in place; `pulley agents promote --allow-downgrade` permits it"
	case UpgradeNoProgram:
		return fmt.Sprintf("the wanted version has no program for %s", p.Text)
	case UpgradeChanged:
		return "the version is published with another program than was tested"
	case UpgradeTakenBack:
		return fmt.Sprintf("%s took it back with `pulley-agent upgrade --back`", p.Text)
	case UpgradeNotInstalled:
		return fmt.Sprintf("the running agent is not %s, which an upgrade replaces", p.Text)
	case UpgradeUnknown:
		return string(p.Text)
	}
	return with(string(p.Code), p.Text)
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

func (h *Hold) words() Prose {
	if h == nil {
		return ""
	}
	return Prose(h.String())
}

func (g *Gate) words() Prose {
	if g == nil {
		return ""
	}
	return Prose(with(fmt.Sprintf("%s by %s", g.State, g.By), g.Why))
}

func (r *Refusal) words() Prose {
	if r == nil {
		return ""
	}
	return Prose(r.Error.Error())
}

func (t *Target) words() string {
	if t == nil {
		return Target{}.String()
	}
	return t.String()
}

// words returns the requester and the reason.
func (r *Request) words() Prose {
	if r == nil {
		return ""
	}
	return Prose(with("by "+cmp.Or(r.By, "an unknown operator"), r.Why))
}

func (p *Problem) words() Prose {
	if p == nil {
		return ""
	}
	return Prose(p.String())
}

// Sentence returns why the node did not do the requested work; "" means success.
func (a *Answer) Sentence() string {
	if a.Cause != nil {
		return a.Cause.Sentence()
	}
	return a.Problem.String()
}

func (a *Attempt) words(next time.Time) Prose {
	if a == nil {
		return ""
	}
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
