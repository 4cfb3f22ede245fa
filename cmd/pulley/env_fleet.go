package main

import (
	"fmt"
	"time"

	"pulley/environments"
	"pulley/internal/firstboot/plans"
	"pulley/internal/machines"
	"pulley/internal/store"
	"pulley/userdata"
)

var _ machines.Fleet = (*fleetOf)(nil)

// tokenSpare is the margin of a token's lifetime beyond the time that its machine may take.
const tokenSpare = time.Hour

// fleetOf is the fleet of an apply: the inventory in etcd, and the userdata of machines.
type fleetOf struct {
	*store.Applying
	boot *plans.Connection
	want *environments.Environment
	now  func() time.Time
}

// newFleet returns the fleet for a provision.Applier. Its lifetime is that of the apply a. want is the environment to
// apply. form is the provider's form of userdata, or "" without a provider. newFleet checks first that a machine of
// every role could boot: nothing is changed and no token created by then.
func (o *options) newFleet(a *store.Applying, want *environments.Environment, form userdata.Form, boot *plans.Connection) (*fleetOf, error) {
	f := &fleetOf{Applying: a, boot: boot, want: want, now: o.env.Now}
	if form == "" {
		return f, nil
	}
	for _, r := range want.Roles {
		if r.Cardinality == 0 {
			continue
		}
		n := environments.Node{Role: r.Name, Num: r.Cardinality, Stack: want.Stack} // the node with the longest name
		p, err := boot.ForMachine(want, r, n.String(), n.Hostname(), f.now())
		if err == nil {
			_, err = userdata.Render(p, form)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot make userdata of role %s: %w", r.Name, err)
		}
	}
	return f, nil
}

// Userdata creates the userdata of a machine. A machine that joins gets a token, which is valid for the time that the
// machine may take, and a margin.
func (f *fleetOf) Userdata(o machines.Order, r environments.Role, form userdata.Form) ([]byte, machines.Token, error) {
	var t store.Token
	p, err := f.boot.ForMachine(f.want, r, o.Node, o.Name, f.now())
	if err == nil && len(p.Servers) > 0 {
		p.Token, t = store.NewToken(t)
		t.Created = f.now().UTC().Truncate(time.Second)
		t.Expires = t.Created.Add(f.want.TimeoutOf(r) + tokenSpare)
	}
	var text []byte
	if err == nil {
		text, err = userdata.Render(p, form)
	}
	if err != nil {
		return nil, machines.Token{}, fmt.Errorf("cannot make userdata of %s: %w", o.Node, err)
	}
	return text, machines.Token{ID: t.ID, Hash: t.Hash, Created: t.Created, Expires: t.Expires}, nil
}
