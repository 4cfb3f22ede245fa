package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

// JobConfig is the size of a simulated fleet that a job runs, and what may happen to it.
type JobConfig struct {
	Config
	Layers int
	Lapses bool // all controllers may be away at once, for longer than the lease
	Again  bool // etcd goes back to the start in the middle, and an operator starts another job, with the same ID and epoch
}

// lease is that of the key of a job; renewal is how often a controller renews it.
const (
	lease   = 15 * time.Minute
	renewal = time.Minute
)

// ThousandInOrder is a fleet of 1,000 healthy agents in 12 groups, of which 50 may run at a time, with two serves.
func ThousandInOrder(seed uint64) JobConfig {
	c := Thousand(seed)
	c.Policy = rollout.Policy{Batch: "50", Concurrency: 50}
	return JobConfig{Config: c, Layers: 12}
}

// yard is a world in which a job runs.
type yard struct {
	*world
	JobConfig
	job     cell[model.LiveJob] // 0: its lease ended, or the job
	until   time.Duration       // end of the lease
	workers map[string]*worker
	layer   map[string]int // of the machines of the plan
	most    int            // nodes that ran their turn at the same time
	bound   time.Duration  // by when the job must have ended
}

// conductor is one serve that advances a job.
type conductor struct {
	y       *yard
	skew    time.Duration
	renewed time.Duration
	reached model.Epoch
}

// RunJob simulates one job from its start until some hours after the last fault.
func RunJob(c JobConfig) Result {
	w := &world{
		Config: c.Config, rng: rand.New(rand.NewPCG(c.Seed, 0x6a6f62)), desired: before,
		hosts: map[string]cell[model.Host]{}, assigned: map[string]cell[model.Assignment]{}, statuses: map[string]cell[model.Status]{},
		holds: map[string]cell[model.Hold]{}, longest: map[int]time.Duration{},
	}
	y := &yard{world: w, JobConfig: c, workers: map[string]*worker{}, layer: map[string]int{}}
	layers := make([][]rollout.Member, c.Layers)
	for i := range c.Nodes {
		name, at := fmt.Sprintf("node%d", i+1), i*c.Layers/c.Nodes
		n := y.join(name)
		n.state.LastGood, n.state.Enforcing, n.state.RanAt = before, before, n.clock().Add(-w.between(0, 30*time.Minute))
		w.statuses[name] = cell[model.Status]{n.status(y.read(name), model.Idle), w.bump()}
		layers[at] = append(layers[at], rollout.Member{Node: name, Machine: n.id})
		y.layer[n.id] = at
	}
	plan, err := rollout.MakeJob(rollout.Order{Policy: c.Policy, At: w.time()}, layers)
	if err != nil {
		w.violate("plan: %v", err)
		return w.result
	}
	plan.ID, plan.Nonce, plan.Epoch = "j7", "a", 7
	w.plan, w.state, y.bound = plan, cell[rollout.State]{rollout.Start(w.time()), w.bump()}, longest(plan)
	w.gate = cell[model.Gate]{model.Gate{Epoch: 7, State: model.GateOpen, Rollout: "j7"}, w.bump()}
	w.highest = 7
	y.job, y.until = cell[model.LiveJob]{model.LiveJob{ID: "j7"}, w.bump()}, lease
	end := max(c.Until, y.bound) + 5*time.Hour
	if c.Again {
		w.save()
		w.after(w.between(time.Minute, c.Until/3), func() {
			w.restore()
			w.plan.Nonce, w.state.value = "b", rollout.Start(w.time())
			y.job, y.until = cell[model.LiveJob]{model.LiveJob{ID: "j7"}, w.bump()}, w.now+lease
			for _, n := range y.workers {
				n.answered = map[string]bool{}
			}
			w.result.Took, end = 0, w.now+end
		})
	}
	for range c.Controllers {
		k := &conductor{y: y}
		w.after(w.between(0, 5*time.Second), k.advance)
	}
	y.operators()
	if c.Restore {
		w.after(w.between(time.Minute, c.Until/2), w.save)
		w.after(w.between(c.Until/2, c.Until), func() {
			w.restore()
			if w.gate.value.Rollout == plan.ID && w.state.value.Phase == rollout.Advancing { // the lease is restored with its key
				y.job, y.until = cell[model.LiveJob]{model.LiveJob{ID: "j7"}, w.bump()}, w.now+lease
			} else {
				y.job = cell[model.LiveJob]{}
			}
		})
	}
	for len(w.queue) > 0 && w.now < end && len(w.result.Violations) == 0 {
		e := pop(&w.queue)
		w.now = e.at
		if y.job.rev != 0 && w.now >= y.until {
			y.job = cell[model.LiveJob]{}
		}
		e.do()
		w.result.Events++
		if w.state.value.Phase != rollout.Advancing && w.result.Took == 0 {
			w.result.Took = w.now
			end = min(end, max(w.now, c.Until)+130*time.Minute)
		}
	}
	y.finish()
	return w.result
}

