package access

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// Joins admits machines and operators to the fleet, and removes nodes from it.
type Joins struct {
	db         *etcd.DB
	specs      *specs.Environments
	cluster    *cluster.Cluster
	access     *Access
	identities *Identities
	tokens     *Tokens
	boots      *FirstBoots
}

// JoinsIn returns what admits to a fleet and removes from it.
func JoinsIn(db *etcd.DB) *Joins {
	return &Joins{db, specs.In(db), cluster.In(db), In(db), IdentitiesIn(db), TokensIn(db), FirstBootsIn(db)}
}

// JoinFacts is the input of a join. Revisions are etcd's order of events, which does not depend on clocks; 0 means
// that the key does not exist.
type JoinFacts struct {
	Revision int64
	Spec     *environments.Environment // nil: there is none
	Token    *Token
	Minted   int64 // creation of the token
	Identity *Identity
	Changed  int64 // last write of the identity
	Host     *model.Host
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

// Facts reads the input of a join: the token of this ID, the environment, the name, the machine and its first boot. Commit fails if
// any of it has changed since.
func (s *Joins) Facts(ctx context.Context, token string, ref model.Ref, node, machine, boot string) (JoinFacts, error) {
	k := s.db.Env(ref)
	f := JoinFacts{token: s.db.Keys.NodeToken(token), guards: map[string]int64{}}
	revision, err := s.db.Read(ctx, f.guards,
		etcd.Point{Key: f.token, Read: func(kv *etcd.KV) (err error) {
			f.Minted = kv.CreateRevision
			f.Token, err = s.tokens.DecodeToken(kv)
			return err
		}},
		etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) (err error) {
			f.Spec, err = specs.Decode(kv)
			return err
		}},
		etcd.Point{Key: k.Identity(node), Read: etcd.Into(&f.Identity)},
		etcd.Point{Key: k.Host(node), Read: etcd.Into(&f.Host)},
		etcd.Point{Key: k.FirstBoot(BootKey(machine, boot)), Read: etcd.Into(&f.Machine)},
		etcd.Point{Key: k.Precreated(node), Read: etcd.Into(&f.Reserve)},
		etcd.Point{Key: k.Past(machine), Read: etcd.Into(&f.mine)},
	)
	var before *Identity // of the machine's last name, if it is another one
	if err == nil {
		// Read a moment later. The write of the join compares it with the rest.
		var more []etcd.Point
		if f.Identity != nil && f.Identity.Machine != "" && f.Identity.Machine != machine {
			more = append(more, etcd.Point{Key: k.Past(f.Identity.Machine), Read: etcd.Into(&f.theirs)})
			if f.Identity.Live() {
				more = append(more, etcd.Point{Key: k.FirstBoot(BootKey(f.Identity.Machine, f.Identity.FirstBoot)), Read: etcd.Into(&f.Holder)})
			}
		}
		if f.mine != nil && f.mine.Node != node {
			more = append(more, etcd.Point{Key: k.Identity(f.mine.Node), Read: etcd.Into(&before)})
		}
		if len(more) > 0 {
			revision, err = s.db.Read(ctx, f.guards, more...)
		}
	}
	if err != nil {
		return JoinFacts{}, fmt.Errorf("cannot read the input of the join of %s: %w", node, err)
	}
	f.Revision, f.Changed, f.Listed = revision, f.guards[k.Identity(node)], f.guards[k.Host(node)]
	f.Was = f.mine.removal().newest(f.Identity.removalOf(machine, node, f.Changed))
	if f.mine != nil {
		f.Was = f.Was.newest(before.removalOf(machine, f.mine.Node, f.guards[k.Identity(f.mine.Node)]))
	}
	return f, nil
}

// Join is the write of a join, in one transaction.
type Join struct {
	Token    Token // with its use counted
	Identity Identity
	Host     model.Host
	Machine  FirstBoot
}

