package machines_test

import (
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

// aim is the wanted state of a fleet. The oracle judges each act by it and by the true state of machines, never by data
// of the code under test.
type aim struct {
	Want    *environments.Environment
	Destroy bool          // no machine is wanted
	Budget  int           // of a Watcher, per hour; 0: an operator wants and approved it
	Clock   time.Duration // error of the session's clock
}

// aims makes the oracle judge a session.
func (x *session) aims(a aim) { x.site.locked(func() { x.aim = &a }) }

// away is the mark by which the fleet's machines are searched at the wrong place.
func (s *sim) away() machines.Mark {
	return machines.Mark{Owner: "ffffffffffffffff", Fleet: s.Ref.String()}
}

// A recorded young machine that has not joined may be missing in a list.
const young = 2 * time.Minute

// This much time may pass between a look and the act that follows it.
const moment = 30 * time.Second

// alive reports whether a machine runs, is the registered node, and reported lately.
func (s *modelled) alive(b *box) bool {
	h, listed := s.hosts[b.node]
	st, reported := s.statuses[b.node]
	return b.State == machines.Running && b.goneAt.IsZero() && b.joined && listed && h.MachineID == b.ID && reported && st.Machine == b.ID &&
		s.view(b.node).State != model.Silent
}

// wants reports whether the aim has a node of this name, and its role.
func (a aim) wants(node string) (environments.Role, bool) {
	n, err := model.ParseNode(node)
	if a.Destroy || a.Want == nil || err != nil || !a.Want.Has(n) {
		return environments.Role{}, false
	}
	return a.Want.Role(n.Role)
}

// spared returns the reason why the machine of a node must stay, by the aim and its state; "" if its retirement may
// begin.
func (x *session) spared(b *box, node string) string {
	s := x.site
	role, wanted := x.aim.wants(node)
	watches := x.aim.Budget > 0
	r, booked := s.records[node]
	other := role.Flavor != b.asked || booked && b.asked == "" && r.Flavor != role.Flavor
	switch {
	case !watches && (!wanted || other):
	case s.alive(b) && s.Now().Sub(b.joinedAt) > moment: // a look and the end cannot be at the same moment
		return "it is alive and wanted as it is"
	}
	return ""
}

// begins judges a session's first record of a node.
func (x *session) begins(have, next machines.Record) {
	s := x.site
	if x.aim == nil || s.holder != x {
		return
	}
	for _, b := range s.boxes {
		if next.Phase != machines.Retiring || have.Phase == machines.Retiring || b.mark != s.mark() || s.hosts[next.Node].MachineID != b.ID {
			continue
		}
		if why := x.spared(b, next.Node); why != "" {
			s.violated("the retirement of %s began, and %s", next.Node, why)
		}
	}
	if x.aim.Budget > 0 {
		x.watches(have, next)
	}
}

// watches judges the acts that a Watcher begins.
func (x *session) watches(have, next machines.Record) {
	s := x.site
	if have.Phase != machines.Made || next.Phase == machines.Made {
		if have.Phase == "" {
			s.violated("a watch made %s, which has no record", next.Node)
		}
		return
	}
	role, wanted := x.aim.wants(next.Node)
	switch {
	case !wanted:
		s.violated("a watch touched %s, which is not wanted", next.Node)
	case role.Protected:
		s.violated("a watch touched %s, and %s is protected", next.Node, role.Name)
	case s.holds[next.Node].Mode != "":
		s.violated("a watch touched %s, which is under a hold", next.Node)
	}
	if _, reported := s.statuses[next.Node]; reported && s.view(next.Node).State != model.Silent && s.hosts[next.Node].Node != "" {
		s.violated("a watch touched %s, which reported lately", next.Node)
	}
	now := s.Now()
	s.watched = append(s.watched, now)
	if n := len(slices.DeleteFunc(slices.Clone(s.watched), func(t time.Time) bool { return now.Sub(t) >= time.Hour })); n > x.aim.Budget {
		s.violated("a watch touched %d machines in an hour, and may touch %d", n, x.aim.Budget)
	}
}

// mayEnd judges the deletion of a machine.
func (x *session) mayEnd(b *box) {
	s := x.site
	if x.aim == nil || b.State == machines.Deleting {
		return
	}
	n, err := model.ParseHostname(b.Name)
	if err != nil {
		return // reported already
	}
	r := s.records[n.String()]
	if b.mark != s.mark() {
		s.violated("machine %s was deleted at another place", b.Name)
	}
	if why := x.spared(b, n.String()); why != "" && (r.Phase != machines.Retiring || !r.Drained) {
		s.violated("machine %s (%s) was deleted, and %s", b.Name, b.ID, why)
	}
}

// mayRemove judges the removal of a node from the host list.
func (x *session) mayRemove(node string) {
	s := x.site
	host, listed := s.hosts[node]
	if x.aim == nil || !listed {
		return
	}
	for _, b := range s.boxes {
		if b.ID != host.MachineID {
			continue
		}
		r := s.records[node]
		switch why := x.spared(b, node); {
		case b.mark != s.mark() && !s.members[node]:
			s.violated("%s was removed from the host list, and its machine is of another fleet", node)
		case b.mark == s.mark() && why != "" && (r.Phase != machines.Retiring || !r.Drained):
			s.violated("%s was removed from the host list, and %s", node, why)
		}
	}
}

// onlyOne records an error if a machine is ordered while another of its name is alive.
func (c cloud) onlyOne(o machines.Order) {
	x, s := c.session, c.session.site
	if x.aim == nil || s.holder != x {
		return
	}
	if c.mark != s.mark() {
		s.violated("machine %s was ordered at another place", o.Name)
	}
	for _, b := range s.boxes {
		if b.Name != o.Name || b.mark != s.mark() || !s.listed(b) || b.ended || !b.goneAt.IsZero() {
			continue
		}
		since, booked := s.booked[b.ID]
		switch lives := b.State == machines.Running || b.State == machines.Building; {
		case s.alive(b) && s.Now().Sub(b.joinedAt) > moment:
			s.violated("machine %s was ordered, and %s is alive", o.Name, b.ID)
		case lives && booked && b.joinedAt.IsZero() && x.aim.Clock.Abs() < young && s.Now().Sub(since) < young && s.records[o.Node].Tries <= 1:
			s.violated("machine %s was ordered, and %s was made a moment before", o.Name, b.ID)
		}
	}
}

// judgePlan judges the machines that a plan would delete, before the operator approves it.
func (x *session) judgePlan(p plan.Plan) {
	s := x.site
	s.locked(func() {
		for _, v := range p.Deleted() {
			for _, b := range s.boxes {
				if b.Name != v.Name || v.ID != "" && b.ID != v.ID || b.mark != s.mark() && b.mark != s.away() {
					continue
				}
				if !x.condemned(b, p.Spec) {
					s.violated("a plan destroys machine %s (%s, %s, asked for at %s, joined %v) without a reason: %s", b.Name, b.ID, b.State, b.Created, b.joined, whyOf(p, v))
				}
			}
		}
	})
}

func whyOf(p plan.Plan, v machines.Ref) string {
	for _, s := range p.Steps {
		if slices.Contains(s.Deletes, v) {
			return string(s.Verb) + " " + s.Node + ", " + render.Reasons(s.Reasons)
		}
	}
	return ""
}

// condemned reports whether the state of the world justifies the end of a machine.
func (x *session) condemned(b *box, want *environments.Environment) bool {
	s := x.site
	n, err := model.ParseHostname(b.Name)
	if err != nil || n.Stack != s.Ref.Stack {
		return false
	}
	node := n.String()
	role, wanted := x.aim.wants(node)
	r, booked := s.records[node]
	host, listed := s.hosts[node]
	registered := listed && host.MachineID == b.ID
	switch {
	case !wanted:
		return true
	case b.State == machines.Failed || b.State == machines.Stopped || b.State == machines.Deleting:
		return true
	case role.Flavor != b.asked || booked && r.Flavor != role.Flavor && b.asked == "":
		return true
	case r.Phase == machines.Retiring && (r.Drained || !registered):
		return true
	case s.Now().Add(x.aim.Clock).Sub(b.Created) <= want.TimeoutOf(role): // by the operator's clock
	case !b.joined:
		return true
	// it was in neither list, and its name was claimed for another machine
	case !registered && booked && !r.Joined && b.omitted:
		return true
	case !registered && booked && r.Tries == 0: // it was adopted: the operator who removed it knew that it had joined
		return true
	}
	return !registered && slices.ContainsFunc(s.boxes, func(o *box) bool { return o != b && o.Name == b.Name && o.mark == b.mark && s.listed(o) })
}
