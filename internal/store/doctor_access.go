package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"pulley/internal/pki"
)

// rolesRead bounds how many nodes' roles and users doctor reads one by one: each is a request through etcd's log.
const rolesRead = 1000

// access is what doctor reads of etcd's users and roles.
type access struct {
	on    bool
	admin bool // all of it could be read
	users []string
	roles []string
	known map[string]bool // the users

	grants  map[string][]grant  // of the roles that were read
	rolesOf map[string][]string // of the users that were read
	unread  int                 // nodes whose roles were not
}

func (a access) has(user string) bool { return a.known[user] }

// examineAccess reads users and roles, where this connection may.
func (s *Doctor) examineAccess(ctx context.Context) (access, error) {
	a := access{grants: map[string][]grant{}, rolesOf: map[string][]string{}, known: map[string]bool{}}
	var err error
	if a.on, err = s.access.AuthEnabled(ctx); err != nil {
		return a, err
	}
	err = s.access.auth(ctx, func(ctx context.Context) error {
		users, err := s.db.Client.UserList(ctx)
		if err != nil {
			return err
		}
		roles, err := s.db.Client.RoleList(ctx)
		if err == nil {
			a.users, a.roles = users.Users, roles.Roles
			for _, user := range a.users {
				a.known[user] = true
			}
		}
		return err
	})
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return a, nil
	}
	if err != nil {
		return a, s.db.Explain(err)
	}
	a.admin = true
	ofNodes := s.db.Prefix() + "/" + string(pki.KindNode) + "/" // so begin a node's role and its users
	read := 0
	for _, role := range a.roles {
		if strings.HasPrefix(role, ofNodes) {
			if read++; read > rolesRead {
				a.unread++
				continue
			}
		}
		if !strings.HasPrefix(role, s.db.Prefix()+"/") {
			continue
		}
		if a.grants[role], err = s.access.grants(ctx, role); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
			return a, s.db.Explain(err)
		}
	}
	read = 0
	for _, user := range a.users {
		if strings.HasPrefix(user, ofNodes) {
			if read++; read > rolesRead {
				continue
			}
		}
		if !strings.HasPrefix(user, s.db.Prefix()+"/") {
			continue
		}
		if a.rolesOf[user], err = s.access.rolesOf(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
			return a, s.db.Explain(err)
		}
	}
	return a, nil
}

const mendIt = "`pulley doctor --mend`"

func (s *Doctor) judgeAccess(d *Diagnosis, a access, fleets []fleetFacts) {
	switch {
	case !a.on:
		return
	case !a.admin:
		d.add("users", Warning, "who may do what can't be looked at: you are no admin", "run doctor as an admin: `pulley operators list` shows who is one")
		return
	}
	want := map[string][]grant{s.access.operatorRole(RoleViewer): s.access.operatorGrants(RoleViewer), s.access.operatorRole(RoleOperator): s.access.operatorGrants(RoleOperator)}
	for _, f := range fleets {
		if f.spec != nil {
			want[s.access.nodesRole(f.ref.String())] = s.access.nodesGrants(f.ref.String())
		}
	}
	for role, grants := range sorted(want) {
		s.judgeRole(d, a, "", "", role, grants)
	}
	if a.unread > 0 {
		d.add("grants", Warning, fmt.Sprintf("the roles of %d nodes were not looked at: doctor reads at most %d", a.unread, rolesRead), "")
	}
}

// judgeRole compares what a role may with what it should.
func (s *Doctor) judgeRole(d *Diagnosis, a access, env, node, role string, want []grant) {
	have, read := a.grants[role]
	if !read {
		if node == "" || a.unread == 0 {
			d.of(env, node, "grants", Problem, "role "+role+" is not there", mendIt)
		}
		return
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
		d.of(env, node, "grants", Problem, "role "+role+" may do more than it should: "+strings.Join(extra, ", "), mendIt)
	case len(lacks) > 0:
		d.of(env, node, "grants", Problem, "role "+role+" lacks: "+strings.Join(lacks, ", "), mendIt)
	case node == "":
		d.of(env, node, "grants", Fine, "role "+role+" may do what it should, and no more", "")
	}
}

