package rollout

import (
	"strings"

	"pulley/internal/model"
)

// answer is what a node's status says about its assignment.
type answer string

const (
	silent        answer = "silent"  // it did not read the assignment yet, or did not begin
	working       answer = "working" // it runs, or tries again
	succeeded     answer = "succeeded"
	failed        answer = "failed"
	refusedTarget answer = "refused"
	doubtful      answer = "doubtful" // etcd or its Puppet server did not answer: that proves nothing about the target
)

type judgement struct {
	answer  answer
	failure Failure
}

// verdict reads a node's answer to its assignment out of its status.
func verdict(p Plan, n Node, slot Slot) judgement {
	st := n.Status
	if st == nil || st.Assignment != slot.ID {
		return judgement{answer: silent}
	}
	if p.Kind == Run {
		return ran(p, n, slot.ID)
	}
	if p.Agent.Version != "" {
		if v := ofAgent(st, p.Agent.Version); v.answer != succeeded {
			return v
		}
	}
	attempt := st.Attempt
	if attempt != nil && attempt.Target != n.Wanted {
		attempt = nil
	}
	switch {
	case st.Phase == model.Running:
		return judgement{answer: working}
	case st.Target != n.Wanted:
		return judgement{answer: silent} // it does not want the target: lies count as silence
	case st.Refusal != nil && st.Refusal.Target == n.Wanted:
		return judgement{refusedTarget, Failure{Code: NodeRefused, Refusal: &st.Refusal.Error}}
	case attempt != nil && inconclusive(attempt.Problem.Code) && attempt.Finished > 0:
		return judgement{doubtful, Failure{Problem: attempt.Problem}}
	case attempt != nil && !attempt.Open && attempt.Finished > p.Policy.Retries:
		return judgement{failed, Failure{Code: RunFailed, Problem: attempt.Problem, Run: st.LastRun}}
	case attempt != nil:
		return judgement{answer: working}
	case st.LastGood == n.Wanted && st.Enforcing == n.Wanted && st.Outcome != model.Failed:
		return judgement{answer: succeeded}
	case st.Reason == model.ReasonServerAway:
		return judgement{doubtful, Failure{Problem: model.Problem{Code: model.PuppetServerAway}}}
	}
	return judgement{answer: silent}
}

// inconclusive reports whether a run failed because etcd or the Puppet server did not answer.
func inconclusive(code model.ProblemCode) bool {
	return code == model.EtcdLost || code == model.PuppetServerLost
}

// ran reads how the run ended that a job ordered. A run that enforced another target than the node's own is a failure: the node refused
// that target, or something keeps it from it.
func ran(p Plan, n Node, id string) judgement {
	st := n.Status
	switch answered := st.Ran != nil && st.Ran.ID == id; {
	case st.Phase == model.Running:
		return judgement{answer: working}
	case answered && st.Ran.Failed():
		return judgement{failed, Failure{Code: RunFailed, Problem: st.Ran.Problem, Run: st.LastRun}}
	case answered && !p.Noop && (st.Enforcing != n.Wanted || st.LastGood != n.Wanted):
		f := Failure{Code: NotReady, Run: st.LastRun, Cause: CannotBegin(n.View)}
		if st.Refusal != nil && st.Refusal.Target == n.Wanted {
			f.Code, f.Cause, f.Refusal = NodeRefused, "", &st.Refusal.Error
		}
		return judgement{failed, f}
	case answered:
		return judgement{answer: succeeded}
	}
	return judgement{answer: silent}
}

// ofAgent reads how far the node's own agent is: it succeeded when that version is installed and wrote the status, at the end of a
// tick. An agent that does not know assigned versions answers the assignment and keeps its own: it counts as silent.
func ofAgent(st *model.Status, version string) judgement {
	u := st.Agent
	switch {
	case u == nil && strings.TrimPrefix(st.Version, "v") == version:
		return judgement{answer: succeeded}
	case u == nil || u.Wanted != version:
		return judgement{answer: silent}
	case u.Phase == model.UpgradeDropped:
		return judgement{failed, Failure{Code: AgentDropped, Problem: u.Problem}}
	case u.Phase == model.UpgradeProbation:
		return judgement{answer: working}
	case refusesAgent(u.Problem.Code):
		return judgement{refusedTarget, Failure{Code: NodeRefused, Problem: u.Problem}}
	}
	return judgement{answer: silent}
}

// refusesAgent reports whether a node can fetch a version, and will not use it.
func refusesAgent(code model.ProblemCode) bool {
	switch code {
	case model.UpgradeRefused, model.UpgradeOlder, model.UpgradeNoProgram, model.UpgradeChanged, model.UpgradeNotInstalled:
		return true
	}
	return false
}

// isHeld reports whether an operator keeps the node from its target. The wait ends with the hold. A run of Puppet by hand ends by itself, or the
// deadline of the node decides.
func isHeld(n Node) bool { return n.View.State == model.Held && held(n.View) != "" }
