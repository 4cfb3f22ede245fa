package rollout

import (
	"encoding/json"
	"strconv"
	"time"

	"pulley/internal/clip"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// ended frees a node's slot.
func (a *advance) ended(node string) {
	delete(a.s.Slots, node)
	a.s.Moved, a.changed = a.now, true
}

func (a *advance) put(node string, s Slot) {
	a.s.Slots[node], a.changed = s, true
}

// fail counts a failure. A node that keeps its slot may run.
func (a *advance) fail(node string, f Failure) {
	a.s.Failed[node], a.changed = f, true
}

// The state is one value: it keeps so many bytes of texts and refusals of failures, and so many of one text.
const keptBytes, textBytes = 20 << 10, 200

// bounded limits the text and the refusal of a failure. The record of a run has its text; the node's status loses those of an agent and
// of a refused target with the order.
func (a *advance) bounded(f Failure) Failure {
	if a.p.Agent.Version == "" {
		f.Problem.Text = ""
	}
	f.Problem.Text = model.Prose(clip.Text(string(f.Problem.Text), textBytes))
	f.Refusal = f.Refusal.Clipped()
	size := bytesOf(f.Problem, f.Refusal)
	if size == 0 {
		return f
	}
	if a.texts == 0 {
		for _, other := range a.s.Failed {
			a.texts += bytesOf(other.Problem, other.Refusal)
		}
		for _, slot := range a.s.Slots {
			a.texts += bytesOf(slot.Problem, slot.Refusal)
		}
	}
	if a.texts+size > keptBytes {
		f.Problem.Text, f.Refusal = "", nil
		return f
	}
	a.texts += size
	return f
}

// bytesOf is the size of a text and a refusal in the state.
func bytesOf(p model.Problem, r *refusal.Error) int {
	if r == nil {
		return len(p.Text)
	}
	b, _ := json.Marshal(r) // texts by name: it can't fail
	return len(p.Text) + len(b)
}

// order gives a node a slot.
func (a *advance) order(m Member, again bool) {
	if len(a.s.Slots) == 0 {
		a.s.Moved = a.now // what it waited for before is no lack of progress
	}
	a.s.Tries[m.Node]++
	a.put(m.Node, Slot{ID: a.p.order(strconv.Itoa(a.s.Tries[m.Node])), State: Ordered, Machine: m.Machine, At: a.now, Again: again})
}

// position is a node of a campaign, with the index of its group and its index there.
type position struct {
	Member
	group, at int
}

// members returns the nodes of a campaign by their names. A late group may have a new machine of a name that the plan has, too: it is the
// one that counts.
func (s State) members(p Plan) map[string]position {
	all := make(map[string]position, s.Nodes(p))
	for i, g := range s.Groups(p) {
		for at, m := range g.Nodes {
			all[m.Node] = position{m, i, at}
		}
	}
	return all
}

// member returns a node of the campaign.
func (a *advance) member(node string) position {
	if a.members == nil {
		a.members = a.s.members(a.p)
	}
	if m, ok := a.members[node]; ok {
		return m
	}
	return position{group: -1}
}

// waitsAgain reports whether a node waited to be ordered again when the step began.
func (a *advance) waitsAgain(node string) bool {
	if a.queue == nil {
		a.queue = map[string]bool{}
		for _, name := range a.s.Again {
			a.queue[name] = true
		}
	}
	return a.queue[node]
}

// judge moves one slot by what its node reported.
func (a *advance) judge(node string) {
	slot := a.s.Slots[node]
	n, read := a.o.Nodes[node]
	switch {
	case !read:
		return
	case n.Host == nil || n.Host.MachineID != slot.Machine:
		delete(a.s.Failed, node)
		a.s.Skipped[node] = SkipRemoved
		a.ended(node)
		return
	case slot.State == Withdrawing:
		a.judgeWithdrawing(node, slot, n)
		return
	}
	if st := n.Status; st != nil && st.Reason == model.ReasonEpochPassed && st.Params.Epoch > a.p.Epoch {
		a.halt(Stop{Code: StopRestored, Node: node, Epoch: st.Params.Epoch})
		return
	}
	v := verdict(a.p, n, slot)
	if slot.State == Healthy && slot.GivenUp && v.answer != failed {
		a.s.Done++
		a.ended(node)
		return
	}
	switch v.answer {
	case succeeded:
		a.compare(node, slot, n)
		a.healthy(node, slot, n)
	case failed:
		a.fail(node, a.bounded(v.failure))
		a.ended(node)
	case refusedTarget:
		a.put(node, withdrawn(slot, a.bounded(v.failure), ""))
	case doubtful:
		stop := Stop{Code: StopDoubtful, Node: node, Run: n.Status.LastRun}
		seen := stop.Run
		switch v.failure.Problem.Code {
		case model.PuppetServerLost:
			stop.Code = StopServer
		case model.PuppetServerAway:
			stop.Code, stop.Run = StopServer, ""
			seen = "since " + n.Status.Params.At.Format(time.RFC3339)
		}
		switch late := a.now.Sub(slot.At) >= time.Duration(a.p.Policy.Deadline); {
		case slot.Doubtful != seen:
			slot.Doubtful = seen
			a.put(node, slot)
			a.halt(stop)
		case late && stop.Run == "" && slot.State == Ordered: // it is no failure
			a.halt(stop)
		}
	case working:
		a.late(node, slot, n)
	default:
		if a.stopped() && slot.State == Ordered && !a.taking(n) {
			a.put(node, withdrawn(slot, Failure{}, SkipStopped))
			return
		}
		a.late(node, slot, n)
	}
}

// judgeWithdrawing frees the slot once the assignment is deleted. A node that began first keeps it.
func (a *advance) judgeWithdrawing(node string, slot Slot, n Node) {
	switch {
	case n.Assigned == nil || n.Assigned.ID != slot.ID:
		if slot.Why != "" {
			a.fail(node, Failure{Code: slot.Why, Problem: slot.Problem, Refusal: slot.Refusal})
		} else {
			a.s.Skipped[node] = slot.Skip
		}
		a.ended(node)
	case slot.GivenUp:
	case a.taking(n) && slot.Skip == SkipStopped: // the job waits for its end
		slot.State, slot.Skip = Ordered, ""
		a.put(node, slot)
	case a.taking(n):
		slot.State, slot.Why, slot.Problem, slot.Refusal = Lost, "", model.Problem{}, nil
		a.fail(node, Failure{Code: NodeLost})
		a.put(node, slot)
	default: // it may have answered meanwhile
		if v := verdict(a.p, n, slot).answer; v == succeeded || v == failed {
			slot.State, slot.Why, slot.Problem, slot.Refusal, slot.Skip = Ordered, "", model.Problem{}, nil, ""
			a.put(node, slot)
		}
	}
}

// withdrawn returns a slot whose assignment is to be deleted, and the failure or the skip that follows.
func withdrawn(s Slot, why Failure, skip SkipCode) Slot {
	s.State, s.Why, s.Problem, s.Refusal, s.Skip, s.Since = Withdrawing, why.Code, why.Problem, why.Refusal, skip, time.Time{}
	return s
}

// taking reports whether the node's last status is that of a run, which may be that of the campaign's target: the assignment must not
// be withdrawn then. The run of another target does not keep a node from returning to its agent.
func (a *advance) taking(n Node) bool {
	return a.p.Agent.Version == "" && n.Status != nil && n.Status.Phase == model.Running
}

// compare pauses when the Puppet server gives a node other code than the nodes before it. Who continues accepts that code.
func (a *advance) compare(node string, slot Slot, n Node) {
	served := n.Status.Served
	if slot.State == Healthy || served == nil || served.Code == "" || served.Code == a.s.Code {
		return
	}
	if a.s.Code != "" {
		a.halt(Stop{Code: StopOther, Node: node, Before: a.s.Code, After: served.Code})
	}
	a.s.Code, a.changed = served.Code, true
}

// healthy settles a node that succeeded. A lost node that succeeds is a failure no longer.
func (a *advance) healthy(node string, slot Slot, n Node) {
	settle := time.Duration(a.p.Policy.Settle)
	if slot.State != Healthy {
		delete(a.s.Failed, node)
		slot.State, slot.Since, slot.Status = Healthy, a.now, n.StatusAt
		a.put(node, slot)
	}
	if settle == 0 || a.now.Sub(slot.Since) >= settle && n.StatusAt > slot.Status {
		a.s.Done++
		a.ended(node)
	}
}

// late ends the wait for a node that does not answer.
func (a *advance) late(node string, slot Slot, n Node) {
	if !a.open() || slot.State != Ordered || a.outdated(slot, n) || a.now.Sub(slot.At) < time.Duration(a.p.Policy.Deadline) {
		return
	}
	switch {
	case isHeld(n) && a.p.Kind != Run:
		return // an operator ends it
	case a.kept(n): // all the others wait, and enforce nothing
		a.put(node, withdrawn(slot, Failure{Code: NotReady}, ""))
	case a.taking(n):
		slot.State = Lost
		a.fail(node, Failure{Code: NodeLost, Run: n.Status.LastRun})
		a.put(node, slot)
	default:
		a.put(node, withdrawn(slot, Failure{Code: DeadlineEnded}, ""))
	}
}
