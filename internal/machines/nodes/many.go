package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// Many are the runs of many nodes, some at a time. Nothing but this process starts the next one.
type Many struct {
	Concurrency int                  // requests without an answer at a time, at least 1
	Deadline    time.Duration        // for the answer of one node, and for the end of a run in progress
	Kind        model.RequestKind    // RequestRun or RequestNoop
	By, Why     string               // of the requests
	Now         func() time.Time     // the clock
	Poll        time.Duration        // between two looks; 0: a second
	Tell        func(one RanNode)    // receives each node as it ends; may be nil
	Away        func(err error)      // receives the error when etcd stops to answer; may be nil
	queue       []string             // nodes without a request, in order
	busy        map[string]time.Time // since when nodes of the queue were seen in a run
	asked       map[string]asked
	silence     time.Duration // setting of the environment
}

type asked struct {
	request model.Request
	at      time.Time // of the request; zero: its write may have failed, and is repeated
}

// RanNode is how one of many nodes ended.
type RanNode struct {
	Node    string
	End     RunEnd
	Outcome model.Outcome // Ran, of a run that is not noop
	Why     string        // Failed, Refused, Busy, Unfinished, Silent: for people
}

// RunEnd is the code of how a node ended.
type RunEnd string

// The ends.
const (
	Ran        RunEnd = "ran"
	Failed     RunEnd = "failed"     // its run failed
	Refused    RunEnd = "refused"    // it answered why it does not run
	Busy       RunEnd = "busy"       // it was in another run for too long, and got no request
	Unfinished RunEnd = "unfinished" // it got a request, and was in a run for too long
	Silent     RunEnd = "silent"     // it last reported too long ago, and got no request; or it did not answer, and its request was withdrawn
	Pending    RunEnd = "pending"    // the loop was interrupted, and the request stays
)