func (g grant) String() string {
	what := map[int32]string{0: "read", 1: "write", 2: "read and write"}[int32(g.may)]
	switch {
	case g.end == "":
		return what + " " + g.key
	case below(g.key, g.may).end == g.end:
		return what + " all below " + g.key
	}
	return fmt.Sprintf("%s from %s to %q", what, g.key, g.end)
}

// judgeRoles finds roles and users of Pulley's that may something else than they should.
func (s *Doctor) judgeRoles(d *Diagnosis, a access, fleets []fleetFacts) {
	if !a.on || !a.admin {
		return
	}
	for _, f := range fleets {
		env := f.ref.String()
		for node, i := range sorted(f.identities) {
			if !i.Live() || !a.has(i.User) {
				continue
			}
			s.judgeRole(d, a, env, node, s.access.nodeRole(env, node), s.access.nodeGrants(env, node))
			s.judgeRolesOf(d, a, env, node, i.User, s.access.nodeRole(env, node), s.access.nodesRole(env))
		}
		for node, r := range sorted(f.reserves) {
			if r.Ready && a.has(r.User) {
				s.judgeRolesOf(d, a, env, node, r.User, s.access.nodeRole(env, node), s.access.nodesRole(env))
			}
		}
	}
}

func (s *Doctor) judgeRolesOf(d *Diagnosis, a access, env, node, user string, want ...string) {
	have, read := a.rolesOf[user]
	slices.Sort(want)
	if read && !slices.Equal(have, want) {
		d.of(env, node, "grants", Problem, fmt.Sprintf("etcd user %s has the roles %s, and should have %s", user, strings.Join(have, ", "), strings.Join(want, ", ")), mendIt)
	}
}

// judgeUsers compares the identities of an environment with etcd's users.
func (s *Doctor) judgeUsers(d *Diagnosis, a access, f fleetFacts) {
	if !a.on || !a.admin {
		return
	}
	env := f.ref.String()
	for node, i := range sorted(f.identities) {
		if i.Live() && !a.has(i.User) {
			d.of(env, node, "users", Problem, node+" has an identity and no etcd user: etcd refuses it",
				"a removal was cut off: `pulley nodes remove "+node+" -e "+env+"`; then, to have it back, `pulley token create -e "+env+" --node "+node+"`")
		}
	}
	var waiting []string
	for node := range sorted(f.hosts) {
		if i := f.identities[node]; !i.Live() {
			waiting = append(waiting, node)
		}
	}
	if n := len(waiting); n > 0 {
		names := strings.Join(waiting[:min(n, 5)], ", ")
		if n > 5 {
			names += fmt.Sprintf(" and %d more", n-5)
		}
		d.of(env, "", "users", Warning, "on the list of hosts, and not joined, so that etcd refuses them: "+names, "give each a token: `pulley token create -e "+env+" --node NODE`, or take it off: `pulley nodes remove NODE -e "+env+"`")
	}
}

// strays are the users and roles of nodes and operators that belong to nobody.
func (s *Doctor) strays(a access, fleets []fleetFacts, operators map[string]OperatorIdentity) (users []pki.Name, roles [][2]string) {
	known, nodes := map[string]bool{}, map[string]bool{}
	for _, f := range fleets {
		for node, r := range f.reserves {
			known[r.User], nodes[s.access.nodeRole(f.ref.String(), node)] = true, true
		}
		for node, i := range f.identities {
			if i.Live() {
				known[i.User], known[i.Replaces], nodes[s.access.nodeRole(f.ref.String(), node)] = true, true, true
			}
		}
	}
	for _, o := range operators {
		known[o.User], known[o.Replaces] = true, true
	}
	for _, user := range a.users {
		n, err := pki.ParseName(user)
		if err == nil && n.Prefix == s.db.Prefix() && n.Kind != pki.KindServe && !known[user] {
			users = append(users, n)
		}
	}
	for _, role := range a.roles {
		rest, ok := strings.CutPrefix(role, s.db.Prefix()+"/"+string(pki.KindNode)+"/")
		if env, node, whole := strings.Cut(rest, "/"); ok && whole && !nodes[role] {
			roles = append(roles, [2]string{env, node})
		}
	}
	return users, roles
}

