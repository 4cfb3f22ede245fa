package machines

import (
	"context"
	"time"

	"pulley/agent"
	"pulley/environments"
)

// Fleet is what applying asks of the rest of Pulley: of etcd, and of what makes userdata. Errors that are ErrLost mean that
// somebody else applies: nothing more may be done. Every method may be repeated.
type Fleet interface {
	Reader
	Inventory
	Nodes
	UserdataMaker
}

// Reader reads.
type Reader interface {
	// World reads all of etcd that a plan needs; Machines is left empty.
	World(ctx context.Context) (World, error)
	// Acts returns what was done since then, oldest first; of what is older than the newest 1,000 nothing is kept.
	Acts(ctx context.Context, since time.Time) ([]Act, error)
}

// Books keeps records, only as long as the lock of this apply stands.
type Inventory interface {
	// PutSpec stores the environment, unless it was written since revision.
	PutSpec(ctx context.Context, e *environments.Environment, revision int64) (int64, error)
	// Put writes a node's record. was is what was read of it, nil for none; ErrChanged when it is another by now.
	Put(ctx context.Context, r Record, was *Record) error
	// Order writes a node's record as Put does, and with it the token of its userdata, whose id the record has; all of it or
	// nothing, so that no token is there that the books do not know. Whoever has the token that the record had before can't join
	// any more. ErrTokenTaken when there is another of this id.
	Order(ctx context.Context, r Record, was *Record, t Token) error
	// Drop deletes a node's record, unless it is another by now. Whoever has its token can't join any more.
	Drop(ctx context.Context, was Record) error
	// Note remembers what was done.
	Note(ctx context.Context, a Act) error
}

// Payloads makes what machines are booted with.
type UserdataMaker interface {
	// Userdata makes the payload of a machine for a node. Its token lets in whoever has it once Order has written it; the one of a
	// machine that does not join has no ID.
	Userdata(o Order, r environments.Role, form Form) (text []byte, t Token, err error)
}

// Token is leave for one machine to join, once: what the books need of it. The secret is in the userdata alone.
type Token struct {
	ID      string    // random
	Hash    string    // of the secret
	Created time.Time // UTC, in whole seconds
	Expires time.Time
}

// Nodes does what concerns one node.
type Nodes interface {
	// Hold keeps a node from running Puppet while it is retired.
	Hold(ctx context.Context, node string, h agent.Hold) error
	// Release ends the hold that a retirement set. Any other hold stays; none is no error.
	Release(ctx context.Context, node string) error
	// Ask asks a node, through its entry of the list of hosts, to do something once. A node that is not on the list is
	// ErrNotListed.
	Ask(ctx context.Context, node string, r agent.Request) error
	// Remove takes a node out of the fleet: its certificate, its etcd user, its entry of the list of hosts, its holds. One that is
	// not there is no error.
	Remove(ctx context.Context, node, why string) error
}
