package sim

import (
	"fmt"
	"slices"
	"time"

	"pulley/agent"
	"pulley/internal/rollout"
)

// mood is how a node behaves.
type mood string

const (
	honest   mood = "honest"
	slow     mood = "slow"    // its runs take hours
	liar     mood = "liar"    // it reports success at once
	stubborn mood = "running" // it reports a run forever
)

// node is one machine with a real decision and an imitated Puppet.
type node struct {
	w       *world
	name    string
	machine string
	rack    string
	mood    mood
	broken  bool // the target fails here
	skew    time.Duration

	state   agent.State
	running string        // id of the assignment whose target it takes now
	first   bool          // the first run at that target
	down    time.Duration // until
	cut     time.Duration // without etcd until
	heard   time.Duration // its last read
	gone    bool          // replaced by another machine
}

func (n *node) honest() bool { return n.mood == honest || n.mood == slow }

func (n *node) alive(w *world) bool { return !n.gone && n.down <= w.now && n.cut <= w.now }

// join registers a new machine under a name.
func (w *world) join(name, role string) {
	if old := w.nodes[name]; old != nil {
		old.gone = true
	} else {
		w.names = append(w.names, name)
	}
	n := &node{w: w, name: name, machine: fmt.Sprintf("m%d", w.bump()), rack: fmt.Sprintf("rack=r%d", len(w.names)%3), mood: honest}
	switch x := w.rng.Float64(); {
	case x < 0.02*min(w.Chaos*10, 1):
		n.mood = slow
	case x < 0.03*min(w.Chaos*10, 1):
		n.mood = liar
	case x < 0.04*min(w.Chaos*10, 1):
		n.mood = stubborn
	}
	n.broken = w.chance(w.Broken)
	if w.chance(w.Chaos) {
		n.skew = w.between(-48*time.Hour, 48*time.Hour)
	}
	w.nodes[name] = n
	w.hosts[name] = cell[agent.Host]{agent.Host{Node: name, Role: role, MachineID: n.machine, At: w.time()}, w.bump()}
	if w.plan.ID == "" { // it has the origin already
		n.state.LastGood, n.state.Enforcing, n.state.RanAt = before, before, n.clock()
		w.statuses[name] = cell[agent.Status]{n.status(agent.Desired{Default: before}, agent.Idle), w.bump()}
	}
	w.after(w.between(0, time.Minute), n.tick)
}

func (n *node) clock() time.Time { return n.w.time().Add(n.skew) }

// tick is one tick of the agent: read, decide, and maybe begin a run.
func (n *node) tick() {
	w := n.w
	if n.gone {
		return
	}
	again := w.between(50*time.Second, 70*time.Second)
	if w.now < w.Until && w.chance(w.Chaos/60) {
		n.fault()
	}
	switch {
	case n.down > w.now:
		w.after(n.down-w.now, n.tick)
		return
	case n.cut > w.now:
		w.after(again, n.tick)
		return
	}
	d := w.read(n.name)
	n.heard = w.now
	if n.mood == liar || n.mood == stubborn {
		n.lie(d)
		w.after(again, n.tick)
		return
	}
	if d.Assigned != nil {
		n.state.Epoch = max(n.state.Epoch, d.Gate.Epoch)
	}
	dec := agent.Decide(agent.Observed{
		Identity: agent.Identity{Node: n.name}, State: n.state, Settings: agent.DefaultSettings(), Machine: n.machine,
	}, d, n.clock())
	if dec.Action != agent.Take && dec.Action != agent.Enforce {
		n.report(d, agent.Idle)
		w.after(again, n.tick)
		return
	}
	w.after(w.between(0, 20*time.Second), func() { n.admit(d, dec) }) // staging
}

// admit begins a run if nothing changed since the read.
func (n *node) admit(d agent.Desired, dec agent.Decision) {
	w := n.w
	if n.gone || n.down > w.now || n.cut > w.now || !w.unchanged(n.name, d) {
		w.after(w.between(time.Second, time.Minute), n.tick)
		return
	}
	n.begin(dec.Target)
	st := n.status(d, agent.Running)
	w.statuses[n.name] = cell[agent.Status]{st, w.bump()}
	if a := d.Assignment(); dec.Action == agent.Take && a != nil && dec.Target == d.Wanted() {
		n.running, n.first = a.ID, n.state.Attempts[0].Started == 1
		w.result.Admissions++
		w.checkAdmission(n, *a)
	}
	took := w.between(10*time.Second, 3*time.Minute)
	if n.mood == slow {
		took = w.between(10*time.Minute, 4*time.Hour)
	}
	w.after(took, func() { n.end(d, dec.Target) })
}

// end ends a run. A machine that was switched off meanwhile repeats it.
func (n *node) end(d agent.Desired, t agent.Target) {
	w := n.w
	if n.gone {
		return
	}
	if n.down > w.now {
		n.running = ""
		w.after(n.down-w.now, n.tick)
		return
	}
	if t == after && n.broken || w.now < w.Until && w.chance(w.Broken/10) {
		n.fail()
	} else {
		n.succeed(t)
	}
	n.running = ""
	n.report(d, agent.Idle)
	w.after(w.between(50*time.Second, 70*time.Second), n.tick)
}

// begin, succeed and fail are those of agent.State.
func (n *node) begin(t agent.Target) {
	a := agent.Attempt{Target: t}
	kept := n.state.Attempts
	n.state.Attempts = nil
	for _, old := range kept {
		if old.Target == t {
			a = old
		} else {
			n.state.Attempts = append(n.state.Attempts, old)
		}
	}
	a.Started++
	a.Open, a.Last = true, n.clock()
	n.state.Attempts = append([]agent.Attempt{a}, n.state.Attempts...)
	n.state.Before, n.state.Enforcing, n.state.OpenRun = n.state.Enforcing, t, "run"
}

