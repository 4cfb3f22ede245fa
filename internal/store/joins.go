package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store/etcd"
)

// JoinFacts is the input of a join. Revisions are etcd's order of events, which does not depend on clocks; 0 means
// that the key does not exist.
type JoinFacts struct {
	Revision int64
	Spec     *environments.Environment // nil: there is none
	Token    *Token
	Minted   int64 // creation of the token
	Identity *Identity
	Changed  int64 // last write of the identity
	Host     *agent.Host
	Listed   int64       // last write of the host
	Machine  *FirstBoot  // of the joining machine
	Holder   *FirstBoot  // of the machine that has the name, if it is another one
	Reserve  *Precreated // the pre-created user
	Was      *Past       // the newest removal of the joining machine by an operator, under any name

	token  string // its key
	mine   *Past  // the joining machine's own record
	theirs *Past  // the record of the current or former holder of the name, if it is another machine
	guards map[string]int64
}

// Facts reads the input of a join: the token of this ID, the environment, the name and the machine. Commit fails if
// any of it has changed since.
func (s *Joins) Facts(ctx context.Context, token string, ref environments.Ref, node, machine string) (JoinFacts, error) {
	env := ref.String()
	f := JoinFacts{token: s.db.Keys.NodeToken(token), guards: map[string]int64{}}
	err := s.joinPoints(ctx, &f, []joinPoint{
		{f.token, func(kv *mvccpb.KeyValue) error {
			t, err := s.tokens.decodeToken(string(kv.Key), kv.Value)
			f.Minted, f.Token = kv.CreateRevision, &t
			return err
		}},
		{s.db.Keys.Env(env).Spec(), func(kv *mvccpb.KeyValue) (err error) {
			if f.Spec, err = environments.Decode(kv.Value); err != nil {
				err = &etcd.UnreadableError{Key: string(kv.Key), Problem: err.Error()}
			}
			return err
		}},
		{s.db.Keys.Env(env).Identity(node), func(kv *mvccpb.KeyValue) error {
			f.Changed = kv.ModRevision
			return etcd.Decode(string(kv.Key), kv.Value, &f.Identity)
		}},
		{s.db.Keys.Env(env).Host(node), func(kv *mvccpb.KeyValue) error {
			f.Listed = kv.ModRevision
			return etcd.Decode(string(kv.Key), kv.Value, &f.Host)
		}},
		{s.db.Keys.Env(env).FirstBoot(machine), func(kv *mvccpb.KeyValue) error { return etcd.Decode(string(kv.Key), kv.Value, &f.Machine) }},
		{s.db.Keys.Env(env).Precreated(node), func(kv *mvccpb.KeyValue) error { return etcd.Decode(string(kv.Key), kv.Value, &f.Reserve) }},
		{s.db.Keys.Env(env).Past(machine), func(kv *mvccpb.KeyValue) error { return etcd.Decode(string(kv.Key), kv.Value, &f.mine) }},
	})
	var before *Identity // of the machine's last name, if it is another one
	if err == nil {
		// Read a moment later. The write of the join compares it with the rest.
		var more []joinPoint
		other := f.Identity != nil && f.Identity.Machine != "" && f.Identity.Machine != machine
		if other && f.Identity.Live() {
			more = append(more, joinPoint{s.db.Keys.Env(env).FirstBoot(f.Identity.Machine), func(kv *mvccpb.KeyValue) error {
				return etcd.Decode(string(kv.Key), kv.Value, &f.Holder)
			}})
		}
		if other {
			more = append(more, joinPoint{s.db.Keys.Env(env).Past(f.Identity.Machine), func(kv *mvccpb.KeyValue) error {
				return etcd.Decode(string(kv.Key), kv.Value, &f.theirs)
			}})
		}
		if f.mine != nil && f.mine.Node != node {
			more = append(more, joinPoint{s.db.Keys.Env(env).Identity(f.mine.Node), func(kv *mvccpb.KeyValue) error {
				return etcd.Decode(string(kv.Key), kv.Value, &before)
			}})
		}
		if len(more) > 0 {
			err = s.joinPoints(ctx, &f, more)
		}
	}
	if err != nil {
		return JoinFacts{}, fmt.Errorf("cannot read what a join of %s rests on: %w", node, err)
	}
	f.Was = f.mine.removal().newest(f.Identity.removalOf(machine, node, f.Changed))
	if f.mine != nil {
		f.Was = f.Was.newest(before.removalOf(machine, f.mine.Node, f.guards[s.db.Keys.Env(env).Identity(f.mine.Node)]))
	}
	return f, nil
}

// joinPoint is one key of a join, and the reader of its value.
type joinPoint struct {
	key  string
	read func(*mvccpb.KeyValue) error
}

