package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"pulley/internal/pki"
)

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
	var users []string
	err = s.auth(ctx, func(ctx context.Context) error {
		list, err := s.db.Client.UserList(ctx)
		if err != nil {
			return err
		}
		roles, err := s.db.Client.RoleList(ctx)
		if err == nil {
			users, a.Roles = list.Users, roles.Roles
		}
		return err
	})
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return a, nil
	}
	if err != nil {
		return a, s.db.Explain(err)
	}
	a.Admin = true
	ours, ofNodes := s.db.Prefix()+"/", s.db.Prefix()+"/"+string(pki.KindNode)+"/" // a node's names begin with ofNodes
	read := 0
	for _, role := range a.Roles {
		if strings.HasPrefix(role, ofNodes) {
			if read++; read > rolesRead {
				a.UnreadNodes++
				continue
			}
		}
		if !strings.HasPrefix(role, ours) {
			continue
		}
		if a.Grants[role], err = s.grants(ctx, role); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
			return a, s.db.Explain(err)
		}
	}
	read = 0
	for _, user := range users {
		a.Users[user] = true
		if strings.HasPrefix(user, ofNodes) {
			if read++; read > rolesRead {
				continue
			}
		}
		if !strings.HasPrefix(user, ours) {
			continue
		}
		if a.RolesOf[user], err = s.rolesOf(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
			return a, s.db.Explain(err)
		}
	}
	return a, nil
}

// RootHasPassword reports whether a password could log in as root. For a user without one, etcd reports that before it
// compares any password.
func (s *Access) RootHasPassword(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	_, err := s.db.Client.Authenticate(ctx, rootUser, rand.Text())
	return errors.Is(err, rpctypes.ErrAuthFailed)
}

// String renders a grant, for example "read all below /pulley/v1/releases/".
func (g Grant) String() string {
	what := map[int32]string{0: "read", 1: "write", 2: "read and write"}[int32(g.May)]
	switch {
	case g.End == "":
		return what + " " + g.Key
	case below(g.Key, g.May).End == g.End:
		return what + " all below " + g.Key
	}
	return fmt.Sprintf("%s from %s to %q", what, g.Key, g.End)
}
