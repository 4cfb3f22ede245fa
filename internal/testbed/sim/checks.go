package sim

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

// checkAdmission checks what must be true when a node begins to take the target of a campaign.
func (w *world) checkAdmission(n *node, a model.Assignment) {
	g, s := w.gate.value, w.state.value
	switch {
	case g.State != model.GateOpen:
		w.violate("%s began %s while the gate is %s", n.name, a.ID, g.State)
	case a.Epoch != g.Epoch:
		w.violate("%s began %s of epoch %d in epoch %d", n.name, a.ID, a.Epoch, g.Epoch)
	case g.Rollout != w.plan.ID || s.Phase != rollout.Advancing:
		w.violate("%s began %s of a campaign that is %s", n.name, a.ID, s.Phase)
	case a.Machine != n.id:
		w.violate("%s began an assignment of another machine", n.name)
	case g.Epoch < w.highest && n.state.Epoch == w.highest:
		w.violate("%s began %s of epoch %d after it saw epoch %d", n.name, a.ID, g.Epoch, w.highest)
	}
	if _, ok := s.Slots[n.name]; !ok && !slices.Contains(n.ended, a.ID) && w.era == 0 {
		w.violate("%s began %s without a slot", n.name, a.ID)
	}
}

// checkBudget counts the nodes that really take the target at this moment. A node that answered, and tries again by itself, is
// none of them. The data of a backup do not show nodes that began after it.
func (w *world) checkBudget(s rollout.State) {
	groups, count, places := map[int]int{}, 0, map[string]int{}
	for i, g := range w.groups(s) {
		for _, m := range g.Nodes {
			n := w.nodes[m.Node]
			if n.id != m.Machine || n.gone || n.running == "" || slices.Contains(n.ended, n.running) || n.era != w.era || !n.honest() {
				continue
			}
			if _, skipped := s.Skipped[m.Node]; skipped || s.Slots[m.Node].GivenUp {
				continue // an operator gave it up
			}
			groups[i]++
			count++
			places[n.rack]++
		}
	}
	g, _ := s.Current(w.plan)
	for i := range groups { // the present one, or one whose nodes an operator ordered again
		g, _ = s.InOrder(w.plan, i)
	}
	if len(groups) > 1 {
		w.violate("groups overlap: %v", groups)
	}
	if count > max(g.Batch, 1) {
		w.violate("%d nodes of a batch of %d run at the same time", count, g.Batch)
	}
	w.checkPlaces(places, "run at the same time")
}

// checkPlaces checks the nodes of each rack, and the number of racks that have one.
func (w *world) checkPlaces(places map[string]int, what string) {
	if most, limited := w.plan.Policy.MaxPlaces["rack"]; limited && len(places) > most {
		w.violate("nodes of %d racks %s", len(places), what)
	}
	for place, n := range places {
		if most, limited := w.plan.Policy.MaxUnavailable["rack"]; limited && n > most {
			w.violate("%d nodes of %s %s", n, place, what)
		}
	}
}

// groups returns the groups of the campaign, with the late one.
func (w *world) groups(s rollout.State) []rollout.Group {
	all := slices.Clone(w.plan.Groups)
	if g, ok := s.InOrder(w.plan, len(all)); ok {
		all = append(all, g)
	}
	return all
}

// checkState checks the state itself.
func (w *world) checkState() {
	s := w.state.value
	g, ok := s.Current(w.plan)
	if !ok {
		if len(s.Slots) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(s.Slots)), func(slot rollout.Slot) bool { return slot.Again }) {
			w.violate("slots after the last group: %v", s.Slots)
		}
		return
	}
	again := slices.ContainsFunc(slices.Collect(maps.Values(s.Slots)), func(slot rollout.Slot) bool { return slot.Again })
	if len(s.Slots) > g.Batch && !again {
		w.violate("%d slots in a batch of %d", len(s.Slots), g.Batch)
	}
	in := map[string]bool{}
	for _, m := range g.Nodes {
		in[m.Node] = true
	}
	for node, slot := range s.Slots {
		if !in[node] && !slot.Again {
			w.violate("%s has a slot and is not in its group", node)
		}
	}
	if len(w.plan.Groups) > 0 && w.plan.Groups[0].Kind == rollout.Canaries && w.plan.Policy.Promote == rollout.Manual && s.Group > 0 && !s.Approved {
		w.violate("the groups after the canaries began, and nobody approved them")
	}
	if w.plan.Policy.Promote == rollout.Batches && s.Group+s.Batch > 0 && s.Next > s.Batch*g.Batch && !s.Approved {
		w.violate("a batch began, and nobody approved it")
	}
}

