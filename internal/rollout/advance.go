package rollout

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"pulley/agent"
)

// Observed is the state of an environment in etcd, as far as Needs names it.
type Observed struct {
	Gate  agent.Gate
	Nodes map[string]Node // by name; a node that is absent here was not read
	Hosts []Candidate     // all registered nodes of the scope, if Needs.Hosts

	Answers map[string]Answer // of gates, since State.Asked; a gate that is absent here did not answer yet
}

// Node is what etcd has of one node.
type Node struct {
	Host       *agent.Host // nil: not registered
	Status     *agent.Status
	Assigned   *agent.Assignment
	View       agent.View   // with the assignment
	Wanted     agent.Target // if this campaign assigns it
	StatusAt   int64        // revisions; 0: absent
	HostAt     int64
	AssignedAt int64
}

// Needs names what Advance will look at.
type Needs struct {
	Nodes []string // in order
	Hosts bool     // the host list
	Gates []string // to ask now
}

// Step is the next step of a campaign. If State is not nil, the step writes the state and nothing else: a controller must
// read it back before it orders a node. A state that is Completed or Reverted ends the campaign in the same transaction.
type Step struct {
	State    *State
	Close    *Stop // with State: pause the gate, for this cause
	Assign   []Assign
	Withdraw []string
	Wait     Wait
}

// Assign is an assignment to write for a node whose host entry is unchanged.
type Assign struct {
	Node       string
	Assignment agent.Assignment
}

// Start returns the first state of a campaign.
func Start(now time.Time) State { return State{Phase: Advancing, Moved: now.UTC()} }

// NeedsOf names what Advance looks at: the nodes in progress and the rest of the batch, or everybody if a limit of
// attributes counts nodes outside of the batch.
func NeedsOf(p Plan, s State) Needs {
	if s.Phase != Advancing {
		return Needs{}
	}
	need := map[string]bool{}
	for name := range s.Slots {
		need[name] = true
	}
	for _, name := range s.Again {
		need[name] = true
	}
	g, ok := s.Current(p)
	from := s.Next
	if ok && s.Next >= len(g.Nodes) {
		g, ok = s.InOrder(p, s.Group+1)
		from = 0
	}
	if ok {
		_, to := g.batch(from / max(g.Batch, 1))
		for _, m := range g.Nodes[from:min(to, len(g.Nodes))] {
			need[m.Node] = true
		}
	}
	if len(p.Policy.Limits()) > 0 {
		for m := range placed(p, s) {
			need[m.Node] = true
		}
	}
	names := make([]string, 0, len(need))
	for name := range need {
		names = append(names, name)
	}
	slices.Sort(names)
	needs := Needs{Nodes: names, Hosts: s.Late == nil && s.Group >= len(p.Groups)}
	if !s.Asked.IsZero() {
		needs.Gates = p.Policy.Gates
	}
	return needs
}

// placed yields the nodes that limits of places count: those of all groups, and those outside of them.
func placed(p Plan, s State) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for i := range len(p.Groups) + 1 {
			g, _ := s.InOrder(p, i)
			for _, m := range g.Nodes {
				if !yield(m) {
					return
				}
			}
		}
		for _, m := range p.Outside {
			if !yield(m) {
				return
			}
		}
	}
}

// Advance decides on the next step of a campaign. It is a pure function of the plan, the state, what was observed after
// the state was read, and the time of serve.
func Advance(p Plan, s State, o Observed, now time.Time) Step {
	if s.Phase != Advancing {
		return Step{}
	}
	a := &advance{p: p, s: s.clone(), o: o, now: now.UTC().Truncate(time.Second)}
	if o.Gate.Rollout != p.ID || o.Gate.Epoch != p.Epoch {
		a.s.Phase, a.s.Ended, a.s.Slots = Replaced, a.now, nil
		return Step{State: &a.s}
	}
	a.clocks()
	for _, node := range a.s.slots() {
		a.judge(node)
	}
	if a.open() {
		a.limits()
		if a.stop == nil {
			a.fill()
		}
	}
	if a.changed {
		return Step{State: &a.s, Close: a.stop}
	}
	return Step{Assign: a.assign(), Withdraw: a.withdraw(), Wait: a.waits()}
}

