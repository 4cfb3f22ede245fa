package machinestest

import (
	"time"

	"pulley/agent"
	"pulley/internal/machines"
)

// What happens to a site beside what applies do to it: to its provider, its machines and its nodes, and by other operators.

// Hide has the provider not tell of some of its machines for a while.
func (s *Sim) Hide(what Hides, lasts time.Duration) {
	s.locked(func() { s.hides, s.hidesTo = what, s.Now().Add(lasts) })
}

// Demote has nothing promoted.
func (s *Sim) Demote() { s.locked(func() { s.target = agent.Target{} }) }

// Plant puts a machine there that runs and that nobody ordered.
func (s *Sim) Plant(name string, mark machines.Mark) (m machines.Machine) {
	s.locked(func() {
		b := s.box(machines.Order{Name: name}, mark)
		b.State, b.fate = machines.Running, NoBoot
		m = b.Machine
	})
	return m
}

// Kill has something happen to a machine: it is lost, or goes into a state.
func (s *Sim) Kill(id string, state machines.State) {
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

// Join puts a node on the list that has no machine here.
func (s *Sim) Join(node, role string) {
	s.locked(func() { s.hosts[node] = agent.Host{Node: node, Role: role, At: s.Now().UTC(), By: "bootstrap"} })
}

// Say writes what a node says of itself.
func (s *Sim) Say(st agent.Status) {
	s.locked(func() { s.statuses[st.Node], s.said[st.Node] = st, s.moment() })
}

// Enroll has a machine of somebody else join as a node, as a member of a role does, and live on as one.
func (s *Sim) Enroll(node, role string, mark machines.Mark) (m machines.Machine) {
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
		s.hosts[node] = agent.Host{Node: node, Role: role, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
		m = b.Machine
	})
	return m
}

// Ask has somebody beside the apply ask a node for something.
func (s *Sim) Ask(node string, q agent.Request) {
	s.locked(func() {
		if h, ok := s.hosts[node]; ok {
			h.Request = &q
			s.hosts[node] = h
		}
	})
}

// HoldNode puts a node under a hold; without a reason it takes that away.
func (s *Sim) HoldNode(node, why string) {
	s.locked(func() {
		delete(s.holds, node)
		if why != "" {
			s.holds[node] = agent.Hold{Scope: "nodes/" + node, Mode: agent.Freeze, Kind: agent.OperatorHold, Why: agent.Prose(why)}
		}
	})
}

// Tokens is who may join as which node: ids of tokens, and nodes.
func (s *Sim) Tokens() map[string]string {
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

// Grant has somebody else have a token of this id.
func (s *Sim) Grant(id, node string) { s.locked(func() { s.tokens[id] = token{node: node} }) }

// Take has a machine join as a node, whatever its token says.
func (s *Sim) Take(node, id string) {
	s.locked(func() {
		for _, b := range s.boxes {
			if b.ID == id {
				now := s.Now()
				b.joined, b.node, b.joinedAt, b.converges = true, node, now, now
				s.hosts[node] = agent.Host{Node: node, Role: roleOf(node), Hostname: b.Name, Addresses: b.Addresses, MachineID: b.ID, At: now.UTC(), By: "bootstrap"}
			}
		}
	})
}

// Retiring has the books say that the retiring of a node was begun, which has not answered: it is held, and asked.
func (s *Sim) Retiring(node string) {
	s.locked(func() {
		r, h := s.records[node], s.hosts[node]
		r.Phase, r.Ask, r.At = machines.Retiring, "00000000000000cc", s.Now().UTC()
		h.Request = &agent.Request{ID: r.Ask, Do: agent.RequestRetire, At: r.At}
		s.answers[r.Ask] = string(HookHang)
		s.records[node], s.hosts[node] = r, h
		s.holds[node] = agent.Hold{Scope: "nodes/" + node, Mode: agent.Stop, Kind: agent.RetirementHold, Why: "the file calls for 1"}
	})
}

// Forget strikes a node off the books.
func (s *Sim) Forget(node string) { s.locked(func() { delete(s.records, node) }) }

// Heal ends all faults that last: the provider knows its machines, they converge, and hooks end. Those that never booted stay
// as they are.
func (s *Sim) Heal() {
	s.locked(func() {
		s.Trouble, s.Quota, s.hides = nil, 0, Nothing
		clear(s.answers)
		for _, b := range s.boxes {
			if b.fate == NoRun {
				b.fate = None
			}
			if b.State == machines.Unknown {
				b.State = machines.Running
			}
		}
	})
}

// Unlist takes a node off the list of hosts, as `pulley nodes remove` does.
func (s *Sim) Unlist(node string) {
	s.locked(func() { s.takeOff(node) })
}
