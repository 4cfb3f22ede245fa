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

// tokenSpare is how much longer a machine's token is good than the machine may take.
const tokenSpare = time.Hour

// fleetOf is the fleet that an environment is applied to: the books in etcd, and userdata of machines.
type fleetOf struct {
	*store.Applying
	boot *plans.Connection
	want *environments.Environment
	now  func() time.Time
}

// newFleet is the fleet for a provision.Applier, of an apply that has begun with a. want is the environment that is applied,
// and form how its provider hands out userdata, "" where there is no provider. What a machine of any role could not boot with
// is refused here: nothing is done by then, and no token made. It lasts as long as a.
func (o *options) newFleet(a *store.Applying, want *environments.Environment, form userdata.Form, boot *plans.Connection) (*fleetOf, error) {
	f := &fleetOf{Applying: a, boot: boot, want: want, now: o.env.Now}
	if form == "" {
		return f, nil
	}
	for _, r := range want.Roles {
		if r.Cardinality == 0 {
			continue
		}
		n := environments.Node{Role: r.Name, Num: r.Cardinality, Stack: want.Stack} // the one of the longest name
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

// Userdata makes what a machine boots with. Where it joins it has a token, which is good for as long as the machine may take,
// and some.
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
