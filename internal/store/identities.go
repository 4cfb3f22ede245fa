package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store/etcd"
)

// Identity is the holder of a node's name, or a removed node. For a removed node Removed is set, and the other fields
// describe the last holder.
type Identity struct {
	Node        string    `json:"node"`
	Role        string    `json:"role"`
	User        string    `json:"user,omitempty"`        // in etcd, and the certificate's common name; "" once removed
	Incarnation string    `json:"incarnation,omitempty"` // last part of User: 16 hex digits
	Replaces    string    `json:"replaces,omitempty"`    // user of the previous incarnation, until it is deleted
	Machine     string    `json:"machine,omitempty"`     // machine id
	Boot        string    `json:"boot,omitempty"`        // the kernel's boot id at the join
	Key         string    `json:"key,omitempty"`         // as pki.KeyDigest returns it: sha256:…
	Joined      time.Time `json:"joined,omitzero"`
	Revision    int64     `json:"revision,omitempty"` // of etcd, before it joined: a later token permits a new join
	Issued      time.Time `json:"issued,omitzero"`    // of the newest certificate
	Until       time.Time `json:"until,omitzero"`     // its end
	CA          string    `json:"ca,omitempty"`       // pin of the CA that signed it: sha256:…
	Token       string    `json:"token,omitempty"`    // id
	By          string    `json:"by,omitempty"`       // who made the token
	Clone       *Clone    `json:"clone,omitempty"`
	Removed     *Removal  `json:"removed,omitempty"`
}

// Live reports whether certificates of this identity can still be valid.
func (i *Identity) Live() bool { return i != nil && i.Removed == nil && i.User != "" }

