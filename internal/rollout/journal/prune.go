package journal

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// CampaignsKept is the number of ended campaigns of an environment that are kept, the newest ones. Their starts and ends stay in the
// history.
const CampaignsKept = 50

// Prune deletes ended campaigns of an environment with all their keys, beyond the newest keep ones. It returns their number. It
// never deletes the campaign that owns the gate, also a paused or aborted one.
func (s *Campaigns) Prune(ctx context.Context, ref model.Ref, keep int) (deleted int, err error) {
	fail := func(err error) (int, error) {
		return deleted, etcd.Wrap(err, "cannot delete the oldest rollouts of %s", ref)
	}
	k := s.db.Env(ref)
	gate, revision, err := etcd.Single[model.Gate](ctx, s.db, k.Gate())
	if err != nil || gate == nil {
		return fail(err)
	}
	ids, err := s.db.Segments(ctx, k.Campaigns())
	if err != nil {
		return fail(err)
	}
	// A start writes nodes before its gate: they have an epoch above that of the gate.
	ended := slices.DeleteFunc(ids, func(id string) bool { e := epochOf(id); return id == gate.Rollout || e == 0 || e > gate.Epoch })
	slices.SortFunc(ended, func(a, b string) int { return cmp.Compare(epochOf(b), epochOf(a)) })
	for _, id := range ended[min(keep, len(ended)):] {
		// The gate is the guard: without a change of it, no start uses the epoch again.
		b := etcd.If(etcd.Same(k.Gate(), revision)).Op(clientv3.OpDelete(k.CampaignKeys(id), clientv3.WithPrefix()))
		if err := s.db.Commit(ctx, b); errors.Is(err, etcd.ErrConflict) {
			return deleted, nil // the next call continues
		} else if err != nil {
			return fail(err)
		}
		deleted++
	}
	return deleted, nil
}

// epochOf returns the epoch in the id of a campaign; 0 for another text.
func epochOf(id string) model.Epoch {
	digits, ok := strings.CutPrefix(id, "r")
	if !ok {
		digits, ok = strings.CutPrefix(id, "j")
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return model.Epoch(n)
}
