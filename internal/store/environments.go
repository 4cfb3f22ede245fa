package store

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
)

// Spec reads an environment and the revision at which it was last written; nil and 0 when there is none.
func (s *specsPart) Spec(ctx context.Context, ref environments.Ref) (*environments.Environment, int64, error) {
	key := s.keys.spec(ref.String())
	resp, err := s.get(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, 0, nil
	}
	e, err := environments.Decode(resp.Kvs[0].Value)
	if err != nil {
		return nil, 0, &UnreadableError{Key: key, Problem: err.Error()}
	}
	return e, resp.Kvs[0].ModRevision, nil
}

// MustSpec is Spec where the environment has to exist.
func (s *specsPart) MustSpec(ctx context.Context, ref environments.Ref) (*environments.Environment, int64, error) {
	e, revision, err := s.Spec(ctx, ref)
	if err != nil || e != nil {
		return e, revision, err
	}
	hint := "store it first: pulley env apply environments/" + ref.Environment + ".yaml"
	if ref.Stack != "" {
		hint += " --stack " + ref.Stack
	}
	if known, err := s.Environments(ctx); err == nil {
		if near := environments.SuggestName(ref.String(), known); near != "" {
			hint = "did you mean " + near + "?"
		}
	}
	return nil, 0, fmt.Errorf("cannot find environment %s: %w\n%s", ref, ErrNotFound, hint)
}

// PutSpec stores an environment unless it was written since revision.
func (s *specsPart) PutSpec(ctx context.Context, e *environments.Environment, revision int64) error {
	b, err := environments.Encode(e)
	if err != nil {
		return err
	}
	key := s.keys.spec(e.Ref().String())
	resp, err := s.txn(ctx, []clientv3.Cmp{same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, string(b))}, nil)
	if err == nil && !resp.Succeeded {
		err = ErrConflict
	}
	if err != nil {
		return fmt.Errorf("cannot store environment %s: %w", e.Ref(), err)
	}
	return nil
}

// Environments lists the environments that have a spec, in order.
func (s *specsPart) Environments(ctx context.Context) ([]string, error) {
	all, err := s.segments(ctx, s.keys.environments())
	if err != nil {
		return nil, fmt.Errorf("cannot list environments: %w", err)
	}
	var names []string
	for _, name := range all {
		spec, err := s.get(ctx, s.keys.spec(name), clientv3.WithCountOnly())
		if err != nil {
			return nil, fmt.Errorf("cannot list environments: %w", err)
		}
		if spec.Count > 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// segments lists the names that follow a prefix, up to the next slash. It skips the keys below each, whose values may be
// a fleet's.
func (s *db) segments(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		resp, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) == 0 {
			return names, nil
		}
		key := string(resp.Kvs[0].Key)
		name, _, below := strings.Cut(strings.TrimPrefix(key, prefix), "/")
		if !below { // a key that means nothing
			from = key + "\x00"
			continue
		}
		names = append(names, unescape(name))
		from = clientv3.GetPrefixRangeEnd(prefix + name + "/")
	}
}
