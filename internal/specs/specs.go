// Package specs stores the environments as their files describe them. It must never judge one: package environments does.
package specs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Environments stores the environments as their files describe them.
type Environments struct{ db *etcd.DB }

// In returns the environments of a fleet.
func In(db *etcd.DB) *Environments { return &Environments{db} }

// Named lists every environment that any key names, including one without a spec.
func (s *Environments) Named(ctx context.Context) ([]model.Ref, error) {
	k, names := s.db.Keys, map[string]bool{}
	for _, root := range []string{k.Environments(), k.AllStatuses(), k.AllRuns(), k.AllFacts(), k.AllIdentities(), k.AllPrecreated()} {
		found, err := s.db.Segments(ctx, root)
		if err != nil {
			return nil, fmt.Errorf("cannot list environments: %w", err)
		}
		for _, name := range found {
			names[name] = true
		}
	}
	var refs []model.Ref
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if ref, err := model.ParseRef(name); err == nil {
			refs = append(refs, ref)
		}
	}
	return refs, nil
}

// Spec reads an environment and the revision of its last write. It returns nil and 0 if there is none.
func (s *Environments) Spec(ctx context.Context, ref model.Ref) (*environments.Environment, int64, error) {
	resp, err := s.db.Get(ctx, s.db.Env(ref).Spec())
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	e, err := Decode(resp.Kvs[0])
	if err != nil {
		return nil, 0, err
	}
	return e, resp.Kvs[0].ModRevision, nil
}

// Decode reads a stored environment.
func Decode(kv *etcd.KV) (*environments.Environment, error) {
	e, err := environments.Decode(kv.Value)
	if err != nil {
		return nil, &etcd.UnreadableError{Key: string(kv.Key), Problem: err.Error()}
	}
	return e, nil
}

// PutSpec stores an environment. It fails if the environment was written since revision.
func (s *Environments) PutSpec(ctx context.Context, e *environments.Environment, revision int64) error {
	b, err := environments.Encode(e)
	if err != nil {
		return err
	}
	key := s.db.Env(e.Ref()).Spec()
	err = s.db.Commit(ctx, etcd.If(etcd.Same(key, revision)).Op(clientv3.OpPut(key, string(b))))
	return etcd.Wrap(err, "cannot store environment %s", e.Ref())
}

// List returns the environments that have a spec, in order. It leaves out what can be the name of none.
func (s *Environments) List(ctx context.Context) (names []string, err error) {
	all, err := s.db.Segments(ctx, s.db.Keys.Environments())
	for i := 0; err == nil && i < len(all); i++ {
		if _, bad := model.ParseRef(all[i]); bad != nil {
			continue
		}
		var stored bool
		if stored, err = s.HasSpec(ctx, all[i]); stored {
			names = append(names, all[i])
		}
	}
	return names, etcd.Wrap(err, "cannot list environments")
}

// HasSpec reports whether an environment is stored.
func (s *Environments) HasSpec(ctx context.Context, env string) (bool, error) {
	return s.db.Exists(ctx, s.db.Keys.Env(env).Spec())
}

// Watch calls each when any environment was written, until ctx ends or the watch breaks. It calls each once when the watch begins: an
// earlier write may have been missed.
func (s *Environments) Watch(ctx context.Context, each func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spec := strings.TrimPrefix(s.db.Keys.Env("").Spec(), s.db.Keys.Environments()) // "/spec"
	for resp := range s.db.Client.Watch(clientv3.WithRequireLeader(ctx), s.db.Keys.Environments(), clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithCreatedNotify()) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("cannot watch environments: %w", s.db.Explain(err))
		}
		if resp.Created {
			each()
		}
		for _, e := range resp.Events {
			if strings.HasSuffix(string(e.Kv.Key), spec) {
				each()
			}
		}
	}
	return etcd.WatchEnd(ctx.Err())
}

// RoleOf returns a node's role: that which it is listed with, else that which it reported, else that of the environment, else that of its
// name. A role that is not known is "".
func RoleOf(e *environments.Environment, listed, reported, node string) string {
	if role := cmp.Or(listed, reported); role != "" {
		return role
	}
	if e != nil {
		if r, called := e.RoleOf(node); called {
			return r.Name
		}
	}
	n, err := model.ParseNode(node)
	if err != nil {
		return ""
	}
	return n.Role
}
