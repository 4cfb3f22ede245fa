package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

const (
	maxOrders   = 3               // per machine and apply, if the provider fails to make it
	clockMargin = 2 * time.Second // providers report times in seconds
)

// claim records the name of a machine before the order. The name of a machine that is replaced was claimed when the
// previous one was gone.
func claim(j *job) error {
	if j.claimed {
		return nil
	}
	return j.put(j.claimedRecord())
}

// claimedRecord returns a record that claims the name. It keeps the token of an earlier order, which is revoked by the
// next one, and the places of the node.
func (j *job) claimedRecord() machines.Record {
	o := j.step.Order
	r := machines.Record{
		Node: j.step.Node, Name: o.Name, Phase: machines.Making, Driver: j.a.Driver, Place: j.a.Place, Flavor: o.Flavor, Image: o.Image,
		Watch: j.a.Watch, By: j.a.By, At: j.now(),
	}
	if j.record != nil {
		r.Token, r.Places = j.record.Token, j.record.Places
	}
	if j.record != nil && j.record.Phase == machines.Making { // keep the existing claim
		r.Tries = j.record.Tries
		if r.Tries > 0 { // an existing machine is then of the earlier order
			r.Flavor, r.Image = j.record.Flavor, j.record.Image
		}
	}
	return r
}

// order orders the machine, unless it exists. All tries of one order have the same userdata: a try whose answer was
// lost may have made the machine.
func order(j *job) error {
	s, err := j.look()
	if err != nil {
		return err
	}
	if m, ok := j.machine(s); ok {
		if !j.resumes || m.State == machines.Deleting {
			return j.otherMachine()
		}
		return j.made(m)
	}
	if _, registered := s.World.Hosts[j.step.Node]; registered {
		return errors.New("the node is registered, and the provider does not list its machine: refusing to create a second one\n" + lookAgain(false))
	}
	o := *j.step.Order
	r := *j.record
	r.Phase, r.ID, r.Flavor, r.Image, r.Joined, r.Problem, r.At = machines.Making, "", o.Flavor, o.Image, false, "", j.now()
	r.Tries++
	if o.Userdata, err = j.recordOrder(o, r); err != nil {
		return err
	}
	j.resumes = true // a machine of that name is now one that was ordered
	j.heard = s.World.Statuses[j.step.Node]
	var made machines.Machine
	claimed := j.record.At
	_, err = j.ask("order",
		func(ctx context.Context) (err error) {
			made, err = j.a.Provider.Create(ctx, o)
			if err == nil && made.Name != o.Name {
				err = fmt.Errorf("the provider answered with machine %q: %w", made.Name, machines.ErrRefused)
			}
			return err
		},
		func() (bool, error) {
			s, err := j.look()
			if err != nil {
				return false, err
			}
			var ok bool
			made, ok = j.machine(s)
			return ok, nil
		})
	if err != nil {
		j.recordProblem(err)
		return err
	}
	// Create also returns a machine that existed before. One that is older than the claim was not ordered here, and is not
	// deleted without approval. If clocks differ, fewer machines count as ordered here.
	if made.Created.IsZero() || !made.Created.Before(claimed.Add(-clockMargin)) {
		j.approvals.addOrdered(made)
	}
	return j.made(made)
}

// recordOrder records an order with the token of its userdata, and returns the userdata.
func (j *job) recordOrder(o machines.Order, r machines.Record) ([]byte, error) {
	for tries := 1; ; tries++ {
		text, token, err := j.a.Fleet.Userdata(o, j.role, j.a.Form)
		if err != nil {
			return nil, fmt.Errorf("cannot make userdata: %w", err)
		}
		r.Token = token.ID
		err = j.persist(j.step.Node+"order", func(ctx context.Context) error { return j.a.Fleet.Order(ctx, r, j.record, token) })
		switch {
		case err == nil:
			j.record = &r
			return text, nil
		case !errors.Is(err, machines.ErrTokenTaken) || tries == maxCalls:
			return nil, fmt.Errorf("cannot write the record of machine %s: %w", r.Name, err)
		}
	}
}

// made records that the provider has accepted the order. It writes the history first: no later apply adds the entry
// once the record exists. A machine of an earlier order whose answer was lost keeps its shape, which the next plan
// judges.
func (j *job) made(m machines.Machine) error {
	if err := j.note(machines.Created, j.step.Reasons); err != nil {
		return err
	}
	r := *j.record
	earlier := !m.Created.IsZero() && m.Created.Before(r.At)
	if earlier && r.Flavor != "" {
		r.Flavor = cmp.Or(m.Flavor, r.Flavor)
	}
	if earlier && r.Image != "" {
		r.Image = cmp.Or(m.Image, r.Image)
	}
	r.Phase, r.ID, r.Watch, r.At = machines.Made, m.ID, false, j.now()
	j.since = j.poller.next()
	return j.put(r)
}

// recordProblem records the error of the last try, best effort.
func (j *job) recordProblem(err error) {
	if j.over() != nil {
		return // not a problem of the provider
	}
	r := *j.record
	r.Problem = problem(err)
	if e := j.put(r); e != nil {
		j.log.Warn("cannot record the problem", "err", e)
	}
}

