package sim

import (
	"fmt"
	"time"

	"pulley/agent"
)

// worker is one machine in a job, with a real decision and an imitated Puppet.
type worker struct {
	machine
	y *yard

	state    agent.State
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
	w.hosts[name] = cell[agent.Host]{agent.Host{Node: name, Role: "web", MachineID: n.id, At: w.time()}, w.bump()}
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
		d = agent.Desired{Unreachable: "no route to host"}
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
	dec := agent.Decide(agent.Observed{Identity: agent.Identity{Node: n.name}, State: n.state, Settings: agent.DefaultSettings(), Machine: n.id}, d, n.clock())
	if dec.Action != agent.Take && dec.Action != agent.Enforce {
		n.report(d, agent.Idle)
		w.after(again, n.tick)
		return
	}
	staging := w.between(0, 20*time.Second)
	w.after(staging, func() { n.admit(d, dec, staging) })
}

// admit begins a run if nothing changed since the read.
func (n *worker) admit(d agent.Desired, dec agent.Decision, staging time.Duration) {
	y, w := n.y, n.y.world
	away := d.Unreachable != "" || n.cut > w.now
	if n.gone || n.down > w.now || away && dec.Action == agent.Take || !away && !y.unchanged(n.name, d) {
		w.after(w.between(time.Second, time.Minute), n.tick)
		return
	}
	n.running = due
	n.number++
	n.state.Before, n.state.Enforcing, n.state.OpenRun, n.state.Ordered = n.state.Enforcing, dec.Target, "run", ""
	if dec.Reason == agent.ReasonTurn {
		n.state.Ordered = d.Assigned.ID
	}
	switch {
	case away:
		n.running = alone
	case dec.Reason == agent.ReasonTurn:
		n.running = d.Assigned.ID
	}
	if !away {
		w.statuses[n.name] = cell[agent.Status]{n.status(d, agent.Running), w.bump()}
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
func (n *worker) end(t agent.Target, number int) {
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
	s.Outcome, s.LastRun, s.OpenRun = agent.Changed, fmt.Sprint(w.rev), ""
	problem := agent.Problem{}
	if n.broken || w.now < w.Until && w.chance(w.Broken/10) {
		s.Outcome, s.Enforcing = agent.Failed, s.Before
		problem.Code = []agent.ProblemCode{agent.ResourcesFailed, agent.RestartsFailed, agent.CatalogRefused, agent.CatalogIncomplete}[w.rng.IntN(4)]
	} else {
		s.LastGood, s.Enforcing, s.RanAt, n.ran = t, t, n.clock(), w.now
		n.answered[s.Ordered] = true
	}
	if s.Ordered != "" {
		s.Ran = &agent.Answer{ID: s.Ordered, Problem: problem}
	}
	s.Ordered = ""
	n.report(n.y.read(n.name), agent.Idle)
	w.after(w.poll(), n.tick)
}

func (n *worker) status(d agent.Desired, phase agent.Phase) agent.Status {
	st := agent.Status{
		Node: n.name, Phase: phase, Target: d.Wanted(), LastGood: n.state.LastGood, Enforcing: n.state.Enforcing, Outcome: n.state.Outcome,
		LastRun: n.state.LastRun, SeenAt: n.clock(), Settings: agent.DefaultSettings(), Machine: n.id, Ran: n.state.Ran,
	}
	if a := d.Assignment(); a != nil {
		st.Assignment = a.ID
	}
	return st
}

func (n *worker) report(d agent.Desired, phase agent.Phase) {
	w := n.y.world
	if n.cut > w.now || w.hosts[n.name].value.MachineID != n.id && w.hosts[n.name].rev != 0 {
		return
	}
	w.statuses[n.name] = cell[agent.Status]{n.status(d, phase), w.bump()}
}

// lie reports what is not true.
func (n *worker) lie(d agent.Desired) {
	if n.cut > n.y.now {
		return
	}
	st := n.status(d, agent.Idle)
	a := d.Assignment()
	switch {
	case n.mood == stubborn:
		st.Phase = agent.Running
	case a != nil:
		st.Ran = &agent.Answer{ID: a.ID}
	}
	if n.y.chance(0.1) {
		st.Assignment, st.Ran = "j6.1.", &agent.Answer{ID: "j7.1."}
	}
	n.y.statuses[n.name] = cell[agent.Status]{st, n.y.bump()}
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
