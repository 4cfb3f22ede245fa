package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// oneByOne is how many findings of one kind are reported one by one; of the rest only their number is.
const oneByOne = 20

// sorted goes through a map in the order of its keys.
func sorted[T any](m map[string]T) func(yield func(string, T) bool) {
	return func(yield func(string, T) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// checked reports whether users and roles could be read.
func (f *facts) checked() bool { return f.access.On && f.access.Admin }

// grants compares roles with what they may, and users with their roles.
func grants(f *facts) (all []Finding) {
	if !f.checked() {
		return nil
	}
	for role, want := range sorted(f.want) {
		all = append(all, f.role("", "", role, want)...)
	}
	if n := f.access.UnreadNodes; n > 0 {
		all = append(all, Finding{Code: rolesUnread, Severity: Warning, Params: Params{Count: int64(n)}})
	}
	all = append(all, f.nodeGrants()...)
	for name, o := range sorted(f.operators) {
		if o.Live() {
			all = append(all, f.rolesOf("", "", o.User, name, f.names.OperatorRole(o.As))...)
		}
	}
	return all
}

// nodeGrants are the findings about the roles and users of nodes.
func (f *facts) nodeGrants() (all []Finding) {
	for _, e := range f.environments {
		env := e.ref.String()
		for node, i := range sorted(e.identities) {
			if i.Live() && f.access.Users[i.User] {
				all = append(all, f.role(env, node, f.names.NodeRole(env, node), f.names.NodeGrants(env, node))...)
				all = append(all, f.rolesOf(env, node, i.User, "", f.names.NodeRole(env, node), f.names.NodesRole(env))...)
			}
		}
		for node, p := range sorted(e.precreated) {
			if p.Ready && f.access.Users[p.User] {
				all = append(all, f.rolesOf(env, node, p.User, "", f.names.NodeRole(env, node), f.names.NodesRole(env))...)
			}
		}
	}
	return all
}

// role compares what a role may do with what it should.
func (f *facts) role(env, node, role string, want []access.Grant) []Finding {
	found := Finding{Severity: Problem, Environment: env, Node: node, Params: Params{Role: role}}
	have, read := f.access.Grants[role]
	if !read {
		if node != "" && f.access.UnreadNodes > 0 {
			return nil
		}
		found.Code = roleMissing
		return []Finding{found}
	}
	var lacks, extra []string
	for _, g := range want {
		if !slices.Contains(have, g) {
			lacks = append(lacks, g.String())
		}
	}
	for _, g := range have {
		if !slices.Contains(want, g) {
			extra = append(extra, g.String())
		}
	}
	switch {
	case len(extra) > 0:
		found.Code, found.Params.Have = roleExceeds, extra
	case len(lacks) > 0:
		found.Code, found.Params.Want = roleLacks, lacks
	case node == "":
		found.Code, found.Severity = roleFine, Fine
	default:
		return nil
	}
	return []Finding{found}
}

// rolesOf compares the roles of a user with those that it should have.
func (f *facts) rolesOf(env, node, user, operator string, want ...string) []Finding {
	have, read := f.access.RolesOf[user]
	slices.Sort(want)
	if !read || slices.Equal(have, want) {
		return nil
	}
	return []Finding{{Code: userRolesDiffer, Severity: Problem, Environment: env, Node: node, Params: Params{User: user, Operator: operator, Have: have, Want: want}}}
}

// users compares the identities of nodes with etcd's users.
func users(f *facts) (all []Finding) {
	switch {
	case !f.access.On:
		return nil
	case !f.access.Admin:
		return []Finding{{Code: accessUnreadable, Severity: Warning}}
	}
	for _, e := range f.environments {
		env := e.ref.String()
		for node, i := range sorted(e.identities) {
			if i.Live() && !f.access.Users[i.User] {
				all = append(all, Finding{Code: userMissing, Severity: Problem, Environment: env, Node: node})
			}
		}
		var waiting []string
		for node := range sorted(e.hosts) {
			if i := e.identities[node]; !i.Live() {
				waiting = append(waiting, node)
			}
		}
		if n := len(waiting); n > 0 {
			all = append(all, Finding{Code: notJoined, Severity: Warning, Environment: env, Params: Params{Nodes: waiting[:min(n, 5)], Count: int64(n)}})
		}
	}
	return all
}

func operators(f *facts) (all []Finding) {
	if f.operatorsErr != nil {
		return []Finding{{Code: operatorsUnreadable, Severity: Warning, Params: Params{Text: model.Prose(f.operatorsErr.Error())}}}
	}
	if !f.checked() {
		return nil
	}
	admins := int64(0)
	for name, o := range sorted(f.operators) {
		if !o.Live() {
			continue
		}
		if o.As == access.RoleAdmin && f.now.Before(o.Until) {
			admins++
		}
		if !f.access.Users[o.User] {
			all = append(all, Finding{Code: operatorUserMissing, Severity: Problem, Params: Params{Operator: name, As: string(o.As)}})
		}
	}
	return append(all, Finding{Code: operatorsFine, Severity: Fine, Params: Params{Count: int64(len(f.operators)), Count2: admins}})
}

// strays are the users of nodes and operators without an owner, and the roles of removed nodes.
func (f *facts) strays() (users []pki.Name, roles [][2]string) {
	wanted := map[string]bool{}
	byEnv := map[string]environment{}
	for _, e := range f.environments {
		env := e.ref.String()
		byEnv[env] = e
		for node := range e.precreated {
			wanted[f.names.NodeRole(env, node)] = true
		}
		for node, i := range e.identities {
			if i.Live() {
				wanted[f.names.NodeRole(env, node)] = true
			}
		}
		for _, u := range e.damaged {
			if u.OfUser {
				wanted[f.names.NodeRole(env, u.Node)] = true
			}
		}
	}
	for user := range sorted(f.access.Users) {
		n, err := pki.ParseName(user)
		if err != nil || n.Prefix != f.prefix {
			continue
		}
		var owners access.Owners
		if i, ok := byEnv[n.Environment].identities[n.Subject]; ok && n.Kind == pki.KindNode {
			owners.Identity = &i
		}
		if p, ok := byEnv[n.Environment].precreated[n.Subject]; ok && n.Kind == pki.KindNode {
			owners.Precreated = &p
		}
		if o, ok := f.operators[n.Subject]; ok && n.Kind == pki.KindOperator {
			owners.Operator = &o
		}
		if !owners.Own(n) {
			users = append(users, n)
		}
	}
	ofNodes := f.prefix + "/" + string(pki.KindNode) + "/"
	for _, role := range f.access.Roles {
		rest, ok := strings.CutPrefix(role, ofNodes)
		if env, node, whole := strings.Cut(rest, "/"); ok && whole && !wanted[role] {
			roles = append(roles, [2]string{env, node})
		}
	}
	return users, roles
}

// unreadOwner returns the key of a record that cannot be read and may name a user; "" for none.
func (f *facts) unreadOwner(n pki.Name) string {
	for _, u := range f.unreadable {
		if u.OfUser && n.Kind == pki.KindOperator && strings.HasSuffix(u.Key, "/"+n.Subject) {
			return u.Key
		}
	}
	for _, e := range f.environments {
		for _, u := range e.damaged {
			if u.OfUser && n.Kind == pki.KindNode && e.ref.String() == n.Environment && u.Node == n.Subject {
				return u.Key
			}
		}
	}
	return ""
}

// repairInstallation makes the installation's id where it is missing.
func repairInstallation(ctx context.Context, st *etcd.DB, _ *facts) ([]Finding, error) {
	return nil, cluster.In(st).EnsureInstallation(ctx, "pulley doctor")
}

// repairGrants restores grants of roles and roles of users. A node without its user may have been removed: its user stays gone.
func repairGrants(ctx context.Context, st *etcd.DB, f *facts) ([]Finding, error) {
	if err := access.In(st).EnsureOperatorRoles(ctx); err != nil {
		return nil, err
	}
	users := map[[2]string]string{}
	for _, e := range f.environments {
		env := e.ref.String()
		if e.spec != nil {
			if err := access.In(st).EnsureEnvironment(ctx, env); err != nil {
				return nil, err
			}
		}
		for node, p := range e.precreated {
			users[[2]string{env, node}] = p.User
		}
		for node, i := range e.identities {
			if i.Live() {
				users[[2]string{env, node}] = i.User
			}
		}
	}
	for _, w := range f.nodeGrants() {
		if user := users[[2]string{w.Environment, w.Node}]; w.Severity == Problem && f.access.Users[user] {
			if err := access.In(st).EnsureNode(ctx, w.Environment, w.Node, user); err != nil {
				return nil, err
			}
		}
	}
	for _, o := range f.operators {
		if o.Live() && f.access.Users[o.User] {
			if err := access.In(st).EnsureOperator(ctx, o.User, o.As); err != nil {
				return nil, err
			}
		}
	}
	return []Finding{{Code: grantsRepaired, Severity: Fine}}, nil
}

// repairLeftovers deletes users and roles without an owner. It reads the records again, after the users.
func repairLeftovers(ctx context.Context, st *etcd.DB, f *facts) ([]Finding, error) {
	for _, e := range f.environments {
		for node := range sorted(e.precreated) {
			if i := e.identities[node]; e.spec != nil && (!e.wanted[node] || i.Live()) {
				if err := access.IdentitiesIn(st).DropPrecreated(ctx, e.ref, node); err != nil {
					return nil, err
				}
			}
		}
	}
	fresh := *f
	err := fresh.readEnvironments(ctx, st)
	if err != nil {
		return nil, err
	}
	var unread []string
	if fresh.operators, unread, err = access.IdentitiesIn(st).Operators(ctx); err != nil {
		return nil, err
	}
	damaged := len(unread)
	for _, e := range fresh.environments {
		damaged += len(e.unexamined)
		for _, u := range e.damaged {
			if u.OfUser {
				damaged++
			}
		}
	}
	if damaged > 0 { // a record that cannot be read may name a user
		return []Finding{{Code: straysKept, Severity: Warning}}, nil
	}
	users, roles := fresh.strays()
	for _, n := range users {
		if err := access.In(st).DropUser(ctx, n.String()); err != nil {
			return nil, err
		}
	}
	for _, r := range roles {
		if err := access.In(st).DropNodeRole(ctx, r[0], r[1]); err != nil {
			return nil, err
		}
	}
	return []Finding{{Code: straysDeleted, Severity: Fine, Params: Params{Count: int64(len(users)), Count2: int64(len(roles))}}}, nil
}