// Clone is a duplicate machine that came under a taken name.
type Clone struct {
	Machine   string    `json:"machine"`
	Boot      string    `json:"boot,omitempty"`
	Hostname  string    `json:"hostname,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	From      string    `json:"from,omitempty"` // address that it came from
	First     time.Time `json:"first"`
	At        time.Time `json:"at"` // last
	Times     int       `json:"times"`
}

// Removal is the time, author and reason of a node's removal from the fleet.
type Removal struct {
	At   time.Time   `json:"at"`
	By   string      `json:"by,omitempty"`
	Why  agent.Prose `json:"why,omitempty"`
	Left bool        `json:"left,omitempty"` // it left by itself: it may return with its token
}

// OperatorIdentity is the holder of an operator's name.
type OperatorIdentity struct {
	Name        string       `json:"name"`
	As          OperatorRole `json:"as"`
	User        string       `json:"user,omitempty"` // in etcd; "" once revoked
	Incarnation string       `json:"incarnation,omitempty"`
	Replaces    string       `json:"replaces,omitempty"` // as of Identity
	Key         string       `json:"key,omitempty"`
	Joined      time.Time    `json:"joined,omitzero"`
	Issued      time.Time    `json:"issued,omitzero"`
	Until       time.Time    `json:"until,omitzero"`
	CA          string       `json:"ca,omitempty"`
	Token       string       `json:"token,omitempty"`
	By          string       `json:"by,omitempty"`
	Revoked     *Revoked     `json:"revoked,omitempty"`
}

// Live reports whether certificates of this operator can still be valid.
func (o *OperatorIdentity) Live() bool { return o != nil && o.Revoked == nil && o.User != "" }

// Owners are the records that may name a user of etcd: those of the node or operator in its name, nil if missing.
type Owners struct {
	Identity   *Identity
	Precreated *Precreated
	Operator   *OperatorIdentity
}

// Own reports whether one of the records names the user. Each record is written before its user is created. If the
// records were read after the users, a user without a record belongs to no one. A user that its successor replaced is
// not owned.
func (o Owners) Own(user pki.Name) bool {
	name := user.String()
	switch user.Kind {
	case pki.KindNode:
		return o.Precreated != nil && o.Precreated.User == name || o.Identity.Live() && o.Identity.User == name
	case pki.KindOperator:
		return o.Operator.Live() && o.Operator.User == name
	}
	return true // serve's
}

// List lists the identities of an environment's nodes, including removed nodes. damaged names the unreadable ones.
func (s *Identities) List(ctx context.Context, ref environments.Ref) (all map[string]Identity, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Identity](ctx, s.db, s.db.Keys.Env(ref.String()).Identities())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the identities of %s: %w", ref, err)
	}
	return all, damaged, nil
}

// Get reads the holder of a node's name, and the revision of its last write. It returns nil and 0 if there is none.
func (s *Identities) Get(ctx context.Context, ref environments.Ref, node string) (*Identity, int64, error) {
	return etcd.Single[Identity](ctx, s.db, s.db.Keys.Env(ref.String()).Identity(node))
}

// Put replaces an identity. It returns ErrConflict if the identity was written since revision.
func (s *Identities) Put(ctx context.Context, ref environments.Ref, i Identity, revision int64) error {
	_, err := s.db.Replace(ctx, s.db.Keys.Env(ref.String()).Identity(i.Node), i, revision)
	return err
}

// Operators lists the holders of operators' names.
func (s *Identities) Operators(ctx context.Context) (all map[string]OperatorIdentity, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[OperatorIdentity](ctx, s.db, s.db.Keys.Operators())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list operators: %w", err)
	}
	return all, damaged, nil
}

// Operator reads the holder of an operator's name, and the revision of its last write. It returns nil and 0 if there
// is none.
func (s *Identities) Operator(ctx context.Context, name string) (*OperatorIdentity, int64, error) {
	return etcd.Single[OperatorIdentity](ctx, s.db, s.db.Keys.Operator(name))
}

// PutOperator replaces an operator. It returns ErrConflict if the operator was written since revision.
func (s *Identities) PutOperator(ctx context.Context, o OperatorIdentity, revision int64) error {
	_, err := s.db.Replace(ctx, s.db.Keys.Operator(o.Name), o, revision)
	return err
}

// cloneNoted is the shortest time between two notes of the same duplicate machine.
const cloneNoted = time.Minute

// NoteDuplicate stores that a duplicate machine came under a node's name. Every other concurrent write wins over it.
func (s *Identities) NoteDuplicate(ctx context.Context, ref environments.Ref, node string, c Clone) error {
	i, revision, err := s.Get(ctx, ref, node)
	if err != nil || !i.Live() || i.Machine == c.Machine {
		return err
	}
	c.First, c.Times = c.At, 1
	if old := i.Clone; old != nil && old.Machine == c.Machine {
		if c.At.Sub(old.At) < cloneNoted {
			return nil
		}
		c.First, c.Times = old.First, old.Times+1
	}
	i.Clone = &c
	if err := s.Put(ctx, ref, *i, revision); err != nil && !errors.Is(err, etcd.ErrConflict) {
		return fmt.Errorf("cannot note a second machine under the name %s: %w", node, err)
	}
	return nil
}

// UpdateHost writes a machine's new hostname and addresses into the host list. A request to the previous machine does
// not carry over to another machine. It returns ErrConflict if the identity was written since revision.
func (s *Identities) UpdateHost(ctx context.Context, ref environments.Ref, i Identity, revision int64, hostname string, addresses []string, now time.Time) error {
	env := ref.String()
	key := s.db.Keys.Env(env).Host(i.Node)
	old, listed, err := etcd.Single[agent.Host](ctx, s.db, key)
	if err != nil {
		return err
	}
	h := agent.Host{Node: i.Node, Role: i.Role, At: now, By: "join"}
	if old != nil {
		h = *old
	}
	if old != nil && h.Hostname == hostname && slices.Equal(h.Addresses, addresses) && h.MachineID == i.Machine {
		return nil
	}
	h.Hostname, h.Addresses, h.MachineID, h.At = hostname, addresses, i.Machine, now
	h.Request = askedBefore(old, h)
	value, err := etcd.Encode(h)
	if err != nil {
		return err
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, listed), etcd.Same(s.db.Keys.Env(env).Identity(i.Node), revision)},
		[]clientv3.Op{clientv3.OpPut(key, value), etcd.Touch(s.db.Keys.Env(env).HostsHead())}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	return err
}