type advance struct {
	p       Plan
	s       State
	o       Observed
	now     time.Time
	changed bool
	stop    *Stop
	wait    Wait
	away    map[string]int // unavailable nodes by place; nil: not counted yet
}

func (a *advance) open() bool { return a.o.Gate.State == agent.GateOpen || a.o.Gate.State == "" }

// clocks stops deadlines while the gate is closed, and corrects instants that are in the future after the clock was set back.
func (a *advance) clocks() {
	for _, t := range []*time.Time{&a.s.Moved, &a.s.Closed} {
		if t.After(a.now) {
			*t, a.changed = a.now, true
		}
	}
	shift := time.Duration(0)
	switch {
	case a.open() && !a.s.Closed.IsZero():
		shift, a.s.Closed, a.s.Stop, a.changed = a.now.Sub(a.s.Closed), time.Time{}, nil, true
		a.s.Moved = a.s.Moved.Add(shift)
	case !a.open() && a.s.Closed.IsZero():
		a.s.Closed, a.changed = a.now, true
	}
	for node, slot := range a.s.Slots {
		at, since := slot.At.Add(shift), slot.Since
		if at.After(a.now) {
			at, a.changed = a.now, true
		}
		if since.After(a.now) {
			since, a.changed = a.now, true
		}
		slot.At, slot.Since = at, since
		a.s.Slots[node] = slot
	}
}

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
	f.Problem.Text = "" // the run record has it
	a.s.Failed[node], a.changed = f, true
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
	switch v := verdict(n, slot, a.p.Policy.Retries); v.answer {
	case succeeded:
		a.healthy(node, slot, n)
	case failed:
		a.fail(node, v.failure)
		a.ended(node)
	case refusedTarget:
		a.put(node, withdrawn(slot, NodeRefused, ""))
	case doubtful:
		if slot.Doubtful != n.Status.LastRun {
			slot.Doubtful = n.Status.LastRun
			a.put(node, slot)
			a.halt(Stop{Code: StopDoubtful, Node: node, Run: n.Status.LastRun})
		}
	default:
		a.late(node, slot, n)
	}
}

// judgeWithdrawing frees the slot once the assignment is deleted. A node that began first keeps it.
func (a *advance) judgeWithdrawing(node string, slot Slot, n Node) {
	switch {
	case n.Assigned == nil || n.Assigned.ID != slot.ID:
		if slot.Why != "" {
			a.fail(node, Failure{Code: slot.Why})
		} else {
			a.s.Skipped[node] = slot.Skip
		}
		a.ended(node)
	case slot.GivenUp:
	case running(n):
		slot.State = Lost
		a.fail(node, Failure{Code: NodeLost})
		a.put(node, slot)
	case verdict(n, slot, a.p.Policy.Retries).answer != silent:
		slot.State, slot.Why, slot.Skip = Ordered, "", "" // it answered meanwhile
		if v := verdict(n, slot, a.p.Policy.Retries).answer; v == succeeded || v == failed {
			a.put(node, slot)
		}
	}
}

func withdrawn(s Slot, why FailureCode, skip SkipCode) Slot {
	s.State, s.Why, s.Skip, s.Since = Withdrawing, why, skip, time.Time{}
	return s
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
	if !a.open() || slot.State != Ordered || a.now.Sub(slot.At) < time.Duration(a.p.Policy.Deadline) {
		return
	}
	switch {
	case held(n):
		return // an operator ends it
	case running(n):
		slot.State = Lost
		a.fail(node, Failure{Code: NodeLost, Run: n.Status.LastRun})
		a.put(node, slot)
	default:
		a.put(node, withdrawn(slot, DeadlineEnded, ""))
	}
}