// position is the number of batches that ended.
func (w *world) position(s rollout.State) (n int) {
	for i, g := range w.groups(s) {
		if i < s.Group {
			n += g.Batches()
		}
	}
	return n + s.Batch
}

// checkMove checks a step of a controller, by its clock, before it is written.
func (w *world) checkMove(old, s rollout.State, o rollout.Observed, r revisions, now time.Time, closes bool) {
	freed := 0
	for node, slot := range old.Slots {
		if _, keeps := s.Slots[node]; keeps || s.Phase == rollout.Replaced || s.Phase == rollout.Reverted {
			continue
		}
		_, failed := s.Failed[node]
		_, skipped := s.Skipped[node]
		if _, before := old.Skipped[node]; failed || skipped && !before { // before: a former machine of this name
			continue
		}
		freed++
		n, settle := w.nodes[node], time.Duration(w.plan.Policy.Settle)-time.Second // instants are whole seconds
		switch {
		case !n.honest() || n.id != slot.Machine || w.era > 0:
		case n.took == 0:
			w.violate("%s counts as done, and never took the target", node)
		case !w.skewed && !slot.GivenUp && w.now-n.took < settle:
			w.violate("%s took the target %v ago, and settles for %v", node, w.now-n.took, settle)
		}
	}
	if s.Phase == rollout.Replaced || s.Phase == rollout.Reverted {
		return
	}
	if s.Done != old.Done+freed {
		w.violate("%d nodes are done after %d, and %d ended well", s.Done, old.Done, freed)
	}
	w.checkGates(old, s, o, now)
	w.checkLate(old, s)
	if !closes {
		w.checkOrders(old, s, o, r, now)
	}
}

// checkOrders checks the nodes that a step orders.
func (w *world) checkOrders(old, s rollout.State, o rollout.Observed, r revisions, now time.Time) {
	ordered := map[string]bool{}
	for node, slot := range s.Slots {
		ordered[node] = old.Slots[node].ID != slot.ID
		if !ordered[node] {
			continue
		}
		if o.Gate.State != model.GateOpen {
			w.violate("%s is ordered while the gate is %s", node, o.Gate.State)
		}
		if len(w.plan.Policy.Windows) > 0 && !opened(now) {
			w.violate("%s is ordered at %v, outside of the windows", node, now)
		}
		failed := 0
		for _, f := range s.Failed {
			if !f.Accepted {
				failed++
			}
		}
		total := 0
		for _, g := range w.groups(s) {
			total += len(g.Nodes)
		}
		if most := w.most(w.plan.Policy.Failures, s.Done+len(s.Failed), total); failed > most {
			w.violate("%s is ordered after %d failures, and %d are allowed", node, failed, most)
		}
		w.checkBatchFailures(s, node)
		if s.Slots[node].Again {
			continue
		}
		if s.Skipped[node] == rollout.SkipOperator {
			w.violate("%s is ordered, and an operator left it out", node)
		}
		if cause := rollout.CannotBegin(o.Nodes[node].View); cause != "" && w.plan.Policy.Treats(cause) != rollout.UnreadyWait {
			w.violate("%s is ordered while it is %s, and the policy does not wait for it", node, cause)
		}
	}
	w.checkSkips(old, s)
	w.checkAway(s, o, r, ordered)
}

