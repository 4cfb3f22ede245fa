package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pulley/agent"
	"pulley/internal/machines"
)

const (
	maxOrders  = 3               // of one machine within one apply, where the provider fails to make it
	claimSpare = 2 * time.Second // providers tell times in seconds
)

// claim writes that a machine of this name is made, before the provider is asked for it. What is made again was claimed when
// the one before was gone.
func (j *job) claim() error {
	if j.claimed {
		return nil
	}
	return j.put(j.claims())
}

// claims is a record that claims the name. Whoever had the token of an order before must not join any more.
func (j *job) claims() machines.Record {
	o := j.step.Order
	r := machines.Record{
		Node: j.step.Node, Name: o.Name, Phase: machines.Making, Driver: j.a.Driver, Place: j.a.Place, Flavor: o.Flavor, Image: o.Image,
		Watch: j.a.Watch, By: j.a.By, At: j.now(),
	}
	if j.record != nil {
		r.Token = j.record.Token
	}
	if j.record != nil && j.record.Phase == machines.Making { // its claim stands
		r.Tries = j.record.Tries
		if r.Tries > 0 { // and a machine that is found is of the order before
			r.Flavor, r.Image = j.record.Flavor, j.record.Image
		}
	}
	return r
}

// order asks the provider for the machine, unless it is there. Its userdata is made once for all tries of one order: the
// machine may have been made by a try whose answer was lost.
func (j *job) order() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	if m, ok := j.machine(s); ok {
		if !j.resume || m.State == machines.Deleting {
			return j.otherMachine()
		}
		return j.made(m)
	}
	if _, registered := s.World.Hosts[j.step.Node]; registered {
		return errors.New("it has joined, and the provider does not list its machine: another one would be there twice\nlook at a new plan")
	}
	o := *j.step.Order
	r := *j.record
	r.Phase, r.ID, r.Flavor, r.Image, r.Joined, r.Problem, r.At = machines.Making, "", o.Flavor, o.Image, false, "", j.now()
	r.Tries++
	if o.Userdata, err = j.bookOrder(o, r); err != nil {
		return err
	}
	j.resume = true // from here on a machine of that name is one that was asked for
	var made machines.Machine
	claimed := j.record.At
	_, err = j.ask("order",
		func(ctx context.Context) (err error) {
			made, err = j.a.Provider.Create(ctx, o)
			if err == nil && made.Name != o.Name {
				err = fmt.Errorf("the provider answered with a machine called %q: %w", made.Name, machines.ErrRefused)
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
		j.trouble(err)
		return err
	}
	// Create returns a machine that was there before as well: one that is older than the claim was not ordered here, and is not deleted
	// without being named. Clocks that differ make fewer machines ours, or one that is as young as the difference.
	if made.Created.IsZero() || !made.Created.Before(claimed.Add(-claimSpare)) {
		j.guard.order(made)
	}
	return j.made(made)
}

// bookOrder writes down that a machine is about to be asked for, with the token of what it boots with, which it returns.
func (j *job) bookOrder(o machines.Order, r machines.Record) ([]byte, error) {
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
			return nil, fmt.Errorf("cannot write down machine %s: %w", r.Name, err)
		}
	}
}

