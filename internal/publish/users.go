package publish

import (
	"context"
	"errors"
	"fmt"

	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

// Listed is a published release with facts that its record does not contain.
type Listed struct {
	release.Release
	Cold       int64             `json:"cold"` // download size for a node without any release, in bytes
	Signatures []trust.Signature `json:"signatures"`

	Withdrawn *release.Withdrawal `json:"withdrawn,omitempty"`
}

// List describes a release, withdrawn by version.
func List(r release.SignedRelease, withdrawn map[string]release.Withdrawal) Listed {
	l := Listed{Release: r.Release, Cold: r.Content.Cold(), Signatures: trust.SignedBy(r.Signatures)}
	if w, is := withdrawn[r.Version]; is {
		l.Withdrawn = &w
	}
	return l
}

// Added returns the bytes that a release added to etcd: its delta, and its own base if any.
func (r Listed) Added() int64 {
	var n int64
	if r.Content.Chain.Delta != nil {
		n = r.Content.Chain.Delta.Size
	}
	if r.Content.Base.Seq == r.Content.Chain.Seq {
		n += r.Content.Base.Stored
	}
	return n
}

// Shown is a release and its users.
type Shown struct {
	Listed
	Users []User `json:"users"`
}

// User is an environment that wants a release, or that has nodes with it.
type User struct {
	Environment string       `json:"environment"`
	Desired     []string     `json:"desired"` // default, roles/R, nodes/N
	Nodes       int          `json:"nodes"`   // number of nodes that run it
	Scopes      []etcd.Scope `json:"-"`       // those of Desired
}

// Show reads a release and finds its users. With an error about an environment, it returns the users in all others.
func Show(ctx context.Context, s *etcd.DB, version string) (Shown, error) {
	r, err := release.In(s).Get(ctx, version)
	if err != nil {
		return Shown{}, err
	}
	withdrawn, err := release.In(s).Withdrawals(ctx)
	if err != nil {
		return Shown{}, err
	}
	names, err := specs.In(s).List(ctx)
	if err != nil {
		return Shown{}, err
	}
	shown := Shown{List(r, withdrawn), []User{}}
	var problems []error
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // not an environment's key
		}
		f, err := fleet.In(s).State(ctx, ref)
		if err != nil { // it may use the release; the others are shown
			problems = append(problems, fmt.Errorf("cannot read whether %s uses it: %w", ref, err))
			continue
		}
		u := User{Environment: name, Desired: []string{}}
		for _, scope := range append([]etcd.Scope{{}}, f.Desires.Pinned()...) {
			if f.Desires.Target(scope).Release == r.Version {
				u.Desired, u.Scopes = append(u.Desired, scope.Segment("default")), append(u.Scopes, scope)
			}
		}
		for _, st := range f.Statuses {
			if st.Enforcing.Release == r.Version && st.Enforcing.Tree == r.Content.Tree {
				u.Nodes++
			}
		}
		if len(u.Desired) > 0 || u.Nodes > 0 {
			shown.Users = append(shown.Users, u)
		}
	}
	return shown, errors.Join(problems...)
}
