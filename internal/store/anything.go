package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/store/etcd"
)

// AnythingOf reports whether etcd contains any part of an environment that a destruction deletes. This includes an
// environment that is not stored, or was destroyed in part. Users and roles count if this connection may read them.
func (s *Machines) AnythingOf(ctx context.Context, ref environments.Ref) (bool, error) {
	env := ref.String()
	looks := []func() (bool, error){
		func() (bool, error) { keys, err := s.tokens.tokensOf(ctx, env); return len(keys) > 0, err },
		func() (bool, error) { keys, err := s.notices.noticesOf(ctx, env); return len(keys) > 0, err },
		func() (bool, error) {
			users, roles, err := s.access.accountsOf(ctx, env)
			if errors.Is(err, rpctypes.ErrPermissionDenied) {
				err = nil
			}
			return len(users)+len(roles) > 0, err
		},
	}
	for _, prefix := range append(reportedBy(s.db.Keys, env), s.db.Keys.Env(env).Root(), s.db.Keys.Env(env).Precreated(""), s.db.Keys.Env(env).Identities()) {
		looks = append(looks, func() (bool, error) {
			resp, err := s.db.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err == nil && resp.Count > 0, err
		})
	}
	for _, look := range looks {
		if any, err := look(); err != nil || any {
			if err != nil {
				err = fmt.Errorf("cannot look for what there is of %s: %w", ref, err)
			}
			return any, err
		}
	}
	return false, nil
}

// tokensOf returns the keys of the tokens for an environment's nodes, including ended tokens.
func (s *Tokens) tokensOf(ctx context.Context, env string) (keys []string, err error) {
	_, err = s.eachToken(ctx, false, func(key string, t Token) {
		if t.Environment == env {
			keys = append(keys, key)
		}
	})
	return keys, err
}

func (s *Notices) noticesOf(ctx context.Context, env string) (keys []string, err error) {
	all, _, err := s.List(ctx)
	for _, n := range all {
		if n.Environment == env {
			keys = append(keys, s.db.Keys.Notice(n.ID))
		}
	}
	return keys, err
}

// accountsOf returns the users of all the environment's nodes, and their roles: each node's own role, and the shared
// one.
func (s *Access) accountsOf(ctx context.Context, env string) (users, roles []string, err error) {
	all, err := s.Users(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, user := range all {
		if _, of := s.nodeUser(user, env); of {
			users = append(users, user)
		}
	}
	if all, err = s.roles(ctx); err != nil {
		return nil, nil, err
	}
	for _, role := range all {
		if strings.HasPrefix(role, s.NodeRole(env, "")) || role == s.NodesRole(env) {
			roles = append(roles, role)
		}
	}
	return users, roles, nil
}

// reportedBy lists the prefixes of the nodes' reports in an environment, and of notes about the nodes.
func reportedBy(k etcd.Keys, env string) []string {
	return []string{k.Env(env).Statuses(), k.Env(env).NodesRuns(), k.Env(env).FirstBoots(), k.Env(env).Past(""), k.Env(env).Flood("")}
}
