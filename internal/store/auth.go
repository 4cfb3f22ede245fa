package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
)

// authTimeout bounds one change of users or roles if the store's own deadline is shorter. Etcd rebuilds all users'
// permissions at each change, which took 0.13 s at 7,000 users on an idle machine.
const authTimeout = 30 * time.Second

// Etcd's own names. This role may do everything, and etcd cannot turn auth on without this user.
const rootRole, rootUser = "root", "root"

// OperatorRole is the role of an operator.
type OperatorRole string

// The roles of operators. Each includes the permissions of those before it.
const (
	RoleViewer   OperatorRole = "viewer"   // reads everything
	RoleOperator OperatorRole = "operator" // and writes all that operators and publishers write
	RoleAdmin    OperatorRole = "admin"    // and may do everything in etcd: users, other people's keys, maintenance
)

// ParseOperatorRole parses an operator role from user input.
func ParseOperatorRole(s string) (OperatorRole, error) {
	switch r := OperatorRole(s); r {
	case RoleViewer, RoleOperator, RoleAdmin:
		return r, nil
	}
	return "", fmt.Errorf("cannot use operator role %q: there are viewer, operator and admin", s)
}

// AuthEnabled reports whether etcd authenticates its clients. Any client may call it.
func (s *Access) AuthEnabled(ctx context.Context) (bool, error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	resp, err := s.db.Client.AuthStatus(within)
	if errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrPermissionDenied) {
		return true, nil // without auth etcd refuses no client
	}
	if err != nil {
		return false, fmt.Errorf("cannot ask whether etcd checks its users: %w", s.db.Explain(err))
	}
	return resp.Enabled, nil
}

// SetUpAuth creates missing roles of operators, etcd's user root, the user of `pulley serve` and the installation's
// ID. Then it turns auth on. The user root has no password: only a certificate of that name can log in as root.
// SetUpAuth may be repeated. Once auth is on, it needs an admin.
func (s *Access) SetUpAuth(ctx context.Context, serveUser string) error {
	err := s.ensureUser(ctx, rootUser, rootRole)
	if err == nil {
		err = s.ensureUser(ctx, serveUser, rootRole)
	}
	if err == nil {
		err = s.EnsureOperatorRoles(ctx)
	}
	if err == nil {
		err = s.cluster.EnsureInstallation(ctx, serveUser)
	}
	if err == nil {
		err = s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.AuthEnable(ctx); return err })
	}
	if err != nil {
		return fmt.Errorf("cannot set up etcd's users: %w", s.db.Explain(err))
	}
	return nil
}

// EnsureOperatorRoles gives the roles of viewers and operators exactly their grants.
func (s *Access) EnsureOperatorRoles(ctx context.Context) error {
	for _, role := range []OperatorRole{RoleViewer, RoleOperator} {
		if err := s.ensureRole(ctx, s.OperatorRole(role), s.OperatorGrants(role)); err != nil {
			return fmt.Errorf("cannot set up role %s: %w", role, s.db.Explain(err))
		}
	}
	return nil
}

// EnsureEnvironment gives the shared role of an environment's nodes exactly its grants. It adds missing grants before
// it revokes others. Without changes it makes one read.
func (s *Access) EnsureEnvironment(ctx context.Context, env string) error {
	if err := s.ensureRole(ctx, s.NodesRole(env), s.NodesGrants(env)); err != nil {
		return fmt.Errorf("cannot set up what nodes of %s may read: %w", env, s.db.Explain(err))
	}
	return nil
}

// EnsureNode gives user the permissions of the node: the node's own role, which outlives the user, and the shared role
// from EnsureEnvironment. It may be repeated; it does not change existing parts. A new node costs six rebuilds of
// etcd's permissions, and a new user of an existing role three. The user gets its roles last: a half-made user can do
// nothing.
func (s *Access) EnsureNode(ctx context.Context, env, node, user string) error {
	own := s.NodeRole(env, node)
	err := s.ensureRole(ctx, own, s.NodeGrants(env, node))
	if err == nil {
		err = s.ensureUser(ctx, user, own, s.NodesRole(env))
	}
	if err != nil {
		return fmt.Errorf("cannot set up the etcd user of node %s: %w", node, s.db.Explain(err))
	}
	return nil
}

