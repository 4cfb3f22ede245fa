package model

import "pulley/internal/clip"

// Limits of requests and answers.
const (
	MaxAnswer    = 200 // bytes of an answer's text
	maxRequestID = 64  // a longer id does not fit into the answer: the request is ignored
)

// Known reports whether etcd gave a readable answer.
func (d Desired) Known() bool { return d.Unreachable == "" && d.Unreadable == "" }

// Asked returns the request to this machine, or nil. known is false when the request is unknown: etcd does not answer,
// or it contains no entry of this machine.
func (o Observed) Asked(d Desired) (r *Request, known bool) {
	if !d.Known() || d.Host == nil || AnotherMachine(d.Host, o.Machine) {
		return nil, false
	}
	if r := d.Host.Request; r != nil && r.ID != "" && len(r.ID) <= maxRequestID {
		return r, true
	}
	return nil, true
}

// Unanswered returns the request that the node has not answered yet, or nil.
func (o Observed) Unanswered(d Desired) *Request {
	if r, _ := o.Asked(d); r != nil && (o.State.Answer == nil || o.State.Answer.ID != r.ID) {
		return r
	}
	return nil
}

// Pending returns the unanswered request of this kind, or nil.
func (o Observed) Pending(d Desired, kind RequestKind) *Request {
	if r := o.Unanswered(d); r != nil && r.Do == kind {
		return r
	}
	return nil
}

// retire asks the questions of a retirement, and reports whether the node retires. They precede holds, because an
// operator holds a node before its retirement. They precede Puppet's locks, because hooks are not Puppet.
//
// A retirement that began stays in force while etcd does not answer about this machine. Only a host list that contains
// this machine without a request to retire cancels it. An answer that the node could not start means that the
// retirement did not start.
func (l *ladder) retire() bool {
	r, known := l.o.Asked(l.d)
	requested := known && r != nil && r.Do == RequestRetire
	switch {
	case requested && l.o.State.Retire == "" && l.o.Pending(l.d, RequestRetire) == nil:
		l.pass(AskRetiring, Cause{Params: Params{Problem: l.o.State.Answer.Failure()}})
		return false
	case requested:
		l.fail(AskRetiring, Cause{ReasonRetire, Params{Request: r}})
	case !known && l.o.State.Retire != "":
		l.fail(AskRetiring, Cause{Reason: ReasonRetired})
	default:
		l.pass(AskRetiring, Cause{})
		return false
	}
	switch {
	case !known:
		l.stop(AskHooks, Cause{Reason: ReasonRetired})
	case l.o.Pending(l.d, RequestRetire) == nil:
		l.stop(AskHooks, Cause{ReasonRetired, Params{Problem: l.o.State.Answer.Failure()}})
	case l.o.Noop || l.o.Partial:
		l.stop(AskHooks, Cause{ReasonRetire, Params{Request: r}})
	default:
		l.pass(AskHooks, Cause{Reason: ReasonRetire})
		l.end(Retire, Cause{ReasonRetire, Params{Request: r}}, l.o.State.inPlace())
	}
	return true
}

// Failure returns why the node did not do the requested work; nil means success.
func (a *Answer) Failure() *Problem {
	if a == nil || !a.Failed() {
		return nil
	}
	p := a.Problem
	if a.Cause != nil {
		p = Problem{Code: NotStarted, Text: Prose(a.Cause.Sentence())}
	}
	return &p
}

// Retirement is the progress of a node's retirement, by the node's own state.
type Retirement string

// The phases of a retirement. An empty one means none.
const (
	RetireBegun Retirement = "hooks_begun"
	RetireDone  Retirement = "retired"
)

// Retirement returns the progress of this node's retirement.
func (s *State) Retirement() Retirement {
	switch {
	case s.Retire == "":
		return ""
	case s.Answer == nil || s.Answer.ID != s.Retire:
		return RetireBegun
	}
	return RetireDone
}

// inPlace returns the target on this node: the last good one, else the one that is partly applied.
func (s *State) inPlace() Target {
	if s.LastGood.IsZero() {
		return s.Enforcing
	}
	return s.LastGood
}

// Settle records the result of a request. A node whose retirement is confirmed retires, whatever the answer is.
func (s *State) Settle(id string, p Problem) {
	s.Answer = &Answer{ID: id, Problem: p.Clipped(MaxAnswer)}
}

// Unknown returns the problem of a request that this agent does not support, or zero.
func (r *Request) Unknown() Problem {
	if r.Do == RequestRun || r.Do == RequestNoop || r.Do == RequestRetire {
		return Problem{}
	}
	return Problem{Code: UnknownRequest, Text: Prose(clip.Text(string(r.Do), maxRequestID))}
}
