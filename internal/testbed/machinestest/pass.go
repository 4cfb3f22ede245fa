package machinestest

import (
	"reflect"
	"slices"
	"time"

	"pulley/agent"
	"pulley/internal/machines"
)

// pass advances all machines to the present: they are built, join, converge, answer and end.
func (s *model) pass() {
	now := s.Now()
	s.boxes = slices.DeleteFunc(s.boxes, func(b *box) bool { return !b.goneAt.IsZero() && !now.Before(b.goneAt) })
	for _, b := range s.boxes {
		s.live(b, now)
	}
}

func (s *model) listed(b *box) bool { return !s.Now().Before(b.appears) }

// live advances one machine.
func (s *model) live(b *box, now time.Time) {
	if b.State == machines.Building && !now.Before(b.runs) {
		b.State = machines.Running
		switch b.fate {
		case ErrorEnd:
			b.State, b.Problem = machines.Failed, "No valid host was found"
		case LoseIt:
			b.goneAt = now
			return
		}
	}
	if b.State != machines.Running {
		return
	}
	if at := b.runs.Add(joinTakes); !b.joined && b.fate != NoBoot && !now.Before(at) {
		s.join(b, at)
	}
	host, listed := s.hosts[b.node]
	if listed && host.Request != nil && host.Request.Do == agent.RequestRun {
		b.retired = false // the retirement is cancelled
	}
	if b.joined && !b.retired && listed && host.MachineID == b.ID {
		s.report(b, host, now)
	}
}

// join adds a machine to the fleet, if its token is valid and its name is free.
func (s *model) join(b *box, at time.Time) {
	t, ok := s.tokens[string(b.userdata)]
	_, taken := s.hosts[t.node]
	if !ok || t.dead || taken {
		return
	}
	s.tokens[string(b.userdata)] = token{node: t.node, dead: true}
	b.joined, b.node, b.joinedAt, b.converges = true, t.node, at, at.Add(convergeTakes)
	s.hosts[t.node] = agent.Host{Node: t.node, Role: roleOf(t.node), Hostname: b.Name, Addresses: b.Addresses, MachineID: b.ID, At: at.UTC(), By: "bootstrap"}
}

// report writes the node's status: once a minute, as real nodes do, and after a request.
func (s *model) report(b *box, host agent.Host, now time.Time) {
	seen := b.joinedAt.Add(now.Sub(b.joinedAt).Truncate(reportInterval))
	st := agent.Status{Node: b.node, Role: host.Role, Phase: agent.Idle, Machine: b.ID, Settings: agent.DefaultSettings(), Target: s.target}
	if b.fate != NoRun && !now.Before(b.converges) {
		seen = latest(seen, b.converges)
		st.LastGood, st.Enforcing = s.target, s.target
	}
	if old, ok := s.statuses[b.node]; ok && old.Machine == b.ID {
		st.Answer = old.Answer
		seen = latest(seen, old.SeenAt)
	}
	if q := host.Request; q != nil && (st.Answer == nil || st.Answer.ID != q.ID) {
		at, problem := latest(q.At, b.joinedAt).Add(answerTakes), s.answers[q.ID]
		if !now.Before(at) && problem != string(HookHang) {
			st.Answer, seen = &agent.Answer{ID: q.ID}, latest(seen, at)
			if problem != "" {
				st.Answer.Problem = agent.Problem{Code: agent.HookFailed, Text: agent.Prose(problem)}
			}
			b.retired = q.Do == agent.RequestRetire && problem == ""
		}
	}
	st.SeenAt = seen.UTC()
	if !reflect.DeepEqual(s.statuses[b.node], st) {
		s.said[b.node] = s.moment()
	}
	s.statuses[b.node] = st
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
