package cluster

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
)

// Disk is the nearly full disk of an embedded etcd, as its serve measured it at a time.
type Disk struct {
	Hostname string    `json:"hostname"`
	Path     string    `json:"path"` // of etcd's data
	Free     int64     `json:"free"` // bytes
	At       time.Time `json:"at"`
}

// diskKept is the time after which etcd deletes the record of a disk that no serve measures any more.
const diskKept = 15 * time.Minute

// DiskRecorded is the pause between two records of a disk that stays nearly full.
const DiskRecorded = diskKept / 3

// NoteDisk stores that etcd's disk is nearly full, for diskKept. It needs no guard: etcd runs on one disk, with one serve.
func (s *Cluster) NoteDisk(ctx context.Context, d Disk) error {
	d.At = d.At.UTC().Truncate(time.Second)
	lease, err := s.db.Grant(ctx, diskKept)
	if err == nil {
		err = s.db.Commit(ctx, etcd.If().Put(s.db.Keys.Disk(), d, clientv3.WithLease(lease)))
	}
	return etcd.Wrap(err, "cannot record that the disk of etcd is nearly full")
}

// ForgetDisk deletes the record of a disk that has room again.
func (s *Cluster) ForgetDisk(ctx context.Context) error {
	known, err := s.db.Exists(ctx, s.db.Keys.Disk())
	if err == nil && known {
		err = s.db.Commit(ctx, etcd.If().Delete(s.db.Keys.Disk()))
	}
	return etcd.Wrap(err, "cannot record that the disk of etcd has room again")
}

// Disk returns the nearly full disk of an embedded etcd; nil: its disk has room, or no serve runs this etcd.
func (s *Cluster) Disk(ctx context.Context) (*Disk, error) {
	d, _, err := etcd.Single[Disk](ctx, s.db, s.db.Keys.Disk())
	return d, etcd.Wrap(err, "cannot read the state of the disk of etcd")
}

// Backup is the newest backup of etcd.
type Backup struct {
	At time.Time `json:"at"`
}

// NoteBackup stores that a backup was written. It needs no guard: of two at the same time, either is the newest.
func (s *Cluster) NoteBackup(ctx context.Context, at time.Time) error {
	err := s.db.Commit(ctx, etcd.If().Put(s.db.Keys.Backup(), Backup{at.UTC().Truncate(time.Second)}))
	return etcd.Wrap(err, "cannot record the backup")
}

// Backup returns the time of the newest backup; zero: there is none.
func (s *Cluster) Backup(ctx context.Context) (at time.Time, err error) {
	b, _, err := etcd.Single[Backup](ctx, s.db, s.db.Keys.Backup())
	if b != nil {
		at = b.At
	}
	return at, etcd.Wrap(err, "cannot read the time of the last backup")
}

// Sentence renders the disk. etcd stops soon after it is full, and then nothing can be read: the time says how old this is.
func (d Disk) Sentence() string {
	return fmt.Sprintf("the disk of etcd, %s on %s, had %d MiB free at %s: etcd stops when it is full", d.Path, d.Hostname, d.Free>>20, d.At.UTC().Format(time.RFC3339))
}