// longest is the time by which a job has ended, whatever its nodes do: each one ends its turn, or fails, at its deadline.
func longest(p rollout.Plan) time.Duration {
	turns := 1 // until nobody runs any more
	for _, g := range p.Groups {
		for left := g.Size; left > 0; left -= g.Batch {
			at := min(g.Batch, left)
			if n := p.Policy.Concurrency; n > 0 {
				at = (at + n - 1) / n
			} else {
				at = 1
			}
			turns += at
		}
	}
	return time.Duration(turns) * time.Duration(p.Policy.Deadline)
}

// finish checks what must be true when nothing happened for hours: the job ended, and each node enforces again by itself.
func (y *yard) finish() {
	w := y.world
	w.result.State, w.result.Gate, w.result.Wait, w.result.Hours, w.result.Most = w.state.value, w.gate.value, w.lastWait, w.now.Hours(), y.most
	for _, own := range w.longest {
		w.result.Batches++
		w.result.Own += own
	}
	if len(w.result.Violations) > 0 {
		return
	}
	if s := w.state.value; s.Phase == rollout.Advancing {
		w.violate("the job never ended: it waits for %+v", w.lastWait)
	}
	for name, n := range y.workers {
		d := y.read(name)
		calm := n.mood == honest && w.now > max(n.down, n.cut, n.held)+time.Hour && len(d.Holds) == 0 && d.Host != nil && d.Host.MachineID == n.id
		dec := model.Decide(model.Observed{Identity: model.Identity{Node: name}, State: n.state, Settings: model.DefaultSettings(), Machine: n.id}, d, n.clock())
		switch {
		case dec.Reason == model.ReasonWaits:
			w.violate("%s waits after the end of the job", name)
		case calm && !n.broken && (n.ran == 0 || n.ran < w.now-time.Hour):
			w.violate("%s last ran at %v, hours after the job was %s", name, n.ran, w.state.value.Phase)
		}
	}
}

// read is the one transaction of a tick.
func (y *yard) read(name string) model.Desired {
	d := y.world.read(name)
	if d.Guards["job"] = y.job.rev; y.job.rev != 0 {
		d.Job = &y.job.value
	}
	return d
}

func (y *yard) unchanged(name string, d model.Desired) bool {
	return y.world.unchanged(name, d) && d.Guards["job"] == y.job.rev
}