// checkAway checks that no node begins while too many others of its rack are unavailable, or in too many racks. A node that is unavailable
// itself makes it no worse: only nodes in progress count then. What a node reported counts until it reports a run that succeeded.
func (w *world) checkAway(s rollout.State, o rollout.Observed, r revisions, ordered map[string]bool) {
	if len(w.plan.Policy.Limits()) == 0 {
		return
	}
	away, busy := map[string]int{}, map[string]int{}
	fresh, repaired := map[string]bool{}, map[string]bool{}
	members := slices.Clone(w.plan.Outside)
	for _, g := range w.groups(s) {
		members = append(members, g.Nodes...)
	}
	for _, m := range members {
		n := o.Nodes[m.Node]
		_, slot := s.Slots[m.Node]
		_, failed := s.Failed[m.Node]
		unwell := n.View.Reason != model.ReasonFrozen && slices.Contains([]model.NodeState{model.Silent, model.Held, model.Stuck, model.FailedState}, n.View.State) ||
			n.Host != nil && r.ill[m.Node] && w.era == 0 && n.View.State != model.Converged ||
			n.Host != nil && (n.Status == nil || n.Status.LastGood.IsZero()) || // it never served
			w.era > 0 && n.View.Failing // a backup has other reports than the nodes wrote since
		if n.Host != nil && n.Host.MachineID != m.Machine { // another machine has its name
			again := slices.ContainsFunc(s.Late, func(g rollout.LateGroup) bool {
				return slices.ContainsFunc(g.Members, func(other rollout.Member) bool { return other.Node == m.Node && other.Machine == n.Host.MachineID })
			})
			slot, failed, unwell = false, false, !again && n.View.State != model.Converged
		}
		unwell = unwell || failed && n.View.State != model.Converged
		for _, place := range m.Places {
			if slot {
				busy[place]++
			}
			if slot || unwell {
				away[place]++
			}
			fresh[place] = fresh[place] || slot && ordered[m.Node] && !unwell
			repaired[place] = repaired[place] || slot && ordered[m.Node] && unwell
		}
	}
	for what, places := range map[string]struct {
		count map[string]int
		begin map[string]bool
	}{"are unavailable at the same time": {away, fresh}, "are in progress at the same time": {busy, repaired}} {
		maps.DeleteFunc(places.count, func(place string, _ int) bool { return len(w.plan.Policy.MaxPlaces) == 0 && !places.begin[place] })
		if slices.Contains(slices.Collect(maps.Values(places.begin)), true) {
			w.checkPlaces(places.count, what)
		}
	}
}

// fresh is how old an answer of a gate may be when it decides, with a margin for whole seconds.
const fresh = rollout.AnswerAge + 2*time.Second

// checkGates checks that the gates passed a moment ago when the first node of a batch begins, and when the campaign completes.
func (w *world) checkGates(old, s rollout.State, o rollout.Observed, now time.Time) {
	if len(w.plan.Policy.Gates) == 0 {
		return
	}
	oldest := now
	for _, gate := range w.plan.Policy.Gates {
		a := o.Answers[gate]
		if a.Code != rollout.GatePassed {
			oldest = time.Time{}
		} else if a.At.Before(oldest) {
			oldest = a.At
		}
	}
	if !oldest.IsZero() {
		w.answered = oldest
	}
	begins := s.Phase == rollout.Completed
	at := w.position(s)
	for node, slot := range s.Slots { // a lost node of an earlier batch keeps its slot
		begins = begins || !slot.Again && at > w.begun && old.Slots[node].ID != slot.ID
	}
	if !begins {
		return
	}
	if age := now.Sub(w.answered); w.begun >= 0 && (age > fresh || w.answered.IsZero()) && !w.skewed {
		w.violate("batch %d begins, or the campaign completes, %v after the gates passed", at, age)
	}
	w.begun = max(w.begun, at)
}

// most is how many nodes may fail, computed apart from the engine.
func (w *world) most(share rollout.Share, ended, all int) int {
	digits, percent := strings.CutSuffix(string(share), "%")
	n, err := strconv.Atoi(digits)
	switch {
	case share == "":
		return all
	case err != nil || !percent:
		return n
	}
	return n * min(all, max(ended, w.plan.Policy.Sample)) / 100
}

