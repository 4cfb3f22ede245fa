package sim

import (
	"fmt"
	"slices"
	"time"

	"pulley/internal/model"
)

// mood is how a node behaves.
type mood string

const (
	honest   mood = "honest"
	slow     mood = "slow"    // its runs take hours
	liar     mood = "liar"    // it reports success at once
	stubborn mood = "running" // it reports a run forever
)

// machine is a machine of the fleet, and what may happen to it.
type machine struct {
	name   string
	id     string // of the machine
	mood   mood
	broken bool // its runs, or its runs of the target, fail
	ill    bool // its runs of the release that was in place before the campaign fail
	skew   time.Duration
	down   time.Duration // until
	cut    time.Duration // without etcd until
	held   time.Duration // until
	gone   bool          // replaced by another machine
}

func (w *world) newMachine(name string) machine {
	m := machine{name: name, id: fmt.Sprintf("m%d", w.bump()), mood: honest}
	switch x := w.rng.Float64(); {
	case x < 0.02*min(w.Chaos*10, 1):
		m.mood = slow
	case x < 0.03*min(w.Chaos*10, 1):
		m.mood = liar
	case x < 0.04*min(w.Chaos*10, 1):
		m.mood = stubborn
	}
	m.broken = w.chance(w.Broken)
	if w.chance(w.Chaos) {
		m.skew = w.between(-48*time.Hour, 48*time.Hour)
	}
	return m
}

func (m *machine) honest() bool { return m.mood == honest || m.mood == slow }

// node is one machine with a real decision and an imitated Puppet.
type node struct {
	machine
	w    *world
	rack string

	state   model.State
	running string        // id of the assignment whose target it takes now
	began   []string      // ids of the assignments whose target it began to take
	ended   []string      // ids of the assignments that it answered; after a restore an old one may stand again
	era     int           // of etcd's data when it began
	took    time.Duration // when it took the target of the campaign; 0: never
	heard   time.Duration // its last read
}

func (n *node) alive(w *world) bool { return !n.gone && n.down <= w.now && n.cut <= w.now }

