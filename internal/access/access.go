// Package access is who may do what in etcd, and who is in the fleet: etcd's users and roles, join tokens, the holders of names, first
// boots, joins and removals.
//
// It must never know what a node runs, and never open a CA: callers bring certificates.
package access

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/specs"
)

// Access manages etcd's users and roles.
type Access struct {
	db      *etcd.DB
	cluster *cluster.Cluster
	specs   *specs.Environments
}

// In returns the access to a fleet.
func In(db *etcd.DB) *Access { return &Access{db, cluster.In(db), specs.In(db)} }

// authTimeout bounds one change of users or roles if the deadline of each call is shorter. Etcd rebuilds all users'
// permissions at each change, which took 0.13 s at 7,000 users on an idle machine.
const authTimeout = 30 * time.Second

// RootUser is etcd's own user: etcd cannot turn auth on without it. Its role may do everything.
const RootUser, rootRole = "root", "root"

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
		return false, fmt.Errorf("cannot read whether etcd checks its users: %w", s.db.Explain(err))
	}
	return resp.Enabled, nil
}

// SetUpAuth creates missing roles of operators, etcd's user root, the user of `pulley serve` and the installation's
// ID. Then it turns auth on. The user root has no password: only a certificate of that name can log in as root.
// SetUpAuth may be repeated. Once auth is on, it needs an admin.
func (s *Access) SetUpAuth(ctx context.Context, serveUser string) error {
	for _, step := range []func() error{
		func() error { return s.ensureUser(ctx, RootUser, rootRole) },
		func() error { return s.ensureUser(ctx, serveUser, rootRole) },
		func() error { return s.EnsureOperatorRoles(ctx) },
		func() error { return s.cluster.EnsureInstallation(ctx, serveUser) },
		func() error { _, err := auth(ctx, s, s.db.Client.AuthEnable); return err },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("cannot set up etcd's users: %w", s.db.ExplainWrite(err))
		}
	}
	return nil
}

// EnsureOperatorRoles gives the roles of viewers and operators exactly their grants.
func (s *Access) EnsureOperatorRoles(ctx context.Context) error {
	for _, role := range []OperatorRole{RoleViewer, RoleOperator} {
		if err := s.ensureRole(ctx, s.OperatorRole(role), s.OperatorGrants(role)); err != nil {
			return fmt.Errorf("cannot set up role %s: %w", role, s.db.ExplainWrite(err))
		}
	}
	return nil
}

// EnsureEnvironment gives the shared role of an environment's nodes exactly its grants. It adds missing grants before
// it revokes others. Without changes it makes one read.
func (s *Access) EnsureEnvironment(ctx context.Context, env string) error {
	err := s.ensureRole(ctx, s.NodesRole(env), s.NodesGrants(env))
	return etcd.Wrap(s.db.ExplainWrite(err), "cannot set up the shared role of the nodes of %s", env)
}

// EnsureNode gives user the permissions of the node: the node's own role, which outlives the user, and the shared role
// from EnsureEnvironment. It may be repeated; it does not change existing parts. A new node costs seven rebuilds of
// etcd's permissions, and a new user of an existing role three. The user gets its roles last: a half-made user can do
// nothing.
func (s *Access) EnsureNode(ctx context.Context, env, node, user string) error {
	own := s.NodeRole(env, node)
	err := s.ensureRole(ctx, own, s.NodeGrants(env, node))
	if err == nil {
		err = s.ensureUser(ctx, user, own, s.NodesRole(env))
	}
	return etcd.Wrap(s.db.ExplainWrite(err), "cannot set up the etcd user of node %s", node)
}

// EnsureOperator makes user an operator with exactly one role.
func (s *Access) EnsureOperator(ctx context.Context, user string, role OperatorRole) error {
	err := s.ensureUser(ctx, user, s.OperatorRole(role))
	return etcd.Wrap(s.db.ExplainWrite(err), "cannot set up the etcd user of an operator")
}