// deadline returns the time by which the node's machine must reach the state of the wait. An old order still has a
// minute.
func (j *job) deadline() time.Time {
	now := j.a.Now()
	began := now
	if j.record != nil && j.record.At.Before(began) {
		began = j.record.At
	}
	return slices.MaxFunc([]time.Time{began.Add(j.draft.Spec.TimeoutOf(j.role)), now.Add(time.Minute)}, time.Time.Compare)
}

// register waits until the node has joined. If this apply ordered the machine, and the provider failed to make it or
// lost it, register orders it again.
func register(j *job) error {
	if j.goal() == WaitNone {
		return nil
	}
	ordered := j.a.Now()
	late := func(cause string) error {
		return fmt.Errorf("it did not join within %s: %s\nsee the machine's own log of its first boot; a new plan shows it as broken", j.draft.Spec.TimeoutOf(j.role), cause)
	}
	err := j.await("register", j.deadline(), late, func(s snapshot) (bool, machines.Reason, error) {
		waits := machines.Reason{Code: machines.WaitsForJoin}
		if _, ok := s.World.Hosts[j.step.Node]; ok {
			return true, waits, nil
		}
		if err := j.lockedOut(s); err != nil {
			return false, waits, err
		}
		m, ok := j.machine(s)
		switch {
		case !ok && j.a.Now().Sub(ordered) < machines.LostAfter:
			return false, machines.Reason{Code: machines.WaitsForList}, nil
		case !ok:
			return false, waits, j.again(machines.Machine{}, machines.Reason{Code: machines.OrderLost})
		case m.State == machines.Failed:
			return false, waits, j.again(m, machines.Reason{Code: machines.MachineFailed, Problem: machines.Quote(m.Problem)})
		}
		waits.State, waits.Problem = m.State, machines.Quote(m.Problem)
		return false, waits, nil
	})
	if err != nil {
		return err
	}
	return j.joined()
}

// joined records that the node was in the host list: a later apply must not treat the machine as one that never joined.
func (j *job) joined() error {
	if j.record == nil || j.record.Joined {
		return nil
	}
	r := *j.record
	r.Joined = true
	return j.put(r)
}

// again deletes a failed machine that this apply ordered, and orders another.
func (j *job) again(m machines.Machine, cause machines.Reason) error {
	why := render.Reason(cause)
	tries := 0
	if j.record != nil {
		tries = j.record.Tries
	}
	was := machines.Machine{Name: m.Name, ID: m.ID}
	if j.record != nil && m.Name == "" {
		was = machines.Machine{Name: j.record.Name, ID: j.record.ID}
	}
	if !j.approvals.hasOrdered(was) {
		return errors.New(why + "\n" + lookAgain(false))
	}
	if tries >= maxOrders {
		return fmt.Errorf("%s, after %d tries", why, tries)
	}
	reasons := []machines.Reason{cause}
	if m.Name != "" {
		if !j.approvals.addFailed(m) {
			return j.otherMachine()
		}
		if err := j.destroy(m.Ref(), machines.Deleted, reasons); err != nil {
			return err
		}
		if err := j.awaitGone("register", []machines.Ref{m.Ref()}, machines.Deleted, reasons); err != nil {
			return err
		}
	}
	// The node may have joined at the last moment: its name must be free for the next machine. But a node that reports has
	// a machine: perhaps of an order whose answer was lost, and not listed yet.
	s, err := j.look()
	if err != nil {
		return err
	}
	if _, reports := s.World.LastReport(j.step.Node); reports {
		return errors.New(why + "; but the node has joined and reports\n" + lookAgain(false))
	}
	if err := j.removeNode(reasons); err != nil {
		return err
	}
	j.event(Event{Task: "register", State: Notes, Reasons: []machines.Reason{cause, {Code: machines.OrderedAgain}}})
	return errOrderAgain
}

// converge waits until the node is on its target.
func converge(j *job) error {
	if goal := j.goal(); goal == WaitNone || goal == WaitRegistered {
		return nil
	}
	late := func(cause string) error {
		return fmt.Errorf("it did not converge within %s: %s\nsee pulley explain %s -e %s", j.draft.Spec.TimeoutOf(j.role), cause, j.step.Node, j.a.Ref)
	}
	return j.await("converge", j.deadline(), late, func(s snapshot) (bool, machines.Reason, error) {
		waits := machines.Reason{Code: machines.WaitsForReport}
		if !s.World.Released {
			j.remark(machines.Reason{Code: machines.NothingPromoted, Environment: j.a.Ref.String()})
			return true, waits, nil
		}
		if m, ok := j.machine(s); ok && m.State == machines.Failed {
			return false, waits, errors.New(render.Reason(machines.Reason{Code: machines.MachineFailed, Problem: machines.Quote(m.Problem)}))
		}
		if held, is := s.World.Held[j.step.Node]; is {
			j.remark(machines.Reason{Code: machines.NotWaitedFor, Node: j.step.Node, Hold: &held})
			return true, waits, nil
		}
		if err := j.lockedOut(s); err != nil {
			return false, waits, err
		}
		v, ok := j.view(s)
		if !ok {
			if boot, known := s.World.Boots[j.step.Node]; known {
				waits = boot
			}
			return false, waits, nil
		}
		waits = machines.Reason{Code: machines.WaitsForConvergence}.WithView(v)
		switch {
		case v.Settled():
			return true, waits, nil
		case v.State == model.Stuck:
			return false, waits, errors.New("it is " + render.Reason(waits))
		}
		return false, waits, nil
	})
}