// EnsureOperator makes user an operator with exactly one role.
func (s *Access) EnsureOperator(ctx context.Context, user string, role OperatorRole) error {
	if err := s.ensureUser(ctx, user, s.OperatorRole(role)); err != nil {
		return fmt.Errorf("cannot set up the etcd user of an operator: %w", s.db.Explain(err))
	}
	return nil
}

// DropUser deletes a user: etcd refuses the next request of every certificate of that name. A missing user is no
// error.
func (s *Access) DropUser(ctx context.Context, user string) error {
	if user == rootUser {
		return errors.New("cannot remove etcd's user root: without it auth can't be on")
	}
	err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.UserDelete(ctx, user); return err })
	if err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("cannot remove etcd user %s: %w", user, s.db.Explain(err))
	}
	return nil
}

// DropNodeRole deletes a node's own role. Remaining users of the node can then write nothing. A missing role is no
// error.
func (s *Access) DropNodeRole(ctx context.Context, env, node string) error {
	if err := s.dropRole(ctx, s.NodeRole(env, node)); err != nil {
		return fmt.Errorf("cannot remove the etcd role of node %s: %w", node, err)
	}
	return nil
}

// DropSharedRole deletes the shared role of an environment's nodes if the environment does not exist (any more). A
// missing role is no error. Etcd cannot check and delete at one moment: an environment that was recreated in between
// gets its role back.
func (s *Access) DropSharedRole(ctx context.Context, ref environments.Ref) error {
	env := ref.String()
	stored, err := s.specs.hasSpec(ctx, env)
	if err == nil && !stored {
		err = s.dropRole(ctx, s.NodesRole(env))
		if err == nil {
			stored, err = s.specs.hasSpec(ctx, env)
		}
		if err == nil && stored {
			err = s.shareAgain(ctx, env)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot remove the etcd role of the nodes of %s: %w", ref, err)
	}
	return nil
}

func (s *Environments) hasSpec(ctx context.Context, env string) (bool, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Spec(), clientv3.WithCountOnly())
	return err == nil && resp.Count > 0, err
}

// shareAgain recreates the shared role of an environment's nodes, and grants it to the users that lost it. These are
// the users with a node's own role, which EnsureNode grants first.
func (s *Access) shareAgain(ctx context.Context, env string) error {
	if err := s.EnsureEnvironment(ctx, env); err != nil {
		return err
	}
	users, err := s.Users(ctx)
	if err != nil {
		return err
	}
	for _, user := range users {
		node, of := s.nodeUser(user, env)
		if !of {
			continue
		}
		have, err := s.rolesOf(ctx, user)
		if err == nil && slices.Contains(have, s.NodeRole(env, node)) && !slices.Contains(have, s.NodesRole(env)) {
			err = s.auth(ctx, func(ctx context.Context) error {
				_, err := s.db.Client.UserGrantRole(ctx, user, s.NodesRole(env))
				return err
			})
		}
		if err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) { // deleted at this moment
			return s.db.Explain(err)
		}
	}
	return nil
}

// dropRole deletes a role, and revokes it from its users. A missing role is no error.
func (s *Access) dropRole(ctx context.Context, role string) error {
	err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.RoleDelete(ctx, role); return err })
	if errors.Is(err, rpctypes.ErrRoleNotFound) {
		return nil
	}
	return s.db.Explain(err)
}