// halt pauses the campaign. The first cause counts.
func (a *advance) halt(s Stop) {
	if a.stop == nil && a.open() {
		s.At = a.now
		a.stop, a.s.Stop, a.s.Closed, a.changed = &s, &s, a.now, true
	}
}

// tooMany pauses or reverts a campaign with too many failures.
func (a *advance) tooMany(s Stop) {
	a.halt(s)
	if a.stop != nil && a.stop.Code == s.Code && a.p.Policy.OnFailure == FailureReverts {
		a.s = a.s.Revert(a.now)
	}
}

// limits pauses a campaign with too many failures, or without progress.
func (a *advance) limits() {
	total := 0
	for _, f := range a.s.Failed {
		if !f.Accepted {
			total++
		}
	}
	if most := a.p.Policy.Failures.Of(a.p.Nodes(), 0); total > most {
		a.tooMany(Stop{Code: StopFailures, Failed: total, Allowed: most})
		return
	}
	if g, ok := a.s.Current(a.p); ok {
		from, to := g.batch(a.s.Batch)
		count := 0
		for _, m := range g.Nodes[from:to] {
			if f, failed := a.s.Failed[m.Node]; failed && !f.Accepted {
				count++
			}
		}
		if count > g.Failures {
			a.tooMany(Stop{Code: StopBatch, Failed: count, Allowed: g.Failures})
			return
		}
	}
	if limit := time.Duration(a.p.Policy.Progress); limit > 0 && len(a.s.Slots) > 0 && a.now.Sub(a.s.Moved) >= limit && !a.onlyHeld() {
		a.s.Moved = a.now // the next pause is a whole deadline later
		a.halt(Stop{Code: StopProgress})
	}
}

// onlyHeld reports whether an operator's hold explains every wait.
func (a *advance) onlyHeld() bool {
	for node := range a.s.Slots {
		if n, read := a.o.Nodes[node]; !read || !held(n) {
			return false
		}
	}
	return true
}

// fill begins the next nodes of the batch, the next batch or the next group, as far as slots are free.
func (a *advance) fill() {
	if !a.again() {
		return
	}
	for {
		g, ok := a.s.Current(a.p)
		if !ok {
			if !a.later() {
				return
			}
			continue
		}
		_, to := g.batch(a.s.Batch)
		if !a.begin(g, to) {
			return
		}
		switch ended := a.s.Next >= len(g.Nodes); {
		case ended && len(a.s.Slots) > 0: // groups never overlap
			a.wait = a.waitForNodes()
			return
		case !ended && a.busy():
			a.wait = a.waitForNodes()
			return
		case ended && g.Kind == Canaries && a.p.Policy.Promote == Manual && !a.s.Approved:
			a.wait = Wait{Code: WaitApproval}
			return
		case !a.passed(g):
			return
		case ended:
			a.s.Group, a.s.Batch, a.s.Next, a.changed = a.s.Group+1, 0, 0, true
		default:
			a.s.Batch, a.changed = a.s.Batch+1, true
		}
	}
}

