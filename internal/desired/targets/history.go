package targets

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
)

// HistoryKept is the number of changes of an environment that are kept, the newest ones. A rollback reaches no older
// one, except the last change of a scope.
const HistoryKept = 1000

// pruneBatch is the number of deletions in a transaction.
const pruneBatch = 100

// PruneHistory deletes changes of an environment, with their permits, beyond the newest keep ones. It returns their
// number. now judges epochs. It keeps what later decisions need: the last change of each scope, and the changes with the highest release and
// the highest data, from which a permit to go back must lead, and those that set each scope's release and the data: permits
// of earlier ones may be used up. It deletes nothing of a history that somebody wrote without Pulley: what it would delete
// may be all that shows the right targets.
//
// It needs no guard: changes are immutable, and a newer change makes no older one necessary.
func (s *Targets) PruneHistory(ctx context.Context, env string, keep int, now time.Time) (deleted int, err error) {
	k := s.db.Keys.Env(env)
	resp, err := s.db.Get(ctx, k.History(), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count <= int64(keep) {
		return 0, etcd.Wrap(err, "cannot shorten the history of %s", env)
	}
	history, err := s.HistoryAt(ctx, env, 0, nil)
	if err != nil || len(history) <= keep {
		return 0, err
	}
	if newest := history[0].Epoch; gap(history[:keep]) || !PossibleEpoch(newest, now) {
		return 0, fmt.Errorf("cannot shorten the history of %s: its newest changes are not all that led to epoch %d\nsee `pulley status -e %[1]s`, then run `pulley recover -e %[1]s`", env, newest)
	}
	for batch := range slices.Chunk(unneeded(history, keep, now), pruneBatch/2) {
		b := etcd.If()
		for _, epoch := range batch {
			b.Delete(k.Change(epoch), k.Permit(epoch))
		}
		if err := s.db.Commit(ctx, b); err != nil {
			return deleted, etcd.Wrap(err, "cannot shorten the history of %s", env)
		}
		deleted += len(batch)
	}
	return deleted, nil
}

// NewestEpoch returns the epoch that the key of the newest change names; 0: there is no change.
func NewestEpoch(ctx context.Context, db *etcd.DB, k etcd.EnvKeys) (newest model.Epoch, err error) {
	err = db.ScanDown(ctx, k.History(), func(rest string, _ *etcd.KV) error {
		if _, err := fmt.Sscanf(rest, "%d", &newest); err != nil || k.Change(newest) != k.History()+rest {
			newest = 0
			return nil // no change
		}
		return etcd.ErrEnough
	}, clientv3.WithKeysOnly())
	return newest, err
}

// unneeded returns the epochs of a history, newest first, that PruneHistory deletes, oldest first.
func unneeded(history []Change, keep int, now time.Time) (epochs []model.Epoch) {
	needed, last, set := map[model.Epoch]bool{}, map[etcd.Scope]bool{}, map[etcd.Scope]bool{}
	released, data, dataSet, highest := model.Epoch(0), model.Epoch(0), Change{}, model.Target{}
	for i, c := range history {
		if i < keep || !last[c.Scope()] || c.setsRelease() && !set[c.Scope()] {
			needed[c.Epoch] = true
		}
		last[c.Scope()], set[c.Scope()] = true, set[c.Scope()] || c.setsRelease()
		if dataSet.Epoch == 0 && c.setsData() {
			dataSet = c
		}
		for _, t := range c.Named(now) {
			if _, err := release.ParseVersion(t.Release); err == nil && (released == 0 || release.CompareVersions(t.Release, highest.Release) > 0) {
				released, highest.Release = c.Epoch, t.Release
			}
			if data == 0 || t.Data > highest.Data {
				data, highest.Data = c.Epoch, t.Data
			}
		}
	}
	needed[released], needed[data], needed[dataSet.Epoch] = true, true, true
	for _, c := range slices.Backward(history) {
		if !needed[c.Epoch] {
			epochs = append(epochs, c.Epoch)
		}
	}
	return epochs
}

// setsRelease reports whether a change set another release, or another tree under its version, or a rollout did so on some nodes.
func (c Change) setsRelease() bool {
	return c.Before.Release != c.After.Release || c.Before.Tree != c.After.Tree || c.Rollout != nil && c.Rollout.Target.Release != ""
}

// setsData reports whether a change set other data of all nodes, or a rollout did so on some nodes.
func (c Change) setsData() bool {
	return c.Scope() == (etcd.Scope{}) && (c.Before.Data != c.After.Data || c.Rollout != nil && c.Rollout.Target.Data != 0)
}

// reachable calls each with the changes of a scope that a rollback may undo, newest first, until it returns false. Beyond
// the newest HistoryKept changes there are gaps: only the last change of the scope counts there.
func reachable(history []Change, scope etcd.Scope, each func(Change) bool) {
	seen := false
	for i, c := range history {
		if c.Scope() != scope {
			continue
		}
		if i >= HistoryKept && seen || !each(c) {
			return
		}
		seen = true
	}
}

// OldestReachable returns the oldest epoch to whose target a rollback can return: 0 for the state before the first change.
func OldestReachable(history []Change) model.Epoch {
	if len(history) == 0 {
		return 0
	}
	return history[min(len(history), HistoryKept)-1].Epoch - 1
}
