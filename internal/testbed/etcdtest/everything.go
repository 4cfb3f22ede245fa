package etcdtest

import (
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Everything lists all keys with their values, all users with their roles, all roles with their grants, and the number
// of leases: one line each, in order. Tests compare two moments with it.
func (a *Auth) Everything() []string {
	a.t.Helper()
	ctx, c := a.t.Context(), a.ClientOf(Serve)
	fail := func(err error) {
		if err != nil {
			a.t.Fatal(err)
		}
	}
	keys, err := c.Get(ctx, "", clientv3.WithFromKey())
	fail(err)
	var all []string
	for _, kv := range keys.Kvs {
		all = append(all, fmt.Sprintf("key %s at %d: %s", kv.Key, kv.ModRevision, kv.Value))
	}
	users, err := c.UserList(ctx)
	fail(err)
	for _, u := range users.Users {
		user, err := c.UserGet(ctx, u)
		fail(err)
		all = append(all, fmt.Sprintf("user %s: %v", u, user.Roles))
	}
	roles, err := c.RoleList(ctx)
	fail(err)
	for _, r := range roles.Roles {
		role, err := c.RoleGet(ctx, r)
		fail(err)
		all = append(all, fmt.Sprintf("role %s: %v", r, role.Perm))
	}
	leases, err := c.Leases(ctx)
	fail(err)
	all = append(all, fmt.Sprintf("%d leases", len(leases.Leases)))
	slices.Sort(all)
	return all
}
