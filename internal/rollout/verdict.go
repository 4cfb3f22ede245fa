package rollout

import "pulley/agent"

// answer is what a node's status says about its assignment.
type answer string

const (
	silent        answer = "silent"  // it did not read the assignment yet, or did not begin
	working       answer = "working" // it runs, or tries again
	succeeded     answer = "succeeded"
	failed        answer = "failed"
	refusedTarget answer = "refused"
	doubtful      answer = "doubtful" // it failed because etcd did not answer: that proves nothing about the target
)

type judgement struct {
	answer  answer
	failure Failure
}

// verdict reads a node's answer to its assignment out of its status.
func verdict(n Node, slot Slot, retries int) judgement {
	st := n.Status
	if st == nil || st.Assignment != slot.ID {
		return judgement{answer: silent}
	}
	attempt := st.Attempt
	if attempt != nil && attempt.Target != n.Wanted {
		attempt = nil
	}
	switch {
	case st.Phase == agent.Running:
		return judgement{answer: working}
	case st.Target != n.Wanted:
		return judgement{answer: silent} // it does not want the target: lies count as silence
	case st.Refusal != nil && st.Refusal.Target == n.Wanted:
		return judgement{answer: refusedTarget}
	case attempt != nil && attempt.Problem.Code == agent.EtcdLost && attempt.Finished > 0:
		return judgement{answer: doubtful}
	case attempt != nil && !attempt.Open && attempt.Finished > retries:
		return judgement{failed, Failure{Code: RunFailed, Problem: attempt.Problem, Run: st.LastRun}}
	case attempt != nil:
		return judgement{answer: working}
	case st.LastGood == n.Wanted && st.Enforcing == n.Wanted && st.Outcome != agent.Failed:
		return judgement{answer: succeeded}
	}
	return judgement{answer: silent}
}

// running reports whether the node's last status is that of a run. Its assignment must not be withdrawn then.
func running(n Node) bool { return n.Status != nil && n.Status.Phase == agent.Running }

// held reports whether an operator keeps the node from its target. The wait ends with the hold.
func held(n Node) bool { return n.View.State == agent.Held }

// Unavailable reports whether a node that is not in progress counts as unavailable for its places. A frozen node enforces what it has.
func Unavailable(v agent.View) bool { return notReady(v) && v.Reason != agent.ReasonFrozen }

// notReady reports whether a node could not begin now.
func notReady(v agent.View) bool {
	switch v.State {
	case agent.Silent, agent.Held, agent.Stuck, agent.FailedState:
		return true
	}
	return false
}
