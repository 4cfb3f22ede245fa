package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// Identities stores the holders of node and operator names, and their pre-created users.
type Identities struct {
	db     *etcd.DB
	access *Access
}

// IdentitiesIn returns the holders of names of a fleet.
func IdentitiesIn(db *etcd.DB) *Identities { return &Identities{db, In(db)} }

// Identity is the holder of a node's name, or a removed node. For a removed node Removed is set, and the other fields
// describe the last holder.
type Identity struct {
	Node        string     `json:"node"`
	Role        string     `json:"role"`
	User        string     `json:"user,omitempty"`        // in etcd, and the certificate's common name; "" once removed
	Incarnation string     `json:"incarnation,omitempty"` // last part of User: 16 hex digits
	Replaces    string     `json:"replaces,omitempty"`    // user of the previous incarnation, until it is deleted
	Machine     string     `json:"machine,omitempty"`     // machine id
	Boot        string     `json:"boot,omitempty"`        // the kernel's boot id at the join
	FirstBoot   string     `json:"first_boot,omitempty"`  // ID of the first boot that joined
	Key         string     `json:"key,omitempty"`         // as pki.KeyDigest returns it: sha256:…
	Joined      time.Time  `json:"joined,omitzero"`
	Revision    int64      `json:"revision,omitempty"` // of etcd, before it joined: a later token permits a new join
	Issued      time.Time  `json:"issued,omitzero"`    // of the newest certificate
	Until       time.Time  `json:"until,omitzero"`     // its end
	CA          string     `json:"ca,omitempty"`       // pin of the CA that signed it: sha256:…
	Token       string     `json:"token,omitempty"`    // id
	By          string     `json:"by,omitempty"`       // who made the token
	Duplicate   *Duplicate `json:"duplicate,omitempty"`
	Removed     *Removal   `json:"removed,omitempty"`
}

// Live reports whether certificates of this identity can still be valid.
func (i *Identity) Live() bool { return i != nil && i.Removed == nil && i.User != "" }

// Duplicate is a duplicate machine that came under a taken name.
type Duplicate struct {
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
	Why  model.Prose `json:"why,omitempty"`
	Left bool        `json:"left,omitempty"` // it left by itself: it may return with its token

	Rotate bool `json:"rotate,omitempty"` // its identities must decrypt no later secret: the secrets that it could read are to be rotated
}

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
func (s *Identities) List(ctx context.Context, ref model.Ref) (all map[string]Identity, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Identity](ctx, s.db, s.db.Env(ref).Identities())
	return all, damaged, etcd.Wrap(err, "cannot list the identities of %s", ref)
}

// Names calls each with the names of identities, which joined, and of pre-created users, also with those whose records cannot be read.
func (s *Identities) Names(ctx context.Context, ref model.Ref, each func(node string, joined bool)) (err error) {
	k := s.db.Env(ref)
	for joined, prefix := range map[bool]string{true: k.Identities(), false: k.Precreated("")} {
		if err == nil {
			err = s.db.Scan(ctx, prefix, func(rest string, _ *etcd.KV) error {
				each(etcd.Unescape(rest), joined)
				return nil
			}, clientv3.WithKeysOnly())
		}
	}
	return etcd.Wrap(err, "cannot list the identities of %s", ref)
}

// Get reads the holder of a node's name, and the revision of its last write. It returns nil and 0 if there is none.
func (s *Identities) Get(ctx context.Context, ref model.Ref, node string) (*Identity, int64, error) {
	return etcd.Single[Identity](ctx, s.db, s.db.Env(ref).Identity(node))
}

// Put replaces an identity. It returns ErrConflict if the identity was written since revision.
func (s *Identities) Put(ctx context.Context, ref model.Ref, i Identity, revision int64) error {
	_, err := s.db.Replace(ctx, s.db.Env(ref).Identity(i.Node), i, revision)
	return err
}

// duplicateNoted is the shortest time between two notes of the same duplicate machine.
const duplicateNoted = time.Minute

// Credible returns what may be said of a duplicate machine of a node. Its sender has proven no other identity than the node's: the
// machine ID, hostname and addresses of a machine that joined as another node are therefore no evidence, and are left out.
func (s *Identities) Credible(ctx context.Context, ref model.Ref, node string, c Duplicate) (Duplicate, error) {
	past, _, err := etcd.Single[Past](ctx, s.db, s.db.Env(ref).Past(c.Machine))
	if err != nil || past == nil || past.Node == node {
		return c, err
	}
	other, _, err := s.Get(ctx, ref, past.Node)
	if err == nil && other.Live() && other.Machine == c.Machine {
		c.Machine, c.Boot, c.Hostname, c.Addresses = "", "", "", nil
	}
	return c, err
}