func (s *Joins) joinPoints(ctx context.Context, f *JoinFacts, points []joinPoint) error {
	ops := make([]clientv3.Op, len(points))
	for i, p := range points {
		ops[i] = clientv3.OpGet(p.key)
	}
	resp, err := s.db.Txn(ctx, nil, ops, nil)
	if err != nil {
		return err
	}
	f.Revision = resp.Header.Revision
	for i, p := range points {
		f.guards[p.key] = 0
		if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			f.guards[p.key] = kvs[0].ModRevision
			if err := p.read(kvs[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Join is the write of a join, in one transaction.
type Join struct {
	Token    Token // with its use counted
	Identity Identity
	Host     agent.Host
	Machine  FirstBoot
}

// Commit writes a join if its input is unchanged since facts were read. Otherwise it returns ErrConflict. It deletes
// the node's pre-created user entry: the identity now names that user.
func (s *Joins) Commit(ctx context.Context, ref environments.Ref, facts JoinFacts, j Join) error {
	env, node := ref.String(), j.Identity.Node
	var cmps []clientv3.Cmp
	for key, revision := range facts.guards {
		cmps = append(cmps, etcd.Same(key, revision))
	}
	boot, lease, err := s.boots.putFirstBoot(ctx, ref, j.Machine, facts.guards[s.db.Keys.Env(env).FirstBoot(j.Machine.Machine)])
	if err != nil {
		return err
	}
	pasts, pastLease, err := s.putPasts(ctx, env, facts, j.Identity)
	if err != nil {
		return err
	}
	j.Host.Request = askedBefore(facts.Host, j.Host)
	ops := append(pasts, boot, clientv3.OpDelete(s.db.Keys.Env(env).Precreated(node)), etcd.Touch(s.db.Keys.Env(env).HostsHead()))
	for _, put := range []struct {
		key   string
		value any
	}{{facts.token, j.Token}, {s.db.Keys.Env(env).Identity(node), j.Identity}, {s.db.Keys.Env(env).Host(node), j.Host}} {
		value, err := etcd.Encode(put.value)
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(put.key, value))
	}
	resp, err := s.db.Txn(ctx, cmps, ops, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	s.db.SettleLease(ctx, lease, err)
	s.db.SettleLease(ctx, pastLease, err)
	return err
}

// CommitOperator writes an operator's join. It returns ErrConflict if the token or the operator was written since
// facts were read.
func (s *Joins) CommitOperator(ctx context.Context, facts OperatorFacts, t Token, o OperatorIdentity) error {
	if facts.Token == nil || o.Name != facts.Token.Operator || o.As != facts.Token.As {
		return fmt.Errorf("cannot write that operator %s joined as %s: the token is for somebody else", o.Name, o.As)
	}
	token, err := etcd.Encode(t)
	if err != nil {
		return err
	}
	operator, err := etcd.Encode(o)
	if err != nil {
		return err
	}
	key, name := s.db.Keys.OperatorToken(facts.Token.ID), s.db.Keys.Operator(o.Name)
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, facts.token), etcd.Same(name, facts.operator)},
		[]clientv3.Op{clientv3.OpPut(key, token), clientv3.OpPut(name, operator)}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	return err
}

// OperatorFacts is the input of an operator's join.
type OperatorFacts struct {
	Token    *Token
	Operator *OperatorIdentity

	token, operator int64
}

// OperatorFacts reads the input of an operator's join. The write of the join compares the second read.
func (s *Joins) OperatorFacts(ctx context.Context, token, name string) (f OperatorFacts, err error) {
	key := s.db.Keys.OperatorToken(token)
	resp, err := s.db.Get(ctx, key)
	if err == nil && len(resp.Kvs) > 0 {
		var t Token
		t, err = s.tokens.decodeToken(key, resp.Kvs[0].Value)
		f.Token, f.token = &t, resp.Kvs[0].ModRevision
	}
	if err == nil {
		f.Operator, f.operator, err = s.identities.Operator(ctx, name)
	}
	if err != nil {
		return OperatorFacts{}, fmt.Errorf("cannot read what the join of operator %s rests on: %w", name, err)
	}
	return f, nil
}

// Precreated is the etcd user that is pre-created for a node, under its future incarnation.
type Precreated struct {
	User        string    `json:"user"`
	Incarnation string    `json:"incarnation"`
	Ready       bool      `json:"ready,omitempty"` // the user is complete
	At          time.Time `json:"at"`
}

// Precreated lists the pre-created users of an environment's nodes.
func (s *Identities) Precreated(ctx context.Context, ref environments.Ref) (all map[string]Precreated, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Precreated](ctx, s.db, s.db.Keys.Env(ref.String()).Precreated(""))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the users made ahead in %s: %w", ref, err)
	}
	return all, damaged, nil
}

// ErrJoined means that a machine joined as the node, even if it was removed since.
var ErrJoined = errors.New("a machine has joined as this node")