// advance is one step of package control: it reads the state, reads the nodes, later writes the step, and renews the lease.
func (k *conductor) advance() {
	w := k.y.world
	next := cmp.Or(w.Look, 5*time.Second)
	if w.now < w.Until && w.chance(w.Chaos/20) {
		switch w.rng.IntN(3) {
		case 0: // down, or without etcd
			next = w.between(time.Minute, time.Hour)
			k.reached = 0
		case 1:
			k.skew = w.between(-3*time.Hour, 3*time.Hour)
		case 2:
			k.skew = 0
		}
	}
	if w.now >= w.Until {
		k.skew = 0
	}
	if k.y.Lapses && w.now < w.Until && w.now > w.Until/4 && w.now < w.Until/4+20*time.Minute {
		w.after(20*time.Minute, k.advance)
		return
	}
	plan, state, gate := w.plan, w.state, w.gate
	k.reached = max(k.reached, gate.value.Epoch)
	if gate.value.Rollout != w.plan.ID && state.value.Phase != rollout.Advancing {
		w.after(next, k.advance)
		return
	}
	now := w.time().Add(k.skew)
	w.after(k.pause(), func() {
		var revs revisions
		step, o, _ := rollout.Decide(plan, state.value, now, func(need rollout.Needs) (o rollout.Observed, _ error) {
			o, revs = k.y.observe(need)
			o.Gate, o.Reached = gate.value, k.reached
			return o, nil
		})
		w.after(k.pause(), func() {
			if k.act(state, gate, step, o, revs) {
				next = 0
			}
			if k.y.job.rev != 0 && (now.Sub(start)-k.renewed).Abs() >= renewal {
				k.y.until, k.renewed = w.now+lease, now.Sub(start)
			}
			w.after(next, k.advance)
		})
	})
}

func (k *conductor) pause() time.Duration {
	w := k.y.world
	if w.chance(w.Chaos / 10) {
		return w.between(0, 20*time.Minute) // a paused process, maybe for longer than the lease
	}
	return w.between(0, 300*time.Millisecond)
}

func (y *yard) observe(need rollout.Needs) (rollout.Observed, revisions) {
	w := y.world
	o, r := w.observe(need)
	for name, n := range o.Nodes {
		n.View = model.Look(n.Status, y.read(name), w.time())
		o.Nodes[name] = n
	}
	o.Gone = y.job.rev == 0
	return o, r
}

// act writes a step, as the store does. It reports whether there was one: then the next one follows at once.
func (k *conductor) act(state cell[rollout.State], gate cell[model.Gate], step rollout.Step, o rollout.Observed, r revisions) bool {
	y, w := k.y, k.y.world
	if !w.current(state, gate, step) {
		return false
	}
	if step.State != nil {
		y.checkJob(state.value, *step.State, o)
		w.state = cell[rollout.State]{*step.State, w.bump()}
		switch step.State.Phase {
		case rollout.Advancing, rollout.Replaced:
		default:
			y.free()
		}
		return true
	}
	return w.write(step, r, func(node string) {
		w.assigned[node] = cell[model.Assignment]{w.plan.Waits(state.value.Slots[node].Machine), w.bump()}
	})
}

// free ends the job: with the next epoch its orders are void, and its key is deleted.
func (y *yard) free() {
	y.job = cell[model.LiveJob]{}
	y.next()
}

// operators aborts the job at some time, changes its targets instead, or removes and adds machines.
func (y *yard) operators() {
	w := y.world
	if w.Operators == 0 {
		return
	}
	w.after(time.Duration(w.rng.ExpFloat64()/w.Operators*float64(time.Hour)), func() {
		if w.now >= w.Until {
			return
		}
		name := w.names[w.rng.IntN(len(w.names))]
		open := w.gate.value.Rollout == w.plan.ID && w.state.value.Phase == rollout.Advancing
		switch act := w.rng.IntN(12); {
		case act == 0 && open:
			w.state = cell[rollout.State]{w.state.value.Abort(w.time(), "ann", "wrong order"), w.bump()}
			y.free()
		case act == 1 && open: // a promotion with --abort-campaign
			w.desired = later
			y.free()
		case act < 4:
			delete(w.hosts, name)
			delete(w.assigned, name)
			delete(w.statuses, name)
		case act < 6: // join again, as another machine
			delete(w.assigned, name)
			y.join(name)
		case act < 8:
			y.join(fmt.Sprintf("late%d", len(w.names)))
		default: // a hold in the middle, which somebody ends later
			w.holds[name] = cell[model.Hold]{model.Hold{Scope: "nodes/" + name, Mode: []model.HoldMode{model.Freeze, model.Stop}[w.rng.IntN(2)]}, w.bump()}
			n := y.workers[name]
			n.held = w.now + w.between(time.Minute, time.Hour)
			w.after(n.held-w.now, func() { delete(w.holds, name) })
		}
		y.operators()
	})
}