// NoteDuplicate stores that a duplicate machine came under a node's name. Every other concurrent write wins over it.
func (s *Identities) NoteDuplicate(ctx context.Context, ref model.Ref, node string, c Duplicate) error {
	i, revision, err := s.Get(ctx, ref, node)
	if err != nil || !i.Live() || i.Machine == c.Machine {
		return err
	}
	c.First, c.Times = c.At, 1
	if old := i.Duplicate; old != nil && old.Machine == c.Machine {
		if c.At.Sub(old.At) < duplicateNoted {
			return nil
		}
		c.First, c.Times = old.First, old.Times+1
	}
	i.Duplicate = &c
	if err := s.Put(ctx, ref, *i, revision); err != nil && !errors.Is(err, etcd.ErrConflict) {
		return fmt.Errorf("cannot record a second machine under the name %s: %w", node, err)
	}
	return nil
}

// UpdateHost writes into the host list what a machine may say of itself: its hostname and addresses. A request to the previous machine
// does not carry over to another machine. It returns ErrConflict if the identity was written since revision.
func (s *Identities) UpdateHost(ctx context.Context, ref model.Ref, i Identity, revision int64, is model.Host, now time.Time) error {
	k := s.db.Env(ref)
	old, listed, err := etcd.Single[model.Host](ctx, s.db, k.Host(i.Node))
	if err != nil {
		return err
	}
	h := model.Host{Node: i.Node, Role: i.Role, At: now, By: "join"}
	if old != nil {
		h = *old
	}
	if old != nil && h.Hostname == is.Hostname && slices.Equal(h.Addresses, is.Addresses) && h.Checked == is.Checked && slices.Equal(h.Refused, is.Refused) && h.MachineID == i.Machine {
		return nil
	}
	h.Hostname, h.Addresses, h.Checked, h.Refused, h.MachineID, h.At = is.Hostname, is.Addresses, is.Checked, is.Refused, i.Machine, now
	h.Request = h.AskedBefore(old)
	b := etcd.If(etcd.Same(k.Host(i.Node), listed), etcd.Same(k.Identity(i.Node), revision))
	return s.db.Commit(ctx, b.Put(k.Host(i.Node), h).Touch(k.HostsHead()))
}

// NoteDuplicateBoot stores that two machines run under a node's name with one machine's identity, as their boot IDs
// show. It reports whether this is new: of several serves that see the same, one gets true.
func (s *Identities) NoteDuplicateBoot(ctx context.Context, ref model.Ref, node string, c Duplicate) (first bool, err error) {
	key := s.db.Env(ref).Identity(node)
	err = etcd.Update(ctx, s.db, key, s.db.Commit, func(i *Identity, b *etcd.Batch) error {
		first = false
		if !i.Live() {
			return nil
		}
		first, c.First, c.Times = i.Duplicate == nil, c.At, 1
		if old := i.Duplicate; old != nil && old.Boot == c.Boot {
			c.First, c.Times = old.First, old.Times+1
		}
		i.Duplicate = &c
		b.Put(key, i)
		return nil
	})
	return first && err == nil, etcd.Wrap(err, "cannot record that two machines run as node %s", node)
}

