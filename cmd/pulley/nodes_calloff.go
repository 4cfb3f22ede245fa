package main

import (
	"context"
	"errors"
	"fmt"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/machines"
	"pulley/internal/store"
)

// callOff ends the retirement of a node, and asks it for a run instead: the hooks may have undone what a run does. It is an apply
// of its own, so that none retires the node meanwhile. The request is written last: cut off before that, the node is still
// retired, and the same command ends it.
func (o *options) callOff(ctx context.Context, s *store.Store, ref environments.Ref, node string, r agent.Request) (err error) {
	a, err := s.BeginApply(ctx, ref, o.env.User)
	if err != nil {
		return fmt.Errorf("cannot call off the retirement of %s: %w", node, err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	ctx, cancel := a.Context(ctx)
	defer cancel()
	f, err := s.Fleet(ctx, ref)
	if err != nil {
		return err
	}
	record, err := s.Record(ctx, ref, node)
	if err != nil {
		return err
	}
	retiring := record != nil && record.Phase == machines.Retiring
	host, listed := f.Hosts[node]
	asked := listed && host.Request != nil && host.Request.Do == agent.RequestRetire
	hold, held := f.Holds[store.Scope{Node: node}]
	held = held && hold.Kind == agent.RetirementHold
	switch {
	case !listed && retiring:
		return fmt.Errorf("cannot call off the retirement of %s: it was taken out of the fleet already\n`pulley env plan` says what becomes of its machine", node)
	case !listed:
		return notListed(fmt.Errorf("cannot call off the retirement of %s: %w", node, machines.ErrNotListed), ref)
	case !retiring && !asked && !held:
		return fmt.Errorf("cannot call off the retirement of %s: it is not being retired\nwithout --call-off it is asked for a run", node)
	}
	if held {
		if err := a.Release(ctx, node); err != nil {
			return err
		}
		cli.Cleanf(o.env.Stdout, "ended its hold: %s\n", hold.Reason()) // it may have replaced another one
	}
	if retiring {
		back := *record
		back.Phase, back.Ask, back.Drained, back.Problem = machines.Made, "", false, ""
		back.By, back.At = r.By, r.At
		if err := a.Put(ctx, back, record); err != nil {
			return err
		}
	}
	if err := a.Ask(ctx, node, r); err != nil {
		return err
	}
	fmt.Fprintf(o.env.Stdout, "the retirement of %s is called off\n", node)
	return nil
}