// Select returns the registered nodes of a selection, in order. It refuses an environment in which a job lets the nodes wait.
func Select(ctx context.Context, s *etcd.DB, ref model.Ref, sel fleet.Selection, now time.Time) (names, notes []string, err error) {
	f, err := fleet.Find(ctx, s, ref, sel)
	if err == nil {
		sel, notes, err = fleet.Narrow(ctx, s, ref, f, sel, now)
	}
	if err != nil {
		return nil, nil, err
	}
	if gate := f.Desires.Gate; f.Desires.Job != nil && f.Desires.Job.ID == gate.Rollout {
		return nil, nil, fmt.Errorf("cannot run the nodes of %s: job %s of %s lets them wait\n`pulley job watch -e %[1]s` shows it, `pulley job abort -e %[1]s` ends it", ref, gate.Rollout, gate.By)
	}
	for name, h := range f.Hosts {
		if sel.Has(h.Role, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, notes, fmt.Errorf("cannot run nodes of %s: the selection has no registered node", ref)
	}
	slices.SortFunc(names, fleet.CompareNatural)
	return names, notes, nil
}

// Run requests a run of each node, until all have ended or ctx ends. A node in another run comes after the others. It returns the nodes
// in the order in which they ended; those whose request stays come last. While etcd does not answer, Run retries: it returns the error
// only after Deadline without an answer. Deadlines do not count this time.
func (m Many) Run(ctx context.Context, s *etcd.DB, ref model.Ref, names []string) (all []RanNode, err error) {
	m.queue, m.busy, m.asked = slices.Clone(names), map[string]time.Time{}, map[string]asked{}
	spec, _, err := specs.In(s).Spec(ctx, ref)
	if err != nil && !errors.Is(err, model.ErrUnreachable) { // without it, the default holds
		return nil, err
	}
	if spec != nil {
		m.silence = time.Duration(spec.Silence)
	}
	poll := m.Poll
	if poll == 0 {
		poll = answerPoll
	}
	ended := func(one RanNode) {
		delete(m.asked, one.Node)
		all = append(all, one)
		if m.Tell != nil {
			m.Tell(one)
		}
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	looked, away := m.Now(), time.Time{} // away: since when etcd does not answer; zero: it answers
	for {
		err := m.look(ctx, s, ref, ended)
		if err == nil {
			err = m.fill(ctx, s, ref, ended)
		}
		if errors.Is(err, model.ErrUnreachable) && ctx.Err() == nil {
			if away.IsZero() {
				if away = looked; m.Away != nil {
					m.Away(err)
				}
			}
			m.postpone(m.Now().Sub(looked))
			if m.Now().Sub(away) < m.Deadline {
				err = nil
			}
		} else {
			away = time.Time{}
		}
		looked = m.Now()
		switch {
		case ctx.Err() != nil || err != nil:
			for _, node := range slices.SortedFunc(maps.Keys(m.asked), fleet.CompareNatural) {
				ended(RanNode{Node: node, End: Pending})
			}
			if ctx.Err() != nil {
				err = nil
			}
			return all, err
		case len(m.queue)+len(m.asked) == 0:
			return all, nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// postpone moves all deadlines.
func (m *Many) postpone(by time.Duration) {
	for node, at := range m.busy {
		m.busy[node] = at.Add(by)
	}
	for node, one := range m.asked {
		if !one.at.IsZero() {
			one.at = one.at.Add(by)
			m.asked[node] = one
		}
	}
}

// look reads the answers. A node that did not answer before its deadline loses its request: it must not run when nobody expects it. One
// that is in a run keeps its place for twice as long.
func (m *Many) look(ctx context.Context, s *etcd.DB, ref model.Ref, ended func(RanNode)) error {
	names := slices.SortedFunc(maps.Keys(m.asked), fleet.CompareNatural)
	now := m.Now()                                                   // before the read: what a node reports later is in the next look
	statuses, err := fleet.In(s).StatusesAsReported(ctx, ref, names) // each second; silence only doubles the deadline here
	if err != nil {
		return err
	}
	for _, node := range names {
		one, status := m.asked[node], statuses[node]
		a := status.Answer
		running := status.Phase == model.Running && !now.After(status.SilentFrom(m.silence, now))
		switch waited := now.Sub(one.at); {
		case a != nil && a.ID == one.request.ID && a.Cause != nil:
			ended(RanNode{Node: node, End: Refused, Why: a.Sentence()})
		case a != nil && a.ID == one.request.ID && a.Failed():
			ended(RanNode{Node: node, End: Failed, Why: a.Sentence()})
		case a != nil && a.ID == one.request.ID:
			outcome := status.Outcome
			if m.Kind == model.RequestNoop {
				outcome = ""
			}
			ended(RanNode{Node: node, End: Ran, Outcome: outcome})
		case one.at.IsZero():
			if err := m.request(ctx, s, ref, node, one.request, ended); err != nil {
				return err
			}
		case waited < m.Deadline, running && waited < 2*m.Deadline:
		default:
			if err := fleet.In(s).Withdraw(ctx, ref, node, one.request.ID); err != nil {
				return err
			}
			if running {
				ended(RanNode{Node: node, End: Unfinished, Why: fmt.Sprintf("it was in a run after %s", 2*m.Deadline)})
			} else {
				ended(RanNode{Node: node, End: Silent, Why: fmt.Sprintf("it did not answer for %s", m.Deadline)})
			}
		}
	}
	return nil
}

// fill requests runs while some are missing. It looks at each node of the queue at most once.
func (m *Many) fill(ctx context.Context, s *etcd.DB, ref model.Ref, ended func(RanNode)) error {
	most := max(m.Concurrency, 1)
	if len(m.asked) >= most {
		return nil
	}
	names := slices.Clone(m.queue[:min(len(m.queue), 2*most)]) // a queue of busy nodes must not cost a read of each in every look
	statuses, err := fleet.In(s).StatusesOf(ctx, ref, names)
	if err != nil {
		return err
	}
	for _, node := range names {
		if len(m.asked) >= most {
			return nil
		}
		m.queue = m.queue[1:]
		status, reported := statuses[node]
		now := m.Now()
		switch {
		case !reported:
			ended(RanNode{Node: node, End: Silent, Why: "it never reported"})
			continue
		case now.After(status.SilentFrom(m.silence, now)):
			ended(RanNode{Node: node, End: Silent, Why: "it last reported at " + status.SeenAt.UTC().Format(time.RFC3339)})
			continue
		case status.Phase == model.Running:
			since, seen := m.busy[node]
			if !seen {
				since, m.busy[node] = now, now
			}
			if now.Sub(since) >= m.Deadline {
				ended(RanNode{Node: node, End: Busy, Why: fmt.Sprintf("it was in another run for %s", m.Deadline)})
				continue
			}
			m.queue = append(m.queue, node)
			continue
		}
		r := NewRun(m.By, m.Why, now)
		r.Do = m.Kind
		if err := m.request(ctx, s, ref, node, r, ended); err != nil {
			return err
		}
	}
	return nil
}

// request writes a request. After an error, the node keeps its place, and the next look repeats the same request: the first one may be in
// force.
func (m *Many) request(ctx context.Context, s *etcd.DB, ref model.Ref, node string, r model.Request, ended func(RanNode)) error {
	m.asked[node] = asked{request: r}
	now := m.Now()
	err := RequestRun(ctx, s, ref, node, r)
	switch {
	case errors.Is(err, fleet.ErrRetires):
		ended(RanNode{Node: node, End: Refused, Why: "it is being retired"})
	case errors.Is(err, fleet.ErrNotListed):
		ended(RanNode{Node: node, End: Refused, Why: "it was removed from the host list"})
	case err != nil:
		return err
	default:
		m.asked[node] = asked{r, now}
	}
	return nil
}