// again begins the nodes that an operator ordered again, group by group, each in its batches. It reports whether all of them
// ended. They never run beside others: groups never overlap.
func (a *advance) again() bool {
	busy, in := len(a.s.Slots), -1 // the group of the nodes in progress
	for node, slot := range a.s.Slots {
		if slot.Again {
			_, in = a.member(node)
			busy--
		}
	}
	switch {
	case in < 0 && len(a.s.Again) == 0:
		return true
	case busy > 0:
		a.wait = a.waitForNodes()
		return false
	case len(a.s.Again) > 0 && a.closed():
		return false
	}
	for len(a.s.Again) > 0 {
		node := a.s.Again[0]
		n, read := a.o.Nodes[node]
		m, group := a.member(node)
		g, _ := a.s.InOrder(a.p, group)
		switch {
		case len(a.s.Slots) > 0 && (group != in || len(a.s.Slots) >= g.Batch):
			a.wait = a.waitForNodes()
			return false
		case !read:
			a.wait = Wait{Code: WaitRead}
			return false
		case n.Host == nil || n.Host.MachineID != m.Machine:
			a.s.Skipped[node] = SkipRemoved
		default:
			if place, full := a.full(m); full {
				a.wait = Wait{Code: WaitPlace, Node: node, Place: place}
				return false
			}
			a.order(m, true)
			in = group
		}
		a.s.Again, a.changed = slices.Clone(a.s.Again[1:]), true
	}
	if len(a.s.Slots) == 0 {
		return true
	}
	a.wait = a.waitForNodes()
	return false
}

// closed reports whether no window of the policy is open.
func (a *advance) closed() bool {
	opens := a.p.Policy.opens(a.now)
	if opens.Equal(a.now) {
		return false
	}
	a.wait = Wait{Code: WaitWindow, Until: opens}
	return true
}

// member returns a node of the campaign, and the index of its group; -1 if it has none.
func (a *advance) member(node string) (Member, int) {
	for i := range len(a.p.Groups) + 1 {
		g, _ := a.s.InOrder(a.p, i)
		for _, m := range g.Nodes {
			if m.Node == node {
				return m, i
			}
		}
	}
	return Member{}, -1
}

// order gives a node a slot.
func (a *advance) order(m Member, again bool) {
	if len(a.s.Slots) == 0 {
		a.s.Moved = a.now // what it waited for before is no lack of progress
	}
	a.s.Tries[m.Node]++
	a.put(m.Node, Slot{ID: fmt.Sprintf("%s.%d", a.p.ID, a.s.Tries[m.Node]), State: Ordered, Machine: m.Machine, At: a.now, Again: again})
}

// busy reports whether a node of the batch may still end by itself. Lost ones of earlier batches keep their slots.
func (a *advance) busy() bool {
	for _, s := range a.s.Slots {
		if s.State != Lost {
			return true
		}
	}
	return false
}

// later adds the nodes that were registered during the campaign as its last group, once. Then it completes the campaign.
func (a *advance) later() bool {
	if a.s.Late != nil {
		a.s.Phase, a.s.Ended, a.changed = Completed, a.now, true
		return false
	}
	if a.o.Hosts == nil { // the next step reads them
		return false
	}
	planned := map[string]string{}
	for _, g := range a.p.Groups {
		for _, m := range g.Nodes {
			planned[m.Node] = m.Machine
		}
	}
	var members []Member
	for _, c := range natural(a.o.Hosts) {
		if machine, was := planned[c.Node]; !c.Excluded && (a.p.Role == "" || c.Role == a.p.Role) && (!was || machine != c.Machine) {
			members = append(members, Member{Node: c.Node, Machine: c.Machine, Places: c.Places})
		}
	}
	apart(a.p.Policy, members)
	batch := a.p.Policy.Batch.Of(a.p.Nodes()+len(members), 1)
	a.s.Late = &LateGroup{group(Late, "", nil, batch, allowed(a.p.Policy.BatchFailures, batch)), members}
	a.s.Late.Size, a.changed = len(members), true
	return false // write it before its nodes begin
}

