package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// Each permit covers the complete target of its change. Nodes therefore need only the newest permit of their scope,
// which is mostly on the first page. A node that was offline may have to read past the later permits of every other
// scope.
const (
	permitPage  = 64
	mostPermits = 2048 // bound of one search
)

// Permits calls more with the rollback permits, newest first, page by page, until more has enough. It skips a permit
// that is unreadable or was copied from another key: such a permit permits nothing, and must not hide valid ones.
func (s *Targets) Permits(ctx context.Context, env string, more func([]trust.SignedPermit) bool) error {
	from := s.db.Keys.Env(env).Permits()
	end := clientv3.GetPrefixRangeEnd(from)
	for range mostPermits / permitPage {
		resp, err := s.db.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(permitPage), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
		if err != nil {
			return fmt.Errorf("cannot read the permits to go back in %s: %w", env, err)
		}
		var page []trust.SignedPermit
		for _, kv := range resp.Kvs {
			var p trust.SignedPermit
			p.Record, p.Signatures = trust.Split(kv.Value)
			if p.Permit, err = trust.ParsePermit(p.Record); err == nil && p.Environment == env && s.db.Keys.Env(env).Permit(agent.Epoch(p.Epoch)) == string(kv.Key) {
				page = append(page, p)
			}
			end = string(kv.Key) // older permits come before it
		}
		if !more(page) || !resp.More {
			return nil
		}
	}
	return nil
}

// permit returns the operation that permits nodes to follow c to a lower target. It returns none if no target is
// lower, or without sign. A node without allowed signers needs no permit, and a node with them accepts no unsigned
// one.
func (s *Targets) permit(ctx context.Context, ref environments.Ref, d Desires, c *Change, sign Sign) ([]clientv3.Op, error) {
	env := ref.String()
	p, lower, err := s.permitOf(ctx, env, d, *c)
	if err != nil {
		return nil, err
	}
	if !lower || sign == nil {
		c.Unsigned = lower
		return nil, nil
	}
	p.Environment, p.Epoch, p.By, p.Why, p.At = env, int64(c.Epoch), c.By, string(c.Why), c.At
	record, err := p.Encode()
	if err != nil {
		return nil, err
	}
	document, err := sign.document(ctx, trust.Rollback, record)
	if err != nil {
		return nil, fmt.Errorf("cannot sign the permit to go back: %w", err)
	}
	return []clientv3.Op{clientv3.OpPut(s.db.Keys.Env(env).Permit(c.Epoch), document)}, nil
}

// Permitted reports whether nodes at a higher target may follow a scope to its target. Either no part is lower than
// any earlier target, or a signed permit covers it. The signature is not verified.
func (s *Targets) Permitted(ctx context.Context, ref environments.Ref, d Desires, scope etcd.Scope) (bool, error) {
	needed, lower, err := s.permitOf(ctx, ref.String(), d, Change{Role: scope.Role, Node: scope.Node, After: d.Target(scope)})
	if err != nil || !lower {
		return err == nil, err
	}
	release, data := needed.Release == nil, needed.Data == nil
	err = s.Permits(ctx, ref.String(), func(page []trust.SignedPermit) bool {
		for _, p := range page {
			if p.Signatures != nil {
				release = release || p.Release != nil && *p.Release == *needed.Release
				data = data || p.Data != nil && *p.Data == *needed.Data
			}
		}
		return !release || !data
	})
	return release && data && err == nil, err
}

// permitOf returns the permit that a change of d needs, with only its steps. lower is false if it needs none.
func (s *Targets) permitOf(ctx context.Context, env string, d Desires, c Change) (p trust.Permit, lower bool, err error) {
	role := c.Role
	if c.Node != "" {
		if role, err = s.roleOf(ctx, env, c.Node); err != nil {
			return p, false, err
		}
	}
	named, err := s.named(ctx, env, d)
	if err != nil {
		return p, false, err
	}
	p, lower = permitFor(d.after(c, role), named)
	return p, lower, nil
}

// roleOf returns a node's role by the host list, else by its name, else "".
func (s *Targets) roleOf(ctx context.Context, env, node string) (string, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Host(node))
	if err != nil {
		return "", err
	}
	if len(resp.Kvs) > 0 {
		var h agent.Host
		if etcd.Decode(string(resp.Kvs[0].Key), resp.Kvs[0].Value, &h) == nil && h.Role != "" {
			return h.Role, nil
		}
	}
	n, err := environments.ParseNode(node)
	if err != nil {
		return "", nil
	}
	return n.Role, nil
}

// named lists every earlier target of an environment in its history: a node that was offline may have any of them. It
// skips an unreadable change, which must not block operators from the next change.
func (s *Targets) named(ctx context.Context, env string, d Desires) ([]agent.Target, error) {
	all := []agent.Target{d.Default}
	for _, t := range d.Roles {
		all = append(all, t)
	}
	for _, t := range d.Nodes {
		all = append(all, t)
	}
	var at []clientv3.OpOption
	if d.Revision != 0 {
		at = append(at, clientv3.WithRev(d.Revision))
	}
	_, err := s.db.Pages(ctx, s.db.Keys.Env(env).History(), 500, func(rest string, value []byte) error {
		var c Change
		if etcd.Decode(rest, value, &c) == nil {
			all = append(all, c.Before, c.After)
		}
		return nil
	}, at...)
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = etcd.ErrConflict
	}
	return all, err
}
