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

// StandsStill is the silence after which a first boot is shown as stalled. The longest silence of a working first boot
// is the installation of Puppet on a slow line.
const StandsStill = 15 * time.Minute

// BootState is the state of one step of a first boot.
type BootState string

// The states of a step.
const (
	BootStarted BootState = "started"
	BootDone    BootState = "done"
	BootFailed  BootState = "failed" // retried, unless Refused marks a retry as useless
)

// FirstBoot is the progress of a machine's first boot. Until it is finished, the machine holds the name of its node.
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
	Heard    time.Time   `json:"heard"`           // last report, by serve's clock
	Finished time.Time   `json:"finished,omitzero"`
	Token    string      `json:"token,omitempty"`  // ID of the token that it joins with
	Joined   bool        `json:"joined,omitempty"` // it has its certificate
	Unlocked *Revoked    `json:"unlocked,omitempty"`
}

// Stands reports whether an unfinished first boot has been silent for too long.
func (f FirstBoot) Stands(now time.Time) bool {
	return f.Finished.IsZero() && now.Sub(f.Heard) >= StandsStill
}

// Locks reports whether the machine holds its node's name.
func (f *FirstBoot) Locks() bool {
	return f != nil && f.Node != "" && f.Finished.IsZero() && f.Unlocked == nil
}

// List lists the first boots of an environment, by machine ID. damaged names the unreadable ones.
func (s *FirstBoots) List(ctx context.Context, ref environments.Ref) (all map[string]FirstBoot, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[FirstBoot](ctx, s.db, s.db.Keys.Env(ref.String()).FirstBoots())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the first boots of %s: %w", ref, err)
	}
	return all, damaged, nil
}

// Get reads the progress of a machine, and the revision of its last write. It returns nil and 0 if there is none.
func (s *FirstBoots) Get(ctx context.Context, ref environments.Ref, machine string) (*FirstBoot, int64, error) {
	return etcd.Single[FirstBoot](ctx, s.db, s.db.Keys.Env(ref.String()).FirstBoot(machine))
}

// Lifetime of a first boot's record, by etcd's leases: of an unfinished one since its last report, and of a finished
// one.
const (
	firstBootKept = 30 * 24 * time.Hour
	finishedKept  = 24 * time.Hour
)

// Bounds of a machine's report about its first boot, in bytes.
const (
	maxBootWord  = 64
	maxBootError = 512
)

// Put writes the progress of a machine. It returns ErrConflict if the progress was written since revision. It leaves
// no unused lease, because a machine may report often.
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

// putFirstBoot returns the write for a transaction that compares revision. The caller then calls SettleLease. A lease
// ends the record.
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
		if !keep { // replaces its lease by a shorter one, once
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

// Unlock frees a node's name from the machine that is in its first boot under it. It also deletes the note of a
// duplicate machine under the name, which needs an administrator. It returns ErrNotFound if there was neither.
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
					continue // it reported at this moment
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
			err = nil // the operator's part is done; only an administrator can delete the note of the duplicate machine
		}
	case len(freed) == 0:
		err = etcd.ErrNotFound
	}
	if err != nil {
		return freed, fmt.Errorf("cannot free the name %s: %w", node, err)
	}
	return freed, nil
}
