package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"pulley/agent"
	"pulley/internal/machines"
)

// adopt writes a machine of ours into the books that they don't have, or not as one that stays.
func (j *job) adopt() error {
	if j.record != nil && j.record.Phase == machines.Retiring {
		return j.takeBack()
	}
	s, m, err := j.present()
	if err != nil {
		return err
	}
	if err := j.note(machines.Adopted, j.step.Why); err != nil {
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
		r.Phase, r.Driver, r.Place, r.Why, r.By = machines.Made, j.a.Driver, j.a.Place, "", j.a.By
	default: // another machine than the books say
		r.Token = j.record.Token
		r.Flavor, r.Image = cmp.Or(m.Flavor, j.record.Flavor), cmp.Or(m.Image, j.record.Image)
		if m.Flavor == "" && m.Image == "" { // for all that is known it is of the same order
			r.Tries = j.record.Tries
		}
	}
	return j.put(r)
}

// present looks for the node's machine, which has to be there.
func (j *job) present() (sight, machines.Machine, error) {
	s, err := j.look()
	if err != nil {
		return s, machines.Machine{}, err
	}
	m, ok := j.machine(s)
	if !ok {
		return s, m, errors.New("its machine is gone\n" + j.plan.Anew())
	}
	return s, m, nil
}

// settle writes down that a machine is there which an apply before this one asked for, or sees off one that is going.
func (j *job) settle() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	j.since = s.No
	m, ok := j.machine(s)
	switch {
	case ok && m.State == machines.Deleting: // by somebody else: there is room for another one when it is gone
		if err := j.awaitEnd("settle", m.Ref()); err != nil {
			return err
		}
		return errors.New("its machine was deleted by somebody else, and is gone now\napply again to have another one made")
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

// takeBack has a node stay whose retiring was begun: its hold ends, it is asked for a run instead, which calls its hooks off or
// puts back what they undid, and the books have it as before. They come last: until then it is taken back again.
func (j *job) takeBack() error {
	if j.record.Drained {
		return errors.New("it was drained already\nlook at a new plan")
	}
	_, m, err := j.present()
	if err != nil {
		return err
	}
	err = j.persist(j.step.Node+"release", func(ctx context.Context) error { return j.a.Fleet.Release(ctx, j.step.Node) })
	if err != nil {
		return fmt.Errorf("cannot end its hold: %w", err)
	}
	q := agent.Request{ID: newID(), Do: agent.RequestRun, Why: agent.Prose("its retirement is cancelled: " + j.step.Why), By: j.a.By, At: j.a.Now().UTC()}
	if err := j.persist(j.step.Node+"ask", func(ctx context.Context) error { return j.a.Fleet.Ask(ctx, j.step.Node, q) }); err != nil {
		return fmt.Errorf("cannot call its retirement off: %w", err)
	}
	if err := j.note(machines.Adopted, j.step.Why); err != nil {
		return err
	}
	j.since = j.eyes.next()
	r := *j.record
	r.ID = m.ID // of two with its name the books may have had the other one
	r.Phase, r.Place, r.Ask, r.Watch, r.Problem, r.Why, r.By, r.Joined = machines.Made, cmp.Or(j.a.Place, r.Place), "", false, "", "", j.a.By, true
	return j.put(r)
}
