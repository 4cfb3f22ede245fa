package apply

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"pulley/agent"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// retire writes that the node's machine goes, before anything is done to it. What was agreed to may be long ago: a machine
// that came since then, or that is well again, is another matter.
func (j *job) retire() error {
	s, err := j.look()
	if err != nil {
		return err
	}
	if _, other := j.machine(s); other {
		return j.otherMachine()
	}
	if j.step.Verb == plan.Broken && j.well(s) {
		return errors.New("its machine runs and the node is converged: it is not broken any more\n" + j.plan.Anew())
	}
	if at, speaks := s.World.LastSpoke(j.step.Node); speaks && j.step.Verb == plan.Orphan {
		return fmt.Errorf("its machine was not there, and yet it spoke at %s\n%s", machines.Clock(at), j.plan.Anew())
	}
	if j.record != nil && j.record.Phase == machines.Retiring {
		return nil
	}
	if len(j.step.Victims) == 0 {
		if err := j.note(machines.Released, j.step.Why); err != nil {
			return err
		}
	}
	r := machines.Record{Node: j.step.Node, Name: j.name(), Driver: j.a.Driver, Place: j.a.Place}
	if j.record != nil {
		r = *j.record
	}
	r.Phase, r.By, r.At = machines.Retiring, j.a.By, j.now()
	r.Ask, r.Drained, r.Watch, r.Problem, r.Why = "", false, j.a.Watch, "", j.step.Why
	return j.put(r)
}

// well reports whether a node that was found broken is not.
func (j *job) well(s sight) bool {
	if _, ok := s.World.Hosts[j.step.Node]; !ok || s.World.Views[j.step.Node].State != agent.Converged {
		return false
	}
	found := false
	for _, m := range s.World.Machines {
		if slices.ContainsFunc(j.step.Victims, m.Is) {
			if m.State != machines.Running {
				return false
			}
			found = true
		}
	}
	return found
}

// hold keeps the node from running Puppet, so that what its hooks take down stays down.
func (j *job) hold() error {
	s, err := j.look()
	if err != nil || !j.drains(s) {
		return err
	}
	h := agent.Hold{Scope: "nodes/" + j.step.Node, Mode: agent.Stop, Kind: agent.RetirementHold, Who: j.a.By, Why: agent.Prose(j.step.Why), Since: j.a.Now().UTC()}
	err = j.persist(j.step.Node+"hold", func(ctx context.Context) error { return j.a.Fleet.Hold(ctx, j.step.Node, h) })
	if err != nil {
		return fmt.Errorf("cannot hold it: %w", err)
	}
	return nil
}

// drains reports whether there is somebody who could run the node's hooks.
func (j *job) drains(s sight) bool {
	if !j.step.Drain || j.a.NoDrain || j.record.Drained {
		return false
	}
	if _, ok := s.World.Hosts[j.step.Node]; !ok {
		return false
	}
	if len(j.step.Victims) == 0 { // a member, whose machine only its owner sees
		return true
	}
	return slices.ContainsFunc(s.World.Machines, func(m machines.Machine) bool {
		return slices.ContainsFunc(j.step.Victims, m.Is) && (m.State == machines.Running || m.State == machines.Unknown)
	})
}

// askToRetire asks the node to run its hooks, once: an apply that goes on waits for the answer to the same request.
func (j *job) askToRetire() error {
	s, err := j.look()
	if err != nil || !j.drains(s) {
		return err
	}
	if asked := s.World.Hosts[j.step.Node].Request; j.record.Ask != "" && asked != nil && asked.ID == j.record.Ask {
		return nil
	}
	r := *j.record
	if r.Ask == "" {
		r.Ask = newID()
		if err := j.put(r); err != nil {
			return err
		}
	}
	q := agent.Request{ID: r.Ask, Do: agent.RequestRetire, Why: agent.Prose(j.step.Why), By: j.a.By, At: j.a.Now().UTC()}
	err = j.persist(j.step.Node+"ask", func(ctx context.Context) error { return j.a.Fleet.Ask(ctx, j.step.Node, q) })
	if errors.Is(err, machines.ErrNotListed) { // somebody removed it: there is nobody to ask
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot ask it to retire: %w", err)
	}
	j.since = j.eyes.next()
	return nil
}

// drain waits until the node has run its hooks, or is not there to run them.
func (j *job) drain() error {
	limit := j.a.DrainTimeout
	if limit <= 0 {
		limit = DefaultDrainTimeout
	}
	var problem string
	err := j.await("drain", j.a.Now().Add(limit), func(s sight) (bool, string, error) {
		if !j.drains(s) {
			return true, "", nil
		}
		if a := s.World.Statuses[j.step.Node].Answer; a != nil && a.ID == j.record.Ask {
			problem = machines.Clean(a.Sentence())
			return true, "", nil
		}
		if asked := s.World.Hosts[j.step.Node].Request; asked == nil || asked.ID != j.record.Ask {
			return false, "", errors.New("its retirement was called off: it is asked for something else now\n" + j.plan.Anew())
		}
		return false, "it is asked to run its retire hooks", nil
	})
	var late *lateError
	switch {
	case errors.As(err, &late):
		return fmt.Errorf("it has not answered within %s that its retire hooks are done\nit is held and stays as it is; look at it, and %s, with --no-drain to go without its hooks", limit, j.plan.GoOn())
	case err != nil:
		return err
	}
	r := *j.record
	if problem != "" {
		r.Ask, r.Problem = "", problem // the next apply asks anew
		if err := j.put(r); err != nil {
			return err
		}
		return fmt.Errorf("its retire hooks failed: %s\nit is held and stays as it is; mend that and %s, with --no-drain to go without its hooks", problem, j.plan.GoOn())
	}
	if r.Drained {
		return nil
	}
	r.Drained = true
	return j.put(r)
}

// remove takes the node out of the fleet, so that nothing that its machine still does can be taken for the node.
func (j *job) remove() error {
	if !j.step.Removes {
		return nil
	}
	return j.removeNode(j.step.Why)
}

func (j *job) removeNode(why string) error {
	err := j.persist(j.step.Node+"remove", func(ctx context.Context) error { return j.a.Fleet.Remove(ctx, j.step.Node, why) })
	if err != nil {
		return fmt.Errorf("cannot take it out of the fleet: %w", err)
	}
	return nil
}

// newID names a request: 16 hex digits.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
