// Package sim simulates campaigns: controllers, nodes and operators over a small store with revisions. A seed decides on
// everything that happens. After each step it checks the invariants of package rollout. Only tests link it.
package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

// Config is the size of a simulated fleet, and what may happen to it.
type Config struct {
	Seed        uint64
	Nodes       int
	Controllers int
	Policy      rollout.Policy
	Broken      float64       // share of nodes on which the target fails
	Ill         float64       // share of nodes on which the release in place fails until another one is applied
	New         float64       // share of nodes that were registered a moment ago, and never served
	Role        string        // of the rollout; "" for all nodes
	Liars       int           // nodes of other roles that claim the rack of a node of the rollout, and fall silent
	Chaos       float64       // faults for each node and hour
	Operators   float64       // acts of operators for each hour
	Joins       int           // nodes that are registered during the first half hour
	Restore     bool          // a backup is restored in the middle
	Revert      time.Duration // when an operator reverts the campaign; 0: never
	Until       time.Duration // end of the faults
	Poll        time.Duration // between two ticks of a node; 0: about a minute
	Look        time.Duration // between two looks of a controller; 0: 5 seconds
}

// Thousand is a fleet of 1,000 healthy agents in 20 batches of 50, with two serves. Its agents poll each minute, as cron does, and serve looks every
// 2 seconds.
func Thousand(seed uint64) Config {
	return Config{Seed: seed, Nodes: 1000, Controllers: 2, Policy: rollout.Policy{Canaries: "0"}, Poll: time.Minute, Look: 2 * time.Second}
}

// Result is the end of a simulation.
type Result struct {
	State      rollout.State
	Wait       rollout.Wait
	Gate       model.Gate
	Took       time.Duration // until the campaign ended
	Advances   int
	Admissions int
	Events     int
	Hours      float64       // simulated
	Batches    int           // that ended
	Own        time.Duration // the longest staging and run of each batch, added up
	Most       int           // of a job: nodes that ran their turn at the same time
	Violations []string
}

// cell is a value with its ModRevision; 0 means that there is none.
type cell[T any] struct {
	value T
	rev   int64
}

// world is etcd, and what really happens on the machines.
type world struct {
	Config
	rng *rand.Rand
	now time.Duration
	rev int64

	gate     cell[model.Gate]
	desired  model.Target
	plan     rollout.Plan
	state    cell[rollout.State]
	hosts    map[string]cell[model.Host]
	assigned map[string]cell[model.Assignment]
	statuses map[string]cell[model.Status]
	holds    map[string]cell[model.Hold]

	backup *image

	nodes    map[string]*node
	names    []string
	queue    events
	seq      int
	result   Result
	highest  model.Epoch
	lastWait rollout.Wait
	era      int             // number of restored backups
	skewed   bool            // a clock of a controller was wrong
	ill      map[string]bool // nodes that reported a failed run, and none that succeeded since
	begun    int             // number of batches before the newest one of which a node began; -1: none
	answered time.Time       // when the oldest answer was given the last time that all gates passed; by the clock of the controller
	longest  map[int]time.Duration
}

// image is a backup of etcd.
type image struct {
	gate     cell[model.Gate]
	desired  model.Target
	state    cell[rollout.State]
	hosts    map[string]cell[model.Host]
	assigned map[string]cell[model.Assignment]
	statuses map[string]cell[model.Status]
	rev      int64
}

var (
	start  = time.Date(2026, 3, 28, 22, 0, 0, 0, time.UTC)
	before = model.Target{Release: "1.0.0", Tree: "a"}
	after  = model.Target{Release: "2.0.0", Tree: "b"}
	later  = model.Target{Release: "3.0.0", Tree: "c"}
)

func (w *world) time() time.Time { return start.Add(w.now) }

func (w *world) bump() int64 {
	w.rev++
	return w.rev
}

// after schedules an event.
func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now + d, w.seq, do})
}

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.rng.Int64N(int64(b-a)+1))
}

