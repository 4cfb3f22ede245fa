package rollouts

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollout"
)

// Waits reports whether the rollout needs an operator before it continues.
func (r Rollout) Waits() bool {
	switch r.State {
	case RolloutPaused, RolloutAborted, JobFailed, JobLost:
		return true
	case RolloutAdvancing:
		if r.Wait == nil {
			return false
		}
		switch r.Wait.Code {
		case rollout.WaitApproval, rollout.WaitLost:
			return true
		case rollout.WaitHeld, rollout.WaitPlace: // nothing else is in progress, or what is needs an operator as well
			return len(r.Wait.Overdue) > 0
		}
	}
	return false
}

// What is what the rollout brings to its nodes: a target, or a version of the agent.
func (r Rollout) What() string { return model.What(r.Target, r.Agent) }

// Name is what it is, with its ID.
func (r Rollout) Name() string {
	if r.Kind == rollout.Run {
		return r.Noun() + " " + r.ID
	}
	return "rollout " + r.ID + " of " + r.What()
}

// Sentence is the rollout in one line.
func (r Rollout) Sentence() string {
	text := fmt.Sprintf("%s: %s; %d of %d nodes done, %d failed, %d skipped", r.Name(), r.State, r.Done, r.Nodes, r.Failed, r.Skipped)
	if r.Wait != nil {
		text += "; " + r.Wait.Sentence()
	}
	return text
}

// Since lists what happened to nodes since an earlier look: those that ended, then the others, in the order of their names.
func (r Rollout) Since(before Rollout) (lines []string) {
	for _, node := range slices.SortedFunc(maps.Keys(r.took), fleet.CompareNatural) {
		if r.took[node] && before.ID != "" && !before.took[node] {
			lines = append(lines, node+": done")
		}
	}
	for i, g := range r.Groups {
		if !g.To.IsZero() && (i >= len(before.Groups) || before.Groups[i].To.IsZero()) {
			lines = append(lines, fmt.Sprintf("group %s: took %s", g.Name, g.To.Sub(g.From)))
		}
	}
	was := map[string]RolloutNode{}
	for _, m := range before.Members {
		was[m.Node] = m
	}
	for _, m := range r.Members {
		if was[m.Node].State == m.State {
			continue
		}
		words := m.Words()
		switch m.State {
		case RolloutNodeState(rollout.Ordered):
			words = "may take the target"
			if r.Kind == rollout.Run {
				words = "may run"
			}
		case RolloutNodeState(rollout.Healthy):
			words = "took the target, and settles"
		case RolloutNodeState(rollout.Lost):
			words = "began, and did not answer before its deadline"
		case RolloutNodeState(rollout.Withdrawing):
			words = "its order is being withdrawn"
		case NodeFailed:
			words = "failed: " + words
		case NodeAgain:
			words = "waits to be ordered again"
		case NodeSkipped:
			words = "skipped: " + words
		}
		lines = append(lines, m.Node+": "+words)
	}
	return lines
}

