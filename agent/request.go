package agent

import (
	"fmt"
	"pulley/internal/clip"
)

// Bounds of what is said about requests.
const (
	maxAnswer    = 200 // bytes of an answer's words
	maxRequestID = 64  // a longer one would not fit into the answer: it is no request
)

// known says whether etcd gave an answer that can be read.
func (d Desired) known() bool { return d.Unreachable == "" && d.Unreadable == "" }

// asked is what this machine is asked for, nil for nothing; told is false when nobody can tell: etcd is silent, or has no
// entry of this machine.
func (o Observed) asked(d Desired) (r *Request, told bool) {
	if !d.known() || d.Host == nil || otherMachine(d.Host, o.Machine) != "" {
		return nil, false
	}
	if r := d.Host.Request; r != nil && r.ID != "" && len(r.ID) <= maxRequestID {
		return r, true
	}
	return nil, true
}

// unanswered is the request that the node has yet to answer; nil when there is none.
func (o Observed) unanswered(d Desired) *Request {
	if r, _ := o.asked(d); r != nil && (o.State.Answer == nil || o.State.Answer.ID != r.ID) {
		return r
	}
	return nil
}

// pending is the unanswered request where it is for this deed.
func (o Observed) pending(d Desired, deed Deed) *Request {
	if r := o.unanswered(d); r != nil && r.Do == deed {
		return r
	}
	return nil
}

// retire climbs the rungs of a node that is being retired, and says whether it is. They come before holds, as whoever retires
// a node holds it first; and before Puppet's own locks, as hooks are not Puppet. While etcd says nothing of this machine, what
// was begun stays begun: only the list of hosts, with this machine on it and not asked to retire, calls it off. What it
// answered that it could not begin, it did not begin.
func (l *ladder) retire() bool {
	r, told := l.o.asked(l.d)
	const asked = "not asked to retire"
	switch {
	case told && r != nil && r.Do == DeedRetire && l.o.State.Retire == "" && l.o.pending(l.d, DeedRetire) == nil:
		l.pass(asked, "it was, and answered that it could not: "+l.o.State.Answer.sentence())
		return false
	case told && r != nil && r.Do == DeedRetire:
		l.fail(asked, r.sentence())
	case !told && l.o.State.Retire != "":
		l.fail(asked, "it was")
	default:
		l.pass(asked, "yes")
		return false
	}
	const due = "its hooks have yet to run"
	switch {
	case !told:
		l.stop(due, ReasonRetired, "etcd does not say that this was called off")
	case l.o.pending(l.d, DeedRetire) == nil:
		l.stop(due, ReasonRetired, l.o.State.Answer.sentence())
	case l.o.Noop:
		l.stop(due, ReasonRetire, "they do, and not while somebody only looks")
	default:
		l.pass(due, string(ReasonRetire))
		l.end(Retire, ReasonRetire, r.sentence(), l.o.State.has())
	}
	return true
}

// sentence is who asked, and why.
func (r *Request) sentence() string {
	who := r.By
	if who == "" {
		who = "somebody"
	}
	if r.Why == "" {
		return "asked by " + who
	}
	return "asked by " + who + ": " + r.Why
}

// sentence is how the hooks went.
func (a *Answer) sentence() string {
	if a.Problem == "" {
		return "its hooks are done"
	}
	return a.Problem
}

// Retires is how far this node's retirement is, as it knows; "" when it was not asked to.
func (s *State) Retires() string {
	switch {
	case s.Retire == "":
		return ""
	case s.Answer == nil || s.Answer.ID != s.Retire:
		return "its hooks were begun"
	}
	return "it runs nothing any more: " + s.Answer.sentence()
}

// has is the release that this node has: the last good one, else what it is part way to.
func (s *State) has() Target {
	if s.LastGood.IsZero() {
		return s.Enforcing
	}
	return s.LastGood
}

// settle remembers what became of a request. Whether the node retires is another matter: that is so once it consented.
func (s *State) settle(id, problem string) {
	s.Answer = &Answer{ID: id, Problem: clip.Text(problem, maxAnswer)}
}

// strange says why a request can't be done by this agent; "" when it can.
func (r *Request) strange() string {
	if r.Do == DeedRun || r.Do == DeedRetire {
		return ""
	}
	return fmt.Sprintf("this agent does not know the deed %q; upgrade it", clip.Text(string(r.Do), maxRequestID))
}
