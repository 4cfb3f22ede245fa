package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/content"
	"pulley/internal/store/etcd"
)

// How a prune goes about it.
const (
	pruneBatch    = 100             // deletions a transaction
	pruneTries    = 5               // plans, while targets change under it
	compactWithin = 5 * time.Minute // etcd rewrites what it has of gigabytes
)

// MakePrunePlan finds out what nobody needs any more. It removes nothing. What it can't read ends it with an error that
// names the key: what might be needed by that stays.
func (s *releasesPart) MakePrunePlan(ctx context.Context, o PruneOptions, now time.Time) (PrunePlan, error) {
	fail := func(err error) (PrunePlan, error) { return PrunePlan{}, fmt.Errorf("cannot plan a prune: %w", err) }
	o, err := o.filled()
	if err != nil {
		return fail(err)
	}
	p, _, err := s.planPrune(ctx, o, now)
	if err != nil {
		return fail(err)
	}
	p.sizes = map[string]int64{}
	for _, key := range p.keys(s.Keys) {
		resp, err := s.Get(ctx, key, clientv3.WithSerializable()) // etcd tells a size only with the value
		if err != nil {
			return fail(err)
		}
		for _, kv := range resp.Kvs {
			p.sizes[key] = int64(len(kv.Value))
			p.Bytes += int64(len(kv.Value))
		}
	}
	return p, nil
}

// ApplyPrune removes what is in the plan and is still needed by nobody, and has etcd forget it. It returns how many bytes
// of values are gone, also with an error. Publishers wait meanwhile; promotions and rollbacks don't.
func (s *releasesPart) ApplyPrune(ctx context.Context, plan PrunePlan) (freed int64, err error) {
	m, err := s.beginPrune(ctx, plan.options.By)
	if err != nil {
		return 0, err
	}
	for range pruneTries {
		if err = s.prune(ctx, m, plan, &freed); !errors.Is(err, etcd.ErrConflict) {
			break
		}
	}
	err = errors.Join(err, m.Close())
	if freed > 0 {
		err = errors.Join(err, s.cluster.compact(ctx))
	}
	if err != nil {
		return freed, fmt.Errorf("cannot prune to the end: %w", err)
	}
	return freed, nil
}

// prune plans anew, now that no release can come, and removes what both plans have. ErrConflict means that a target changed
// since it planned: it may be one that was to go.
func (s *releasesPart) prune(ctx context.Context, m *etcd.Lock, plan PrunePlan, freed *int64) error {
	fresh, targets, err := s.planPrune(ctx, plan.options, plan.now)
	if err != nil {
		return err
	}
	still := map[string]bool{}
	for _, key := range fresh.keys(s.Keys) {
		still[key] = true
	}
	keys := slices.DeleteFunc(plan.keys(s.Keys), func(key string) bool { return !still[key] })
	for batch := range slices.Chunk(keys, pruneBatch) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpDelete(key)
		}
		// No key is compared itself: they are immutable, and whether somebody needs them is what the two guards are about.
		resp, err := s.Txn(ctx, []clientv3.Cmp{m.Standing(), etcd.Same(s.Keys.Targets(), targets)}, ops, []clientv3.Op{clientv3.OpGet(m.Key(), clientv3.WithCountOnly())})
		switch {
		case err != nil:
			return err
		case !resp.Succeeded && resp.Responses[0].GetResponseRange().Count == 0:
			return errors.New("etcd had no sign of life from this prune for a minute, and publishers may be at work\nprune again")
		case !resp.Succeeded:
			return fmt.Errorf("the targets keep changing: %w\nprune again", etcd.ErrConflict)
		}
		for i, key := range batch {
			if resp.Responses[i].GetResponseDeleteRange().Deleted > 0 {
				*freed += plan.sizes[key]
			}
		}
	}
	return nil
}

// compact has etcd forget all that was overwritten or deleted, so that the room can be used again.
func (s *clusterPart) compact(ctx context.Context) error {
	resp, err := s.Get(ctx, s.Keys.Pruning(), clientv3.WithCountOnly())
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, compactWithin)
		defer cancel()
		_, err = s.Client.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil // somebody else did; or will, as only etcd's administrators may, and `pulley serve` is one
		}
		err = s.Explain(err)
	}
	if err != nil {
		return fmt.Errorf("cannot compact etcd: %w\nwhat was removed takes up room until it is compacted: `pulley serve` does that by itself", err)
	}
	return nil
}

// keys are the plan's keys, in the order in which they go: first what names others, so that nothing that can be found
// lacks a part.
func (p PrunePlan) keys(k etcd.Keys) []string {
	var all []string
	for _, v := range p.Releases {
		all = append(all, k.Release(v))
	}
	for _, d := range p.Deltas {
		all = append(all, k.Delta(d.Line, d.Seq))
	}
	for _, g := range p.Generations {
		all = append(all, k.Env(g.Environment).Generation(g.Number))
	}
	for _, l := range p.Layers {
		all = append(all, k.Env(l.Environment).Layer(l.Digest))
	}
	for _, hash := range p.Objects {
		all = append(all, k.Object(hash))
	}
	return all
}

// planPrune reads what a prune has to know and decides. Targets is the revision of the last change of any target before.
func (s *releasesPart) planPrune(ctx context.Context, o PruneOptions, now time.Time) (p PrunePlan, targets int64, err error) {
	resp, err := s.Get(ctx, s.Keys.Targets()) // before all else: a change that comes after is noticed
	if err != nil {
		return p, 0, err
	}
	for _, kv := range resp.Kvs {
		targets = kv.ModRevision
	}
	st, err := s.stock(ctx)
	if err != nil {
		return p, 0, err
	}
	p, err = planPrune(st, o, now, func(r content.Record) ([]content.Object, error) { return content.References(ctx, s, r) })
	return p, targets, err
}
