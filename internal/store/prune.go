package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/store/etcd"
)

const (
	pruneBatch    = 100             // deletions in a transaction
	compactWithin = 5 * time.Minute // etcd may rewrite gigabytes
)

// PruneFacts is the input of a prune.
type PruneFacts struct {
	Releases     []SignedRelease // lowest version first
	Deltas       []DeltaKey
	Agents       []SignedAgent
	Objects      []string // hashes
	Environments []PruneEnvironment

	targets int64 // revision of the last change of any target before the facts were read
}

// PruneEnvironment is the input from one environment.
type PruneEnvironment struct {
	Name        string
	Uses        []Use    // of targets, except the history
	History     []Change // newest first
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
	Target agent.Target
	Kind   UseKind
	Scope  Scope
}

// PruneSet names values that a prune removes.
type PruneSet struct {
	Releases    []string        `json:"releases"` // versions, lowest first
	Deltas      []DeltaKey      `json:"deltas"`
	Objects     []string        `json:"objects"` // hashes
	Generations []GenerationKey `json:"generations"`
	Layers      []LayerKey      `json:"layers"`
}

// GenerationKey names a generation of an environment's data.
type GenerationKey struct {
	Environment string           `json:"environment"`
	Number      agent.Generation `json:"number"`
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

// PruneSizes reads the size of each value of a set, by key.
func (s *Releases) PruneSizes(ctx context.Context, set PruneSet) (map[string]int64, error) {
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
	s    *Releases
}

// BeginPrune blocks publishers until Close. It fails during a publish.
func (s *Releases) BeginPrune(ctx context.Context, by string) (*Pruning, error) {
	lock, err := s.beginPrune(ctx, by)
	if err != nil {
		return nil, err
	}
	return &Pruning{lock, s}, nil
}

// Close unblocks publishers.
func (p *Pruning) Close() error { return p.lock.Close() }

// Remove deletes the values of a set that a plan from these facts still contains, and calls removed with the key of
// each. It fails with ErrConflict when a target changed since the facts were read.
func (p *Pruning) Remove(ctx context.Context, set PruneSet, facts PruneFacts, removed func(key string)) error {
	for batch := range slices.Chunk(set.keys(p.s.db.Keys), pruneBatch) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpDelete(key)
		}
		// The keys themselves are not compared: they are immutable, and the two guards cover their uses.
		resp, err := p.s.db.Txn(ctx, []clientv3.Cmp{p.lock.Standing(), etcd.Same(p.s.db.Keys.Targets(), facts.targets)}, ops,
			[]clientv3.Op{clientv3.OpGet(p.lock.Key(), clientv3.WithCountOnly())})
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
				removed(key)
			}
		}
	}
	return nil
}

// Compact makes etcd drop all overwritten and deleted values, and reuse their space.
func (s *Cluster) Compact(ctx context.Context) error {
	resp, err := s.db.Get(ctx, s.db.Keys.Pruning(), clientv3.WithCountOnly())
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, compactWithin)
		defer cancel()
		_, err = s.db.Client.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil // another client compacted; or `pulley serve`, an administrator of etcd, will
		}
		err = s.db.Explain(err)
	}
	if err != nil {
		return fmt.Errorf("cannot compact etcd: %w\nremoved values take up room until then; `pulley serve` compacts regularly", err)
	}
	return nil
}

// PruneFacts reads the input of a prune. An unreadable value is an error: its needs are unknown.
func (s *Releases) PruneFacts(ctx context.Context) (f PruneFacts, err error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Targets()) // first: Remove notices a later change
	if err != nil {
		return f, err
	}
	for _, kv := range resp.Kvs {
		f.targets = kv.ModRevision
	}
	if f.Releases, err = s.List(ctx); err != nil {
		return f, err
	}
	if f.Deltas, err = s.DeltaKeys(ctx); err != nil {
		return f, err
	}
	if f.Agents, err = s.Agents(ctx); err != nil {
		return f, err
	}
	err = s.Objects(ctx, false, func(hash string, _ int64) error { f.Objects = append(f.Objects, hash); return nil })
	if err != nil {
		return f, err
	}
	// An environment without a spec may have targets, and one without targets may have nodes.
	names, err := s.db.Segments(ctx, s.db.Keys.Environments())
	if err != nil {
		return f, err
	}
	spoke, err := s.db.Segments(ctx, s.db.Keys.AllStatuses())
	if err != nil {
		return f, err
	}
	names = append(names, spoke...)
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

func (s *Releases) pruneEnvironment(ctx context.Context, env string) (PruneEnvironment, error) {
	f := PruneEnvironment{Name: env}
	d, err := s.targets.desires(ctx, env)
	if err != nil {
		return f, err
	}
	if len(d.Damaged) > 0 {
		return f, errors.New(d.Damaged[0])
	}
	f.add(d.Default, UseDesired, Scope{})
	for _, role := range slices.Sorted(maps.Keys(d.Roles)) {
		f.add(d.Roles[role], UseDesired, Scope{Role: role})
	}
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		f.add(d.Nodes[node], UseDesired, Scope{Node: node})
	}
	if f.History, err = s.targets.history(ctx, env); err != nil {
		return f, err
	}
	err = etcd.Each(ctx, s.db, s.db.Keys.Env(env).Assignment(""), func(node string, a agent.Assignment) {
		f.add(a.Target, UseAssigned, Scope{Node: node})
	})
	if err == nil {
		err = etcd.Each(ctx, s.db, s.db.Keys.Env(env).Statuses(), func(node string, st agent.Status) {
			f.add(st.Enforcing, UseEnforced, Scope{Node: node})
			f.add(st.LastGood, UseLastGood, Scope{Node: node})
			f.add(st.Target, UseNext, Scope{Node: node})
			if st.Attempt != nil {
				f.add(st.Attempt.Target, UseTried, Scope{Node: node})
			}
		})
	}
	if err != nil {
		return f, err
	}
	const few = 4 // of up to MaxGenerationBytes
	prefix := s.db.Keys.Env(env).Generations()
	_, err = s.db.Pages(ctx, prefix, few, func(rest string, value []byte) error {
		g, err := s.targets.decodeGeneration(env, prefix+rest, value)
		f.Generations = append(f.Generations, g.Generation)
		return err
	})
	if err != nil {
		return f, err
	}
	prefix = s.db.Keys.Env(env).Layers()
	_, err = s.db.Pages(ctx, prefix, 1000, func(rest string, _ []byte) error {
		f.Layers = append(f.Layers, etcd.Unescape(rest))
		if s.db.Keys.Env(env).Layer(etcd.Unescape(rest)) != prefix+rest {
			return &etcd.UnreadableError{Key: prefix + rest, Problem: "it is no key of pulley's"}
		}
		return nil
	}, clientv3.WithKeysOnly())
	return f, err
}

func (f *PruneEnvironment) add(t agent.Target, kind UseKind, scope Scope) {
	if t != (agent.Target{}) {
		f.Uses = append(f.Uses, Use{t, kind, scope})
	}
}
