package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// ordersAtOnce is the number of preview orders, or answers, in one transaction.
const ordersAtOnce = 100

// previewLasts is the time that orders outlive a killed command: they refuse other previews of their nodes, and rollouts that demand one.
const previewLasts = time.Minute

// Previews are the preview orders of one command, which keeps them alive with Renew. A lease ends those that Withdraw does not.
type Previews struct {
	db    *etcd.DB
	k     etcd.EnvKeys
	lease clientv3.LeaseID
}

// OrderPreviews writes an order for each node. A node has one order at a time: with a second one, OrderPreviews writes none
// and returns an error that wraps ErrConflict.
func (s *Fleet) OrderPreviews(ctx context.Context, ref model.Ref, orders map[string]model.PreviewOrder) (*Previews, error) {
	lease, err := s.db.Grant(ctx, previewLasts)
	if err != nil {
		return nil, fmt.Errorf("cannot order a preview: %w", err)
	}
	p := &Previews{db: s.db, k: s.db.Env(ref), lease: lease}
	b, n := etcd.If(), 0
	for _, node := range slices.Sorted(maps.Keys(orders)) { // of two previews of the same nodes, one is ordered
		o := orders[node]
		b.If(etcd.Same(p.k.PreviewOrder(node), 0)).Put(p.k.PreviewOrder(node), o, clientv3.WithLease(lease))
		if n++; n%ordersAtOnce != 0 && n < len(orders) {
			continue
		}
		if err := s.db.Commit(ctx, b); err != nil {
			if errors.Is(err, etcd.ErrConflict) {
				err = s.inPreview(ctx, p.k, orders)
			}
			return nil, errors.Join(err, p.Withdraw(ctx))
		}
		b = etcd.If()
	}
	return p, nil
}

// PreviewOrders lists the preview orders of an environment, by node. damaged names unreadable keys.
func (s *Fleet) PreviewOrders(ctx context.Context, ref model.Ref) (orders map[string]model.PreviewOrder, damaged []string, err error) {
	orders, damaged, err = etcd.ReadAll[model.PreviewOrder](ctx, s.db, s.db.Env(ref).PreviewOrders())
	return orders, damaged, etcd.Wrap(err, "cannot list the preview orders of %s", ref)
}

// inPreview returns which of these nodes has an order of another command.
func (s *Fleet) inPreview(ctx context.Context, k etcd.EnvKeys, orders map[string]model.PreviewOrder) error {
	others, _, err := etcd.ReadAll[model.PreviewOrder](ctx, s.db, k.PreviewOrders())
	for node, o := range others {
		if own, ordered := orders[node]; ordered && own.ID != o.ID {
			return fmt.Errorf("cannot order a preview of %s: %w: %s ordered one at %s, which has not ended\ntry again in a minute: the orders of a command end a minute after it", node, etcd.ErrConflict, o.By, o.At.Format(time.RFC3339))
		}
	}
	return cmp.Or(err, fmt.Errorf("cannot order a preview: %w\ntry again", etcd.ErrConflict))
}

// Answers calls each with the present answers of some nodes. One of an earlier order may be among them.
func (p *Previews) Answers(ctx context.Context, nodes []string, each func(node string, answer []byte)) error {
	for some := range slices.Chunk(nodes, ordersAtOnce) {
		var points []etcd.Point
		for _, node := range some {
			points = append(points, etcd.Point{Key: p.k.Preview(node), Read: func(kv *etcd.KV) error {
				each(node, kv.Value)
				return nil
			}})
		}
		if _, err := p.db.Read(ctx, map[string]int64{}, points...); err != nil {
			return fmt.Errorf("cannot read the answers to a preview: %w", err)
		}
	}
	return nil
}

// Renew keeps the orders alive for another minute. It fails if they ended meanwhile.
func (p *Previews) Renew(ctx context.Context) error {
	if err := p.db.Renew(ctx, p.lease); err != nil {
		return fmt.Errorf("cannot continue a preview: its orders cannot be kept: %w\nrun the preview again", err)
	}
	return nil
}

// Withdraw deletes the orders. Each node deletes its answer at its next tick.
func (p *Previews) Withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.db.Timeout)
	defer cancel()
	if _, err := p.db.Client.Revoke(ctx, p.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("cannot withdraw a preview: %w\nits lease ends it within a minute", p.db.Explain(err))
	}
	return nil
}
