package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/etcd"
)

// Publishing is a publish in progress. While it is held, no prune runs and the content that it found in etcd stays.
type Publishing struct {
	lock  *etcd.Lock
	s     *Releases
	usage etcd.Usage
	since int64 // bytes written after usage was read
}

// Close ends the publish.
func (p *Publishing) Close() error { return p.lock.Close() }

// lockHint is the remedy if another lock conflicts.
const lockHint = "try again after that; the lock of a killed program ends within a minute"

// BeginPublish begins a publish; Close ends it. During a prune it fails with an error that names the prune's author.
func (s *Releases) BeginPublish(ctx context.Context, by string) (*Publishing, error) {
	l, err := publishing(ctx, s.db, by)
	p := &Publishing{lock: l, s: s}
	if err == nil {
		p.usage = s.db.Usage(ctx)
	}
	return p, err
}

// publishing takes the lock during which no prune runs: values may be written before one that names them.
func publishing(ctx context.Context, db *etcd.DB, by string) (*etcd.Lock, error) {
	pruning := db.Keys.Pruning()
	return lock(ctx, db, etcd.LockSpec{
		Key: db.Keys.Publishing, Kind: etcd.LockPublish, By: by, Free: etcd.Same(pruning, 0), Rival: clientv3.OpGet(pruning),
	})
}

// reserved is the part of etcd's quota that content leaves free: for nodes' reports, for changes, and for the lock of a prune. One
// object may enlarge etcd's file by more than its size.
func reserved(quota int64) int64 { return max(quota/10, 4<<20) }

// PutObject is Releases.PutObject, and leaves room in etcd: it refuses content that would fill it.
func (p *Publishing) PutObject(ctx context.Context, hash string, b []byte) (wrote bool, err error) {
	if p.usage.Quota > 0 && p.since > p.usage.Quota/128 {
		// etcd's own figure lacks what was written a moment ago, until the next commit.
		atLeast := p.usage.Stored + p.since
		p.usage, p.since = p.s.db.Usage(ctx), 0
		p.usage.Stored = max(p.usage.Stored, atLeast)
	}
	if u := p.usage; u.Quota > 0 && u.Stored+p.since+int64(len(b)) > u.Quota-reserved(u.Quota) {
		there, err := p.s.db.Get(ctx, p.s.db.Keys.Object(hash), clientv3.WithCountOnly())
		if err != nil || there.Count > 0 {
			return false, err
		}
		return false, fmt.Errorf("cannot store content %.12s: etcd's file has %d of %d MiB, and publish keeps the last %d MiB free for reports and changes\nrun `pulley releases prune`, then `pulley doctor --fix` as an admin; or raise the quota: `pulley serve --quota`",
			hash, (u.Stored+p.since)>>20, u.Quota>>20, reserved(u.Quota)>>20)
	}
	if wrote, err = p.s.PutObject(ctx, hash, b); wrote {
		p.since += int64(len(b))
	}
	return wrote, err
}

// BeginPrune blocks publishers until Close. It fails during a publish.
func (s *Releases) BeginPrune(ctx context.Context, by string) (*Pruning, error) {
	l, err := lock(ctx, s.db, etcd.LockSpec{
		Key: func(string) string { return s.db.Keys.Pruning() }, Kind: etcd.LockPrune, By: by,
		Free:  etcd.NothingBelow(s.db.Keys.Publishings()),
		Rival: clientv3.OpGet(s.db.Keys.Publishings(), clientv3.WithPrefix(), clientv3.WithLimit(1)),
	})
	return &Pruning{l, s}, err
}

// LockHolders reads who publishes and who prunes.
func (s *Releases) LockHolders(ctx context.Context) (all []LockHolder, err error) {
	for _, prefix := range []string{s.db.Keys.Publishings(), s.db.Keys.Pruning()} {
		_, err := etcd.Collect(ctx, s.db, prefix, func(_ string, h LockHolder, _ int64) { all = append(all, h) }) // an unreadable one ends with its lease
		if err != nil {
			return all, etcd.Wrap(err, "cannot read who publishes or prunes")
		}
	}
	return all, nil
}

func lock(ctx context.Context, db *etcd.DB, spec etcd.LockSpec) (*etcd.Lock, error) {
	spec.Lasts = etcd.LockLasts
	l, holder, err := db.Lock(ctx, spec)
	if err == nil && l == nil {
		return nil, fmt.Errorf("cannot %s while %s\n%s", spec.Kind, holder, lockHint)
	}
	return l, etcd.Wrap(err, "cannot begin to %s", spec.Kind)
}

const pruneBatch = 100 // deletions in a transaction

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
	if f.Deltas, err = s.deltaKeys(ctx); err != nil {
		return f, err
	}
	if f.Agents, err = s.Agents(ctx); err != nil {
		return f, err
	}
	if err = s.Objects(ctx, func(hash string) error { f.Objects = append(f.Objects, hash); return nil }); err != nil {
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

func (s *Releases) pruneEnvironment(ctx context.Context, env string) (PruneEnvironment, error) {
	f, k := PruneEnvironment{Name: env}, s.db.Keys.Env(env)
	d, err := s.targets.desires(ctx, env)
	if err != nil {
		return f, err
	}
	for _, scope := range d.scopes() {
		f.add(d.Target(scope), UseDesired, scope)
	}
	if f.History, err = s.targets.history(ctx, env, 0, nil); err != nil {
		return f, err
	}
	for _, c := range f.History {
		if c.Rollout != nil && c.Rollout.ID == d.Gate.Rollout {
			f.add(c.Rollout.Target, UseAssigned, Scope{Role: c.Role})
		}
	}
	assigned, unassigned, err := etcd.ReadAll[agent.Assignment](ctx, s.db, k.Assignment(""))
	if err != nil {
		return f, err
	}
	for _, node := range slices.Sorted(maps.Keys(assigned)) {
		f.add(assigned[node].Target, UseAssigned, Scope{Node: node})
	}
	statuses, unread, err := etcd.ReadAll[agent.Status](ctx, s.db, k.Statuses())
	if err != nil {
		return f, err
	}
	for _, node := range slices.Sorted(maps.Keys(statuses)) {
		st, scope := statuses[node], Scope{Node: node}
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
		g, err := s.targets.decodeGeneration(env, kv)
		f.Generations = append(f.Generations, g.Generation)
		return err
	}, clientv3.WithLimit(few))
	if err != nil {
		return f, err
	}
	return f, s.db.Scan(ctx, k.Layers(), func(rest string, kv *etcd.KV) error {
		f.Layers = append(f.Layers, etcd.Unescape(rest))
		if k.Layer(etcd.Unescape(rest)) != string(kv.Key) {
			return notOurs(kv)
		}
		return nil
	}, clientv3.WithKeysOnly(), clientv3.WithLimit(1000))
}

func (f *PruneEnvironment) add(t agent.Target, kind UseKind, scope Scope) {
	if t != (agent.Target{}) {
		f.Uses = append(f.Uses, Use{t, kind, scope})
	}
}
