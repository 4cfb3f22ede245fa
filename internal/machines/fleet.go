// Package machines owns the types that planning, applying, watching and the drivers share: a machine, its order, its
// provider, its machine record, and the codes of reasons.
//
// Package plan compares an environment with its fleet. Package apply carries a plan out. Package watch replaces dead
// machines. Package render converts codes to sentences. This package must never decide anything, and never import one
// of them.
package machines

import (
	"context"
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/model"
	"pulley/userdata"
)

// Fleet is the part of etcd, and the maker of userdata, that an apply needs. ErrLost means that another apply has the
// lock, and that this one must change nothing more. Every method can be repeated.
type Fleet interface {
	Reader
	Inventory
	Nodes
	userdataMaker
}

// Reader reads the state of a fleet.
type Reader interface {
	// World reads everything in etcd that a plan needs but Places; Machines stays empty.
	World(ctx context.Context) (World, error)
	// Places returns of each registered node the places that the policy for rollouts of an environment limits: "rack=r1". A node
	// that it does not call for has the attributes of the stored one. Without limits it reads nothing.
	Places(ctx context.Context, e *environments.Environment) (map[string][]string, error)
	// Unchanged reports whether the stored environment, the host list and the inventory are those of a World.
	Unchanged(ctx context.Context, w World) (bool, error)
	// Acts returns the acts since a time, oldest first; the newest 1,000 are kept.
	Acts(ctx context.Context, since time.Time) ([]Act, error)
}

// Inventory stores machine records. It writes only while this apply has the lock.
type Inventory interface {
	// PutSpec stores the environment, unless it was written after revision.
	PutSpec(ctx context.Context, e *environments.Environment, revision int64) (int64, error)
	// Put writes a node's record. was is the record that was read, nil for none; ErrChanged if the stored record differs.
	Put(ctx context.Context, r Record, was *Record) error
	// Order writes a node's record as Put does, and in the same transaction the token of its userdata, whose id is in the
	// record. It revokes the record's previous token. ErrTokenTaken if another token has this id.
	Order(ctx context.Context, r Record, was *Record, t Token) error
	// Drop deletes a node's record, unless the stored record differs. It revokes its token.
	Drop(ctx context.Context, was Record) error
	// Note adds an act to the history.
	Note(ctx context.Context, a Act) error
}

// userdataMaker makes the userdata of machines.
type userdataMaker interface {
	// Userdata makes the userdata of a node's machine. Its token is valid once Order has written it. The token of a
	// machine that does not join has no ID.
	Userdata(o Order, r environments.Role, form userdata.Form) (text []byte, t Token, err error)
}

// Token lets one machine join, once. Only the userdata contains its secret.
type Token struct {
	ID      string    // random
	Hash    string    // of the secret
	Created time.Time // UTC, without fractions of a second
	Expires time.Time
}

// Nodes changes single nodes.
type Nodes interface {
	// Hold keeps a node from running Puppet while it is retired.
	Hold(ctx context.Context, node string, h model.Hold) error
	// Release ends the hold that a retirement set. Any other hold stays; none is no error.
	Release(ctx context.Context, node string) error
	// Ask sends a node a request through its entry in the host list. A node without an entry is fleet.ErrNotListed.
	Ask(ctx context.Context, node string, r model.Request) error
	// Remove removes a node from the fleet: its certificate, its etcd user, its entry in the host list, its holds. A node
	// that does not exist is no error.
	Remove(ctx context.Context, node, why string) error
}

// World contains the inputs of a plan, besides the wanted environment. All of etcd is of one revision, read before the
// provider: a machine that is made in between always has its record.
type World struct {
	Revision    int64                     // of etcd
	Old         *environments.Environment // as stored; nil for a new one
	OldRevision int64                     // revision at which Old was stored
	Records     map[string]Record         // by node
	Hosts       map[string]model.Host
	Views       map[string]model.View // of all registered nodes and all that reported
	Statuses    map[string]model.Status
	Boots       map[string]Reason     // unfinished first boots of registered nodes that have not reported: WaitsForFirstBoot
	Released    bool                  // a release is promoted for this environment, so nodes can converge
	Held        map[string]model.Hold // the strictest hold of a node, including those of its role and of all nodes
	Places      map[string][]string   // by node, as Reader.Places returned them before
	Machines    []Machine             // at the provider
	Now         time.Time             // time of the provider's answer
}

// LastReport returns the time of a node's last report, unless the node counts as silent. It ignores reports of another
// machine under its name. The machine of a locked-out node runs.
func (w World) LastReport(node string) (at time.Time, ok bool) {
	host, registered := w.Hosts[node]
	st, reported := w.Statuses[node]
	v, judged := w.Views[node]
	if !registered || !reported || !judged || v.State == model.Silent && v.Reason != model.ReasonLockedOut || v.State == model.Unregistered {
		return time.Time{}, false
	}
	if host.MachineID != "" && st.Machine != "" && host.MachineID != st.Machine {
		return time.Time{}, false
	}
	return st.SeenAt, true
}

// SilentFrom returns the time from which a node counts as silent unless it reports again.
func (w World) SilentFrom(node string) time.Time {
	st := w.Statuses[node]
	silence := time.Duration(0)
	if w.Old != nil {
		silence = time.Duration(w.Old.Silence)
	}
	return st.SilentFrom(silence, w.Now)
}

// Reported reports whether a node's last report is from the machine in its record, and not from an earlier one. A
// machine may report before its record has the phase Made, if an apply was slow or interrupted: then its id is in the
// host list.
func (w World) Reported(node string, rec Record) bool {
	st, reported := w.Statuses[node]
	host, registered := w.Hosts[node]
	switch {
	case !reported:
		return false
	case !st.SeenAt.Before(rec.At):
		return true
	}
	return registered && st.Machine != "" && st.Machine == host.MachineID && !st.SeenAt.Before(host.At.Truncate(time.Second))
}

// RegisteredFrom reports whether a node is registered from an address of this machine.
func (w World) RegisteredFrom(node string, m Machine) bool {
	return slices.ContainsFunc(m.Addresses, func(a string) bool { return slices.Contains(w.Hosts[node].Addresses, a) })
}
