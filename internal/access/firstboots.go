package access

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// FirstBoots stores the progress of first boots.
type FirstBoots struct{ db *etcd.DB }

// FirstBootsIn returns the first boots of a fleet.
func FirstBootsIn(db *etcd.DB) *FirstBoots { return &FirstBoots{db} }

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
	Machine  string      `json:"machine"`      // machine id
	ID       string      `json:"id,omitempty"` // of this first boot
	Hostname string      `json:"hostname,omitempty"`
	Node     string      `json:"node,omitempty"` // "" until it is known
	Role     string      `json:"role,omitempty"`
	Step     string      `json:"step"`
	State    BootState   `json:"state"`
	Error    model.Prose `json:"error,omitempty"` // of the last attempt at this step, clipped
	Attempts int         `json:"attempts"`        // at this step
	Started  time.Time   `json:"started"`         // the first boot
	Since    time.Time   `json:"since"`           // this step
	Heard    time.Time   `json:"heard"`           // last report, by serve's clock
	Finished time.Time   `json:"finished,omitzero"`
	Token    string      `json:"token,omitempty"`  // ID of the token that it joins with
	Joined   bool        `json:"joined,omitempty"` // it has its certificate
	Unlocked *Revoked    `json:"unlocked,omitempty"`

	// The queue of machines that are provisioned into a Puppet server (provisioning.go).
	Asked time.Time `json:"asked,omitzero"`  // since when it waits for its turn
	Again time.Time `json:"again,omitzero"`  // its last request for a turn: a report of progress is none
	Turn  time.Time `json:"turn,omitzero"`   // since when it has its turn
	Until time.Time `json:"until,omitzero"`  // the end of its turn, whatever it reports
	Turns int       `json:"turns,omitempty"` // turns so far
}

// LosesPosition returns the time at which a waiting machine loses its position unless it asks again.
func (f FirstBoot) LosesPosition() time.Time { return f.Again.Add(waitsFor) }

// Stands reports whether an unfinished first boot has been silent for too long.
func (f FirstBoot) Stands(now time.Time) bool {
	return f.Finished.IsZero() && now.Sub(f.Heard) >= StandsStill
}

// Locks reports whether the machine holds its node's name.
func (f *FirstBoot) Locks() bool {
	return f != nil && f.Node != "" && f.Finished.IsZero() && f.Unlocked == nil
}

// BootKey returns the key of a first boot among those of its environment: copies of one image may have one machine id.
func BootKey(machine, id string) string {
	if id == "" {
		return machine
	}
	return machine + "." + id
}

// Key returns the key of the first boot, as BootKey does.
func (f FirstBoot) Key() string { return BootKey(f.Machine, f.ID) }

// List lists the first boots of an environment, by key. damaged names the unreadable ones.
func (s *FirstBoots) List(ctx context.Context, ref model.Ref) (all map[string]FirstBoot, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[FirstBoot](ctx, s.db, s.db.Env(ref).FirstBoots())
	return all, damaged, etcd.Wrap(err, "cannot list the first boots of %s", ref)
}

// Get reads the progress of a first boot by its key, and the revision of its last write. It returns nil and 0 if there is none.
func (s *FirstBoots) Get(ctx context.Context, ref model.Ref, key string) (*FirstBoot, int64, error) {
	return etcd.Single[FirstBoot](ctx, s.db, s.db.Env(ref).FirstBoot(key))
}

// Lifetime of a first boot's record, by etcd's leases: of an unfinished one since its last report, and of a finished
// one.
const (
	firstBootKept = 30 * 24 * time.Hour
	finishedKept  = 24 * time.Hour
)

// Bounds of a machine's report about its first boot, in bytes.
const (
	MaxBootWord  = 64
	MaxBootError = 512
)

// Put writes the progress of a machine. It returns ErrConflict if the progress was written since revision. It leaves
// no unused lease, because a machine may report often.
func (s *FirstBoots) Put(ctx context.Context, ref model.Ref, boot FirstBoot, revision int64) error {
	b := etcd.If(etcd.Same(s.db.Env(ref).FirstBoot(boot.Key()), revision))
	l, err := s.put(ctx, b, ref, boot, revision)
	if err == nil {
		err = s.db.Commit(ctx, b)
		s.db.SettleLease(ctx, l, err)
	}
	return err
}

// put adds the write to a batch, which compares revision. The caller then calls SettleLease. A lease ends the record.
func (s *FirstBoots) put(ctx context.Context, b *etcd.Batch, ref model.Ref, boot FirstBoot, revision int64) (l etcd.LeaseSwap, err error) {
	boot.Hostname, boot.Step = clip.Text(boot.Hostname, MaxBootWord), clip.Text(boot.Step, MaxBootWord)
	boot.Error = model.Prose(clip.Text(string(boot.Error), MaxBootError))
	key, lasts := s.db.Env(ref).FirstBoot(boot.Key()), firstBootKept
	keep := revision != 0
	if !boot.Finished.IsZero() {
		lasts = finishedKept
		if keep { // it replaces its lease by a shorter one, once
			if keep, l.Old, err = s.finished(ctx, key, revision); err != nil {
				return l, err
			}
		}
	}
	if keep {
		b.Put(key, boot, clientv3.WithIgnoreLease())
		return etcd.LeaseSwap{}, nil
	}
	if l.Fresh, err = s.db.Grant(ctx, lasts); err != nil {
		return l, fmt.Errorf("cannot write the progress of machine %s: %w", boot.Machine, err)
	}
	b.Put(key, boot, clientv3.WithLease(l.Fresh))
	return l, nil
}

// finished reports whether the record at a revision is of a finished first boot, and returns its lease.
func (s *FirstBoots) finished(ctx context.Context, key string, revision int64) (bool, clientv3.LeaseID, error) {
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return false, 0, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].ModRevision != revision {
		return false, 0, etcd.ErrConflict
	}
	var before FirstBoot
	err = etcd.Into(&before)(resp.Kvs[0])
	return !before.Finished.IsZero(), clientv3.LeaseID(resp.Kvs[0].Lease), err
}