// DropUser deletes a user: etcd refuses the next request of every certificate of that name. A missing user is no
// error.
func (s *Access) DropUser(ctx context.Context, user string) error {
	if user == RootUser {
		return errors.New("cannot remove etcd's user root: without it auth can't be on")
	}
	_, err := authOf(ctx, s, s.db.Client.UserDelete, user)
	if errors.Is(err, rpctypes.ErrUserNotFound) {
		return nil
	}
	return etcd.Wrap(s.db.ExplainWrite(err), "cannot remove etcd user %s", user)
}

// DropNodeRole deletes a node's own role. Remaining users of the node can then write nothing. A missing role is no
// error.
func (s *Access) DropNodeRole(ctx context.Context, env, node string) error {
	return etcd.Wrap(s.DropRole(ctx, s.NodeRole(env, node)), "cannot remove the etcd role of node %s", node)
}

// DropSharedRole deletes the shared role of an environment's nodes if the environment does not exist (any more). A
// missing role is no error. Etcd cannot check and delete at one moment: an environment that was recreated in between
// gets its role back.
func (s *Access) DropSharedRole(ctx context.Context, ref model.Ref) error {
	env := ref.String()
	stored, err := s.specs.HasSpec(ctx, env)
	if err == nil && !stored {
		err = s.DropRole(ctx, s.NodesRole(env))
		if err == nil {
			stored, err = s.specs.HasSpec(ctx, env)
		}
		if err == nil && stored {
			err = s.shareAgain(ctx, env)
		}
	}
	return etcd.Wrap(err, "cannot remove the etcd role of the nodes of %s", ref)
}

// shareAgain recreates the shared role of an environment's nodes, and grants it to the users that lost it. These are
// the users with a node's own role, which EnsureNode grants first.
func (s *Access) shareAgain(ctx context.Context, env string) error {
	if err := s.EnsureEnvironment(ctx, env); err != nil {
		return err
	}
	users, err := s.UsersOfEnvironment(ctx, env)
	if err != nil {
		return err
	}
	for _, user := range users {
		have, err := s.rolesOf(ctx, user.String())
		if err == nil && slices.Contains(have, s.NodeRole(env, user.Subject)) && !slices.Contains(have, s.NodesRole(env)) {
			err = s.grantRole(ctx, user.String(), s.NodesRole(env))
		}
		if err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) { // deleted at this moment
			return s.db.Explain(err)
		}
	}
	return nil
}

// DropRole deletes a role, and revokes it from its users. A missing role is no error.
func (s *Access) DropRole(ctx context.Context, role string) error {
	_, err := authOf(ctx, s, s.db.Client.RoleDelete, role)
	if errors.Is(err, rpctypes.ErrRoleNotFound) {
		return nil
	}
	return s.db.ExplainWrite(err)
}

// Users lists all of etcd's users in order, including those of other programs.
func (s *Access) Users(ctx context.Context) ([]string, error) {
	resp, err := auth(ctx, s, s.db.Client.UserList)
	if err != nil {
		return nil, fmt.Errorf("cannot list etcd's users: %w", s.db.Explain(err))
	}
	return slices.Sorted(slices.Values(resp.Users)), nil
}

// auth runs one call about users or roles with its own deadline. The client retries a change in between
// (ErrAuthOldRevision). A client in etcd's own process has no retries, and this function retries for it.
func auth[T any](ctx context.Context, s *Access, call func(context.Context) (T, error)) (T, error) {
	for try := 0; ; try++ {
		one, cancel := context.WithTimeout(ctx, max(s.db.Timeout, authTimeout))
		resp, err := call(one)
		cancel()
		if try == 2 || !errors.Is(err, rpctypes.ErrAuthOldRevision) {
			return resp, err
		}
	}
}

// authOf is auth for a call about one user or role.
func authOf[T any](ctx context.Context, s *Access, call func(context.Context, string) (T, error), name string) (T, error) {
	return auth(ctx, s, func(ctx context.Context) (T, error) { return call(ctx, name) })
}

