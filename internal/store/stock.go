package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/internal/store/etcd"
)

// stock reads everything that a prune looks at.
func (s *releasesPart) stock(ctx context.Context) (st stock, err error) {
	if st.releases, err = s.Releases(ctx); err != nil {
		return st, err
	}
	if st.deltas, err = s.DeltaKeys(ctx); err != nil {
		return st, err
	}
	if st.agents, err = s.Agents(ctx); err != nil {
		return st, err
	}
	err = s.Objects(ctx, false, func(hash string, _ int64) error { st.objects = append(st.objects, hash); return nil })
	if err != nil {
		return st, err
	}
	// An environment whose file was taken away may have targets all the same, and one without targets may have nodes.
	names, err := s.Segments(ctx, s.Keys.Environments())
	if err != nil {
		return st, err
	}
	spoke, err := s.Segments(ctx, s.Keys.AllStatuses())
	if err != nil {
		return st, err
	}
	names = append(names, spoke...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		f, err := s.fleetStock(ctx, name)
		if err != nil {
			return st, err
		}
		st.fleets = append(st.fleets, f)
	}
	return st, nil
}

// fleetStock reads one environment's part. Whatever is no value of Pulley's is an error: who knows what it would keep.
func (s *releasesPart) fleetStock(ctx context.Context, env string) (fleetStock, error) {
	f := fleetStock{name: env}
	d, err := s.targets.desires(ctx, env)
	if err != nil {
		return f, err
	}
	if len(d.Damaged) > 0 {
		return f, errors.New(d.Damaged[0])
	}
	f.add(d.Default, "%s in %s is to be on it", etcd.Scope{}, env)
	for _, role := range slices.Sorted(maps.Keys(d.Roles)) {
		f.add(d.Roles[role], "%s in %s is to be on it", etcd.Scope{Role: role}, env)
	}
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		f.add(d.Nodes[node], "%s in %s is to be on it", etcd.Scope{Node: node}, env)
	}
	if f.history, err = s.targets.history(ctx, env); err != nil {
		return f, err
	}
	err = etcd.Each(ctx, s.DB, s.Keys.Env(env).Assignment(""), func(node string, a agent.Assignment) {
		f.add(a.Target, "a rollout sends node %s of %s there", node, env)
	})
	if err == nil {
		err = etcd.Each(ctx, s.DB, s.Keys.Env(env).Statuses(), func(node string, st agent.Status) {
			f.add(st.Enforcing, "node %s of %s enforces it", node, env)
			f.add(st.LastGood, "node %s of %s was last brought to it", node, env)
			f.add(st.Target, "node %s of %s is about to take it", node, env)
			if st.Attempt != nil {
				f.add(st.Attempt.Target, "node %s of %s tries it", node, env)
			}
		})
	}
	if err != nil {
		return f, err
	}
	const few = 4 // of up to MaxGenerationBytes
	prefix := s.Keys.Env(env).Generations()
	_, err = s.Pages(ctx, prefix, few, func(rest string, value []byte) error {
		g, err := s.targets.decodeGeneration(env, prefix+rest, value)
		f.generations = append(f.generations, g.Generation)
		return err
	})
	if err != nil {
		return f, err
	}
	prefix = s.Keys.Env(env).Layers()
	_, err = s.Pages(ctx, prefix, 1000, func(rest string, _ []byte) error {
		f.layers = append(f.layers, etcd.Unescape(rest))
		if s.Keys.Env(env).Layer(etcd.Unescape(rest)) != prefix+rest {
			return &etcd.UnreadableError{Key: prefix + rest, Problem: "it is no key of pulley's"}
		}
		return nil
	}, clientv3.WithKeysOnly())
	return f, err
}

func (f *fleetStock) add(t agent.Target, why string, args ...any) {
	if t != (agent.Target{}) {
		f.uses = append(f.uses, use{t, fmt.Sprintf(why, args...)})
	}
}
