// Package prune reads what uses releases, content and data, and deletes them.
//
// It must never decide what is needed: package publish does.
package prune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
)

// Prunes deletes unneeded releases, content and data.
type Prunes struct {
	db       *etcd.DB
	releases *release.Releases
	targets  *targets.Targets
}

// In returns the prunes of a fleet.
func In(db *etcd.DB) *Prunes { return &Prunes{db, release.In(db), targets.In(db)} }

// pruneBatch is the number of deletions in a transaction.
const pruneBatch = 100

// BeginPrune blocks publishers until Close. It fails during a publish.
func (s *Prunes) BeginPrune(ctx context.Context, by string) (*Pruning, error) {
	l, err := release.Lock(ctx, s.db, etcd.LockSpec{
		Key: func(string) string { return s.db.Keys.Pruning() }, Kind: etcd.LockPrune, By: by,
		Free:  etcd.NothingBelow(s.db.Keys.Publishings()),
		Rival: clientv3.OpGet(s.db.Keys.Publishings(), clientv3.WithPrefix(), clientv3.WithLimit(1)),
	})
	return &Pruning{l, s}, err
}

// PruneFacts is the input of a prune.
type PruneFacts struct {
	Releases     []release.SignedRelease // lowest version first
	Deltas       []release.DeltaKey
	Agents       []release.SignedAgent
	Objects      []string // hashes
	Environments []PruneEnvironment

	targets int64 // revision of the last change of any target before the facts were read
}

// PruneEnvironment is the input from one environment.
type PruneEnvironment struct {
	Name        string
	Uses        []Use            // of targets, except the history
	History     []targets.Change // newest first
	Generations []hieradata.Generation
	Layers      []string // digests
}

// UseKind is the kind of use of a target.
type UseKind string

// The kinds of uses.
const (
	UseDesired  UseKind = "desired"   // the target of a scope
	UseAssigned UseKind = "assigned"  // a rollout assigned it to a node
	UseEnforced UseKind = "enforced"  // a node enforces it
	UseLastGood UseKind = "last_good" // the last good target of a node
	UseNext     UseKind = "next"      // the next target of a node
	UseTried    UseKind = "tried"     // a node tries it
)

// Use is a target in use, and its user.
type Use struct {
	Target model.Target
	Kind   UseKind
	Scope  etcd.Scope
}

// PruneSet names values that a prune removes.
type PruneSet struct {
	Releases    []string           `json:"releases"` // versions, lowest first
	Deltas      []release.DeltaKey `json:"deltas"`
	Objects     []string           `json:"objects"` // hashes
	Generations []GenerationKey    `json:"generations"`
	Layers      []LayerKey         `json:"layers"`
}

// GenerationKey names a generation of an environment's data.
type GenerationKey struct {
	Environment string           `json:"environment"`
	Number      model.Generation `json:"number"`
}

// LayerKey names a layer of an environment's data.
type LayerKey struct {
	Environment string `json:"environment"`
	Digest      string `json:"digest"`
}

// keys returns the keys in the order of their removal: first the keys that name others. No key that readers can find
// then lacks a part.
func (p PruneSet) keys(k etcd.Keys) []string {
	var all []string
	for _, v := range p.Releases {
		all = append(all, k.Release(v), k.Withdrawal(v))
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

// PruneSizes reads the size of each value of a set, by key.
func (s *Prunes) PruneSizes(ctx context.Context, set PruneSet) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, key := range set.keys(s.db.Keys) {
		resp, err := s.db.Get(ctx, key, clientv3.WithSerializable()) // etcd returns a size only with the value
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			sizes[key] = int64(len(kv.Value))
		}
	}
	return sizes, nil
}

// Pruning is a prune in progress: publishers wait for it. Close ends it.
type Pruning struct {
	lock *etcd.Lock
	s    *Prunes
}

// Close unblocks publishers.
func (p *Pruning) Close() error { return p.lock.Close() }

// Remove deletes the values of a set that a plan from these facts still contains, and calls removed with the key of
// each. It fails with ErrConflict when a target changed since the facts were read.
func (p *Pruning) Remove(ctx context.Context, set PruneSet, facts PruneFacts, removed func(key string)) error {
	for batch := range slices.Chunk(set.keys(p.s.db.Keys), pruneBatch) {
		// The keys themselves are not compared: they are immutable, and the two guards cover their uses.
		b := etcd.If(p.lock.Standing(), etcd.Same(p.s.db.Keys.Targets(), facts.targets)).Delete(batch...)
		resp, err := p.s.db.Run(ctx, b, clientv3.OpGet(p.lock.Key(), clientv3.WithCountOnly()))
		switch {
		case err != nil:
			return err
		case !resp.Succeeded && resp.Responses[0].GetResponseRange().Count == 0:
			return errors.New("this prune lost its lock for a minute, and publishers may have started\nprune again")
		case !resp.Succeeded:
			return fmt.Errorf("the targets keep changing: %w\nprune again", etcd.ErrConflict)
		}
		for i, key := range batch {
			if resp.Responses[i].GetResponseDeleteRange().Deleted > 0 {
				removed(key)
			}
		}
	}
	return nil
}

