package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/fleet"
	"pulley/internal/join"
	"pulley/internal/model"
)

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// A copied disk with its identity would run two machines as one node. The second machine must be refused, shown to
// operators, and reported.
func TestDuplicateMachineIsRefusedAndRecorded(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	var mu sync.Mutex
	var notices []string
	s := w.serve(func(c *Config) {
		c.OnDuplicate = func(ref model.Ref, node string, c access.Duplicate) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, ref.String()+" "+node+" "+c.Machine)
		}
	})
	token := w.token(access.Token{Role: "controller"})
	m := w.machine("original", s)
	a, err := m.join(t.Context(), token, "controller1")
	if err != nil {
		t.Fatal(err)
	}
	first := w.joined(m, a, s)
	copied := machine{first.Client, first.key, join.Machine{ID: "copy", Hostname: "controller1", Addresses: []string{"10.0.0.77"}}}
	want(t, copied.Register(t.Context(), copied.is), join.WrongMachine)
	_, err = copied.Renew(t.Context(), w.key(), copied.is)
	want(t, err, join.WrongMachine)
	want(t, copied.Progress(t.Context(), "", join.Progress{Machine: "copy", Step: "puppet", State: "started"}), join.WrongMachine)
	_, err = w.machine("unknown", s).join(t.Context(), token, "controller1")
	want(t, err, join.LockedByAnother)

	i, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1")
	if err != nil || i.Duplicate == nil || i.Duplicate.Machine != "unknown" || i.Duplicate.From != "127.0.0.1" || i.Machine != "original" {
		t.Errorf("its identity is %+v (%v)", i, err)
	}
	if hosts, err := fleet.In(w.st).Hosts(t.Context(), dev); err != nil || hosts["controller1"].MachineID != "original" {
		t.Errorf("the list of hosts has %+v (%v)", hosts, err)
	}
	mu.Lock()
	if wanted := []string{"dev controller1 copy", "dev controller1 copy", "dev controller1 copy", "dev controller1 unknown"}; !slices.Equal(notices, wanted) {
		t.Errorf("the notices are %q, want %q", notices, wanted)
	}
	mu.Unlock()
	if got := s.count(t, "pulley_duplicates_total", ""); got != 4 {
		t.Errorf("%d duplicates were counted", got)
	}
	if err := first.Register(t.Context(), m.is); err != nil {
		t.Errorf("the original is turned away: %v", err)
	}
	if _, err := access.JoinsIn(w.st).Unlock(t.Context(), dev, "controller1", access.Revoked{By: "ann"}); err != nil {
		t.Fatal(err)
	}
	if i, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1"); err != nil || i.Duplicate != nil {
		t.Errorf("after it was looked into: %+v, %v", i.Duplicate, err)
	}
}

// A reinstalled or replaced machine joins under its old name with an operator's new token. The old certificate is
// invalid from that moment.
func TestRejoinEndsOldCertificate(t *testing.T) {
	w := newWorld(t, role("controller", 1))
	s := w.serve(nil)
	old := w.machine("old", s)
	a, err := old.join(t.Context(), w.token(access.Token{Role: "controller"}), "controller1")
	if err != nil {
		t.Fatal(err)
	}
	first := w.joined(old, a, s)
	if err := first.Progress(t.Context(), "", join.Progress{Machine: "old", Step: "notify", State: "done", Finished: true}); err != nil {
		t.Fatal(err)
	}
	replacement := w.machine("new", s)
	again, err := replacement.join(t.Context(), w.token(access.Token{Node: "controller1"}), "")
	if err != nil {
		t.Fatal(err)
	}
	want(t, first.Register(t.Context(), old.is), join.WrongCertificate)
	_, err = first.Renew(t.Context(), w.key(), old.is)
	want(t, err, join.WrongCertificate)
	users, err := access.In(w.st).Users(t.Context())
	i, _, identityErr := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1")
	if err := errors.Join(err, identityErr); err != nil {
		t.Fatal(err)
	}
	if len(users) != 3 || !slices.Contains(users, i.User) || i.Machine != "new" || i.Replaces != "" {
		t.Errorf("the users are %q, and the identity %+v", users, i)
	}
	now := w.joined(replacement, again, s)
	if err := now.Register(t.Context(), join.Machine{ID: "new", Hostname: "other", Addresses: []string{"10.0.0.5", "no address"}}); err != nil {
		t.Fatal(err)
	}
	hosts, err := fleet.In(w.st).Hosts(t.Context(), dev)
	if h := hosts["controller1"]; err != nil || h.Hostname != "other" || !slices.Equal(h.Addresses, []string{"10.0.0.5"}) {
		t.Errorf("the list of hosts has %+v (%v)", h, err)
	}
}

// A renewed certificate has the same name and another key, and the identity records it. After a leave the certificate
// is invalid.
func TestNodeRenewsAndLeaves(t *testing.T) {
	w := newWorld(t, role("controller", 1))
	at := time.Now()
	s := w.serve(func(c *Config) { c.Now = func() time.Time { return at } })
	token := w.token(access.Token{Role: "controller"})
	m := w.machine("m", s)
	a, err := m.join(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	node := w.joined(m, a, s)
	before, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1")
	if err != nil {
		t.Fatal(err)
	}
	at = at.Add(time.Hour)
	fresh := w.key()
	renewed, err := node.Renew(t.Context(), fresh, m.is)
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "controller1")
	if err != nil || after.User != before.User || after.Key == before.Key || !after.Until.After(before.Until) {
		t.Errorf("before %+v\nafter %+v (%v)", before, after, err)
	}
	node = w.joined(machine{nil, fresh, m.is}, renewed, s)
	if err := node.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, node.Register(t.Context(), m.is), join.WasRemoved)
	if users, err := access.In(w.st).Users(t.Context()); err != nil || len(users) != 2 {
		t.Errorf("the users are %q (%v)", users, err)
	}
	back, err := machine{m.Client, w.key(), m.is}.join(t.Context(), token, "")
	if err != nil || back.Node != "controller1" {
		t.Errorf("it can't come back: %+v, %v", back, err)
	}
}