func (n *node) succeed(t agent.Target) {
	n.state.LastGood, n.state.Enforcing, n.state.RanAt, n.state.Outcome = t, t, n.clock(), agent.Changed
	n.state.Attempts = slices.DeleteFunc(slices.Clone(n.state.Attempts), func(a agent.Attempt) bool { return a.Target == t })
	n.state.OpenRun = ""
	n.state.LastRun = fmt.Sprint(n.w.rev)
}

func (n *node) fail() {
	a := &n.state.Attempts[0]
	a.Finished, a.Open, a.Last = a.Finished+1, false, n.clock()
	a.Problem = agent.Problem{Code: agent.ResourcesFailed}
	if n.w.chance(0.1) {
		a.Problem.Code = agent.EtcdLost
	}
	if n.w.chance(0.5) {
		n.state.Enforcing = n.state.Before // untouched
	}
	n.state.Outcome, n.state.OpenRun, n.state.LastRun = agent.Failed, "", fmt.Sprint(n.w.rev)
}

func (n *node) status(d agent.Desired, phase agent.Phase) agent.Status {
	st := agent.Status{
		Node: n.name, Phase: phase, Target: d.Wanted(), LastGood: n.state.LastGood, Enforcing: n.state.Enforcing, Outcome: n.state.Outcome,
		LastRun: n.state.LastRun, SeenAt: n.clock(), Settings: agent.DefaultSettings(), Machine: n.machine,
	}
	if a := d.Assignment(); a != nil {
		st.Assignment = a.ID
	}
	for _, a := range n.state.Attempts {
		if a.Target == st.Target || st.Attempt == nil && a.Target == st.Enforcing {
			st.Attempt = &a
		}
	}
	return st
}

func (n *node) report(d agent.Desired, phase agent.Phase) {
	w := n.w
	if n.cut > w.now || w.hosts[n.name].value.MachineID != n.machine && w.hosts[n.name].rev != 0 {
		return
	}
	w.statuses[n.name] = cell[agent.Status]{n.status(d, phase), w.bump()}
}

// lie reports what is not true.
func (n *node) lie(d agent.Desired) {
	st := n.status(d, agent.Idle)
	if n.mood == stubborn && d.Assignment() != nil {
		st.Phase = agent.Running
	} else {
		st.LastGood, st.Enforcing = st.Target, st.Target
	}
	if n.w.chance(0.1) {
		st.Assignment = "r6.1"
	}
	n.w.statuses[n.name] = cell[agent.Status]{st, n.w.bump()}
}

// fault lets something happen to a node.
func (n *node) fault() {
	w := n.w
	switch w.rng.IntN(5) {
	case 0:
		n.down = w.now + w.between(time.Minute, 3*time.Hour)
	case 1:
		n.cut = w.now + w.between(time.Minute, 3*time.Hour)
	case 2:
		n.skew = w.between(-48*time.Hour, 48*time.Hour)
	case 3: // power cut and back
		n.down = w.now + w.between(time.Second, time.Minute)
	case 4:
		if _, held := w.holds[n.name]; held {
			delete(w.holds, n.name)
		} else {
			w.holds[n.name] = cell[agent.Hold]{agent.Hold{Scope: "nodes/" + n.name, Mode: agent.Freeze}, w.bump()}
			w.after(w.between(time.Minute, 3*time.Hour), func() { delete(w.holds, n.name) })
		}
	}
}

// checkAdmission checks what must be true when a node begins to take the target of a campaign.
func (w *world) checkAdmission(n *node, a agent.Assignment) {
	g, s := w.gate.value, w.state.value
	switch {
	case g.State != agent.GateOpen:
		w.violate("%s began %s while the gate is %s", n.name, a.ID, g.State)
	case a.Epoch != g.Epoch:
		w.violate("%s began %s of epoch %d in epoch %d", n.name, a.ID, a.Epoch, g.Epoch)
	case a.Machine != n.machine:
		w.violate("%s began an assignment of another machine", n.name)
	case g.Epoch < w.highest && n.state.Epoch == w.highest:
		w.violate("%s began %s of epoch %d after it saw epoch %d", n.name, a.ID, g.Epoch, w.highest)
	}
	if _, ok := s.Slots[n.name]; !ok && n.first && w.backup == nil {
		w.violate("%s began %s without a slot", n.name, a.ID)
	}
	w.checkBudget(s)
}

// checkBudget counts the nodes that really take the target at this moment.
func (w *world) checkBudget(s rollout.State) {
	groups, count, places := map[int]int{}, 0, map[string]int{}
	for i, g := range append(w.plan.Groups, lateOf(s)) {
		for _, m := range g.Nodes {
			n := w.nodes[m.Node]
			if n.machine != m.Machine || n.gone || n.running == "" || !n.first || !n.honest() {
				continue
			}
			if _, skipped := s.Skipped[m.Node]; skipped {
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
	if most, limited := w.plan.Policy.MaxPlaces["rack"]; limited && len(places) > most {
		w.violate("nodes of %d racks run at the same time", len(places))
	}
	for place, n := range places {
		if most, limited := w.plan.Policy.MaxUnavailable["rack"]; limited && n > most {
			w.violate("%d nodes of %s run at the same time", n, place)
		}
	}
}

func lateOf(s rollout.State) rollout.Group {
	if s.Late == nil {
		return rollout.Group{}
	}
	g := s.Late.Group
	g.Nodes = s.Late.Members
	return g
}
