package promotion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
)

// Recovery is the recovery of one scope.
type Recovery struct {
	targets.Change                // zero for a dry run
	Target         model.Target   // of the last change
	Was            model.Target   // in etcd
	Nodes          []string       // nodes with a high-water mark above Target that no permit covers
	Marks          []model.Target // their marks, in the same order
	Passed         model.Epoch    // that nodes verified, serve saw or the gate has, above the history: the change is above it; 0: none
	Lost           string         // rollout or job in progress that cannot be read, which the change ends
	Began          bool           // the history was empty, and begins with Target as it was in etcd: nothing else was recovered
}

// Recovered is what Recover did, or would do.
type Recovered struct {
	Scopes []Recovery
	Head   *targets.DataHead // of the data, which somebody wrote; nil: it was right
}

// errUnsigned means that nodes need a signed permit, and there is no key.
var errUnsigned = errors.New("nodes with allowed signers need a signed permit\ngive --sign-key")

// Recover writes the target of the last change to each scope whose target in etcd differs, and the head of the data if it is not
// that of the history. For nodes that reported a high-water mark above their target, it signs a permit that ends at until.
func Recover(ctx context.Context, s *etcd.DB, ref model.Ref, until time.Time, dryRun bool, a Author) (done Recovered, err error) {
	if done.Scopes, err = recoverScopes(ctx, s, ref, until, dryRun, a); err != nil {
		return done, err
	}
	err = Retry(func() error {
		head, err := targets.In(s).DataHead(ctx, ref, a.At)
		if err != nil || !head.Wrong() {
			return err
		}
		done.Head = &head
		if dryRun {
			return nil
		}
		return targets.In(s).RecoverHead(ctx, ref, head)
	})
	return done, err
}

func recoverScopes(ctx context.Context, s *etcd.DB, ref model.Ref, until time.Time, dryRun bool, a Author) (done []Recovery, err error) {
	handled := map[Scope]bool{}
	for {
		var r *Recovery
		err := Retry(func() (err error) {
			r, err = recoverNext(ctx, s, ref, handled, until, dryRun, a)
			return err
		})
		if err != nil || r == nil {
			return done, err
		}
		handled[Scope{Role: r.Role, Node: r.Node}] = true
		if done = append(done, *r); r.Began {
			return done, nil
		}
	}
}

// recoverNext recovers the first scope that needs it and is not handled yet; nil: none. All nodes come first: the target
// of a role may inherit parts.
func recoverNext(ctx context.Context, s *etcd.DB, ref model.Ref, handled map[Scope]bool, until time.Time, dryRun bool, a Author) (*Recovery, error) {
	if _, err := fleet.FindEnvironment(ctx, specs.In(s), ref); err != nil {
		return nil, err
	}
	f, err := fleet.In(s).State(ctx, ref)
	if err != nil {
		return nil, err
	}
	history, err := targets.In(s).HistoryOf(ctx, ref, f.Desires)
	if err != nil {
		return nil, err
	}
	stop, lost, err := restoredRollout(ctx, s, ref, f.Desires.Gate)
	if err != nil {
		return nil, err
	}
	newest, reached, err := epochs(s, ref, f, history, stop, a.At)
	if err != nil {
		return nil, err
	}
	if len(history) == 0 {
		if reached == 0 {
			return nil, nil
		}
		// Nothing tells the right targets: the history begins again with that of all nodes as it is, and nothing is signed.
		r := &Recovery{Target: f.Desires.Default, Was: f.Desires.Default, Began: true}
		if !dryRun {
			r.Change, err = targets.In(s).Recover(ctx, ref, f.Desires, Scope{}, reached, targets.Recovery{Target: r.Target, Until: until}, a.Signing())
		}
		return r, err
	}
	found := fleet.Contradictions(f, history, a.At)
	right := corrected(f.Desires, found, history)
	blocked, err := blockedNodes(ctx, s, ref, f, right, a.At)
	if err != nil {
		return nil, err
	}
	last := fleet.LastChanges(history)
	for _, scope := range fleet.Scopes(f.Desires, history) {
		r := Recovery{Change: targets.Change{Role: scope.Role, Node: scope.Node}, Target: right.Target(scope), Was: f.Desires.Target(scope)}
		for _, node := range slices.SortedFunc(maps.Keys(blocked), fleet.CompareNatural) {
			if right.Reaches(scope, f.Hosts[node].Role, node) {
				r.Nodes = append(r.Nodes, node)
				r.Marks = append(r.Marks, blocked[node])
			}
		}
		if scope == (Scope{}) && reached > newest {
			r.Passed = reached
		}
		if scope == (Scope{}) {
			r.Lost = lost
		}
		gate := scope == (Scope{}) && (stop != nil || lost != "" || f.Desires.Gate.Epoch != newest || reached > newest || history[0].Kind == targets.Restored || targets.Gap(history))
		if handled[scope] || r.Target == r.Was && len(r.Nodes) == 0 && !gate {
			continue
		}
		if dryRun {
			return &r, nil
		}
		if len(r.Nodes) > 0 && a.Key == nil {
			return nil, fmt.Errorf("cannot recover %s: %w", ref, errUnsigned)
		}
		if err := exists(ctx, s, ref, r.Target); err != nil {
			return nil, fmt.Errorf("cannot recover the target of %s, which epoch %d of the history names: %w", scope, last[scope].Epoch, err)
		}
		r.Change, err = targets.In(s).Recover(ctx, ref, f.Desires, scope, reached, targets.Recovery{Target: r.Target, Marks: r.Marks, Until: until}, a.Signing())
		return &r, err
	}
	return nil, nil
}

