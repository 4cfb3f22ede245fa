package machines_test

import (
	"errors"
	"reflect"
	"slices"
	"time"

	"pulley/internal/machines"
	"pulley/internal/model"
)

// pass advances all machines to the present: they are built, join, converge, answer and end.
func (s *modelled) pass() {
	now := s.Now()
	s.boxes = slices.DeleteFunc(s.boxes, func(b *box) bool { return !b.goneAt.IsZero() && !now.Before(b.goneAt) })
	for _, b := range s.boxes {
		s.live(b, now)
	}
}

func (s *modelled) listed(b *box) bool { return !s.Now().Before(b.appears) }

// live advances one machine.
func (s *modelled) live(b *box, now time.Time) {
	if b.State == machines.Building && !now.Before(b.runs) {
		b.State = machines.Running
		switch b.fate {
		case errorEnd:
			b.State, b.Problem = machines.Failed, "No valid host was found"
		case loseIt:
			b.goneAt = now
			return
		case noBoot:
			b.Problem = "its first boot ended; it is retried"
		}
	}
	if b.State != machines.Running {
		return
	}
	if at := b.runs.Add(joinTakes); !b.joined && b.fate != noBoot && !now.Before(at) {
		s.join(b, at)
	}
	host, listed := s.hosts[b.node]
	if listed && host.Request != nil && host.Request.Do == model.RequestRun {
		b.retired = false // the retirement is cancelled
	}
	if b.joined && !b.retired && listed && host.MachineID == b.ID && !now.Before(b.joinedAt.Add(s.FirstBoot)) {
		s.report(b, host, now)
	}
}

// join adds a machine to the fleet, if its token is valid and its name is free.
func (s *modelled) join(b *box, at time.Time) {
	t, ok := s.tokens[string(b.userdata)]
	_, taken := s.hosts[t.node]
	if !ok || t.dead || taken {
		return
	}
	s.tokens[string(b.userdata)] = token{node: t.node, dead: true}
	b.joined, b.node, b.joinedAt, b.converges = true, t.node, at, at.Add(convergeTakes)
	s.hosts[t.node] = model.Host{Node: t.node, Role: roleOf(t.node), Hostname: b.Name, Addresses: b.Addresses, MachineID: b.ID, At: at.UTC(), By: "bootstrap"}
}

// report writes the node's status: once a minute, as real nodes do, and after a request.
func (s *modelled) report(b *box, host model.Host, now time.Time) {
	seen := b.joinedAt.Add(now.Sub(b.joinedAt).Truncate(reportInterval))
	st := model.Status{Node: b.node, Role: host.Role, Phase: model.Idle, Machine: b.ID, Settings: model.DefaultSettings(), Target: s.target}
	if b.fate != noRun && !now.Before(b.converges) {
		seen = latest(seen, b.converges)
		st.LastGood, st.Enforcing = s.target, s.target
	}
	if old, ok := s.statuses[b.node]; ok && old.Machine == b.ID {
		st.Answer = old.Answer
		seen = latest(seen, old.SeenAt)
	}
	if q := host.Request; q != nil && (st.Answer == nil || st.Answer.ID != q.ID) {
		at, problem := latest(q.At, b.joinedAt).Add(answerTakes), s.answers[q.ID]
		if !now.Before(at) && problem != string(hookHang) {
			st.Answer, seen = &model.Answer{ID: q.ID}, latest(seen, at)
			if problem != "" {
				st.Answer.Problem = model.Problem{Code: model.HookFailed, Text: model.Prose(problem)}
			}
			b.retired = q.Do == model.RequestRetire && problem == ""
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

// fault is a fault of one call, or of the machine that it makes.
type fault string

// The faults. A fault that does not apply to a call has no effect.
const (
	none        fault = ""
	failBefore  fault = "fails without effect"
	failAfter   fault = "takes effect, and the answer is lost"
	crashBefore fault = "the caller crashes before"
	crashAfter  fault = "the caller crashes after"

	throttle fault = "throttles"         // of a provider's call
	nameBusy fault = "the name is busy"  // of a create
	quota    fault = "the quota is full" // of a create
	refuses  fault = "refuses"           // of a create
	late     fault = "takes effect later, and the answer is lost"
	makesTwo fault = "makes two machines"
	errorEnd fault = "makes a machine that fails"
	loseIt   fault = "makes a machine, and loses it"
	noBoot   fault = "makes a machine that never joins"
	noRun    fault = "makes a machine that joins and never converges"
	slow     fault = "takes long"                // of a delete
	deaf     fault = "answers, and does nothing" // of a delete
	hookFail fault = "the hooks fail"            // of a request to retire
	hookHang fault = "the hooks never end"
)

// The durations of machines. Each machine's number varies them.
const (
	buildTakes     = 40 * time.Second
	joinTakes      = 30 * time.Second
	convergeTakes  = 70 * time.Second
	answerTakes    = 20 * time.Second
	endTakes       = 15 * time.Second
	slowEndTakes   = 6 * time.Minute
	lateBy         = 45 * time.Second
	reportInterval = time.Minute
	busyFor        = 20 * time.Second
)

var (
	errNoAnswer = errors.New("no answer")
	errCrashed  = errors.New("this program has crashed")
)
