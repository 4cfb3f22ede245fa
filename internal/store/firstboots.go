package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/store/etcd"
)

// StandsStill is after how long without a word a first boot is shown as one that stands still. The longest silence of one
// that goes on is the installation of Puppet on a slow line.
const StandsStill = 15 * time.Minute

// BootState is how far a step of a first boot is.
type BootState string

// The states of a step.
const (
	BootStarted BootState = "started"
	BootDone    BootState = "done"
	BootFailed  BootState = "failed" // it is tried again, unless Refused says that it is of no use
)

// FirstBoot is where a machine is in its first boot. While it is not finished the machine holds the name of its node.
type FirstBoot struct {
	Machine  string      `json:"machine"` // machine id
	Hostname string      `json:"hostname,omitempty"`
	Node     string      `json:"node,omitempty"` // "" until it is known
	Role     string      `json:"role,omitempty"`
	Step     string      `json:"step"`
	State    BootState   `json:"state"`
	Error    agent.Prose `json:"error,omitempty"` // of the last attempt at this step, clipped
	Attempts int         `json:"attempts"`        // at this step
	Started  time.Time   `json:"started"`         // the first boot
	Since    time.Time   `json:"since"`           // this step
	Heard    time.Time   `json:"heard"`           // last word, by serve's clock
	Finished time.Time   `json:"finished,omitzero"`
	Token    string      `json:"token,omitempty"`  // id of the token that it joins with
	Joined   bool        `json:"joined,omitempty"` // it has its certificate
	Unlocked *Revoked    `json:"unlocked,omitempty"`
}

// Stands reports whether nothing was heard of an unfinished first boot for too long.
func (f FirstBoot) Stands(now time.Time) bool {
	return f.Finished.IsZero() && now.Sub(f.Heard) >= StandsStill
}

// Locks reports whether the machine holds its node's name.
func (f *FirstBoot) Locks() bool {
	return f != nil && f.Node != "" && f.Finished.IsZero() && f.Unlocked == nil
}

// FirstBoots lists the first boots of an environment, by machine id. Those that can't be read are named in damaged.
func (s *FirstBoots) List(ctx context.Context, ref environments.Ref) (all map[string]FirstBoot, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[FirstBoot](ctx, s.db, s.db.Keys.Env(ref.String()).FirstBoots())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the first boots of %s: %w", ref, err)
	}
	return all, damaged, nil
}

// FirstBoot reads where a machine is, and the revision at which that was last written; nil and 0 when nobody knows.
func (s *FirstBoots) Get(ctx context.Context, ref environments.Ref, machine string) (*FirstBoot, int64, error) {
	return etcd.Single[FirstBoot](ctx, s.db, s.db.Keys.Env(ref.String()).FirstBoot(machine))
}

// How long a record of a first boot is kept, by etcd's leases: of one that is not finished since its last word, and of one
// that is.
const (
	firstBootKept = 30 * 24 * time.Hour
	finishedKept  = 24 * time.Hour
)

// Bounds of what a machine says of its first boot, in bytes.
const (
	maxBootWord  = 64
	maxBootError = 512
)

// PutFirstBoot writes where a machine is, unless that was written since revision: then ErrConflict. No lease is left that
// ends nothing: a machine may say a lot.
func (s *FirstBoots) Put(ctx context.Context, ref environments.Ref, b FirstBoot, revision int64) error {
	put, l, err := s.putFirstBoot(ctx, ref, b, revision)
	if err != nil {
		return err
	}
	resp, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(s.db.Keys.Env(ref.String()).FirstBoot(b.Machine), revision)}, []clientv3.Op{put}, nil)
	if err == nil && !resp.Succeeded {
		err = etcd.ErrConflict
	}
	s.db.SettleLease(ctx, l, err)
	return err
}

// putFirstBoot is the write, for a transaction that compares revision, and after which settleLease is called. A lease ends
// the record.
func (s *FirstBoots) putFirstBoot(ctx context.Context, ref environments.Ref, b FirstBoot, revision int64) (clientv3.Op, etcd.LeaseSwap, error) {
	b.Hostname, b.Step, b.Error = clip.Text(b.Hostname, maxBootWord), clip.Text(b.Step, maxBootWord), agent.Prose(clip.Text(string(b.Error), maxBootError))
	value, err := etcd.Encode(b)
	if err != nil {
		return clientv3.Op{}, etcd.LeaseSwap{}, err
	}
	fail := func(err error) (clientv3.Op, etcd.LeaseSwap, error) {
		return clientv3.Op{}, etcd.LeaseSwap{}, fmt.Errorf("cannot write where machine %s is: %w", b.Machine, err)
	}
	key := s.db.Keys.Env(ref.String()).FirstBoot(b.Machine)
	lasts, l := firstBootKept, etcd.LeaseSwap{}
	if revision != 0 {
		keep := b.Finished.IsZero()
		if !keep { // its lease becomes a shorter one, once
			resp, err := s.db.Get(ctx, key)
			if err != nil {
				return fail(err)
			}
			if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != revision {
				return clientv3.Op{}, etcd.LeaseSwap{}, etcd.ErrConflict
			}
			var before FirstBoot
			if err := etcd.Decode(key, resp.Kvs[0].Value, &before); err != nil {
				return fail(err)
			}
			keep, l.Old = !before.Finished.IsZero(), clientv3.LeaseID(resp.Kvs[0].Lease)
		}
		if keep {
			return clientv3.OpPut(key, value, clientv3.WithIgnoreLease()), etcd.LeaseSwap{}, nil
		}
	}
	if !b.Finished.IsZero() {
		lasts = finishedKept
	}
	if l.Fresh, err = s.db.Grant(ctx, lasts); err != nil {
		return fail(err)
	}
	return clientv3.OpPut(key, value, clientv3.WithLease(l.Fresh)), l, nil
}

// Unlock frees a node's name from the machine that is in its first boot under it, and forgets another machine that came
// under the name, which takes an administrator. ErrNotFound when there was neither.
func (s *Joins) Unlock(ctx context.Context, ref environments.Ref, node string, r Revoked) ([]FirstBoot, error) {
	var freed []FirstBoot
	all, _, err := s.boots.List(ctx, ref)
	if err != nil {
		return nil, err
	}
	for machine, b := range all {
		for b.Node == node && b.Locks() {
			now, revision, err := s.boots.Get(ctx, ref, machine)
			if err == nil && now.Locks() && now.Node == node {
				now.Unlocked = &r
				if err = s.boots.Put(ctx, ref, *now, revision); errors.Is(err, etcd.ErrConflict) {
					continue // it said something at this moment
				}
				freed = append(freed, *now)
			}
			if err != nil {
				return freed, fmt.Errorf("cannot free the name %s: %w", node, err)
			}
			break
		}
	}
	i, revision, err := s.identities.Get(ctx, ref, node)
	switch {
	case err != nil:
	case i != nil && i.Clone != nil:
		i.Clone = nil
		err = s.identities.Put(ctx, ref, *i, revision)
		if len(freed) > 0 && errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil // what an operator may do is done; the other machine is for an administrator to forget
		}
	case len(freed) == 0:
		err = etcd.ErrNotFound
	}
	if err != nil {
		return freed, fmt.Errorf("cannot free the name %s: %w", node, err)
	}
	return freed, nil
}