// WaysOut lists what an operator can do about a rollout that does not continue by itself.
func (r Rollout) WaysOut(ref model.Ref) (ways []string) {
	if r.Kind == rollout.Run {
		if r.Policy != nil && r.Policy.KeepWaiting > 0 && r.Failed > 0 && r.State != RolloutAdvancing {
			ways = append(ways, fmt.Sprintf("to end the hold of a failed node first: `pulley unhold --node NODE -e %s`", ref))
		}
		if r.State == JobFailed || r.State == JobAborted || r.State == JobLost {
			ways = append(ways, fmt.Sprintf("to run the nodes that failed or never ran: `pulley job retry %s -e %s`", r.ID, ref))
		}
		return ways
	}
	closed := r.State == RolloutPaused || r.State == RolloutAborted
	if closed && r.Wait != nil && r.Wait.Stop != nil && r.Wait.Stop.Code == rollout.StopRestored {
		return []string{fmt.Sprintf("to end it, and continue above all epochs that nodes have seen: `pulley recover -e %s`", ref)}
	}
	if closed && r.Failed > 0 {
		ways = append(ways, fmt.Sprintf("to order the failed nodes again: `pulley rollout retry -e %s`", ref))
	}
	if r.State == RolloutAborted && r.Failed == 0 {
		ways = append(ways, fmt.Sprintf("to continue after all: `pulley rollout retry -e %s`", ref))
	}
	if r.State == RolloutPaused {
		way, before := "to continue", ""
		if r.Failed > 0 {
			way += ", and accept the failures so far"
		}
		if r.Wait != nil && r.Wait.Stop != nil {
			switch stop := r.Wait.Stop; stop.Code {
			case rollout.StopServer:
				before = "restore the Puppet server (`pulley puppetserver check FILE` names what it lacks), then "
			case rollout.StopPlace:
				before = fmt.Sprintf("repair or remove the unavailable nodes (`pulley status -e %[1]s`), or leave %[2]s out (`pulley rollout skip %[2]s -e %[1]s`), then ", ref, stop.Node)
			}
		}
		ways = append(ways, fmt.Sprintf("%s: %s`pulley rollout resume -e %s`", way, before, ref))
	}
	switch {
	case closed:
		ways = append(ways, fmt.Sprintf("to take it back: `pulley rollout revert -e %s`", ref))
		if r.Target.Release != "" {
			ways = append(ways, fmt.Sprintf("to set another release instead: `pulley promote VERSION -e %s%s --abort-campaign`", ref, promotion.Flags(promotion.Scope{Role: r.Role})))
		}
	case r.Wait == nil:
	case r.Wait.Code == rollout.WaitAnswers && slices.ContainsFunc(r.Wait.Blocking(), func(gate string) bool { return r.Wait.Answers[gate].Code == rollout.GateUndefined }):
		ways = append(ways, "to define it: a file of `pulley serve --gates`, on the machine of each serve")
	case r.Wait.Code == rollout.WaitNodes:
		ways = append(ways, fmt.Sprintf("where a node takes too long: `pulley explain NODE -e %[1]s` shows what the node waits for, and `pulley rollout skip NODE -e %[1]s` leaves the node out", ref))
	case r.Wait.Code == rollout.WaitApproval:
		ways = append(ways, fmt.Sprintf("to continue: `pulley rollout approve -e %s`", ref))
	case r.Wait.Code == rollout.WaitPlace && len(r.Wait.Overdue) > 0:
		ways = append(ways, fmt.Sprintf("to leave the node out: `pulley rollout skip %s -e %s`; or repair or remove the unavailable ones: `pulley status -e %s`", r.Wait.Node, ref, ref))
	case r.Wait.Code == rollout.WaitLost, r.Wait.Code == rollout.WaitHeld && len(r.Wait.Overdue) > 0:
		ways = append(ways, fmt.Sprintf("to give a node up: `pulley rollout skip NODE -e %s`", ref))
	}
	return ways
}

// Words is the cause for which a node failed, was left out, or may keep the rollout waiting.
func (n RolloutNode) Words() string {
	switch n.State {
	case RolloutNodeState(rollout.Ordered):
		if !n.Quiet {
			return ""
		}
		if n.Heard.IsZero() {
			return "it has reported nothing"
		}
		return "no report since its order; the last one was at " + n.Heard.UTC().Format(time.RFC3339)
	case NodeSkipped:
		return n.Skip.Words()
	case NodeAgain:
		return "it failed, and waits to be ordered again"
	}
	if n.Cause != "" {
		return n.Code.Words() + ": " + string(n.Cause)
	}
	words := n.Code.Words()
	if n.Problem.Code != "" {
		if n.Code == rollout.NodeRefused {
			words = "it refused the agent"
		}
		words += ": " + n.Problem.String()
	}
	if n.Refusal != nil {
		words += ": " + n.Refusal.Error()
	}
	return words
}

// rank orders nodes in progress first, then failed ones, then those that are ordered again, then skipped ones.
func rank(s RolloutNodeState) int {
	switch s {
	case NodeFailed:
		return 1
	case NodeAgain:
		return 2
	case NodeSkipped:
		return 3
	}
	return 0
}