func (s *Doctor) judgeNames(ctx context.Context, d *Diagnosis, a access, fleets []fleetFacts) {
	if !a.admin {
		return
	}
	operators, _, err := s.identities.Operators(ctx)
	if err != nil {
		return // judgeOperators tells
	}
	users, roles := s.strays(a, fleets, operators)
	for i, n := range users {
		if i == named {
			d.add("leftovers", Problem, fmt.Sprintf("and %d etcd users more belong to nobody", len(users)-named), mendIt)
			break
		}
		d.of(n.Environment, nodeOf(n), "leftovers", Problem, fmt.Sprintf("etcd user %s belongs to nobody: its certificate is good still", n), mendIt)
	}
	if len(roles) > 0 {
		d.add("leftovers", Warning, fmt.Sprintf("%d etcd roles are of nodes that are gone", len(roles)), mendIt)
	}
}

func nodeOf(n pki.Name) string {
	if n.Kind == pki.KindNode {
		return n.Subject
	}
	return ""
}

func (s *Doctor) judgeOperators(ctx context.Context, d *Diagnosis, a access, now time.Time) {
	operators, damaged, err := s.identities.Operators(ctx)
	if err != nil {
		d.add("operators", Warning, "operators can't be read: "+err.Error(), "")
		return
	}
	for _, problem := range damaged {
		d.add("readable", Problem, problem, "revoke that operator, and give them a new token: `pulley operators revoke NAME`")
	}
	admins := 0
	for name, o := range sorted(operators) {
		if !o.Live() {
			continue
		}
		if o.As == RoleAdmin && now.Before(o.Until) {
			admins++
		}
		again := "`pulley token create --operator " + name + " --as " + string(o.As) + "`, and `pulley login` with it"
		if a.on && a.admin && !a.has(o.User) {
			d.add("operators", Problem, "operator "+name+" has no etcd user: etcd refuses them", again)
		}
		if a.on && a.admin {
			s.judgeRolesOf(d, a, "", "", o.User, s.access.operatorRole(o.As))
		}
		switch left := o.Until.Sub(now); {
		case o.Until.IsZero():
		case left <= 0:
			d.add("certificate", Warning, "the certificate of operator "+name+" ended on "+o.Until.UTC().Format(time.DateOnly), again)
		case left < min(endsSoon, o.Until.Sub(o.Issued)/4):
			d.add("certificate", Warning, "the certificate of operator "+name+" ends on "+o.Until.UTC().Format(time.DateOnly), again)
		}
	}
	if a.on && a.admin {
		d.add("operators", Fine, fmt.Sprintf("%d operators, of them %d admins", len(operators), admins), "")
	}
}

// noticeSendingTakes bounds the time that a living serve needs to send a notice, retries included.
const noticeSendingTakes = 15 * time.Minute

func (s *Doctor) judgeNotices(ctx context.Context, d *Diagnosis, now time.Time) {
	notices, _, err := s.notices.List(ctx)
	if err != nil {
		return // a node may not read them, and no finding rests on them
	}
	for _, n := range notices {
		switch n.State {
		case NoticeFailed:
			d.of(n.Environment, n.Node, "notices", Warning, "a notice was not sent: "+string(n.Kind)+said(string(n.Error)), "check the URLs of `pulley serve --notify`")
		case NoticeUnsure:
			d.of(n.Environment, n.Node, "notices", Warning, "a notice may not have been sent: "+string(n.Kind), "")
		case NoticeSending:
			if now.Sub(n.At) > noticeSendingTakes {
				d.of(n.Environment, n.Node, "notices", Warning, "a notice may not have been sent, because its serve ended: "+string(n.Kind), "")
			}
		}
	}
}
