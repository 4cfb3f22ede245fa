package server

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/pki"
)

func role(name string, n int) environments.Role { return environments.Role{Name: name, Cardinality: n} }

// want fails the test unless err is a refusal for this reason.
func want(t *testing.T, err error, reason join.Reason) {
	t.Helper()
	var refused *join.RefusedError
	if !errors.As(err, &refused) || refused.Reason != reason {
		t.Errorf("got %v, want a refusal: %s", err, reason)
	}
}

// A machine with a token must become a node with a user in etcd.
func TestMachineJoins(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "controller", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	if a.Node != "controller1" || a.Role != "controller" || a.Environment != "dev" || a.Endpoints[0] != w.etcd.Endpoint {
		t.Errorf("the answer is %+v", a)
	}
	i, err := pki.NewIdentity(m.key, []byte(a.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/node.pem"
	if err := i.Save(file); err != nil {
		t.Fatal(err)
	}
	own, err := etcd.Open(etcd.Config{Endpoints: a.Endpoints, CACert: w.etcd.PKI.CA, Cert: file, Key: file})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	id := model.Identity{Node: "controller1", Role: "controller", Environment: "dev"}
	d, err := control.In(own).Desire(t.Context(), id)
	if err != nil {
		t.Fatalf("it can't read what concerns it: %v", err)
	}
	if d.Host == nil || d.Host.MachineID != "m1" || d.Host.Hostname != "m1" || len(d.Host.Addresses) != 1 {
		t.Errorf("its entry of the list of hosts is %+v", d.Host)
	}
	if err := control.In(own).Report(t.Context(), id, model.Status{Node: "controller1"}, nil, nil); err != nil {
		t.Errorf("it can't write its status: %v", err)
	}
	if err := control.In(own).Report(t.Context(), model.Identity{Node: "controller2", Environment: "dev"}, model.Status{}, nil, nil); err == nil {
		t.Error("it writes the status of another node")
	}
}

// A lost answer must not cost the token's only use, nor a second number.
func TestLostAnswerIsRepeated(t *testing.T) {
	w := newWorld(t, role("compute", 5))
	s, other := w.serve(nil), w.serve(nil)
	token := w.token(access.Token{Role: "compute", Uses: 1})
	m := w.machine("m1", s)
	first, err := m.join(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	before := w.all()
	for _, again := range []machine{m, {w.machine("", other).Client, m.key, m.is}} {
		a, err := again.join(t.Context(), token, "")
		if err != nil || a.Node != first.Node {
			t.Fatalf("got %+v, %v", a, err)
		}
	}
	same(t, before, w.all())
	if _, err := w.machine("m2", s).join(t.Context(), token, ""); err == nil {
		t.Error("the token has one use more")
	} else {
		want(t, err, join.UsedUpToken)
	}
	foreign := w.machine("m1", s) // another key
	_, err = foreign.join(t.Context(), token, "")
	want(t, err, join.UsedUpToken)
}

// A user that is pre-created too late would stay unused forever.
func TestJoinedNodeGetsNoPrecreatedUser(t *testing.T) {
	w := newWorld(t, role("compute", 2))
	a, err := w.machine("m1", w.serve(nil)).join(t.Context(), w.token(access.Token{Role: "compute", Uses: 1}), "")
	if err != nil {
		t.Fatal(err)
	}
	before := w.all()
	if r, err := access.IdentitiesIn(w.st).Precreate(t.Context(), dev, a.Node, time.Now()); !errors.Is(err, access.ErrJoined) {
		t.Errorf("got %+v, %v", r, err)
	}
	same(t, before, w.all())
}

// At each change of a user etcd reads all users again: a join with a pre-created user must change none.
func TestJoinWithPrecreatedUserChangesNoUsers(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	if err := access.In(w.st).EnsureEnvironment(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	r, err := access.IdentitiesIn(w.st).Precreate(t.Context(), dev, "controller1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	users := func() []string {
		return slices.DeleteFunc(w.all(), func(line string) bool { return !strings.HasPrefix(line, "user ") && !strings.HasPrefix(line, "role ") })
	}
	before := users()
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "controller"}), "")
	if err != nil {
		t.Fatal(err)
	}
	same(t, before, users())
	i, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1")
	if err != nil || i.User != r.User || a.Node != "controller1" {
		t.Errorf("it is %+v (%v), and the pre-created user was %s", i, err, r.User)
	}
	if left, _, err := access.IdentitiesIn(w.st).Precreated(t.Context(), dev); err != nil || len(left) > 0 {
		t.Errorf("the reserve is still there: %v, %v", left, err)
	}
	if err := w.joined(m, a, s).Register(t.Context(), m.is); err != nil {
		t.Error(err)
	}
}

// same fails the test if two dumps differ.
func same(t *testing.T, before, after []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, line := range before {
		seen[line] = true
	}
	for _, line := range after {
		if !seen[line] {
			t.Errorf("this is new: %s", line)
		}
		delete(seen, line)
	}
	for line := range seen {
		t.Errorf("this is gone: %s", line)
	}
}

// After a crash of serve between the record of a join and its answer, the machine must still be able to join. A
// machine that was removed in between must not.
func TestInterruptedJoinResumes(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "controller", Uses: 2})
	id, secret, err := access.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	begin := func(m machine) (joining, placed) {
		t.Helper()
		key, err := pki.KeyDigest(m.key.Public())
		if err != nil {
			t.Fatal(err)
		}
		csr, err := pki.CSR(m.key)
		if err != nil {
			t.Fatal(err)
		}
		a := joining{Request: join.Request{Machine: m.is, CSR: string(csr)}, id: id, secret: secret, key: key, claimed: true}
		p, err := s.place(t.Context(), &caller{}, dev, "controller", a)
		if err != nil {
			t.Fatal(err)
		}
		return a, p
	}
	one, two := w.machine("m1", s), w.machine("m2", s)
	if _, p := begin(one); p.Node != "controller1" {
		t.Fatalf("it is %s", p.Node)
	}
	a, err := one.join(t.Context(), token, "")
	if err != nil || a.Node != "controller1" {
		t.Fatalf("got %+v, %v", a, err)
	}
	if err := w.joined(one, a, s).Register(t.Context(), one.is); err != nil {
		t.Error(err)
	}
	asked, p := begin(two)
	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, p.Node, access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	before := w.all()
	_, err = s.certify(t.Context(), dev, asked, p)
	want(t, err, join.WasRemoved)
	same(t, before, w.all())
}