// poll returns the time until a node's next tick.
func (w *world) poll() time.Duration {
	if w.Poll > 0 {
		return w.Poll
	}
	return w.between(50*time.Second, 70*time.Second)
}

// own records the time that a node of the present batch needed for the target.
func (w *world) own(d time.Duration) {
	n := w.position(w.state.value)
	w.longest[n] = max(w.longest[n], d)
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

func (w *world) violate(format string, args ...any) {
	if len(w.result.Violations) < 5 {
		w.result.Violations = append(w.result.Violations, fmt.Sprintf("%v: ", w.now)+fmt.Sprintf(format, args...))
	}
}

// Run simulates one campaign from its start until some hours after the last fault.
func Run(c Config) Result {
	w := &world{
		Config: c, rng: rand.New(rand.NewPCG(c.Seed, 0x9e3779b97f4a7c15)), desired: before,
		hosts: map[string]cell[model.Host]{}, assigned: map[string]cell[model.Assignment]{}, statuses: map[string]cell[model.Status]{},
		holds: map[string]cell[model.Hold]{}, nodes: map[string]*node{}, longest: map[int]time.Duration{},
		ill: map[string]bool{}, begun: -1,
	}
	roles := []string{"db", "web"}
	for i := range c.Nodes {
		w.join(fmt.Sprintf("%s%d", roles[i%2], i/2+1), roles[i%2])
	}
	w.gate = cell[model.Gate]{model.Gate{Epoch: 7, State: model.GateOpen, Rollout: "r7"}, w.bump()}
	plan, err := rollout.Make(rollout.Order{
		ID: "r7", Epoch: 7, Role: c.Role, Target: model.Target{Release: after.Release, Tree: after.Tree}, Origin: before, Policy: c.Policy, Roles: roles, At: w.time(),
	}, w.candidates())
	if err != nil {
		w.violate("plan: %v", err)
		return w.result
	}
	w.plan = plan
	for _, m := range plan.Outside[:min(c.Liars, len(plan.Outside))] {
		w.nodes[m.Node].down = 100 * time.Hour
	}
	w.state = cell[rollout.State]{rollout.Start(w.time()), w.bump()}
	for i := range c.Controllers {
		k := &controller{w: w, n: i}
		w.after(w.between(0, 5*time.Second), k.advance)
	}
	for range c.Joins {
		w.after(w.between(0, 30*time.Minute), w.joinLate)
	}
	w.operators()
	if c.Revert > 0 {
		w.after(c.Revert, w.revert)
	}
	if c.Restore {
		w.after(w.between(time.Minute, c.Until/2), w.save)
		w.after(w.between(c.Until/2, c.Until), w.restore)
	}
	end := c.Until + 5*time.Hour
	for len(w.queue) > 0 && w.now < end && len(w.result.Violations) == 0 {
		e := pop(&w.queue)
		w.now = e.at
		e.do()
		w.result.Events++
		if phase := w.state.value.Phase; phase != rollout.Advancing && w.result.Took == 0 {
			w.result.Took = w.now
			if phase != rollout.Reverted { // then every node must have returned, after all faults and holds
				end = min(end, max(w.now, c.Until)+2*time.Hour)
			}
		}
	}
	w.finish()
	return w.result
}

// finish checks what must be true when nothing happened for hours.
func (w *world) finish() {
	w.result.State, w.result.Gate, w.result.Wait, w.result.Hours = w.state.value, w.gate.value, w.lastWait, w.now.Hours()
	for _, own := range w.longest {
		w.result.Batches++
		w.result.Own += own
	}
	if len(w.result.Violations) > 0 {
		return
	}
	s := w.state.value
	if w.repairs() && s.Phase != rollout.Completed {
		w.violate("the release repairs all nodes, and the rollout is %s: %+v, stopped %+v", s.Phase, w.lastWait, s.Stop)
	}
	if s.Phase == rollout.Advancing {
		switch w.lastWait.Code {
		case rollout.WaitGate, rollout.WaitApproval, rollout.WaitLost, rollout.WaitHeld, rollout.WaitWindow, rollout.WaitAnswers:
		case rollout.WaitPlace:
			if len(s.Slots) == 0 {
				w.violate("the campaign waits without end before %s, for %s", w.lastWait.Node, w.lastWait.Place)
			}
		case rollout.WaitNodes: // a node of which the controller can know nothing more
			if !w.lastWait.Until.After(w.time().Add(-2 * time.Hour)) {
				w.violate("the campaign waits for %v since %v", w.lastWait.Nodes, w.lastWait.Until)
			}
		default:
			w.violate("the campaign neither ended nor waits for something: %+v", w.lastWait)
		}
	}
	for _, name := range w.names {
		n := w.nodes[name]
		d := w.read(name)
		if !n.honest() || !n.alive(w) || d.Host == nil || d.Host.MachineID != n.id {
			continue
		}
		calm := n.mood == honest && w.now > max(n.down, n.cut, n.held)+time.Hour && len(d.Holds) == 0
		switch {
		case s.Phase == rollout.Advancing: // who registered meanwhile takes what is desired, also while the gate is closed
			if calm && !n.ill && d.Assignment() == nil && n.state.LastGood != w.desired {
				w.violate("%s has %v in the middle of the campaign, and desired is %v", name, n.state.LastGood, w.desired)
			}
		case n.heard > w.result.Took+time.Hour && d.Wanted() != w.desired:
			w.violate("%s wants %v after the campaign ended, and desired is %v", name, d.Wanted(), w.desired)
		case n.mood == honest && s.Phase == rollout.Reverted && n.state.Enforcing != w.desired,
			calm && !(n.broken && w.desired == after) && !(n.ill && w.desired == before) && n.state.LastGood != w.desired:
			w.violate("%s has %v hours after the campaign was %s, and desired is %v", name, n.state.Enforcing, s.Phase, w.desired)
		}
	}
}

// repairs reports whether nothing but broken nodes delays the campaign, and its target repairs all of them.
func (w *world) repairs() bool {
	return w.Ill > 0 && w.plan.Policy.Treats(rollout.UnreadyFailed) == rollout.UnreadyWait && w.Broken == 0 && w.Chaos == 0 && w.Operators == 0 && w.Liars == 0 && !w.Restore && w.Revert == 0 && w.plan.Policy.Promote == rollout.Automatic
}

// candidates lists the registered nodes.
func (w *world) candidates() (all []rollout.Candidate) {
	for name, h := range w.hosts {
		rack := "rack=r" + string('1'+rune(len(name)%3))
		if n, ok := w.nodes[name]; ok {
			rack = n.rack
		}
		all = append(all, rollout.Candidate{Node: name, Role: h.value.Role, Machine: h.value.MachineID, Places: []string{rack}, View: w.view(name)})
	}
	return all
}

// read is the one transaction of a tick.
func (w *world) read(name string) model.Desired {
	d := model.Desired{Revision: w.rev, Gate: w.gate.value, Default: w.desired, Guards: map[string]int64{
		"gate": w.gate.rev, "host": w.hosts[name].rev, "assigned": w.assigned[name].rev, "hold": w.holds[name].rev,
	}}
	if h := w.hosts[name]; h.rev != 0 {
		host := h.value
		d.Host = &host
	}
	if a := w.assigned[name]; a.rev != 0 {
		assignment := a.value
		d.Assigned = &assignment
	}
	if h := w.holds[name]; h.rev != 0 {
		d.Holds = append(d.Holds, h.value)
	}
	return d
}

// unchanged compares the guards of a read.
func (w *world) unchanged(name string, d model.Desired) bool {
	g := d.Guards
	return g["gate"] == w.gate.rev && g["host"] == w.hosts[name].rev && g["assigned"] == w.assigned[name].rev && g["hold"] == w.holds[name].rev
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

func pop(q *events) event { return heap.Pop(q).(event) }
