package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Named lists every environment that any key names, including one without a spec.
func (s *Environments) Named(ctx context.Context) ([]environments.Ref, error) {
	k, names := s.db.Keys, map[string]bool{}
	for _, root := range []string{k.Environments(), k.AllStatuses(), k.AllRuns(), k.AllIdentities(), k.AllPrecreated()} {
		found, err := s.db.Segments(ctx, root)
		if err != nil {
			return nil, fmt.Errorf("cannot list environments: %w", err)
		}
		for _, name := range found {
			names[name] = true
		}
	}
	var refs []environments.Ref
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if ref, err := environments.ParseRef(name); err == nil {
			refs = append(refs, ref)
		}
	}
	return refs, nil
}

// Spec reads an environment and the revision of its last write. It returns nil and 0 if there is none.
func (s *Environments) Spec(ctx context.Context, ref environments.Ref) (*environments.Environment, int64, error) {
	key := s.db.Keys.Env(ref.String()).Spec()
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, 0, nil
	}
	e, err := environments.Decode(resp.Kvs[0].Value)
	if err != nil {
		return nil, 0, &etcd.UnreadableError{Key: key, Problem: err.Error()}
	}
	return e, resp.Kvs[0].ModRevision, nil
}

// MustSpec is Spec for an environment that must exist.
func (s *Environments) MustSpec(ctx context.Context, ref environments.Ref) (*environments.Environment, int64, error) {
	e, revision, err := s.Spec(ctx, ref)
	if err != nil || e != nil {
		return e, revision, err
	}
	hint := "store it first: pulley env apply environments/" + ref.Environment + ".yaml"
	if ref.Stack != "" {
		hint += " --stack " + ref.Stack
	}
	if known, err := s.List(ctx); err == nil {
		if near := environments.SuggestName(ref.String(), known); near != "" {
			hint = "did you mean " + near + "?"
		}
	}
	return nil, 0, fmt.Errorf("cannot find environment %s: %w\n%s", ref, etcd.ErrNotFound, hint)
}

// PutSpec stores an environment. It fails if the environment was written since revision.
func (s *Environments) PutSpec(ctx context.Context, e *environments.Environment, revision int64) error {
	b, err := environments.Encode(e)
	if err != nil {
		return err
	}
	key := s.db.Keys.Env(e.Ref().String()).Spec()
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, string(b))}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("cannot store environment %s: %w", e.Ref(), err)
	}
	return nil
}

// List returns the environments that have a spec, in order.
func (s *Environments) List(ctx context.Context) ([]string, error) {
	all, err := s.db.Segments(ctx, s.db.Keys.Environments())
	if err != nil {
		return nil, fmt.Errorf("cannot list environments: %w", err)
	}
	var names []string
	for _, name := range all {
		spec, err := s.db.Get(ctx, s.db.Keys.Env(name).Spec(), clientv3.WithCountOnly())
		if err != nil {
			return nil, fmt.Errorf("cannot list environments: %w", err)
		}
		if spec.Count > 0 {
			names = append(names, name)
		}
	}
	return names, nil
}