// Users lists all of etcd's users in order, including those of other programs.
func (s *Access) Users(ctx context.Context) ([]string, error) {
	var users []string
	err := s.auth(ctx, func(ctx context.Context) error {
		resp, err := s.db.Client.UserList(ctx)
		if err == nil {
			users = resp.Users
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list etcd's users: %w", s.db.Explain(err))
	}
	slices.Sort(users)
	return users, nil
}

// roles lists all of etcd's roles.
func (s *Access) roles(ctx context.Context) (roles []string, err error) {
	err = s.auth(ctx, func(ctx context.Context) error {
		resp, err := s.db.Client.RoleList(ctx)
		if err == nil {
			roles = resp.Roles
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list etcd's roles: %w", s.db.Explain(err))
	}
	return roles, nil
}

// auth runs one call about users or roles with its own deadline. The client retries a change in between
// (ErrAuthOldRevision). A client in etcd's own process has no retries, and this function retries for it.
func (s *Access) auth(ctx context.Context, call func(context.Context) error) error {
	for try := 0; ; try++ {
		one, cancel := context.WithTimeout(ctx, max(s.db.Timeout, authTimeout))
		err := call(one)
		cancel()
		if try < 2 && errors.Is(err, rpctypes.ErrAuthOldRevision) {
			continue
		}
		return err
	}
}

// ensureRole gives a role exactly these grants, with as few changes as possible.
func (s *Access) ensureRole(ctx context.Context, role string, want []Grant) error {
	err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.RoleAdd(ctx, role); return err })
	var have []Grant
	if errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		have, err = s.grants(ctx, role)
	}
	if err != nil {
		return err
	}
	for _, g := range want {
		if slices.Contains(have, g) {
			continue
		}
		err := s.auth(ctx, func(ctx context.Context) error {
			_, err := s.db.Client.RoleGrantPermission(ctx, role, g.Key, g.End, g.May)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, g := range have {
		// The wanted grant has already replaced a different grant of the same range.
		if slices.ContainsFunc(want, func(w Grant) bool { return w.Key == g.Key && w.End == g.End }) {
			continue
		}
		err := s.auth(ctx, func(ctx context.Context) error {
			_, err := s.db.Client.RoleRevokePermission(ctx, role, g.Key, g.End)
			return err
		})
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionNotGranted) {
			return err
		}
	}
	return nil
}

// grants reads the grants of a role.
func (s *Access) grants(ctx context.Context, role string) (grants []Grant, err error) {
	err = s.auth(ctx, func(ctx context.Context) error {
		resp, err := s.db.Client.RoleGet(ctx, role)
		if err != nil {
			return err
		}
		grants = grants[:0]
		for _, p := range resp.Perm {
			grants = append(grants, Grant{string(p.Key), string(p.RangeEnd), clientv3.PermissionType(p.PermType)})
		}
		return nil
	})
	return grants, err
}

// ensureUser gives a user without a password exactly these roles, with as few changes as possible.
func (s *Access) ensureUser(ctx context.Context, user string, roles ...string) error {
	if user == "" {
		return errors.New("it has no name")
	}
	err := s.auth(ctx, func(ctx context.Context) error {
		_, err := s.db.Client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		return err
	})
	var have []string
	if errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		have, err = s.rolesOf(ctx, user)
	}
	if err != nil {
		return err
	}
	for _, role := range have {
		if slices.Contains(roles, role) || user == rootUser {
			continue
		}
		err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.UserRevokeRole(ctx, user, role); return err })
		if err != nil && !errors.Is(err, rpctypes.ErrRoleNotGranted) {
			return err
		}
	}
	for _, role := range roles {
		if slices.Contains(have, role) {
			continue
		}
		if err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.UserGrantRole(ctx, user, role); return err }); err != nil {
			return err
		}
	}
	return nil
}

// rolesOf reads the roles of a user.
func (s *Access) rolesOf(ctx context.Context, user string) (roles []string, err error) {
	err = s.auth(ctx, func(ctx context.Context) error {
		resp, err := s.db.Client.UserGet(ctx, user)
		if err == nil {
			roles = resp.Roles
		}
		return err
	})
	return roles, err
}
