package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/model"
	"pulley/internal/rollout"
)

// controller is one serve.
type controller struct {
	w    *world
	n    int
	skew time.Duration
	last rollout.Step
}

// advance reads the state, later the nodes, later writes the step. Anything may happen in between.
func (k *controller) advance() {
	w := k.w
	next := cmp.Or(w.Look, 5*time.Second)
	if w.now < w.Until && w.chance(w.Chaos/20) {
		switch w.rng.IntN(3) {
		case 0: // down, or without etcd
			next = w.between(time.Minute, time.Hour)
		case 1:
			k.skew, w.skewed = w.between(-3*time.Hour, 3*time.Hour), true
		case 2:
			k.skew = 0
		}
	}
	if w.now >= w.Until {
		k.skew = 0
	}
	state, gate := w.state, w.gate
	w.after(k.pause(), func() {
		var revs revisions
		now := w.time().Add(k.skew)
		step, o, _ := rollout.Decide(w.plan, state.value, now, func(need rollout.Needs) (o rollout.Observed, _ error) {
			o, revs = w.observe(need)
			o.Gate = gate.value
			if len(need.Gates) > 0 {
				o.Answers = w.ask(need.Gates, now)
			}
			return o, nil
		}, k.last.Blocking...)
		k.last = step
		w.after(k.pause(), func() {
			if k.act(state, gate, step, o, revs, now) {
				next = 0
			}
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

// ask asks the gates of the policy. Until the end of the faults, they may refuse, or not answer in time, and an answer may have waited for
// the controller as long as etcd was away.
func (w *world) ask(gates []string, now time.Time) map[string]rollout.Answer {
	answers := map[string]rollout.Answer{}
	for _, gate := range gates {
		code := rollout.GatePassed
		if w.now < w.Until && w.chance(0.3) {
			if w.chance(0.2) {
				continue
			}
			code = []rollout.AnswerCode{rollout.GateRefused, rollout.GateUnanswered, rollout.GateUndefined}[w.rng.IntN(3)]
		}
		at := now
		if w.now < w.Until && w.chance(0.2) {
			at = now.Add(-w.between(0, 10*time.Minute))
		}
		answers[gate] = rollout.Answer{Code: code, At: at}
	}
	return answers
}

// revisions are the guards of an observation.
type revisions struct {
	host, assigned, status map[string]int64
	ill                    map[string]bool // nodes that had reported a failed run
}

func (w *world) observe(need rollout.Needs) (rollout.Observed, revisions) {
	o := rollout.Observed{Nodes: map[string]rollout.Node{}}
	r := revisions{map[string]int64{}, map[string]int64{}, map[string]int64{}, maps.Clone(w.ill)}
	for _, name := range need.Nodes {
		d := w.read(name)
		n := rollout.Node{Host: d.Host, Assigned: d.Assigned, HostAt: w.hosts[name].rev, AssignedAt: w.assigned[name].rev, StatusAt: w.statuses[name].rev}
		n.Status = w.status(name)
		n.View = model.Look(n.Status, d, w.time())
		n.Wanted = w.plan.Target.Overlay(d.Default)
		o.Nodes[name] = n
		r.host[name], r.assigned[name], r.status[name] = n.HostAt, n.AssignedAt, n.StatusAt
	}
	if need.Hosts {
		o.Hosts = w.candidates()
	}
	return o, r
}

// status returns the last status of a node, or nil.
func (w *world) status(name string) *model.Status {
	st := w.statuses[name]
	if st.rev == 0 {
		return nil
	}
	return &st.value
}

// view returns what is known of a node.
func (w *world) view(name string) model.View {
	return model.Look(w.status(name), w.read(name), w.time())
}

// act writes a step, as the store does. It reports whether there was one: then the next one follows at once.
func (k *controller) act(state cell[rollout.State], gate cell[model.Gate], step rollout.Step, o rollout.Observed, r revisions, now time.Time) bool {
	w := k.w
	if !w.current(state, gate, step) {
		return false
	}
	if step.State != nil {
		w.checkMove(state.value, *step.State, o, r, now, step.Close != nil)
		w.state = cell[rollout.State]{*step.State, w.bump()}
		switch {
		case step.State.Phase == rollout.Completed:
			w.desired = after
			w.next()
		case step.State.Phase == rollout.Reverted:
			w.next()
		case step.Close != nil:
			g := w.gate.value
			g.State = model.GatePaused
			w.gate = cell[model.Gate]{g, w.bump()}
		}
		w.checkState()
		w.checkAssigned()
		return true
	}
	return w.write(step, r, func(node string) { delete(w.assigned, node) })
}

// current reports whether a step may be written: neither state nor gate changed since they were read.
func (w *world) current(state cell[rollout.State], gate cell[model.Gate], step rollout.Step) bool {
	w.result.Advances++
	if step.State == nil && state.rev == w.state.rev {
		w.lastWait = step.Wait
		if state.value.Phase == rollout.Advancing && step.Wait.Code == "" {
			w.violate("an advance without a change says nothing")
		}
	}
	return state.rev == w.state.rev && gate.rev == w.gate.rev
}

// write writes the orders of a step, and withdraws others, if nothing changed since the nodes were read. It reports whether there are any.
func (w *world) write(step rollout.Step, r revisions, withdraw func(node string)) bool {
	for _, a := range step.Assign {
		if w.now < w.Until && w.chance(w.Chaos/20) {
			return false // it ends between two transactions
		}
		if r.host[a.Node] == w.hosts[a.Node].rev && r.assigned[a.Node] == w.assigned[a.Node].rev {
			w.assigned[a.Node] = cell[model.Assignment]{a.Assignment, w.bump()}
		}
	}
	for _, node := range step.Withdraw {
		if r.assigned[node] == w.assigned[node].rev && r.status[node] == w.statuses[node].rev {
			withdraw(node)
		}
	}
	return len(step.Assign)+len(step.Withdraw) > 0
}

// next opens the gate with the next epoch, and without a campaign.
func (w *world) next() {
	w.gate = cell[model.Gate]{model.Gate{Epoch: w.gate.value.Epoch + 1, State: model.GateOpen}, w.bump()}
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
			for range 1 + w.rng.IntN(2) { // sometimes two at once
				w.operate()
			}
			w.operators()
		}
	})
}

// operate is one command of an operator: it reads, and writes later if neither state nor gate changed meanwhile.
func (w *world) operate() {
	gate, state := w.gate, w.state
	g, s := gate.value, state.value
	write := func(do func()) {
		w.after(w.between(0, 10*time.Second), func() {
			if gate.rev == w.gate.rev && state.rev == w.state.rev {
				do()
				w.checkAssigned()
			}
		})
	}
	replace := func(next rollout.State, err error) {
		if err == nil {
			write(func() { w.state = cell[rollout.State]{next, w.bump()} })
		}
	}
	open := g.Rollout != "" && s.Phase == rollout.Advancing
	name := w.names[w.rng.IntN(len(w.names))]
	switch act := w.rng.IntN(14); {
	case act < 2 && open && g.State != model.GateAborted:
		write(func() { w.set(model.GatePaused, s) })
	case act < 5 && open && g.State == model.GatePaused:
		write(func() { w.set(model.GateOpen, s.Resume()) })
	case act < 7 && open: // also after an abort
		if next, n, err := s.Retry(w.plan); err == nil && n > 0 {
			write(func() { w.set(model.GateOpen, next) })
		}
	case act < 9 && open && w.chance(0.3): // perhaps before its turn, or before it is ordered again
		replace(s.Skip(w.plan, name))
	case act < 9 && open && len(s.Slots) > 0:
		nodes := slices.Sorted(maps.Keys(s.Slots))
		lost := slices.IndexFunc(nodes, func(node string) bool { return s.Slots[node].State == rollout.Lost })
		node := nodes[w.rng.IntN(len(nodes))]
		if lost >= 0 && w.chance(0.7) {
			node = nodes[lost]
		}
		replace(s.Skip(w.plan, node))
	case act == 9 && open:
		replace(s.Approve(w.plan))
	case act == 10: // remove
		delete(w.hosts, name)
		delete(w.assigned, name)
		delete(w.statuses, name)
		delete(w.ill, name)
	case act == 11: // join again, as another machine
		role := "web"
		if h, ok := w.hosts[name]; ok {
			role = h.value.Role
		}
		delete(w.assigned, name)
		w.join(name, role)
	case act == 12:
		w.joinLate()
	case act == 13 && w.chance(0.5) && open: // abort, and later perhaps another promotion
		epoch := g.Epoch
		write(func() {
			w.set(model.GateAborted, s)
			w.after(w.between(0, time.Hour), func() {
				if w.gate.value.Epoch == epoch && w.gate.value.State == model.GateAborted && w.chance(0.7) {
					w.desired = later
					w.next()
				}
			})
		})
	case act == 13 && w.chance(0.2) && open: // a promotion that ends it
		write(func() {
			w.desired = later
			w.next()
		})
	}
	w.checkAssigned()
}

// joinLate registers a node of some role. The plan has no app.
func (w *world) joinLate() {
	role := []string{"db", "web", "app"}[w.rng.IntN(3)]
	w.join(fmt.Sprintf("%s%d", role, w.Nodes+len(w.names)), role)
}

// set opens or closes the gate of the campaign, and replaces its state.
func (w *world) set(to model.GateState, s rollout.State) {
	g := w.gate.value
	g.State = to
	w.gate, w.state = cell[model.Gate]{g, w.bump()}, cell[rollout.State]{s, w.bump()}
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
	w.era++
}
