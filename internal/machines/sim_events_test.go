package machines_test

import (
	"time"

	"pulley/internal/machines"
	"pulley/internal/model"
)

// The events of a site besides those of applies: of its provider, its machines and nodes, and of other operators.

// hide makes the provider omit some of its machines for a while.
func (s *sim) hide(what hides, lasts time.Duration) {
	s.locked(func() { s.hides, s.hidesTo = what, s.Now().Add(lasts) })
}

// Demote removes the promoted release.
func (s *sim) Demote() { s.locked(func() { s.target = model.Target{} }) }

// plant adds a running machine that was never ordered.
func (s *sim) plant(name string, mark machines.Mark) (m machines.Machine) {
	s.locked(func() {
		b := s.box(machines.Order{Name: name}, mark)
		b.State, b.fate = machines.Running, noBoot
		m = b.Machine
	})
	return m
}

// kill removes a machine, or sets its state.
func (s *sim) kill(id string, state machines.State) {
	s.locked(func() {
		for _, b := range s.boxes {
			if b.ID != id {
				continue
			}
			if state == "" {
				b.goneAt = s.Now()
			} else {
				b.State, b.Problem = state, "it was killed"
				if state == machines.Deleting {
					b.goneAt = s.Now().Add(endTakes)
				}
			}
		}
		s.pass()
	})
}

// Join adds a node without a machine here to the host list.
func (s *sim) Join(node, role string) {
	s.locked(func() { s.hosts[node] = model.Host{Node: node, Role: role, At: s.Now().UTC(), By: "bootstrap"} })
}

// Report writes a node's status.
func (s *sim) Report(st model.Status) {
	s.locked(func() { s.statuses[st.Node], s.said[st.Node] = st, s.moment() })
}

// enroll makes a foreign machine join as a node, as a member of a role does, and keeps it running.
func (s *sim) enroll(node, role string, mark machines.Mark) (m machines.Machine) {
	s.locked(func() {
		var b *box
		for _, known := range s.boxes {
			if known.Name == node && known.mark == mark {
				b = known
			}
		}
		if b == nil {
			b = s.box(machines.Order{Name: node}, mark)
		}
		now := s.Now()
		b.State, b.node, b.joined, b.retired, b.joinedAt, b.converges = machines.Running, node, true, false, now, now
		s.hosts[node] = model.Host{Node: node, Role: role, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
		m = b.Machine
	})
	return m
}

// Ask sends a node a request from outside the apply.
func (s *sim) Ask(node string, q model.Request) {
	s.locked(func() {
		if h, ok := s.hosts[node]; ok {
			h.Request = &q
			s.hosts[node] = h
		}
	})
}

// holdNode puts a node under a hold; without a reason it ends the hold.
func (s *sim) holdNode(node, why string) {
	s.locked(func() {
		delete(s.holds, node)
		if why != "" {
			s.holds[node] = model.Hold{Scope: "nodes/" + node, Mode: model.Freeze, Kind: model.OperatorHold, Why: model.Prose(why)}
		}
	})
}

// Tokens returns the node of each valid token, by the token's id.
func (s *sim) Tokens() map[string]string {
	all := map[string]string{}
	s.locked(func() {
		for id, t := range s.tokens {
			if !t.dead {
				all[id] = t.node
			}
		}
	})
	return all
}

// Grant creates a token of this id for another node.
func (s *sim) Grant(id, node string) { s.locked(func() { s.tokens[id] = token{node: node} }) }

// take makes a machine join as a node, whatever its token is for.
func (s *sim) take(node, id string) {
	s.locked(func() {
		for _, b := range s.boxes {
			if b.ID == id {
				now := s.Now()
				b.joined, b.node, b.joinedAt, b.converges = true, node, now, now
				s.hosts[node] = model.Host{Node: node, Role: roleOf(node), Hostname: b.Name, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
			}
		}
	})
}

// retiring starts the retirement of a node, without an answer yet: its record is Retiring, it has a hold, and a request
// was sent.
func (s *sim) retiring(node string) {
	s.locked(func() {
		r, h := s.records[node], s.hosts[node]
		r.Phase, r.Ask, r.At = machines.Retiring, "00000000000000cc", s.Now().UTC()
		h.Request = &model.Request{ID: r.Ask, Do: model.RequestRetire, At: r.At}
		s.answers[r.Ask] = string(hookHang)
		s.records[node], s.hosts[node] = r, h
		s.holds[node] = model.Hold{Scope: "nodes/" + node, Mode: model.Stop, Kind: model.RetirementHold, Why: "the file calls for 1"}
	})
}

// forget deletes the record of a node.
func (s *sim) forget(node string) { s.locked(func() { delete(s.records, node) }) }

// heal ends all lasting faults: the provider lists its machines, they converge, and hooks end. Machines that never
// booted stay so.
func (s *sim) heal() {
	s.locked(func() {
		s.Trouble, s.Quota, s.hides = nil, 0, nothing
		clear(s.answers)
		for _, b := range s.boxes {
			if b.fate == noRun {
				b.fate = none
			}
			if b.State == machines.Unknown {
				b.State = machines.Running
			}
		}
	})
}

// Unlist removes a node from the host list, as `pulley nodes remove` does.
func (s *sim) Unlist(node string) {
	s.locked(func() { s.unlist(node) })
}
