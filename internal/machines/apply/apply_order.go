package apply

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// crew makes the machines of one role, within its limits.
type crew struct {
	name  string
	steps []int   // places in the plan
	after []*crew // those whose machines come first
	batch chan struct{}
	most  int // failures that are put up with
	done  chan struct{}

	mu     sync.Mutex
	failed []string
	why    error // why no more are asked for
}

// stopped is why no more machines of this role are asked for; nil while they are.
func (c *crew) stopped() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// fails counts a machine that failed.
func (c *crew) fails(node string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, node)
	switch {
	case c.why != nil:
	case errors.Is(err, machines.ErrQuota):
		c.why = fmt.Errorf("the provider's quota was reached with %s", node)
	case len(c.failed) > c.most:
		c.why = fmt.Errorf("%s failed, and rollout.failures of %s is %d", machines.Names(c.failed), c.name, c.most)
	}
}

// carryOut does all that the plan says: what is there twice goes first, machines are made, layer by layer, and then those
// that nobody wants any more are retired, the last layer first.
func (e *engine) carryOut(p plan.Plan) {
	s, err := e.eyes.see(e.ctx, e.eyes.next())
	if err != nil {
		e.give(err)
		return
	}
	e.before = s
	var duplicates []int
	for i, s := range p.Steps {
		if s.Verb == plan.Duplicate {
			duplicates = append(duplicates, i)
		}
	}
	e.all(duplicates)
	e.makeAll(p)
	e.retireAll(p)
}

// all does steps side by side, and reports whether none failed.
func (e *engine) all(steps []int) (well bool) {
	var wg sync.WaitGroup
	for _, i := range steps {
		if !e.slot() {
			break
		}
		wg.Go(func() {
			defer func() { <-e.slots }()
			_ = e.one(i) // it is remembered
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

// slot waits until one more machine may be worked on, and reports whether it still may.
func (e *engine) slot() bool {
	select {
	case <-e.ctx.Done():
		return false
	case e.slots <- struct{}{}:
		return e.over() == nil
	}
}

// one does one step, and remembers how that went.
func (e *engine) one(i int) error {
	s := e.plan.Steps[i]
	at, err := e.job(s).do()
	e.remember(i, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role, Step: at, Err: err})
	return err
}

func (e *engine) remember(i int, o Outcome) {
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

// makeAll makes machines, each role once all that it comes after is done.
func (e *engine) makeAll(p plan.Plan) {
	var wg sync.WaitGroup
	for _, c := range crews(p) {
		wg.Go(func() {
			defer close(c.done)
			e.make(c)
		})
	}
	wg.Wait()
}

// make makes the machines of one role.
func (e *engine) make(c *crew) {
	for _, other := range c.after {
		<-other.done
		if err := other.stopped(); err != nil && c.stopped() == nil {
			c.why = fmt.Errorf("%s comes after %s, of which not all could be made", c.name, other.name)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, i := range c.steps {
		s := e.plan.Steps[i]
		waits := s.Verb == plan.Wait // asks for nothing
		release := func() {}
		if !waits {
			if release = e.place(c, s); release == nil {
				return
			}
		}
		if why := c.stopped(); why != nil && !waits {
			release()
			e.remember(i, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role, Err: &leftError{why}})
			continue
		}
		wg.Go(func() {
			defer release()
			if err := e.one(i); err != nil {
				c.fails(s.Node, err)
			}
		})
	}
}

// place waits until one more machine of a role may be worked on; nil when nothing may be begun any more.
func (e *engine) place(c *crew, s plan.Step) (release func()) {
	batch := s.Verb == plan.Replace
	if batch {
		select {
		case <-e.ctx.Done():
			return nil
		case c.batch <- struct{}{}:
		}
	}
	leave := func() {
		if batch {
			<-c.batch
		}
	}
	if !e.slot() {
		leave()
		return nil
	}
	return func() { <-e.slots; leave() }
}

// crews are the roles in which machines are made or waited for, those that others come after first.
func crews(p plan.Plan) []*crew {
	byRole := map[string]*crew{}
	for i, s := range p.Steps {
		if partsOf(s) == nil || s.Verb == plan.Duplicate || s.Ends() {
			continue
		}
		c := byRole[s.Role]
		if c == nil {
			r, _ := p.Spec.Role(s.Role)
			c = &crew{name: s.Role, batch: make(chan struct{}, r.Rollout.BatchOf(r.Cardinality)), most: r.Rollout.FailuresOf(r.Cardinality), done: make(chan struct{})}
			byRole[s.Role] = c
		}
		c.steps = append(c.steps, i)
	}
	var list []*crew
	for _, layer := range p.Spec.Layers() {
		earlier := slices.Clone(list)
		for _, role := range layer {
			c := byRole[role]
			if c == nil {
				continue
			}
			before := comesAfter(p.Spec, role)
			for _, other := range earlier { // of an earlier layer: none waits for one that waits for it
				if before[other.name] {
					c.after = append(c.after, other)
				}
			}
			list = append(list, c)
		}
	}
	for _, c := range byRole {
		if !slices.Contains(list, c) { // machines of a role that is not in the file
			list = append(list, c)
		}
	}
	return list
}

// comesAfter are all roles that role comes after, also by way of others.
func comesAfter(e *environments.Environment, role string) map[string]bool {
	all := map[string]bool{}
	var walk func(string)
	walk = func(name string) {
		r, _ := e.Role(name)
		for _, before := range r.After {
			if !all[before] {
				all[before] = true
				walk(before)
			}
		}
	}
	walk(role)
	return all
}