// restoredRollout returns why the rollout in progress stopped, if it did because etcd was restored, and its ID if it is lost: only a recovery ends
// either. One of a newer Pulley prevents no recovery.
func restoredRollout(ctx context.Context, s *etcd.DB, ref model.Ref, gate model.Gate) (stop *rollout.Stop, lost string, err error) {
	if gate.Rollout == "" {
		return nil, "", nil
	}
	c, err := journal.In(s).Get(ctx, ref, gate.Rollout, nil)
	switch {
	case errors.As(err, new(*journal.LostError)):
		return nil, gate.Rollout, nil
	case errors.As(err, new(*etcd.UnreadableError)):
		return nil, "", nil
	case err != nil || c.State.Stop == nil || c.State.Stop.Code != rollout.StopRestored:
		return nil, "", err
	}
	return c.State.Stop, "", nil
}

// epochs returns the epoch of the newest change, and the highest that the environment has reached: by its history, its gate, the rollout that
// stopped, or the signatures that its nodes verified. Nodes use no permit and no statement with an epoch that they have passed, the newest
// changes of the history may have been deleted, and the holder of a stolen key may have signed under a high epoch. It ignores a
// number that no change can have: nodes ignore it, too.
func epochs(s *etcd.DB, ref model.Ref, f fleet.FleetState, history []targets.Change, stop *rollout.Stop, now time.Time) (newest, reached model.Epoch, err error) {
	if len(history) > 0 {
		newest = history[0].Epoch
	}
	if !targets.PossibleEpoch(newest, now) {
		return 0, 0, fmt.Errorf("cannot recover %s: %w", ref, targets.In(s).Implausible(ref.String(), newest))
	}
	reached = newest
	if gate := f.Desires.Gate.Epoch; targets.PlausibleEpoch(gate, now) {
		reached = max(reached, gate)
	}
	if stop != nil && targets.PlausibleEpoch(stop.Epoch, now) {
		reached = max(reached, stop.Epoch)
	}
	for node := range f.Hosts {
		reached = max(reached, fleet.SeenEpoch(f.Statuses[node], now))
	}
	return newest, reached, nil
}

// corrected returns d with the target of the last change wherever the two differ.
func corrected(d targets.Desires, found []fleet.Contradiction, history []targets.Change) targets.Desires {
	last := fleet.LastChanges(history)
	for _, c := range found {
		if scope, ok := fleet.ScopeOf(c); ok {
			d = d.With(scope, last[scope].After)
		}
	}
	return d
}

// blockedNodes returns the high-water marks of the nodes that refuse their target: it is below their mark, and no
// signed permit that they have not used covers it. It does not verify the permits, and believes a node that refuses its target
// in spite of one.
func blockedNodes(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState, right targets.Desires, now time.Time) (map[string]model.Target, error) {
	above := map[string]trust.HighWaterMark{}
	for node, st := range f.Statuses {
		if _, listed := f.Hosts[node]; listed && fleet.Above(fleet.Mark(st), right.For(f.Hosts[node].Role, node).Wanted()) {
			above[node] = trust.HighWaterMark{
				Environment: ref.String(), Release: st.Signatures.Release, Data: int64(st.Signatures.Data), Permit: int64(st.Signatures.Permit),
			}.At(now)
		}
	}
	if len(above) == 0 {
		return nil, nil
	}
	blocked := map[string]model.Target{}
	var permits []trust.Permit
	err := targets.In(s).Permits(ctx, ref.String(), func(page []trust.SignedPermit) bool {
		for _, p := range page {
			if p.Signatures != nil && !p.Ended(now) {
				permits = append(permits, p.Permit)
			}
		}
		return true
	})
	for node, mark := range above {
		t := right.For(f.Hosts[node].Role, node).Wanted()
		wanted := trust.Target{Environment: ref.String(), Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
		if _, err := mark.Check(wanted, permits); err != nil || refuses(f.Statuses[node], t) {
			blocked[node] = model.Target{Release: mark.Release, Data: model.Generation(mark.Data)}
		}
	}
	return blocked, err
}

// refuses reports whether the last status of a node refuses a target that is below its high-water mark.
func refuses(s model.Status, t model.Target) bool {
	r := s.Refusal
	return r != nil && r.Target == t && (r.Code == refusal.ReleaseTooOld || r.Code == refusal.DataTooOld)
}

// exists returns an error if etcd does not have the contents of a target, or has others.
func exists(ctx context.Context, s *etcd.DB, ref model.Ref, t model.Target) error {
	if t.Release != "" {
		r, err := release.In(s).Get(ctx, t.Release)
		if err != nil {
			return err
		}
		if r.Content.Tree != t.Tree {
			return fmt.Errorf("release %s has the tree %.12s, not %.12s", t.Release, r.Content.Tree, t.Tree)
		}
	}
	if t.Data != 0 {
		g, err := targets.In(s).Generation(ctx, ref.String(), t.Data)
		if err != nil {
			return err
		}
		if digest := g.Digest(); digest != t.DataDigest {
			return fmt.Errorf("data generation %d has the digest %.12s, not %.12s", t.Data, digest, t.DataDigest)
		}
	}
	return nil
}
