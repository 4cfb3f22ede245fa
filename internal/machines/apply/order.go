package apply

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// roleWork is the work on one role, within its limits.
type roleWork struct {
	name  string
	steps []int       // indexes in the plan
	after []*roleWork // roles whose machines come first
	batch chan struct{}
	most  int // tolerated failures
	done  chan struct{}

	mu      sync.Mutex
	failed  []string
	stopped *machines.Reason // why no more machines are ordered
}

// stop returns the reason why no more machines of this role are ordered; nil while they are.
func (r *roleWork) stop() *machines.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// fail counts a machine that failed. A quota error stops the role and does not count: retiring other nodes may free the
// quota.
func (r *roleWork) fail(node string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	quota := errors.Is(err, machines.ErrQuota)
	if !quota {
		r.failed = append(r.failed, node)
	}
	switch {
	case r.stopped != nil:
	case quota:
		r.stopped = &machines.Reason{Code: machines.QuotaReached, Node: node}
	case len(r.failed) > r.most:
		r.stopped = &machines.Reason{Code: machines.TooManyFailed, Nodes: slices.Clone(r.failed), Role: r.name, Count: r.most}
	}
}

// carryOut runs all steps of a plan. First it deletes duplicates. Then it makes machines, layer by layer. Then it
// retires unwanted nodes, the last layer first.
func (e *engine) carryOut(p plan.Plan) {
	var duplicates []int
	for i, s := range p.Steps {
		if s.Verb == plan.Duplicate {
			duplicates = append(duplicates, i)
		}
	}
	e.all(duplicates)
	e.retireAll(p, e.makeAll(p))
}

// all runs steps concurrently, and reports whether none failed.
func (e *engine) all(steps []int) bool {
	var wg sync.WaitGroup
	for _, i := range steps {
		t := &turn{take: e.slot, give: func() { <-e.slots }}
		if !t.begin() {
			break
		}
		wg.Go(func() {
			defer t.end()
			_ = e.one(i, t) // one records the error
		})
	}
	wg.Wait()
	for _, i := range steps {
		if o, ok := e.outcome(i); !ok || o.Err != nil {
			return false
		}
	}
	return true
}

// slot waits until one more machine may be worked on, and reports whether new work may begin.
func (e *engine) slot() bool {
	select {
	case <-e.ctx.Done():
		return false
	case e.slots <- struct{}{}:
		return e.over() == nil
	}
}

// one runs one step, and records its outcome. A step that was left is no error.
func (e *engine) one(i int, t *turn) error {
	s := e.draft.Steps[i]
	at, err := e.job(s, t).do()
	switch {
	case err == nil:
		e.available(s.Node)
	case e.over() == nil:
		e.givenUp(s.Node)
	}
	var left *leftError
	if errors.As(err, &left) {
		e.record(i, Outcome{Left: &left.why})
		return nil
	}
	e.record(i, Outcome{Task: at, Err: err})
	return err
}

func (e *engine) record(i int, o Outcome) {
	s := e.draft.Steps[i]
	o.Verb, o.Node, o.Role = s.Verb, s.Node, s.Role
	e.recording.Lock()
	defer e.recording.Unlock()
	e.outcomes[i] = o
}

func (e *engine) outcome(i int) (Outcome, bool) {
	e.recording.Lock()
	defer e.recording.Unlock()
	o, ok := e.outcomes[i]
	return o, ok
}

// makeAll makes machines, each role after its dependencies. It returns the roles with more failures than
// replace.failures tolerates, each with a failed node.
func (e *engine) makeAll(p plan.Plan) map[string]string {
	var wg sync.WaitGroup
	works := roleWorks(p)
	for _, r := range works {
		wg.Go(func() {
			defer close(r.done)
			e.make(r)
		})
	}
	wg.Wait()
	failed := map[string]string{}
	for _, r := range works {
		if len(r.failed) > r.most {
			failed[r.name] = r.failed[r.most]
		}
	}
	return failed
}