// PruneFacts reads the input of a prune. An unreadable value is an error: its needs are unknown.
func (s *Prunes) PruneFacts(ctx context.Context) (f PruneFacts, err error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Targets()) // first: Remove notices a later change
	if err != nil {
		return f, err
	}
	for _, kv := range resp.Kvs {
		f.targets = kv.ModRevision
	}
	if f.Releases, err = s.releases.List(ctx); err != nil {
		return f, err
	}
	if f.Deltas, err = s.releases.DeltaKeys(ctx); err != nil {
		return f, err
	}
	if f.Agents, err = s.releases.Agents(ctx); err != nil {
		return f, err
	}
	if err = s.releases.Objects(ctx, func(hash string) error { f.Objects = append(f.Objects, hash); return nil }); err != nil {
		return f, err
	}
	// An environment without a spec may have targets, and one without targets may have nodes.
	names, err := s.db.Segments(ctx, s.db.Keys.Environments())
	if err != nil {
		return f, err
	}
	reported, err := s.db.Segments(ctx, s.db.Keys.AllStatuses())
	if err != nil {
		return f, err
	}
	names = append(names, reported...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		e, err := s.pruneEnvironment(ctx, name)
		if err != nil {
			return f, err
		}
		f.Environments = append(f.Environments, e)
	}
	return f, nil
}

func (s *Prunes) pruneEnvironment(ctx context.Context, env string) (PruneEnvironment, error) {
	f, k := PruneEnvironment{Name: env}, s.db.Keys.Env(env)
	d, err := s.targets.DesiresAt(ctx, env)
	if err != nil {
		return f, err
	}
	for _, scope := range d.Scopes() {
		f.add(d.Target(scope), UseDesired, scope)
	}
	if f.History, err = s.targets.HistoryAt(ctx, env, 0, nil); err != nil {
		return f, err
	}
	for _, c := range f.History {
		if c.Rollout != nil && c.Rollout.ID == d.Gate.Rollout {
			f.add(c.Rollout.Target, UseAssigned, etcd.Scope{Role: c.Role})
		}
	}
	assigned, unassigned, err := etcd.ReadAll[model.Assignment](ctx, s.db, k.Assignment(""))
	if err != nil {
		return f, err
	}
	for _, node := range slices.Sorted(maps.Keys(assigned)) {
		f.add(assigned[node].Target, UseAssigned, etcd.Scope{Node: node})
	}
	statuses, unread, err := etcd.ReadAll[model.Status](ctx, s.db, k.Statuses())
	if err != nil {
		return f, err
	}
	for _, node := range slices.Sorted(maps.Keys(statuses)) {
		st, scope := statuses[node], etcd.Scope{Node: node}
		f.add(st.Enforcing, UseEnforced, scope)
		f.add(st.LastGood, UseLastGood, scope)
		f.add(st.Target, UseNext, scope)
		if st.Attempt != nil {
			f.add(st.Attempt.Target, UseTried, scope)
		}
	}
	if damaged := slices.Concat(d.Damaged, unassigned, unread); len(damaged) > 0 {
		return f, errors.New(damaged[0])
	}
	const few = 4 // of up to MaxGenerationBytes
	err = s.db.Scan(ctx, k.Generations(), func(_ string, kv *etcd.KV) error {
		g, err := s.targets.DecodeGeneration(env, kv)
		f.Generations = append(f.Generations, g.Generation)
		return err
	}, clientv3.WithLimit(few))
	if err != nil {
		return f, err
	}
	return f, s.db.Scan(ctx, k.Layers(), func(rest string, kv *etcd.KV) error {
		f.Layers = append(f.Layers, etcd.Unescape(rest))
		if k.Layer(etcd.Unescape(rest)) != string(kv.Key) {
			return etcd.NotOurs(kv)
		}
		return nil
	}, clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
}

func (f *PruneEnvironment) add(t model.Target, kind UseKind, scope etcd.Scope) {
	if t != (model.Target{}) {
		f.Uses = append(f.Uses, Use{t, kind, scope})
	}
}
