package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/agent"
	"pulley/internal/rollout"
)

// controller is one serve.
type controller struct {
	w    *world
	n    int
	skew time.Duration
}

// advance reads the state, later the nodes, later writes the step. Anything may happen in between.
func (k *controller) advance() {
	w := k.w
	next := 5 * time.Second
	if w.now < w.Until && w.chance(w.Chaos/20) {
		switch w.rng.IntN(3) {
		case 0: // down, or without etcd
			next = w.between(time.Minute, time.Hour)
		case 1:
			k.skew = w.between(-3*time.Hour, 3*time.Hour)
		case 2:
			k.skew = 0
		}
	}
	if w.now >= w.Until {
		k.skew = 0
	}
	state, gate := w.state, w.gate
	w.after(k.pause(), func() {
		o, revs := w.observe(state.value)
		o.Gate = gate.value
		w.after(k.pause(), func() {
			k.act(state, gate, o, revs)
			w.after(next, k.advance)
		})
	})
}

func (k *controller) pause() time.Duration {
	if k.w.chance(k.w.Chaos / 10) {
		return k.w.between(0, 10*time.Minute) // a paused process
	}
	return k.w.between(0, 300*time.Millisecond)
}

// revisions are the guards of an observation.
type revisions struct{ host, assigned, status map[string]int64 }

func (w *world) observe(s rollout.State) (rollout.Observed, revisions) {
	need := rollout.NeedsOf(w.plan, s)
	o := rollout.Observed{Nodes: map[string]rollout.Node{}}
	r := revisions{map[string]int64{}, map[string]int64{}, map[string]int64{}}
	for _, name := range need.Nodes {
		d := w.read(name)
		n := rollout.Node{Host: d.Host, Assigned: d.Assigned, HostAt: w.hosts[name].rev, AssignedAt: w.assigned[name].rev, StatusAt: w.statuses[name].rev}
		if st := w.statuses[name]; st.rev != 0 {
			status := st.value
			n.Status = &status
		}
		n.View = agent.Look(n.Status, d, w.time())
		n.Wanted = w.plan.Target.Overlay(d.Default)
		o.Nodes[name] = n
		r.host[name], r.assigned[name], r.status[name] = n.HostAt, n.AssignedAt, n.StatusAt
	}
	if need.Hosts {
		o.Hosts = w.candidates()
	}
	return o, r
}

// act writes a step, as the store does.
func (k *controller) act(state cell[rollout.State], gate cell[agent.Gate], o rollout.Observed, r revisions) {
	w := k.w
	w.result.Advances++
	step := rollout.Advance(w.plan, state.value, o, w.time().Add(k.skew))
	if step.State == nil && state.rev == w.state.rev {
		w.lastWait = step.Wait
		if state.value.Phase == rollout.Advancing && step.Wait.Code == "" {
			w.violate("an advance without a change says nothing")
		}
	}
	if state.rev != w.state.rev || gate.rev != w.gate.rev {
		return
	}
	if step.State != nil {
		w.state = cell[rollout.State]{*step.State, w.bump()}
		switch {
		case step.State.Phase == rollout.Completed:
			w.desired = after
			w.next()
		case step.State.Phase == rollout.Reverted:
			w.next()
		case step.Close != nil:
			g := w.gate.value
			g.State = agent.GatePaused
			w.gate = cell[agent.Gate]{g, w.bump()}
		}
		w.checkState()
		return
	}
	for _, a := range step.Assign {
		if r.host[a.Node] == w.hosts[a.Node].rev && r.assigned[a.Node] == w.assigned[a.Node].rev {
			w.assigned[a.Node] = cell[agent.Assignment]{a.Assignment, w.bump()}
		}
	}
	for _, node := range step.Withdraw {
		if r.assigned[node] == w.assigned[node].rev && r.status[node] == w.statuses[node].rev {
			delete(w.assigned, node)
		}
	}
}

// checkState checks the state itself.
func (w *world) checkState() {
	s := w.state.value
	g, ok := s.Current(w.plan)
	if !ok {
		if len(s.Slots) > 0 {
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
}

// next opens the gate with the next epoch, and without a campaign.
func (w *world) next() {
	w.gate = cell[agent.Gate]{agent.Gate{Epoch: w.gate.value.Epoch + 1, State: agent.GateOpen}, w.bump()}
	w.highest = max(w.highest, w.gate.value.Epoch)
}

// revert reverts the campaign at some time, whatever its gate and its nodes do at that moment.
func (w *world) revert() {
	if g := w.gate.value; g.Rollout == w.plan.ID && g.Epoch == w.plan.Epoch && w.state.value.Phase == rollout.Advancing {
		w.state = cell[rollout.State]{w.state.value.Revert(w.time()), w.bump()}
		w.next()
	}
}

// operators acts at random times.
func (w *world) operators() {
	if w.Operators == 0 {
		return
	}
	w.after(time.Duration(w.rng.ExpFloat64()/w.Operators*float64(time.Hour)), func() {
		if w.now < w.Until {
			w.operate()
			w.operators()
		}
	})
}

func (w *world) operate() {
	g, s := w.gate.value, w.state.value
	name := w.names[w.rng.IntN(len(w.names))]
	switch act := w.rng.IntN(12); {
	case act < 2 && g.Rollout != "" && !w.aborted:
		g.State = agent.GatePaused
		w.gate = cell[agent.Gate]{g, w.bump()}
	case act < 6 && g.Rollout != "" && !w.aborted: // resume
		g.State = agent.GateOpen
		w.gate = cell[agent.Gate]{g, w.bump()}
		next := s.Resume()
		if act == 5 && s.Phase == rollout.Advancing { // or retry
			next, _, _ = s.Retry(w.plan)
		}
		w.state = cell[rollout.State]{next, w.bump()}
	case act == 6 && s.Phase == rollout.Advancing:
		for _, node := range slices.Sorted(maps.Keys(s.Slots)) {
			if s.Slots[node].State == rollout.Lost {
				if next, err := s.Skip(node); err == nil {
					w.state = cell[rollout.State]{next, w.bump()}
				}
				break
			}
		}
	case act == 7:
		if next, err := s.Approve(w.plan); err == nil {
			w.state = cell[rollout.State]{next, w.bump()}
		}
	case act == 8: // remove
		delete(w.hosts, name)
		delete(w.assigned, name)
		delete(w.statuses, name)
	case act == 9: // join again, as another machine
		role := "web"
		if h, ok := w.hosts[name]; ok {
			role = h.value.Role
		}
		delete(w.assigned, name)
		w.join(name, role)
	case act == 10:
		w.join(fmt.Sprintf("web%d", w.Nodes+len(w.names)), "web")
	case act == 11 && w.chance(0.3) && g.Rollout != "": // abort, then revert
		w.aborted = true
		g.State = agent.GateAborted
		w.gate = cell[agent.Gate]{g, w.bump()}
		w.after(w.between(0, time.Hour), func() {
			w.desired = later
			w.next()
		})
	}
	w.highest = max(w.highest, w.gate.value.Epoch)
}

// save and restore replace all of etcd by an older image. Revisions go on, as after a restore with --bump-revision.
func (w *world) save() {
	w.backup = &image{w.gate, w.desired, w.state, maps.Clone(w.hosts), maps.Clone(w.assigned), maps.Clone(w.statuses), w.rev}
}

func (w *world) restore() {
	b := w.backup
	w.gate, w.desired, w.state = b.gate, b.desired, b.state
	w.hosts, w.assigned, w.statuses = b.hosts, b.assigned, b.statuses
	w.gate.rev, w.state.rev = w.bump(), w.bump()
	w.aborted = false
}
