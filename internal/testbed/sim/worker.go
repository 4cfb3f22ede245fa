package sim

import (
	"fmt"
	"time"

	"pulley/internal/model"
)

// worker is one machine in a job, with a real decision and an imitated Puppet.
type worker struct {
	machine
	y *yard

	state    model.State
	running  string          // id of the order that it runs now; alone or due without one; "": nothing
	answered map[string]bool // the orders that it ran well
	ran      time.Duration   // when a run last ended well; 0: never
	number   int             // of its runs
}

// The runs of a node that no job ordered.
const (
	due   = "its schedule"
	alone = "without etcd"
)

func (n *worker) clock() time.Time { return n.y.time().Add(n.skew) }

// join registers a new machine under a name.
func (y *yard) join(name string) *worker {
	w := y.world
	if old := y.workers[name]; old != nil {
		old.gone = true
	} else {
		w.names = append(w.names, name)
	}
	n := &worker{machine: w.newMachine(name), y: y, answered: map[string]bool{}}
	y.workers[name] = n
	w.hosts[name] = cell[model.Host]{model.Host{Node: name, Role: "web", MachineID: n.id, At: w.time()}, w.bump()}
	w.after(w.between(0, time.Minute), n.tick)
	return n
}

// tick is one tick of the agent: read, decide, and maybe begin a run.
func (n *worker) tick() {
	y, w := n.y, n.y.world
	if n.gone {
		return
	}
	again := w.poll()
	if w.now < w.Until && w.chance(w.Chaos/60) {
		n.fault()
	}
	if n.down > w.now {
		w.after(n.down-w.now, n.tick)
		return
	}
	d := y.read(n.name)
	if n.cut > w.now {
		d = model.Desired{Unreachable: "no route to host"}
	}
	if n.mood == liar || n.mood == stubborn {
		n.lie(d)
		w.after(again, n.tick)
		return
	}
	if a := d.Assignment(); a != nil {
		n.state.Assignment, n.state.Epoch = a.ID, max(n.state.Epoch, d.Gate.Epoch)
	}
	if d.Unreachable == "" {
		n.state.Holds = d.Holds
	}
	dec := model.Decide(model.Observed{Identity: model.Identity{Node: n.name}, State: n.state, Settings: model.DefaultSettings(), Machine: n.id}, d, n.clock())
	if dec.Action != model.Take && dec.Action != model.Enforce {
		n.report(d, model.Idle)
		w.after(again, n.tick)
		return
	}
	staging := w.between(0, 20*time.Second)
	w.after(staging, func() { n.admit(d, dec, staging) })
}

// admit begins a run if nothing changed since the read.
func (n *worker) admit(d model.Desired, dec model.Decision, staging time.Duration) {
	y, w := n.y, n.y.world
	away := d.Unreachable != "" || n.cut > w.now
	if n.gone || n.down > w.now || away && dec.Action == model.Take || !away && !y.unchanged(n.name, d) {
		w.after(w.between(time.Second, time.Minute), n.tick)
		return
	}
	n.running = due
	n.number++
	n.state.Before, n.state.Enforcing, n.state.OpenRun, n.state.Ordered = n.state.Enforcing, dec.Target, "run", ""
	if dec.Reason == model.ReasonTurn {
		n.state.Ordered = d.Assigned.ID
	}
	switch {
	case away:
		n.running = alone
	case dec.Reason == model.ReasonTurn:
		n.running = d.Assigned.ID
	}
	if !away {
		w.statuses[n.name] = cell[model.Status]{n.status(d, model.Running), w.bump()}
	}
	if n.running == n.state.Ordered {
		w.result.Admissions++
		y.checkTurn(n, *d.Assigned)
	}
	took, number := w.between(10*time.Second, 3*time.Minute), n.number
	if n.mood == slow {
		took = w.between(10*time.Minute, time.Hour)
	}
	if n.running == n.state.Ordered {
		batch := w.position(w.state.value)
		w.longest[batch] = max(w.longest[batch], staging+took)
	}
	w.after(took, func() { n.end(dec.Target, number) })
}

// end ends a run. A machine that was switched off meanwhile repeats it.
func (n *worker) end(t model.Target, number int) {
	w := n.y.world
	if n.gone || n.number != number {
		return
	}
	n.running = ""
	if n.down > w.now {
		w.after(n.down-w.now, n.tick)
		return
	}
	s := &n.state
	s.Outcome, s.LastRun, s.OpenRun = model.Changed, fmt.Sprint(w.rev), ""
	problem := model.Problem{}
	if n.broken || w.now < w.Until && w.chance(w.Broken/10) {
		s.Outcome, s.Enforcing = model.Failed, s.Before
		problem.Code = []model.ProblemCode{model.ResourcesFailed, model.RestartsFailed, model.CatalogRefused, model.CatalogIncomplete}[w.rng.IntN(4)]
	} else {
		s.LastGood, s.Enforcing, s.RanAt, n.ran = t, t, n.clock(), w.now
		n.answered[s.Ordered] = true
	}
	if s.Ordered != "" {
		s.Ran = &model.Answer{ID: s.Ordered, Problem: problem}
	}
	s.Ordered = ""
	n.report(n.y.read(n.name), model.Idle)
	w.after(w.poll(), n.tick)
}

func (n *worker) status(d model.Desired, phase model.Phase) model.Status {
	st := model.Status{
		Node: n.name, Phase: phase, Target: d.Wanted(), LastGood: n.state.LastGood, Enforcing: n.state.Enforcing, Outcome: n.state.Outcome,
		LastRun: n.state.LastRun, SeenAt: n.clock(), Settings: model.DefaultSettings(), Machine: n.id, Ran: n.state.Ran,
	}
	if a := d.Assignment(); a != nil {
		st.Assignment = a.ID
	}
	return st
}

func (n *worker) report(d model.Desired, phase model.Phase) {
	w := n.y.world
	if n.cut > w.now || w.hosts[n.name].value.MachineID != n.id && w.hosts[n.name].rev != 0 {
		return
	}
	w.statuses[n.name] = cell[model.Status]{n.status(d, phase), w.bump()}
}

// lie reports what is not true.
func (n *worker) lie(d model.Desired) {
	if n.cut > n.y.now {
		return
	}
	st := n.status(d, model.Idle)
	a := d.Assignment()
	switch {
	case n.mood == stubborn:
		st.Phase = model.Running
	case a != nil:
		st.Ran = &model.Answer{ID: a.ID}
	}
	if n.y.chance(0.1) {
		st.Assignment, st.Ran = "j6.1.", &model.Answer{ID: "j7.1."}
	}
	n.y.statuses[n.name] = cell[model.Status]{st, n.y.bump()}
}

// fault lets something happen to a node.
func (n *worker) fault() {
	w := n.y.world
	switch w.rng.IntN(4) {
	case 0:
		n.down = w.now + w.between(time.Minute, time.Hour)
	case 1:
		n.cut = w.now + w.between(time.Minute, time.Hour)
	case 2:
		n.skew = w.between(-48*time.Hour, 48*time.Hour)
	case 3: // power cut and back
		n.down = w.now + w.between(time.Second, time.Minute)
	}
}