// made writes that the provider has the order. The act comes first: once the record says so, nobody notes it any more. The
// machine may be of an earlier order whose answer was lost: then what it is counts, so that a plan sees whether that is wanted.
func (j *job) made(m machines.Machine) error {
	if err := j.note(machines.Created, j.step.Why); err != nil {
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
	j.since = j.eyes.next()
	return j.put(r)
}

// trouble writes down why the last try failed, as well as that goes.
func (j *job) trouble(err error) {
	if j.over() != nil {
		return // it is no trouble of the provider's
	}
	r := *j.record
	problem, _, _ := strings.Cut(err.Error(), "\n")
	r.Problem = machines.Clean(problem)
	if e := j.put(r); e != nil {
		j.log.Warn("problem is not written down", "err", e)
	}
}

// register waits until the node has joined. A machine that this apply asked for and that the provider could not make, or lost,
// is asked for again.
func (j *job) register() error {
	if j.a.Wait == WaitNone {
		return nil
	}
	ordered := j.a.Now()
	err := j.await("register", j.deadline(), func(s sight) (bool, string, error) {
		if _, ok := s.World.Hosts[j.step.Node]; ok {
			return true, "", nil
		}
		m, ok := j.machine(s)
		switch {
		case !ok && j.a.Now().Sub(ordered) < machines.LostAfter:
			return false, "the provider does not list it yet", nil
		case !ok:
			return false, "", j.again(machines.Machine{}, "the provider has lost it")
		case m.State == machines.Failed:
			return false, "", j.again(m, "the provider says: "+m.Trouble())
		case m.State == machines.Running:
			return false, "it runs, and has not joined yet", nil
		case m.State == machines.Deleting:
			return false, "its end was asked for", nil
		}
		return false, "it is " + string(m.State), nil
	})
	var late *lateError
	if errors.As(err, &late) {
		return fmt.Errorf("it has not joined within %s: %s\nthe machine's own log of its first boot tells more; a new plan shows it as broken", j.plan.Spec.TimeoutOf(j.role), late.what)
	}
	if err != nil {
		return err
	}
	return j.joined()
}

// joined writes down that the node was on the list of hosts: a machine that joined is never taken for one that could not.
func (j *job) joined() error {
	if j.record == nil || j.record.Joined {
		return nil
	}
	r := *j.record
	r.Joined = true
	return j.put(r)
}

// again ends a machine that failed and has another one ordered, if it is this apply that asked for it.
func (j *job) again(m machines.Machine, why string) error {
	tries := 0
	if j.record != nil {
		tries = j.record.Tries
	}
	was := machines.Machine{Name: m.Name, ID: m.ID}
	if j.record != nil && m.Name == "" {
		was = machines.Machine{Name: j.record.Name, ID: j.record.ID}
	}
	if !j.guard.ours(was) {
		return fmt.Errorf("%s\nlook at a new plan", why)
	}
	if tries >= maxOrders {
		return fmt.Errorf("%s, after %d tries", why, tries)
	}
	if m.Name != "" {
		if !j.guard.fail(m) {
			return j.otherMachine()
		}
		if err := j.destroy(m.Ref(), machines.Deleted, why); err != nil {
			return err
		}
		if err := j.awaitGone("register", []machines.Ref{m.Ref()}, machines.Deleted, why); err != nil {
			return err
		}
	}
	// It may have joined at the last moment: its name has to be free for the next one. But a node that speaks has a machine, if not this
	// one: of an order whose answer was lost, and not listed yet.
	s, err := j.look()
	if err != nil {
		return err
	}
	if _, speaks := s.World.LastSpoke(j.step.Node); speaks {
		return fmt.Errorf("%s; yet the node has joined and speaks\nlook at a new plan", why)
	}
	if err := j.removeNode(why); err != nil {
		return err
	}
	j.tell("register", Notes, why+"; it is ordered again")
	return errOrderAgain
}

// converge waits until the node is on its target.
func (j *job) converge() error {
	if j.a.Wait == WaitNone || j.a.Wait == WaitRegistered {
		return nil
	}
	err := j.await("converge", j.deadline(), func(s sight) (bool, string, error) {
		if !s.World.Released {
			j.remark("nothing is promoted in " + j.a.Ref.String() + ": machines are waited for only until they are registered")
			return true, "", nil
		}
		if m, ok := j.machine(s); ok && m.State == machines.Failed {
			return false, "", fmt.Errorf("the provider says: %s", m.Trouble())
		}
		if why := s.World.Held[j.step.Node]; why != "" {
			j.remark(fmt.Sprintf("%s is under a hold, and not waited for: %s", j.step.Node, machines.Clean(why)))
			return true, "", nil
		}
		v, ok := j.view(s)
		switch {
		case !ok:
			return false, "it has joined, and has not reported yet", nil
		case v.State == agent.Converged:
			return true, "", nil
		case v.State == agent.Stuck:
			return false, "", fmt.Errorf("it is stuck: %s", v.Sentence())
		}
		return false, string(v.State) + ": " + v.Sentence(), nil
	})
	var late *lateError
	if errors.As(err, &late) {
		return fmt.Errorf("it has not converged within %s: %s\npulley explain %s tells more", j.plan.Spec.TimeoutOf(j.role), late.what, j.step.Node)
	}
	return err
}