// TakenNames reads the taken names of a role, by a live identity or by an entry of the host list.
func (s *Identities) TakenNames(ctx context.Context, ref model.Ref, role string) (map[string]bool, error) {
	k, taken := s.db.Env(ref), map[string]bool{}
	damaged, err := etcd.Collect(ctx, s.db, k.Identities(), func(rest string, i Identity, _ int64) {
		if i.Live() {
			taken[etcd.Unescape(rest)] = true
		}
	})
	if err == nil && len(damaged) > 0 { // an unreadable name may be taken
		err = errors.New(damaged[0])
	}
	if err == nil {
		err = s.db.Scan(ctx, k.Host(role), func(_ string, kv *etcd.KV) error {
			taken[etcd.Unescape(strings.TrimPrefix(string(kv.Key), k.Hosts()))] = true
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
	}
	return taken, etcd.Wrap(err, "cannot read the taken names of %s", ref)
}

// DropFormer deletes the users of all incarnations of a node except user. Interrupted joins may have left several. If
// the node now has another user, or none, nothing happens.
func (s *Identities) DropFormer(ctx context.Context, ref model.Ref, node, user string) error {
	// Users first, then the records that may claim them. A later join creates or takes a user outside this list, or
	// changes the records.
	users, err := s.access.usersOf(ctx, ref.String(), node)
	if err != nil {
		return err
	}
	reserve, _, err := etcd.Single[Precreated](ctx, s.db, s.db.Env(ref).Precreated(node))
	if err != nil {
		return err
	}
	i, _, err := s.Get(ctx, ref, node)
	if err != nil || !i.Live() || i.User != user {
		return err
	}
	former := slices.DeleteFunc(users, func(n pki.Name) bool { return reserve != nil && n.String() == reserve.User })
	return s.access.dropUsers(ctx, former, user)
}

// Precreated is the etcd user that is pre-created for a node, under its future incarnation.
type Precreated struct {
	User        string    `json:"user"`
	Incarnation string    `json:"incarnation"`
	Ready       bool      `json:"ready,omitempty"` // the user is complete
	At          time.Time `json:"at"`
}

// Precreated lists the pre-created users of an environment's nodes.
func (s *Identities) Precreated(ctx context.Context, ref model.Ref) (all map[string]Precreated, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Precreated](ctx, s.db, s.db.Env(ref).Precreated(""))
	return all, damaged, etcd.Wrap(err, "cannot list the pre-created users of %s", ref)
}

// ErrJoined means that a machine joined as the node, even if it was removed since.
var ErrJoined = errors.New("a machine has joined as this node")

// Precreate ensures that a node has a pre-created user that is ready, and returns it. It returns
// ErrJoined if a machine has already joined. It writes the entry before it creates the user: after a crash no unknown
// user remains, and the next call resumes. Two concurrent calls end with the same user. It does not change the shared
// role of the environment's nodes: see EnsureEnvironment.
func (s *Identities) Precreate(ctx context.Context, ref model.Ref, node string, now time.Time) (p Precreated, err error) {
	err = etcd.Retry(ctx, func() (err error) {
		p, err = s.precreate(ctx, ref, node, now)
		return err
	})
	return p, etcd.Wrap(err, "cannot create the etcd user of node %s", node)
}

func (s *Identities) precreate(ctx context.Context, ref model.Ref, node string, now time.Time) (Precreated, error) {
	env := ref.String()
	key := s.db.Env(ref).Precreated(node)
	old, revision, err := etcd.Single[Precreated](ctx, s.db, key)
	if err != nil {
		return Precreated{}, err
	}
	if old == nil {
		name := pki.Name{Prefix: s.db.Prefix(), Kind: pki.KindNode, Environment: env, Subject: node, Incarnation: pki.NewIncarnation()}
		old = &Precreated{User: name.String(), Incarnation: name.Incarnation, At: now}
		if revision, err = s.reserve(ctx, env, node, *old); err != nil {
			return Precreated{}, err
		}
	}
	if old.Ready {
		return *old, nil
	}
	if err := s.access.EnsureNode(ctx, env, node, old.User); err != nil {
		return Precreated{}, err
	}
	old.Ready = true
	if _, err = s.db.Replace(ctx, key, *old, revision); err == nil {
		return *old, nil
	}
	// A join took the pre-created user meanwhile, or it was dropped. A user without an owner must not stay: it might
	// belong to a node that was removed a moment ago.
	if now, _, readErr := s.Get(ctx, ref, node); readErr == nil && !(now.Live() && now.User == old.User) {
		if r, _, readErr := etcd.Single[Precreated](ctx, s.db, key); readErr == nil && (r == nil || r.User != old.User) {
			if dropErr := s.access.DropUser(ctx, old.User); dropErr != nil {
				return Precreated{}, dropErr
			}
		}
	}
	return Precreated{}, err
}

// reserve writes the entry of a pre-created user if there is none. It refuses if the environment does not exist: after
// a concurrent destruction the user would stay for good. It also refuses if a machine has joined: no join would take
// the user.
func (s *Identities) reserve(ctx context.Context, env, node string, p Precreated) (int64, error) {
	k := s.db.Keys.Env(env)
	b := etcd.If(etcd.Same(k.Precreated(node), 0), etcd.Same(k.Identity(node), 0), etcd.Exists(k.Spec())).Put(k.Precreated(node), p)
	resp, err := s.db.Run(ctx, b, clientv3.OpGet(k.Spec(), clientv3.WithCountOnly()), clientv3.OpGet(k.Identity(node), clientv3.WithCountOnly()))
	switch {
	case err != nil:
		return 0, err
	case resp.Succeeded:
		return resp.Header.Revision, nil
	case resp.Responses[0].GetResponseRange().Count == 0:
		return 0, fmt.Errorf("there is no environment %s: %w", env, etcd.ErrNotFound)
	case resp.Responses[1].GetResponseRange().Count > 0:
		return 0, ErrJoined
	}
	return 0, etcd.ErrConflict
}

// DropPrecreated deletes a node's pre-created user and its entry. The user goes last: a machine that joins with it
// meanwhile keeps it.
func (s *Identities) DropPrecreated(ctx context.Context, ref model.Ref, node string) error {
	key := s.db.Env(ref).Precreated(node)
	p, revision, err := etcd.Single[Precreated](ctx, s.db, key)
	if err != nil || p == nil {
		return err
	}
	err = s.db.Commit(ctx, etcd.If(etcd.Same(key, revision)).Delete(key))
	if errors.Is(err, etcd.ErrConflict) {
		return nil
	}
	if err == nil {
		err = s.access.DropUser(ctx, p.User)
	}
	return etcd.Wrap(err, "cannot delete the pre-created user of node %s", node)
}