// checkBatchFailures checks that no node begins after too many of a batch failed, also of an earlier one.
func (w *world) checkBatchFailures(s rollout.State, node string) {
	newest := map[string]int{} // groups by node: a late one may have a new machine of a known name
	for i, g := range s.Groups(w.plan) {
		for _, m := range g.Nodes {
			newest[m.Node] = i
		}
	}
	for i, g := range s.Groups(w.plan) {
		for from := 0; from < len(g.Nodes); from += g.Batch {
			failed, ended, size := 0, 0, min(g.Batch, len(g.Nodes)-from)
			for at := from; at < from+size && (i < s.Group || i == s.Group && at < s.Next); at++ {
				name := g.Nodes[at].Node
				f, fails := s.Failed[name]
				_, busy := s.Slots[name]
				_, skipped := s.Skipped[name]
				switch {
				case newest[name] != i:
					continue
				case fails && !f.Accepted:
					failed++
				}
				if fails || !busy && !skipped && !slices.Contains(s.Again, name) {
					ended++
				}
			}
			if most := w.most(g.Failures, ended, size); failed > most {
				w.violate("%s is ordered after %d failures of a batch, and %d are allowed", node, failed, most)
			}
		}
	}
}

// checkSkips checks that the policy lets the campaign leave out so many nodes.
func (w *world) checkSkips(old, s rollout.State) {
	skipped, fresh := 0, false
	for node, code := range s.Skipped {
		if code != rollout.SkipRemoved && code != rollout.SkipOperator {
			skipped, fresh = skipped+1, fresh || old.Skipped[node] != code
			if t := w.plan.Policy.Treats(rollout.UnreadyCause(code)); t != rollout.UnreadySkip {
				w.violate("%s was left out because it was %s, and the policy says %s", node, code, t)
			}
		}
	}
	total := 0
	for _, g := range w.groups(s) {
		total += len(g.Nodes)
	}
	if limit := w.plan.Policy.Skip; limit != "" && fresh && skipped > limit.Of(total, 0) {
		w.violate("%d nodes were left out, and the policy allows %s", skipped, limit)
	}
}

// checkLate checks the groups of nodes that were registered meanwhile: one for each role, in the order and with the limits of the plan.
func (w *world) checkLate(old, s rollout.State) {
	if old.Listed || !s.Listed {
		return
	}
	before, roles := -1, append(slices.Clone(w.plan.Roles), "app") // no role of the plan
	for _, g := range s.Late {
		at := slices.Index(roles, g.Role)
		if at <= before {
			w.violate("the late group of %s is not in order", g.Role)
		}
		before = at
		own, size := w.plan.Policy.Roles[g.Role], 0
		for _, h := range w.hosts {
			if h.value.Role == g.Role {
				size++
			}
		}
		if own.Batch == "" {
			own.Batch = w.plan.Policy.Batch
		}
		if own.BatchFailures == "" {
			own.BatchFailures = w.plan.Policy.BatchFailures
		}
		if g.Failures != own.BatchFailures || size >= g.Size && w.era == 0 && g.Batch > own.Batch.Of(size+w.Nodes/4, 1) { // some left meanwhile
			w.violate("the late group of %s has %d nodes at a time, and %s may fail", g.Role, g.Batch, g.Failures)
		}
		for _, m := range g.Members {
			if h, ok := w.hosts[m.Node]; ok && h.value.MachineID == m.Machine && h.value.Role != g.Role {
				w.violate("%s is in the late group of %s", m.Node, g.Role)
			}
		}
	}
}

// checkAssigned checks that no assignment outlives its slot: its node could begin at any time.
func (w *world) checkAssigned() {
	g, s := w.gate.value, w.state.value
	if w.era > 0 || g.Rollout != w.plan.ID {
		return
	}
	for node, a := range w.assigned {
		n := w.nodes[node]
		if _, slot := s.Slots[node]; a.value.Epoch == g.Epoch && !slot && n.honest() && n.id == a.value.Machine && n.state.LastGood != after && !slices.Contains(n.began, a.value.ID) {
			w.violate("%s never began %s, which outlived its slot", node, a.value.ID)
		}
	}
}

// The windows of the policies that have some, as text and as they are in the night of the simulation, in which Berlin sets its clock
// forward: 22:15 to 23:45 and 0:30 to 1:30, both in UTC.
var windows = []string{"sat 23:15-00:45 Europe/Berlin", "sun 01:30-03:30 Europe/Berlin"}

func opened(at time.Time) bool {
	hours := at.UTC().Format("02 15:04")
	return strings.Compare(hours, "28 22:15") >= 0 && hours < "28 23:45" || hours >= "29 00:30" && hours < "29 01:30"
}
