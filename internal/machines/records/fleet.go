package records

import (
	"fmt"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/machines"
	"pulley/internal/machines/boots"
	"pulley/internal/model"
	"pulley/userdata"
)

var _ machines.Fleet = (*Fleet)(nil)

// tokenMargin is the margin of a token's lifetime beyond the time that its machine may take.
const tokenMargin = time.Hour

// Fleet is the fleet of an apply: the inventory in etcd, and the userdata of machines.
type Fleet struct {
	*Applying
	boot *boots.Connection
	want *environments.Environment
}

// NewFleet returns the fleet of an apply, which lasts as long as the apply. want is the environment to apply, form the provider's form of
// userdata, "" without a provider. It first checks that a machine of each role could boot: no token exists by then.
func NewFleet(a *Applying, want *environments.Environment, form userdata.Form, boot *boots.Connection) (*Fleet, error) {
	f := &Fleet{Applying: a, boot: boot, want: want}
	if form == "" {
		return f, nil
	}
	for _, r := range want.Roles {
		if r.Cardinality == 0 {
			continue
		}
		n := model.Node{Role: r.Name, Num: r.Cardinality, Stack: want.Stack} // the node with the longest name
		p, err := boot.ForMachine(want, r, n.String(), n.Hostname(), f.db.Now())
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
func (f *Fleet) Userdata(o machines.Order, r environments.Role, form userdata.Form) ([]byte, machines.Token, error) {
	var t access.Token
	p, err := f.boot.ForMachine(f.want, r, o.Node, o.Name, f.db.Now())
	if err == nil && len(p.Servers) > 0 {
		p.Token, t = access.NewToken(t)
		t.Created = f.db.Now().UTC().Truncate(time.Second)
		t.Expires = t.Created.Add(f.want.TimeoutOf(r) + tokenMargin)
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