// checkTurn checks what must be true when a node begins its turn, and counts the nodes that really run at this moment.
func (y *yard) checkTurn(n *worker, a model.Assignment) {
	w, s := y.world, y.world.state.value
	switch {
	case y.job.rev == 0:
		w.violate("%s began %s after the lease of the job ended", n.name, a.ID)
	case w.gate.value.Rollout != w.plan.ID || a.Epoch != w.gate.value.Epoch || s.Phase != rollout.Advancing:
		w.violate("%s began %s of a job that is %s", n.name, a.ID, s.Phase)
	case a.Machine != n.id:
		w.violate("%s began an order for another machine", n.name)
	case w.era == 0 && s.Slots[n.name].ID != a.ID:
		w.violate("%s began %s without a slot", n.name, a.ID)
	}
	if w.era > 0 {
		return // the data of a backup do not show what began after it
	}
	count := 0
	for _, other := range y.workers {
		_, planned := y.layer[other.id]
		if !other.honest() || other.running == "" || other.gone || !planned || w.hosts[other.name].rev == 0 {
			continue
		}
		_, failed := s.Failed[other.name]
		lost := failed || s.Skipped[other.name] != ""
		switch {
		case other.running == alone: // etcd was away for it: it enforces as usual
		case other.running != turn(s, other) && !lost:
			w.violate("%s began its turn while %s runs %q", n.name, other.name, other.running)
		case y.layer[other.id] != y.layer[n.id] && !lost:
			w.violate("%s of layer %d began while %s of layer %d runs", n.name, y.layer[n.id], other.name, y.layer[other.id])
		default:
			count++
		}
	}
	y.most = max(y.most, count)
	g, _ := s.Current(w.plan)
	if limit := g.Batch; count > limit || w.plan.Policy.Concurrency > 0 && count > w.plan.Policy.Concurrency {
		w.violate("%d nodes run at the same time: batch %d, concurrency %d", count, limit, w.plan.Policy.Concurrency)
	}
}

func turn(s rollout.State, n *worker) string { return s.Slots[n.name].ID }

// checkJob checks a step before it is written: who counts as done did its turn, and nobody is ordered after a failure.
func (y *yard) checkJob(old, s rollout.State, o rollout.Observed) {
	w, freed := y.world, 0
	ended := s.Phase != rollout.Advancing
	for node, slot := range old.Slots {
		_, keeps := s.Slots[node]
		_, failed := s.Failed[node]
		_, skipped := s.Skipped[node]
		if keeps || failed || skipped || s.Phase == rollout.Replaced {
			continue
		}
		freed++
		n := y.workers[node]
		if n.honest() && n.id == slot.Machine && (w.era == 0 || y.Again) && (n.answered == nil || !n.answered[slot.ID]) {
			w.violate("%s counts as done, and never ran %s well", node, slot.ID)
		}
	}
	if s.Phase != rollout.Replaced && s.Done != old.Done+freed {
		w.violate("%d nodes are done after %d, and %d ended well", s.Done, old.Done, freed)
	}
	for node, slot := range s.Slots {
		if old.Slots[node].ID == slot.ID {
			continue
		}
		if len(s.Failed) > 0 || s.Stop != nil || ended || !s.Gathered || o.Gone {
			w.violate("%s is ordered in a job that stopped: %+v, gathered %t, its lease ended %t", node, s.Stop, s.Gathered, o.Gone)
		}
	}
	if s.Phase == rollout.Completed && s.Done+len(s.Skipped) != w.plan.Nodes() {
		w.violate("the job completed with %d of %d nodes", s.Done+len(s.Skipped), w.plan.Nodes())
	}
	for i, t := range s.Times {
		over := i < s.Group || ended && s.Phase != rollout.Replaced
		if over && !t.From.IsZero() && t.To.IsZero() { // no node began in a group without From
			w.violate("group %d has no end: %+v", i+1, s.Times)
		}
	}
}
