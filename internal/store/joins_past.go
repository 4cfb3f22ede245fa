package store

import (
	"context"
	"time"

	"pulley/internal/store/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
// caller then calls SettleLease, as after putFirstBoot.
func (s *Joins) putPasts(ctx context.Context, env string, f JoinFacts, i Identity) ([]clientv3.Op, etcd.LeaseSwap, error) {
	mine := Past{Node: i.Node}
	if f.Was != nil {
		mine = *f.Was
		mine.Node = i.Node
	}
	value, err := etcd.Encode(mine)
	if err != nil {
		return nil, etcd.LeaseSwap{}, err
	}
	ops := []clientv3.Op{clientv3.OpPut(s.db.Keys.Env(env).Past(i.Machine), value)}
	if f.Identity == nil || f.Identity.Machine == "" || f.Identity.Machine == i.Machine {
		return ops, etcd.LeaseSwap{}, nil
	}
	key, last := s.db.Keys.Env(env).Past(f.Identity.Machine), i.Node
	if f.theirs != nil {
		last = f.theirs.Node
	}
	was := f.theirs.removal().newest(f.Identity.removalOf(f.Identity.Machine, i.Node, f.Changed))
	elsewhere := last != i.Node
	switch {
	case was == nil && elsewhere:
		return ops, etcd.LeaseSwap{}, nil
	case was == nil:
		return append(ops, clientv3.OpDelete(key)), etcd.LeaseSwap{}, nil
	}
	theirs := *was
	theirs.Node = last
	if value, err = etcd.Encode(theirs); err != nil {
		return nil, etcd.LeaseSwap{}, err
	}
	if elsewhere {
		return append(ops, clientv3.OpPut(key, value)), etcd.LeaseSwap{}, nil
	}
	lease, err := s.db.Grant(ctx, removalKept)
	return append(ops, clientv3.OpPut(key, value, clientv3.WithLease(lease))), etcd.LeaseSwap{Fresh: lease}, err
}