// make makes the machines of one role.
func (e *engine) make(r *roleWork) {
	for _, other := range r.after {
		<-other.done
		if other.stop() != nil && r.stop() == nil {
			r.stopped = &machines.Reason{Code: machines.DependencyFailed, Role: r.name, Was: other.name}
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, i := range r.steps {
		s := e.draft.Steps[i]
		orders := s.Verb != plan.Wait
		t := &turn{}
		if orders {
			if t = e.turn(r, s); !t.begin() {
				return
			}
		}
		if why := r.stop(); why != nil && orders {
			t.end()
			e.record(i, Outcome{Left: why})
			continue
		}
		wg.Go(func() {
			defer t.end()
			if err := e.one(i, t); err != nil {
				r.fail(s.Node, err)
			}
		})
	}
}

// turn is the turn of one step among those that are worked on at a time. A step that waits for others gives it back meanwhile.
type turn struct {
	take func() bool // waits; false if no new work may begin
	give func()
	stop func() *machines.Reason // why the step is left; may be nil
	has  bool
}

func (t *turn) begin() bool {
	t.has = t.has || t.take()
	return t.has
}

func (t *turn) end() {
	if t.has {
		t.has = false
		t.give()
	}
}

// left returns an error if a step that gave its turn back must not begin any more.
func (t *turn) left() error {
	if t.stop == nil {
		return nil
	}
	if why := t.stop(); why != nil {
		return &leftError{*why}
	}
	return nil
}

// leftError means that a step was left before it began anything.
type leftError struct{ why machines.Reason }

func (e *leftError) Error() string { return string(e.why.Code) }

// turn returns the turn of a step of a role.
func (e *engine) turn(r *roleWork, s plan.Step) *turn {
	leave := func() {}
	if s.Verb == plan.Replace {
		leave = func() { <-r.batch }
	}
	return &turn{stop: r.stop, give: func() { <-e.slots; leave() }, take: func() bool {
		if s.Verb == plan.Replace {
			select {
			case <-e.ctx.Done():
				return false
			case r.batch <- struct{}{}:
			}
		}
		if !e.slot() {
			leave()
			return false
		}
		return true
	}}
}

// roleWorks returns the roles with machines to make or to wait for, in the order of `after`.
func roleWorks(p plan.Plan) []*roleWork {
	byRole := map[string]*roleWork{}
	for i, s := range p.Steps {
		if tasksOf(s) == nil || s.Verb == plan.Duplicate || s.Ends() {
			continue
		}
		w := byRole[s.Role]
		if w == nil {
			r, _ := p.Spec.Role(s.Role)
			w = &roleWork{name: s.Role, most: r.Replace.FailuresOf(r.Cardinality), done: make(chan struct{})}
			w.batch = make(chan struct{}, r.Replace.BatchOf(r.Cardinality))
			byRole[s.Role] = w
		}
		w.steps = append(w.steps, i)
	}
	var list []*roleWork
	for _, layer := range p.Spec.Layers() {
		earlier := slices.Clone(list)
		for _, role := range layer {
			w := byRole[role]
			if w == nil {
				continue
			}
			before := comesAfter(p.Spec, role)
			for _, other := range earlier { // of an earlier layer: this prevents cycles
				if before[other.name] {
					w.after = append(w.after, other)
				}
			}
			list = append(list, w)
		}
	}
	for _, w := range byRole {
		if !slices.Contains(list, w) { // a role that is not in the file
			list = append(list, w)
		}
	}
	return list
}

// comesAfter returns all direct and indirect dependencies of a role.
func comesAfter(e *environments.Environment, role string) map[string]bool {
	all := map[string]bool{}
	for todo := []string{role}; len(todo) > 0; todo = todo[1:] {
		r, _ := e.Role(todo[0])
		for _, before := range r.After {
			if !all[before] {
				all[before] = true
				todo = append(todo, before)
			}
		}
	}
	return all
}

// retireAll retires the unwanted nodes: the last layer first, and within it in the plan's order. A layer waits until
// the previous ones are gone.
func (e *engine) retireAll(p plan.Plan, failed map[string]string) {
	var steps []int
	for i, s := range p.Steps {
		if s.Ends() {
			steps = append(steps, i)
		}
	}
	steps = slices.DeleteFunc(steps, func(i int) bool {
		node := blocking(failed, p, p.Steps[i].Role)
		if node != "" {
			e.record(i, Outcome{Left: &machines.Reason{Code: machines.CreationFailed, Node: node}})
		}
		return node != ""
	})
	slices.SortStableFunc(steps, func(i, k int) int { return p.Steps[k].Layer - p.Steps[i].Layer })
	for len(steps) > 0 {
		layer := p.Steps[steps[0]].Layer
		n := slices.IndexFunc(steps, func(i int) bool { return p.Steps[i].Layer != layer })
		if n < 0 {
			n = len(steps)
		}
		if !e.all(steps[:n]) {
			for _, i := range steps[n:] {
				e.record(i, Outcome{Left: &machines.Reason{Code: machines.RetirementsFailed}})
			}
			return
		}
		steps = steps[n:]
	}
}

// blocking returns the failed node that prevents the retirement of a role's nodes: one of the same role, or of a role
// that comes after or before it. For a role that was removed from the file, any role counts: it may be the replacement.
func blocking(failed map[string]string, p plan.Plan, role string) string {
	_, stays := p.Spec.Role(role)
	before := comesAfter(p.Spec, role)
	for _, other := range slices.Sorted(maps.Keys(failed)) {
		if !stays || other == role || before[other] || comesAfter(p.Spec, other)[role] {
			return failed[other]
		}
	}
	return ""
}