func (s *Access) grantRole(ctx context.Context, user, role string) error {
	_, err := auth(ctx, s, func(ctx context.Context) (any, error) { return s.db.Client.UserGrantRole(ctx, user, role) })
	return err
}

// ensureRole gives a role exactly these grants, with as few changes as possible.
func (s *Access) ensureRole(ctx context.Context, role string, want []Grant) error {
	_, err := authOf(ctx, s, s.db.Client.RoleAdd, role)
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
		_, err := auth(ctx, s, func(ctx context.Context) (any, error) {
			return s.db.Client.RoleGrantPermission(ctx, role, g.Key, g.End, g.May)
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
		_, err := auth(ctx, s, func(ctx context.Context) (any, error) {
			return s.db.Client.RoleRevokePermission(ctx, role, g.Key, g.End)
		})
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionNotGranted) {
			return err
		}
	}
	return nil
}

// grants reads the grants of a role.
func (s *Access) grants(ctx context.Context, role string) (grants []Grant, err error) {
	resp, err := authOf(ctx, s, s.db.Client.RoleGet, role)
	if err != nil {
		return nil, err
	}
	for _, p := range resp.Perm {
		grants = append(grants, Grant{string(p.Key), string(p.RangeEnd), clientv3.PermissionType(p.PermType)})
	}
	return grants, nil
}

// ensureUser gives a user without a password exactly these roles, with as few changes as possible.
func (s *Access) ensureUser(ctx context.Context, user string, roles ...string) error {
	if user == "" {
		return errors.New("it has no name")
	}
	_, err := auth(ctx, s, func(ctx context.Context) (any, error) {
		return s.db.Client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	})
	var have []string
	if errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		have, err = s.rolesOf(ctx, user)
	}
	if err != nil {
		return err
	}
	for _, role := range have {
		if slices.Contains(roles, role) || user == RootUser {
			continue
		}
		_, err := auth(ctx, s, func(ctx context.Context) (any, error) { return s.db.Client.UserRevokeRole(ctx, user, role) })
		if err != nil && !errors.Is(err, rpctypes.ErrRoleNotGranted) {
			return err
		}
	}
	for _, role := range roles {
		if slices.Contains(have, role) {
			continue
		}
		if err := s.grantRole(ctx, user, role); err != nil {
			return err
		}
	}
	return nil
}

// rolesOf reads the roles of a user.
func (s *Access) rolesOf(ctx context.Context, user string) ([]string, error) {
	resp, err := authOf(ctx, s, s.db.Client.UserGet, user)
	if err != nil {
		return nil, err
	}
	return resp.Roles, nil
}

// rolesRead bounds the nodes whose roles and users are read one by one: each read goes through etcd's log.
const rolesRead = 1000

// AccessState is the state of etcd's users and roles.
type AccessState struct {
	On    bool // etcd checks its users
	Admin bool // the connection may read the rest
	Users map[string]bool
	Roles []string

	Grants      map[string][]Grant  // of the roles that were read
	RolesOf     map[string][]string // of the users that were read
	UnreadNodes int                 // nodes whose roles were not read, because they are too many
}

// State reads users and roles, if this connection may.
func (s *Access) State(ctx context.Context) (AccessState, error) {
	a := AccessState{Grants: map[string][]Grant{}, RolesOf: map[string][]string{}, Users: map[string]bool{}}
	var err error
	if a.On, err = s.AuthEnabled(ctx); err != nil {
		return a, err
	}
	users, err := auth(ctx, s, s.db.Client.UserList)
	if err == nil {
		a.Roles, err = s.roles(ctx)
	}
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return a, nil
	}
	if err != nil {
		return a, s.db.Explain(err)
	}
	a.Admin = true
	var roles, names []string
	roles, a.UnreadNodes = s.ours(a.Roles)
	for _, role := range roles {
		if a.Grants[role], err = s.grants(ctx, role); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
			return a, s.db.Explain(err)
		}
	}
	for _, user := range users.Users {
		a.Users[user] = true
	}
	names, _ = s.ours(users.Users)
	for _, user := range names {
		if a.RolesOf[user], err = s.rolesOf(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
			return a, s.db.Explain(err)
		}
	}
	return a, nil
}