// lockedOut returns an error if etcd refuses the node's machine: no wait ends that. It may have refused the machine before the one that this
// apply makes.
func (j *job) lockedOut(s snapshot) error {
	v := s.World.Views[j.step.Node]
	made := j.step.Verb == plan.Create || j.step.Verb == plan.Replace
	if v.Reason != model.ReasonLockedOut || made && j.record != nil && v.Params.At.Before(j.record.At) {
		return nil
	}
	return fmt.Errorf("it is %s\nsee pulley explain %s -e %s", render.Reason(machines.Reason{Code: machines.WaitsForConvergence}.WithView(v)), j.step.Node, j.a.Ref)
}

// adopt records a machine with the fleet's mark that has no record, or whose record is of another machine.
func adopt(j *job) error {
	if j.record != nil && j.record.Phase == machines.Retiring {
		return j.cancelRetirement()
	}
	s, m, err := j.present()
	if err != nil {
		return err
	}
	if err := j.note(machines.Adopted, j.step.Reasons); err != nil {
		return err
	}
	j.since = s.No
	r := machines.Record{
		Node: j.step.Node, Name: m.Name, ID: m.ID, Phase: machines.Made, Driver: j.a.Driver, Place: j.a.Place, Flavor: m.Flavor, Image: m.Image,
		By: j.a.By, At: j.now(),
	}
	_, r.Joined = s.World.Hosts[j.step.Node]
	switch {
	case j.record == nil:
	case m.ID != "" && m.ID == j.record.ID: // at another place now
		r = *j.record
		r.Phase, r.Driver, r.Place, r.Reasons, r.By = machines.Made, j.a.Driver, j.a.Place, nil, j.a.By
	default: // another machine than the recorded one
		r.Token, r.Places = j.record.Token, j.record.Places
		r.Flavor, r.Image = cmp.Or(m.Flavor, j.record.Flavor), cmp.Or(m.Image, j.record.Image)
		if m.Flavor == "" && m.Image == "" { // presumably of the same order
			r.Tries = j.record.Tries
		}
	}
	return j.put(r)
}

// present finds the node's machine, which must exist.
func (j *job) present() (snapshot, machines.Machine, error) {
	s, err := j.look()
	if err != nil {
		return s, machines.Machine{}, err
	}
	m, ok := j.machine(s)
	if !ok {
		return s, m, errors.New("its machine is gone\n" + lookAgain(j.draft.Destroys))
	}
	return s, m, nil
}

// settle records a machine that an earlier apply ordered, or waits for the end of one that is being deleted.
func settle(j *job) error {
	s, err := j.look()
	if err != nil {
		return err
	}
	j.since = s.No
	m, ok := j.machine(s)
	switch {
	case ok && m.State == machines.Deleting:
		if err := j.awaitGone("settle", []machines.Ref{m.Ref()}, machines.Deleted, j.step.Reasons); err != nil {
			return err
		}
		return errors.New("another program deleted its machine\napply again to make another one")
	case ok && j.record != nil && j.record.Phase == machines.Making:
		if err := j.made(m); err != nil {
			return err
		}
	}
	if _, registered := s.World.Hosts[j.step.Node]; registered {
		return j.joined()
	}
	return nil
}

// cancelRetirement keeps a node whose retirement has begun. It ends the hold and requests a run, which undoes the work
// of the hooks. It writes the record last: until then, the next apply cancels again.
func (j *job) cancelRetirement() error {
	if j.record.Drained {
		return errors.New("it is drained already\n" + lookAgain(j.draft.Destroys))
	}
	_, m, err := j.present()
	if err != nil {
		return err
	}
	err = j.persist(j.step.Node+"release", func(ctx context.Context) error { return j.a.Fleet.Release(ctx, j.step.Node) })
	if err != nil {
		return fmt.Errorf("cannot end its hold: %w", err)
	}
	if err := j.request(model.Request{ID: newID(), Do: model.RequestRun, Why: model.Prose(render.Reasons(j.step.Reasons))}); err != nil {
		return fmt.Errorf("cannot cancel its retirement: %w", err)
	}
	if err := j.note(machines.Adopted, j.step.Reasons); err != nil {
		return err
	}
	j.since = j.poller.next()
	r := *j.record
	r.ID = m.ID // of two machines of its name, the record may contain the other one
	r.Phase, r.Place, r.Ask, r.Watch, r.Problem, r.Reasons, r.By, r.Joined = machines.Made, cmp.Or(j.a.Place, r.Place), "", false, "", nil, j.a.By, true
	return j.put(r)
}
