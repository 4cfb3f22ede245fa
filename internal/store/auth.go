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

// authTimeout bounds one change of users or roles, where the store's own deadline is shorter: etcd rebuilds all users'
// permissions at each, which took 0.13 s at 7,000 users on an idle machine.
const authTimeout = 30 * time.Second

// etcd's own names: whoever has this role may do everything, and auth can't be turned on without this user.
const rootRole, rootUser = "root", "root"

// OperatorRole is what an operator may do.
type OperatorRole string

// The roles of operators. Each may do what those before it may.
const (
	RoleViewer   OperatorRole = "viewer"   // reads everything
	RoleOperator OperatorRole = "operator" // and writes all that operators and publishers write
	RoleAdmin    OperatorRole = "admin"    // and may do all that etcd knows: users, other people's keys, maintenance
)

// ParseOperatorRole reads what people type.
func ParseOperatorRole(s string) (OperatorRole, error) {
	switch r := OperatorRole(s); r {
	case RoleViewer, RoleOperator, RoleAdmin:
		return r, nil
	}
	return "", fmt.Errorf("cannot use operator role %q: there are viewer, operator and admin", s)
}

// AuthEnabled reports whether etcd checks who its clients are. Anybody may ask.
func (s *Access) AuthEnabled(ctx context.Context) (bool, error) {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	resp, err := s.db.Client.AuthStatus(within)
	if errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrPermissionDenied) {
		return true, nil // without auth nobody is refused
	}
	if err != nil {
		return false, fmt.Errorf("cannot ask whether etcd checks its users: %w", s.db.Explain(err))
	}
	return resp.Enabled, nil
}

// SetUpAuth makes what is missing of the roles of operators, of etcd's user root (without a password, so that nobody can
// be it without a certificate of that name) and of the user that is `pulley serve`, and the installation's id, and then has
// etcd check its users. It may be repeated, by whoever may: once auth is on that is an admin.
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

// EnsureOperatorRoles makes the roles of viewers and operators have exactly the grants that they should.
func (s *Access) EnsureOperatorRoles(ctx context.Context) error {
	for _, role := range []OperatorRole{RoleViewer, RoleOperator} {
		if err := s.ensureRole(ctx, s.OperatorRole(role), s.OperatorGrants(role)); err != nil {
			return fmt.Errorf("cannot set up role %s: %w", role, s.db.Explain(err))
		}
	}
	return nil
}

// EnsureEnvironment makes the role that the nodes of an environment share have exactly the grants that it should: missing
// ones are added before others are taken away. With nothing to do it is one read.
func (s *Access) EnsureEnvironment(ctx context.Context, env string) error {
	if err := s.ensureRole(ctx, s.NodesRole(env), s.NodesGrants(env)); err != nil {
		return fmt.Errorf("cannot set up what nodes of %s may read: %w", env, s.db.Explain(err))
	}
	return nil
}

// EnsureNode makes user be the node: its own role, which outlives the user, and the one that its environment's nodes share,
// which EnsureEnvironment makes. It may be repeated; what is there is not changed again. A user that is new costs six
// rebuilds of etcd's permissions for a new name, and three for one whose role is there. The user gets its roles last, so
// that half of it can do nothing.
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

// EnsureOperator makes user be an operator with one role, whatever it was before.
func (s *Access) EnsureOperator(ctx context.Context, user string, role OperatorRole) error {
	if err := s.ensureUser(ctx, user, s.OperatorRole(role)); err != nil {
		return fmt.Errorf("cannot set up the etcd user of an operator: %w", s.db.Explain(err))
	}
	return nil
}

// DropUser removes a user: etcd refuses the next request of every certificate of that name. None is no error.
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

// DropNodeRole removes the role of a node's own; its users, should any be left, can then write nothing. None is no error.
func (s *Access) DropNodeRole(ctx context.Context, env, node string) error {
	if err := s.dropRole(ctx, s.NodeRole(env, node)); err != nil {
		return fmt.Errorf("cannot remove the etcd role of node %s: %w", node, err)
	}
	return nil
}

// DropSharedRole removes the role that the nodes of an environment share, if there is no such environment (any more). None is
// no error. etcd can't do both at one moment: an environment that was made again in between gets its role back.
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

// shareAgain makes the role that the nodes of an environment share, and gives it to those that lost it with the one before:
// the users that have a role of their own, which is what EnsureNode gives them first.
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
		if err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) { // removed at this moment
			return s.db.Explain(err)
		}
	}
	return nil
}

// dropRole removes a role, and takes it from its users. None is no error.
func (s *Access) dropRole(ctx context.Context, role string) error {
	err := s.auth(ctx, func(ctx context.Context) error { _, err := s.db.Client.RoleDelete(ctx, role); return err })
	if errors.Is(err, rpctypes.ErrRoleNotFound) {
		return nil
	}
	return s.db.Explain(err)
}

// Users lists all of etcd's users, also those that are not Pulley's, in order.
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

// auth runs one call about users or roles with a deadline of its own. The client's own retries cover a change that came
// between (ErrAuthOldRevision); here is what is left of that for a client inside of etcd's process, which has none.
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

// ensureRole makes a role have exactly these grants, with as few changes as that takes.
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
		// A grant of the same range that allows something else was replaced by the one that is wanted.
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

// grants reads what a role may.
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

// ensureUser makes a user without a password have exactly these roles, with as few changes as that takes.
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
