package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
)

// AnythingOf reports whether etcd has any key of an environment: also one that is not stored, or was destroyed in part.
func (s *Store) AnythingOf(ctx context.Context, ref environments.Ref) (bool, error) {
	env := ref.String()
	for _, prefix := range []string{s.keys.environment(env), s.keys.statuses(env), s.keys.allRuns(env), s.keys.identities(env)} {
		resp, err := s.get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return false, fmt.Errorf("cannot look for keys of %s: %w", ref, err)
		}
		if resp.Count > 0 {
			return true, nil
		}
	}
	return false, nil
}
