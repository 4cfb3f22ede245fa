package agent

import "pulley/internal/clip"

// Bounds of requests and answers.
const (
	maxAnswer    = 200 // bytes of an answer's text
	maxRequestID = 64  // a longer one does not fit into the answer: the request is ignored
)

// known reports whether etcd gave a readable answer.
func (d Desired) known() bool { return d.Unreachable == "" && d.Unreadable == "" }

// asked is what this machine is asked for, nil for nothing; told is false when nobody can tell: etcd is silent, or has no
// entry of this machine.
func (o Observed) asked(d Desired) (r *Request, told bool) {
	if !d.known() || d.Host == nil || anotherMachine(d.Host, o.Machine) {
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

// pending is the unanswered request of this kind.
func (o Observed) pending(d Desired, kind RequestKind) *Request {
	if r := o.unanswered(d); r != nil && r.Do == kind {
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
	requested := told && r != nil && r.Do == RequestRetire
	switch {
	case requested && l.o.State.Retire == "" && l.o.pending(l.d, RequestRetire) == nil:
		l.pass(AskRetiring, Cause{Params: Params{Problem: l.o.State.Answer.Failure()}})
		return false
	case requested:
		l.fail(AskRetiring, Cause{ReasonRetire, Params{Request: r}})
	case !told && l.o.State.Retire != "":
		l.fail(AskRetiring, Cause{Reason: ReasonRetired})
	default:
		l.pass(AskRetiring, Cause{})
		return false
	}
	switch {
	case !told:
		l.stop(AskHooks, Cause{Reason: ReasonRetired})
	case l.o.pending(l.d, RequestRetire) == nil:
		l.stop(AskHooks, Cause{ReasonRetired, Params{Problem: l.o.State.Answer.Failure()}})
	case l.o.Noop:
		l.stop(AskHooks, Cause{ReasonRetire, Params{Request: r}})
	default:
		l.pass(AskHooks, Cause{Reason: ReasonRetire})
		l.end(Retire, Cause{ReasonRetire, Params{Request: r}}, l.o.State.has())
	}
	return true
}

// Failure is why the node did not do what was requested; nil when it did.
func (a *Answer) Failure() *Problem {
	if !a.Failed() {
		return nil
	}
	p := a.Problem
	if a.Cause != nil {
		p = Problem{Code: NotStarted, Text: Prose(a.Cause.Sentence())}
	}
	return &p
}

// Retirement is how far a node's retirement is, as the node itself knows.
type Retirement string

// The phases of a retirement. An empty one is none.
const (
	RetireBegun Retirement = "hooks_begun"
	RetireDone  Retirement = "retired"
)

// Retirement is how far this node's retirement is.
func (s *State) Retirement() Retirement {
	switch {
	case s.Retire == "":
		return ""
	case s.Answer == nil || s.Answer.ID != s.Retire:
		return RetireBegun
	}
	return RetireDone
}

// has is the release that this node has: the last good one, else what it is part way to.
func (s *State) has() Target {
	if s.LastGood.IsZero() {
		return s.Enforcing
	}
	return s.LastGood
}

// settle remembers what became of a request. A node retires once it has consented, whatever its answer is.
func (s *State) settle(id string, p Problem) {
	s.Answer = &Answer{ID: id, Problem: p.clipped(maxAnswer)}
}

// unknown returns the problem of a request that this agent does not know; zero when it knows it.
func (r *Request) unknown() Problem {
	if r.Do == RequestRun || r.Do == RequestRetire {
		return Problem{}
	}
	return Problem{Code: UnknownRequest, Text: Prose(clip.Text(string(r.Do), maxRequestID))}
}