// begin orders the nodes of the batch up to index to. It reports whether all of them began, or were left out.
func (a *advance) begin(g Group, to int) bool {
	if a.s.Next < to && a.closed() {
		return false
	}
	for a.s.Next < to {
		m := g.Nodes[a.s.Next]
		n, read := a.o.Nodes[m.Node]
		if !read {
			a.wait = Wait{Code: WaitRead}
			return false
		}
		unready := notReady(n)
		switch {
		case n.Host == nil || n.Host.MachineID != m.Machine:
			a.s.Skipped[m.Node] = SkipRemoved
		case unready && a.p.Policy.Unready == UnreadySkip && a.mayskip():
			a.s.Skipped[m.Node] = SkipNotReady
		case unready && a.p.Policy.Unready != UnreadyWait:
			a.fail(m.Node, Failure{Code: NotReady})
			a.s.Next++
			a.limits()
			if a.stop != nil {
				return false
			}
			continue
		case len(a.s.Slots) >= g.Batch:
			a.wait = a.waitForNodes()
			return false
		default:
			if place, full := a.full(m); full {
				a.wait = Wait{Code: WaitPlace, Node: m.Node, Place: place}
				return false
			}
			a.order(m, false)
		}
		a.s.Next++
		a.changed = true
	}
	return true
}

// mayskip reports whether the policy lets the campaign leave out one more node.
func (a *advance) mayskip() bool {
	skipped := 0
	for _, code := range a.s.Skipped {
		if code == SkipNotReady {
			skipped++
		}
	}
	return skipped < allowed(a.p.Policy.Skip, a.p.Nodes())
}

// full returns a place of the member in which no further node may be unavailable.
func (a *advance) full(m Member) (string, bool) {
	if len(m.Places) == 0 {
		return "", false
	}
	if a.away == nil {
		a.away = a.unavailable()
	}
	itself := 0
	if a.counts(m.Node) {
		itself = 1
	}
	for _, place := range m.Places {
		attribute := attributeOf(place)
		if most, limited := a.p.Policy.MaxUnavailable[attribute]; limited && a.away[place]-itself >= most {
			return place, true
		}
		if most, limited := a.p.Policy.MaxPlaces[attribute]; limited {
			if others := a.placesOf(attribute, place); len(others) >= most {
				return others[0], true
			}
		}
	}
	for _, place := range m.Places {
		a.away[place] += 1 - itself
	}
	return "", false
}

// placesOf returns the values of an attribute, besides one, that have unavailable nodes, in order.
func (a *advance) placesOf(attribute, but string) (places []string) {
	for place, n := range a.away {
		if n > 0 && place != but && attributeOf(place) == attribute {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	return places
}

// counts reports whether a node counts as unavailable for its places: in progress, failed and not converged since, or unavailable
// for another cause.
func (a *advance) counts(node string) bool {
	n := a.o.Nodes[node]
	_, slot := a.s.Slots[node]
	_, failed := a.s.Failed[node]
	return slot || failed && n.View.State != agent.Converged || unavailable(n)
}

// unavailable counts the unavailable nodes of each place.
func (a *advance) unavailable() map[string]int {
	count := map[string]int{}
	for m := range placed(a.p, a.s) {
		if !a.counts(m.Node) {
			continue
		}
		for _, place := range m.Places {
			count[place]++
		}
	}
	return count
}

// assign returns the assignments of the state that etcd lacks, while the gate is open.
func (a *advance) assign() (all []Assign) {
	if !a.open() {
		return nil
	}
	for _, node := range a.s.slots() {
		slot := a.s.Slots[node]
		n, read := a.o.Nodes[node]
		if slot.State != Ordered || !read || n.Assigned != nil && n.Assigned.ID == slot.ID && n.Assigned.Epoch == a.p.Epoch {
			continue
		}
		all = append(all, Assign{node, agent.Assignment{ID: slot.ID, Machine: slot.Machine, Target: a.p.Target, Rollout: a.p.ID, Epoch: a.p.Epoch}})
	}
	return all
}

// withdraw returns the nodes whose assignment must be deleted. The deletion compares their status.
func (a *advance) withdraw() (all []string) {
	for _, node := range a.s.slots() {
		if n, read := a.o.Nodes[node]; read && a.s.Slots[node].State == Withdrawing && (a.s.Slots[node].GivenUp || !running(n)) {
			all = append(all, node)
		}
	}
	return all
}