// join registers a new machine under a name.
func (w *world) join(name, role string) {
	if old := w.nodes[name]; old != nil {
		old.gone = true
	} else {
		w.names = append(w.names, name)
	}
	n := &node{machine: w.newMachine(name), w: w, rack: fmt.Sprintf("rack=r%d", len(w.names)%3)}
	w.nodes[name] = n
	w.hosts[name] = cell[model.Host]{model.Host{Node: name, Role: role, MachineID: n.id, At: w.time()}, w.bump()}
	delete(w.ill, name)
	if w.plan.ID == "" && !w.chance(w.New) { // it has the origin already
		n.state.LastGood, n.state.Enforcing, n.state.RanAt = before, before, n.clock()
		if n.ill = w.Ill > 0 && (w.Role == "" || w.Role == role) && w.chance(w.Ill); n.ill {
			n.begin(before)
			n.fail()
			w.ill[name] = true
		}
		w.statuses[name] = cell[model.Status]{n.status(model.Desired{Default: before}, model.Idle), w.bump()}
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
	again := w.poll()
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
	if a := d.Assignment(); a != nil && a.ID != n.state.Assignment {
		n.state.Assignment = a.ID
		n.state.Restart(d.Wanted())
	}
	dec := model.Decide(model.Observed{
		Identity: model.Identity{Node: n.name}, State: n.state, Settings: model.DefaultSettings(), Machine: n.id,
	}, d, n.clock())
	if dec.Action != model.Take && dec.Action != model.Enforce {
		n.report(d, model.Idle)
		w.after(again, n.tick)
		return
	}
	staging := w.between(0, 20*time.Second)
	w.after(staging, func() { n.admit(d, dec, staging) })
}

// admit begins a run if nothing changed since the read.
func (n *node) admit(d model.Desired, dec model.Decision, staging time.Duration) {
	w := n.w
	if n.gone || n.down > w.now || n.cut > w.now || !w.unchanged(n.name, d) {
		w.after(w.between(time.Second, time.Minute), n.tick)
		return
	}
	n.begin(dec.Target)
	st := n.status(d, model.Running)
	w.statuses[n.name] = cell[model.Status]{st, w.bump()}
	a := d.Assignment()
	if dec.Action == model.Take && dec.Target == after && a == nil && w.desired != after {
		w.violate("%s began the target of the campaign without an assignment", n.name)
	}
	if a != nil && dec.Target == d.Wanted() && n.state.LastGood != dec.Target {
		n.running, n.began, n.era = a.ID, append(n.began, a.ID), w.era
		if dec.Action == model.Take { // else it has a part of the target already
			w.result.Admissions++
			w.checkAdmission(n, *a)
		}
		w.checkBudget(w.state.value)
	}
	took := w.between(10*time.Second, 3*time.Minute)
	if n.mood == slow {
		took = w.between(10*time.Minute, 4*time.Hour)
	}
	w.after(took, func() {
		if n.running != "" {
			w.own(staging + took)
		}
		n.end(d, dec.Target)
	})
}

// end ends a run. A machine that was switched off meanwhile repeats it.
func (n *node) end(d model.Desired, t model.Target) {
	w := n.w
	if n.gone {
		return
	}
	if n.down > w.now {
		n.running = ""
		w.after(n.down-w.now, n.tick)
		return
	}
	failed := t == after && n.broken || t == before && n.ill || w.now < w.Until && w.chance(w.Broken/10)
	if failed {
		n.fail()
	} else {
		n.succeed(t)
	}
	if a := n.state.Attempts; n.running != "" && (!failed || a[0].Finished > w.Policy.Retries && a[0].Problem.Code != model.EtcdLost) {
		n.ended = append(n.ended, n.running)
	}
	n.running = ""
	n.report(d, model.Idle)
	w.after(w.poll(), n.tick)
}

// begin, succeed and fail are those of model.State.
func (n *node) begin(t model.Target) {
	a := model.Attempt{Target: t}
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
	n.state.Attempts = append([]model.Attempt{a}, n.state.Attempts...)
	n.state.Before, n.state.Enforcing, n.state.OpenRun = n.state.Enforcing, t, "run"
}

func (n *node) succeed(t model.Target) {
	n.state.LastGood, n.state.Enforcing, n.state.RanAt, n.state.Outcome = t, t, n.clock(), model.Changed
	n.state.Attempts = slices.DeleteFunc(slices.Clone(n.state.Attempts), func(a model.Attempt) bool { return a.Target == t })
	n.state.OpenRun = ""
	n.state.LastRun = fmt.Sprint(n.w.rev)
	if t == after && n.running != "" {
		n.took = n.w.now
	}
}

func (n *node) fail() {
	a := &n.state.Attempts[0]
	a.Finished, a.Open, a.Last = a.Finished+1, false, n.clock()
	a.Problem = model.Problem{Code: model.ResourcesFailed}
	if n.w.chance(0.1) {
		a.Problem.Code = model.EtcdLost
	}
	if n.w.chance(0.5) {
		n.state.Enforcing = n.state.Before // untouched
	}
	n.state.Outcome, n.state.OpenRun, n.state.LastRun = model.Failed, "", fmt.Sprint(n.w.rev)
}

func (n *node) status(d model.Desired, phase model.Phase) model.Status {
	st := model.Status{
		Node: n.name, Phase: phase, Target: d.Wanted(), LastGood: n.state.LastGood, Enforcing: n.state.Enforcing, Outcome: n.state.Outcome,
		LastRun: n.state.LastRun, SeenAt: n.clock(), Settings: model.DefaultSettings(), Machine: n.id,
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

func (n *node) report(d model.Desired, phase model.Phase) {
	w := n.w
	if n.cut > w.now || w.hosts[n.name].value.MachineID != n.id && w.hosts[n.name].rev != 0 {
		return
	}
	w.statuses[n.name] = cell[model.Status]{n.status(d, phase), w.bump()}
	if n.honest() {
		w.ill[n.name] = n.state.Outcome == model.Failed
	}
}

// lie reports what is not true.
func (n *node) lie(d model.Desired) {
	st := n.status(d, model.Idle)
	if n.mood == stubborn && d.Assignment() != nil {
		st.Phase = model.Running
	} else {
		st.LastGood, st.Enforcing = st.Target, st.Target
	}
	if n.w.chance(0.1) {
		st.Assignment = "r6.1."
	}
	n.w.statuses[n.name] = cell[model.Status]{st, n.w.bump()}
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
			w.holds[n.name] = cell[model.Hold]{model.Hold{Scope: "nodes/" + n.name, Mode: []model.HoldMode{model.Freeze, model.Stop}[w.rng.IntN(2)]}, w.bump()}
			n.held = w.now + w.between(time.Minute, 3*time.Hour)
			w.after(n.held-w.now, func() { delete(w.holds, n.name) })
		}
	}
}