// ours selects Pulley's own users or roles, and those of at most rolesRead nodes. skipped counts the others.
func (s *Access) ours(all []string) (names []string, skipped int) {
	ofNodes, nodes := s.db.Prefix()+"/"+string(pki.KindNode)+"/", 0
	for _, name := range all {
		if strings.HasPrefix(name, ofNodes) {
			nodes++
		}
		switch {
		case !strings.HasPrefix(name, s.db.Prefix()+"/"):
		case strings.HasPrefix(name, ofNodes) && nodes > rolesRead:
			skipped++
		default:
			names = append(names, name)
		}
	}
	return names, skipped
}

// roles lists all of etcd's roles.
func (s *Access) roles(ctx context.Context) ([]string, error) {
	resp, err := auth(ctx, s, s.db.Client.RoleList)
	if err != nil {
		return nil, err
	}
	return resp.Roles, nil
}

// RootHasPassword reports whether a password could log in as root. For a user without one, etcd reports that before it
// compares any password.
func (s *Access) RootHasPassword(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	_, err := s.db.Client.Authenticate(ctx, RootUser, rand.Text())
	return errors.Is(err, rpctypes.ErrAuthFailed)
}

// owned lists the users of Pulley's nodes and operators whose name matches.
func (s *Access) owned(ctx context.Context, match func(pki.Name) bool) (names []pki.Name, err error) {
	users, err := s.Users(ctx)
	for _, user := range users {
		if n, err := pki.ParseName(user); err == nil && n.Prefix == s.db.Prefix() && match(n) {
			names = append(names, n)
		}
	}
	return names, err
}

// usersOf lists the etcd users of all incarnations of a node. The name "" matches no node.
func (s *Access) usersOf(ctx context.Context, env, node string) ([]pki.Name, error) {
	return s.owned(ctx, func(n pki.Name) bool {
		return n.Kind == pki.KindNode && n.Environment == env && n.Subject == node
	})
}

// UsersOfEnvironment lists the etcd users of all nodes of an environment.
func (s *Access) UsersOfEnvironment(ctx context.Context, env string) ([]pki.Name, error) {
	return s.owned(ctx, func(n pki.Name) bool { return n.Kind == pki.KindNode && n.Environment == env })
}

// dropUsers deletes users, except one.
func (s *Access) dropUsers(ctx context.Context, users []pki.Name, except string) error {
	for _, user := range users {
		if user.String() == except {
			continue
		}
		if err := s.DropUser(ctx, user.String()); err != nil {
			return err
		}
	}
	return nil
}

// RolesOfNodes lists the roles of an environment's nodes: each node's own role, and the shared one.
func (s *Access) RolesOfNodes(ctx context.Context, env string) (roles []string, err error) {
	all, err := s.roles(ctx)
	for _, role := range all {
		if strings.HasPrefix(role, s.NodeRole(env, "")) || role == s.NodesRole(env) {
			roles = append(roles, role)
		}
	}
	return roles, etcd.Wrap(s.db.Explain(err), "cannot list etcd's roles")
}

// MayRemove reports whether this connection can remove nodes from the fleet. Callers check this before they begin such
// work. With etcd authentication it needs an admin.
func (s *Access) MayRemove(ctx context.Context) error {
	on, err := s.AuthEnabled(ctx)
	if err != nil || !on {
		return err
	}
	_, err = s.Users(ctx)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("cannot remove nodes from the fleet: etcd allows only an admin to do this, not %s\n"+
			"nothing was done; `pulley operators list` lists the admins: get a token of the role admin from one, and run `pulley login` with it", s.db.CallerName)
	case err != nil:
		return fmt.Errorf("cannot read who may remove nodes from the fleet: %w", err)
	}
	return nil
}
