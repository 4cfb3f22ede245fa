package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// Request stores a one-time request to a node in its entry of the host list. It returns machines.ErrNotListed for a
// node outside the list, and ErrRetires for a node with a retirement request, whose author waits for the answer. It
// does not touch the head of the list: the list itself is unchanged.
func (s *Fleet) Request(ctx context.Context, ref environments.Ref, node string, r agent.Request) error {
	lives := func(h agent.Host) error {
		if h.Request != nil && h.Request.Do == agent.RequestRetire {
			return ErrRetires
		}
		return nil
	}
	err := s.ask(ctx, ref.String(), node, r, lives, func(ctx context.Context, cmps []clientv3.Cmp, op clientv3.Op) error {
		resp, err := s.db.Txn(ctx, cmps, []clientv3.Op{op}, nil)
		if err == nil && !resp.Succeeded {
			err = machines.ErrChanged
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot ask node %s: %w", node, err)
	}
	return nil
}

// ErrRetires means that a node has a retirement request, and accepts no other request meanwhile.
var ErrRetires = errors.New("it is being retired")

// ask changes the current entry if may allows it. A join of the node may write the same entry.
func (s *Fleet) ask(ctx context.Context, env, node string, r agent.Request, may func(agent.Host) error, write func(context.Context, []clientv3.Cmp, clientv3.Op) error) error {
	key := s.db.Keys.Env(env).Host(node)
	for {
		h, revision, err := etcd.Single[agent.Host](ctx, s.db, key)
		switch {
		case err != nil:
			return err
		case h == nil:
			return machines.ErrNotListed
		}
		if err := may(*h); err != nil {
			return err
		}
		h.Request = &r
		value, err := etcd.Encode(*h)
		if err != nil {
			return err
		}
		err = write(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, clientv3.OpPut(key, value))
		if !errors.Is(err, machines.ErrChanged) {
			return err
		}
	}
}

// Ask is Fleet.Request while the lock is held.
func (a *Applying) Ask(ctx context.Context, node string, r agent.Request) error {
	anyhow := func(agent.Host) error { return nil } // an apply knows its own retirements
	err := a.machines.fleet.ask(ctx, a.ref.String(), node, r, anyhow, func(ctx context.Context, cmps []clientv3.Cmp, op clientv3.Op) error {
		_, err := a.write(ctx, cmps, op)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot ask node %s: %w", node, a.ended(err))
	}
	return nil
}

// Remove removes a node from the fleet, like RemoveNode. A missing node is no error.
func (a *Applying) Remove(ctx context.Context, node, why string) error {
	ctx, cancel := a.Context(ctx)
	defer cancel()
	if err := a.stillOurs(ctx); err != nil {
		return fmt.Errorf("cannot remove node %s: %w", node, err)
	}
	err := a.machines.joins.RemoveNode(ctx, a.ref, node, Removal{At: a.now(), By: a.by, Why: agent.Prose(why)})
	gone := errors.Is(err, etcd.ErrNotFound)
	if err != nil && !gone {
		return a.ended(err)
	}
	if err := a.off(ctx, node, !gone); err != nil {
		return fmt.Errorf("cannot remove node %s: %w", node, err)
	}
	return nil
}

// MayRemove reports whether this connection can remove nodes from the fleet. Callers check this before they begin such
// work. With etcd authentication it needs an admin.
func (s *Access) MayRemove(ctx context.Context) error {
	on, err := s.AuthEnabled(ctx)
	if err != nil || !on {
		return err
	}
	_, err = s.Users(ctx)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("cannot take nodes out of the fleet: etcd lets only an admin do that, and not %s\n"+
			"nothing was done; whoever retires or replaces machines is an admin: `pulley operators list` shows who is one, and makes a token to `pulley login` with", s.db.CallerName)
	case err != nil:
		return fmt.Errorf("cannot find out who may take nodes out of the fleet: %w", err)
	}
	return nil
}