// Commit writes a join if its input is unchanged since facts were read. Otherwise it returns ErrConflict. It deletes
// the node's pre-created user entry: the identity now names that user.
func (s *Joins) Commit(ctx context.Context, ref model.Ref, facts JoinFacts, j Join) error {
	k, node := s.db.Env(ref), j.Identity.Node
	j.Host.Request = j.Host.AskedBefore(facts.Host)
	b := etcd.If(etcd.Unchanged(facts.guards)...).Put(facts.token, j.Token).Put(k.Identity(node), j.Identity).Put(k.Host(node), j.Host)
	b.Delete(k.Precreated(node), k.Lockout(node)).Touch(k.HostsHead())
	if was := facts.Identity; was != nil && was.Machine == j.Identity.Machine && was.FirstBoot != j.Identity.FirstBoot { // it was installed again
		b.Delete(k.FirstBoot(BootKey(was.Machine, was.FirstBoot)))
	}
	boot, err := s.boots.put(ctx, b, ref, j.Machine, facts.guards[k.FirstBoot(j.Machine.Key())])
	if err != nil {
		return err
	}
	past, err := s.putPasts(ctx, b, k, facts, j.Identity)
	if err != nil {
		return err
	}
	err = s.db.Commit(ctx, b)
	s.db.SettleLease(ctx, boot, err)
	s.db.SettleLease(ctx, past, err)
	return err
}

// removalKept is the time that a machine's removal is kept after another machine took its name. It equals the longest
// lifetime of a token that was created before.
const removalKept = 90 * 24 * time.Hour

// Past is the history of a machine by its machine ID: its last node, and its newest removal. The node's identity
// contains the removal until another machine takes the name. From then on this record contains it.
type Past struct {
	Node     string   `json:"node"`
	Removed  *Removal `json:"removed,omitempty"`
	As       string   `json:"as,omitempty"`       // the node at its removal
	Revision int64    `json:"revision,omitempty"` // of etcd, of the removal: a later token permits a new join
}

// removal returns p if it contains a removal, else nil.
func (p *Past) removal() *Past {
	if p == nil || p.Removed == nil {
		return nil
	}
	return p
}

func (p *Past) newest(other *Past) *Past {
	if p == nil || other != nil && other.Revision > p.Revision {
		return other
	}
	return p
}

// removalOf returns a machine's removal from the identity of a node, last written at revision. It returns nil if the
// machine left by itself.
func (i *Identity) removalOf(machine, node string, revision int64) *Past {
	if i == nil || i.Removed == nil || i.Removed.Left || i.Machine != machine {
		return nil
	}
	return &Past{Node: node, Removed: i.Removed, As: node, Revision: revision}
}

// putPasts writes the machine's current node, and carries over the history of the previous holder of the name. The
// caller then calls SettleLease.
func (s *Joins) putPasts(ctx context.Context, b *etcd.Batch, k etcd.EnvKeys, f JoinFacts, i Identity) (l etcd.LeaseSwap, err error) {
	var mine Past
	if f.Was != nil {
		mine = *f.Was
	}
	mine.Node = i.Node
	b.Put(k.Past(i.Machine), mine)
	if f.Identity == nil || f.Identity.Machine == "" || f.Identity.Machine == i.Machine {
		return l, nil
	}
	key, last := k.Past(f.Identity.Machine), i.Node
	if f.theirs != nil {
		last = f.theirs.Node
	}
	was := f.theirs.removal().newest(f.Identity.removalOf(f.Identity.Machine, i.Node, f.Changed))
	if was == nil {
		if last == i.Node {
			b.Delete(key)
		}
		return l, nil
	}
	theirs := *was
	theirs.Node = last
	var opts []clientv3.OpOption
	if last == i.Node { // the machine has no name any more
		l.Fresh, err = s.db.Grant(ctx, removalKept)
		opts = append(opts, clientv3.WithLease(l.Fresh))
	}
	b.Put(key, theirs, opts...)
	return l, err
}