// Precreate ensures that a node has a pre-created user that is ready, and returns it with its revision. It returns
// ErrJoined if a machine has already joined. It writes the entry before it creates the user: after a crash no unknown
// user remains, and the next call resumes. Two concurrent calls end with the same user. It does not change the shared
// role of the environment's nodes: see EnsureEnvironment.
func (s *Identities) Precreate(ctx context.Context, ref environments.Ref, node string, now time.Time) (Precreated, int64, error) {
	for {
		r, revision, err := s.readyReserve(ctx, ref, node, now)
		if !errors.Is(err, etcd.ErrConflict) || ctx.Err() != nil {
			if err != nil {
				err = fmt.Errorf("cannot make the etcd user of node %s: %w", node, err)
			}
			return r, revision, err
		}
	}
}

func (s *Identities) readyReserve(ctx context.Context, ref environments.Ref, node string, now time.Time) (Precreated, int64, error) {
	env := ref.String()
	key := s.db.Keys.Env(env).Precreated(node)
	old, revision, err := etcd.Single[Precreated](ctx, s.db, key)
	if err != nil {
		return Precreated{}, 0, err
	}
	if old == nil {
		name := pki.Name{Prefix: s.db.Prefix(), Kind: pki.KindNode, Environment: env, Subject: node, Incarnation: pki.NewIncarnation()}
		old = &Precreated{User: name.String(), Incarnation: name.Incarnation, At: now}
		if revision, err = s.reserve(ctx, env, node, *old); err != nil {
			return Precreated{}, 0, err
		}
	}
	if old.Ready {
		return *old, revision, nil
	}
	if err := s.access.EnsureNode(ctx, env, node, old.User); err != nil {
		return Precreated{}, 0, err
	}
	old.Ready = true
	if revision, err = s.db.Replace(ctx, key, *old, revision); err == nil {
		return *old, revision, nil
	}
	// A join took the pre-created user meanwhile, or it was dropped. A user without an owner must not stay: it might
	// belong to a node that was removed a moment ago.
	if now, _, readErr := s.Get(ctx, ref, node); readErr == nil && !(now.Live() && now.User == old.User) {
		if r, _, readErr := etcd.Single[Precreated](ctx, s.db, key); readErr == nil && (r == nil || r.User != old.User) {
			if dropErr := s.access.DropUser(ctx, old.User); dropErr != nil {
				return Precreated{}, 0, dropErr
			}
		}
	}
	return Precreated{}, 0, err
}

// reserve writes the entry of a pre-created user if there is none. It refuses if the environment does not exist: after
// a concurrent destruction the user would stay for good. It also refuses if a machine has joined: no join would take
// the user.
func (s *Identities) reserve(ctx context.Context, env, node string, r Precreated) (int64, error) {
	value, err := etcd.Encode(r)
	if err != nil {
		return 0, err
	}
	key, spec, identity := s.db.Keys.Env(env).Precreated(node), s.db.Keys.Env(env).Spec(), s.db.Keys.Env(env).Identity(node)
	cmps := []clientv3.Cmp{etcd.Same(key, 0), etcd.Same(identity, 0), clientv3.Compare(clientv3.CreateRevision(spec), ">", 0)}
	is := []clientv3.Op{clientv3.OpGet(spec, clientv3.WithCountOnly()), clientv3.OpGet(identity, clientv3.WithCountOnly())}
	resp, err := s.db.Txn(ctx, cmps, []clientv3.Op{clientv3.OpPut(key, value)}, is)
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
func (s *Identities) DropPrecreated(ctx context.Context, ref environments.Ref, node string) error {
	key := s.db.Keys.Env(ref.String()).Precreated(node)
	r, revision, err := etcd.Single[Precreated](ctx, s.db, key)
	if err != nil || r == nil {
		return err
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if err == nil && resp.Succeeded {
		err = s.access.DropUser(ctx, r.User)
	}
	if err != nil {
		return fmt.Errorf("cannot drop the user made ahead for node %s: %w", node, err)
	}
	return nil
}

// Names lists the taken names of a role, by a live identity or by an entry of the host list.
type Names struct {
	Taken map[string]bool
}

// TakenNames reads the taken names of a role.
func (s *Identities) TakenNames(ctx context.Context, ref environments.Ref, role string) (Names, error) {
	env := ref.String()
	n := Names{map[string]bool{}}
	unread, err := etcd.Collect(ctx, s.db, s.db.Keys.Env(env).Identities(), func(rest string, i Identity) {
		if i.Live() {
			n.Taken[etcd.Unescape(rest)] = true
		}
	})
	if err == nil {
		prefix := s.db.Keys.Env(env).Host(role)
		_, err = s.db.Pages(ctx, prefix, 2000, func(rest string, _ []byte) error {
			n.Taken[etcd.Unescape(strings.TrimPrefix(prefix+rest, s.db.Keys.Env(env).Hosts()))] = true
			return nil
		}, clientv3.WithKeysOnly())
	}
	if err != nil {
		return Names{}, fmt.Errorf("cannot read which names of %s are taken: %w", ref, err)
	}
	for _, damaged := range unread { // an unreadable name may be taken
		return Names{}, fmt.Errorf("cannot tell which names of %s are taken: %s", ref, damaged)
	}
	return n, nil
}
