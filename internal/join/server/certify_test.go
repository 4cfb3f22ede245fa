package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/pki"
)

// asks returns a request after the check of its proof.
func (w *world) asks(text, node string, machine join.Machine) joining {
	w.t.Helper()
	id, secret, err := access.ParseToken(text)
	if err != nil {
		w.t.Fatal(err)
	}
	key := w.key()
	csr, err := pki.CSR(key)
	if err != nil {
		w.t.Fatal(err)
	}
	digest, err := pki.KeyDigest(key.Public())
	if err != nil {
		w.t.Fatal(err)
	}
	return joining{Request: join.Request{CSR: string(csr), Machine: machine}, id: id, secret: secret, key: digest, node: node}
}

func (w *world) has(user string) bool {
	w.t.Helper()
	users, err := access.In(w.st).Users(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.Contains(users, user)
}

// Two machines join while their environment is destroyed. Each deletes the role that the other's user is about to get.
func TestFailedUserLeavesNothingBehind(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	a := w.asks(w.token(access.Token{Role: "controller"}), "controller1", join.Machine{ID: "m1"})
	p, err := s.settle(t.Context(), dev, a)
	if err != nil {
		t.Fatal(err)
	}
	w.destroy(dev)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				if err := access.In(w.st).DropSharedRole(ctx, dev); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for range 30 {
		if _, err := s.certify(t.Context(), dev, a, p); err == nil {
			t.Error("it joined what is destroyed")
		}
		if w.has(p.User) {
			t.Fatal("a user is left")
		}
	}
	cancel()
	others.Wait()
}

// A removed node that disconnects at the wrong moment must not leave an unknown user.
func TestDisconnectLeavesNoUserBehind(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	a := w.asks(w.token(access.Token{Role: "controller"}), "controller1", join.Machine{ID: "m1"})
	p, err := s.settle(t.Context(), dev, a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.certify(gone, dev, a, p); err != nil || !w.has(p.User) {
		t.Errorf("what was begun is not finished: %v", err)
	}
	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, "controller1", access.Removal{At: time.Now(), Why: "stolen"}, records.Left); err != nil {
		t.Fatal(err)
	}
	_, err = s.certify(gone, dev, a, p)
	want(t, err, join.WasRemoved)
	if w.has(p.User) {
		t.Error("it has a user")
	}

	b := w.asks(w.token(access.Token{Operator: "eve", As: access.RoleViewer}), "", join.Machine{})
	if err := access.In(w.st).EnsureOperatorRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := s.settleOperator(t.Context(), b, "eve")
	if err != nil {
		t.Fatal(err)
	}
	if err := access.In(w.st).EnsureOperator(t.Context(), o.User, o.As); err != nil {
		t.Fatal(err)
	}
	if err := access.IdentitiesIn(w.st).RevokeOperator(t.Context(), "eve", access.Revoked{At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, err = s.certifyOperator(gone, b, o)
	want(t, err, join.WasRemoved)
	if w.has(o.User) {
		t.Error("a revoked operator has a user")
	}
}

// A stolen certificate must not survive its owner's new join, even if serve crashed during the first attempt.
func TestFormerIncarnationsAreDeleted(t *testing.T) {
	w := newWorld(t, role("controller", 1))
	s := w.serve(nil)
	if err := access.In(w.st).EnsureOperatorRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	var users []string
	for _, cutOff := range []bool{false, true, false} {
		a := w.asks(w.token(access.Token{Node: "controller1"}), "controller1", join.Machine{ID: "m1"})
		p, err := s.settle(t.Context(), dev, a)
		if err == nil && cutOff {
			err = access.In(w.st).EnsureNode(t.Context(), "dev", "controller1", p.User)
		} else if err == nil {
			_, err = s.certify(t.Context(), dev, a, p)
		}
		b := w.asks(w.token(access.Token{Operator: "ann", As: access.RoleViewer}), "", join.Machine{})
		o, operatorErr := s.settleOperator(t.Context(), b, "ann")
		if operatorErr == nil && cutOff {
			operatorErr = access.In(w.st).EnsureOperator(t.Context(), o.User, o.As)
		} else if operatorErr == nil {
			_, operatorErr = s.certifyOperator(t.Context(), b, o)
		}
		if err := errors.Join(err, operatorErr); err != nil {
			t.Fatal(err)
		}
		users = append(users, p.User, o.User)
	}
	for i, user := range users {
		if w.has(user) != (i >= len(users)-2) {
			t.Errorf("of %q the user %s: alive is %t", users, user, w.has(user))
		}
	}
}

// A token that changed between two reads must not create an operator with an unintended name.
func TestOperatorJoinsUnderNameOfToken(t *testing.T) {
	w := newWorld(t)
	s := w.serve(nil)
	_, err := s.settleOperator(t.Context(), w.asks(w.token(access.Token{Operator: "ann", As: access.RoleViewer}), "", join.Machine{}), "bob")
	want(t, err, join.UnknownToken)
	if o, _, err := access.IdentitiesIn(w.st).Operator(t.Context(), "bob"); err != nil || o != nil {
		t.Errorf("bob is %+v (%v)", o, err)
	}
}

// An old connection must not renew a certificate of a retired CA: its holder would keep access forever.
func TestCertificateOfRetiredCACannotRenew(t *testing.T) {
	w := newWorld(t, role("controller", 1))
	s := w.serve(nil) // its listener still accepts the initial CAs, like an old connection
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "controller"}), "controller1")
	if err != nil {
		t.Fatal(err)
	}
	node := w.joined(m, a, s)
	if err := w.ca.Rotate(false); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Renew(t.Context(), w.key(), m.is); err != nil {
		t.Errorf("of the CA before: %v", err)
	}
	if err := w.ca.Retire(); err != nil {
		t.Fatal(err)
	}
	_, err = node.Renew(t.Context(), w.key(), m.is)
	want(t, err, join.UntrustedCertificate)
}
