package server

import (
	"strings"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/testbed/etcdtest"
)

// An operator may write tokens of nodes by hand: no such token may create an administrator, or take an administrator's
// name.
func TestNodeTokenMakesNoAdministrator(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	ctx := t.Context()
	text := w.token(access.Token{Operator: "mallory", As: access.RoleViewer})
	id, _, err := access.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	const user = "pulley/operator/mallory/0123456789abcdef"
	if err := access.In(w.st).EnsureOperatorRoles(ctx); err != nil {
		t.Fatal(err)
	}
	if err := access.In(w.st).EnsureOperator(ctx, user, access.RoleOperator); err != nil {
		t.Fatal(err)
	}
	c := w.etcd.ClientOf(user)
	put := func(id, of string) {
		t.Helper()
		at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		value := `{"v":1,"hash":"` + sha(text[13:]) + `","used":0,"created":"` + at + `","expires":"` + at + `",` + of + `}`
		if _, err := c.Put(ctx, "/pulley/v1/tokens/nodes/"+id, value); err != nil {
			t.Fatal(err)
		}
	}
	const admin = `"operator":"boss","as":"admin"`
	tokens := func() (lines []string) {
		for _, line := range w.all() {
			if !strings.HasPrefix(line, "key /pulley/v1/tokens/nodes/") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	before := tokens()
	for name, of := range map[string]string{
		"an administrator's":               admin + `,"id":"aaaaaaaa"`,
		"an administrator's and of a node": admin + `,"environment":"dev","role":"compute","id":"bbbbbbbb"`,
	} {
		put("aaaaaaaa", of)
		for _, id := range []string{"", "m1"} {
			m := w.machine(id, s)
			if a, err := m.Join(ctx, m.key, join.Request{Token: "plt_aaaaaaaa_" + text[13:], Machine: m.is, Node: map[string]string{"m1": "compute1"}[id]}); err == nil {
				t.Errorf("%s: it becomes %q, %q", name, a.Operator, a.Node)
			}
		}
	}
	put(id, admin)
	m := w.machine("", s)
	if a, err := m.Join(ctx, m.key, join.Request{Token: text}); err == nil {
		t.Errorf("the operator's token below those of nodes: %q as %q", a.Operator, a.As)
	}
	same(t, before, tokens())
	if _, err := w.etcd.ClientOf(etcdtest.Serve).Delete(ctx, "/pulley/v1/tokens/nodes/"+id); err != nil {
		t.Fatal(err)
	}
	if a, err := m.Join(ctx, m.key, join.Request{Token: text}); err != nil || a.Operator != "mallory" || a.As != string(access.RoleViewer) {
		t.Errorf("her own token makes her %q as %q: %v", a.Operator, a.As, err)
	}
}

// An existing machine with another name, which the environment lists as a role's member, must be able to join. No
// other machine may take its name.
func TestMembersJoin(t *testing.T) {
	compute := role("compute", 1)
	compute.Members = []string{"db1.example.com", "db2.example.com", "old1"}
	w := newWorld(t, compute, role("controller", 1))
	s := w.serve(nil)
	ctx := t.Context()
	exact := w.token(access.Token{Node: "db1.example.com", Uses: 2})
	ofRole := w.token(access.Token{Role: "compute"})
	ofOther := w.token(access.Token{Role: "controller"})
	for name, c := range map[string]struct {
		token, node, role string
		want              join.Reason
	}{
		"another member, the token of one":   {exact, "db2.example.com", "", join.WrongNode},
		"a number, the token of a member":    {exact, "compute1", "", join.WrongNode},
		"a member, the token of a number":    {w.token(access.Token{Node: "compute1"}), "db1.example.com", "", join.WrongNode},
		"no member":                          {ofRole, "db3.example.com", "", join.NotCalledFor},
		"the token of another role":          {ofOther, "db1.example.com", "", join.WrongRole},
		"another role than the machine says": {w.token(access.Token{}), "db1.example.com", "controller", join.WrongRole},
	} {
		t.Run(name, func(t *testing.T) {
			m := w.machine("bad", s)
			_, err := m.Join(ctx, m.key, join.Request{Token: c.token, Node: c.node, Role: c.role, Machine: m.is})
			want(t, err, c.want)
		})
	}
	for node, token := range map[string]string{"db1.example.com": exact, "db2.example.com": ofRole, "old1": ofRole} {
		m := w.machine("m-"+node[:3], s)
		if node == "old1" { // its name looks like another role's node
			if err := m.Progress(ctx, token, join.Progress{Machine: m.is.ID, Node: node, Step: "network", State: "started"}); err != nil {
				t.Errorf("%s can't tell of its first boot: %v", node, err)
			}
		}
		a, err := m.Join(ctx, m.key, join.Request{Token: token, Node: node, Role: "compute", Machine: m.is})
		if err != nil || a.Node != node || a.Role != "compute" {
			t.Errorf("%s joins as %q, a %q: %v", node, a.Node, a.Role, err)
		}
	}
	// A second machine does not get the name, like the name of a numbered node.
	_, err := w.machine("second", s).join(ctx, ofRole, "db1.example.com")
	want(t, err, join.LockedByAnother)
	_, err = w.machine("third", s).join(ctx, exact, "")
	want(t, err, join.LockedByAnother)
}

// An interrupted removal must not leave a name under which a machine joins without a user.
func TestJoinAfterInterruptedRemoval(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	ctx := t.Context()
	if err := access.In(w.st).EnsureEnvironment(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := access.IdentitiesIn(w.st).Precreate(ctx, dev, "compute1", time.Now()); err != nil {
		t.Fatal(err)
	}
	c := w.etcd.ClientOf(etcdtest.Serve)
	const host = "/pulley/v1/environments/dev/hosts/nodes/compute1"
	if _, err := c.Put(ctx, host, "damaged"); err != nil { // the removal stops here
		t.Fatal(err)
	}
	if err := access.JoinsIn(w.st).RemoveNode(ctx, dev, "compute1", access.Removal{At: time.Now()}, records.Left); err == nil {
		t.Fatal("the removal came through")
	}
	if _, err := c.Delete(ctx, host); err != nil {
		t.Fatal(err)
	}
	m := w.machine("m1", s)
	a, err := m.join(ctx, w.token(access.Token{Node: "compute1"}), "")
	if err != nil {
		t.Fatal(err)
	}
	users, err := access.In(w.st).Users(ctx)
	if i, _, _ := access.IdentitiesIn(w.st).Get(ctx, dev, a.Node); err != nil || !strings.Contains(strings.Join(users, " "), i.User) {
		t.Errorf("%s joined as %+v, and the users are %q (%v)", a.Node, i, users, err)
	}
}
