package serve

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"pulley/internal/etcd/cluster"
)

// etcdReserve is the room that etcd needs on its disk: without room for its log it stops. It is that of a node
// (disk_reserve_mib).
const etcdReserve = 256 << 20

// lowDisk is the free space of etcd's disk below which serve warns. It warns long before the disk is full: etcd must
// still be able to store the warning. roomyDisk ends it.
const (
	lowDisk   = 1 << 30
	roomyDisk = lowDisk / 8 * 9
)

// freeBytes returns the room on the disk of a folder.
func freeBytes(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("cannot read the free space of %s: %w", dir, err)
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil //nolint:gosec // a disk has fewer than 2⁶³ bytes
}

// fitsBesideEtcd refuses to write bytes that etcd's disk has no room for.
func fitsBesideEtcd(dir string, bytes int64) error {
	free, err := freeBytes(dir)
	if err == nil && free-etcdReserve < bytes {
		err = fmt.Errorf("%s has %d MiB free; the snapshot and the archive need %d, and %d are reserved for etcd\n"+
			"make room on that disk", dir, free>>20, (bytes+1<<20-1)>>20, etcdReserve>>20)
	}
	return err
}

// disk is what serve recorded of etcd's disk.
type disk struct {
	looked bool // a record of an earlier serve may exist before
	low    bool
	free   int64     // of the last record
	at     time.Time // of the last record
}

// checkDisk returns an error if etcd's disk is nearly full, and keeps its record in etcd: status and doctor read it. The
// text of the error repeats while that lasts: the log contains it once.
func (t *Tasks) checkDisk(ctx context.Context) error {
	free, err := freeBytes(t.EtcdDir)
	if err != nil {
		return err
	}
	next, write := t.disk.next(free, t.Now())
	switch {
	case !write:
	case next.low:
		path, _ := filepath.Abs(t.EtcdDir) // "" beside an error: the record then has no path
		err = cluster.In(t.DB).NoteDisk(ctx, cluster.Disk{Hostname: t.Hostname, Path: path, Free: free, At: next.at})
	default:
		err = cluster.In(t.DB).ForgetDisk(ctx)
	}
	if err == nil {
		t.disk = next
	}
	if next.low {
		err = errors.Join(fmt.Errorf("the disk of %s has less than %d MiB free", t.EtcdDir, lowDisk>>20), err)
	}
	return err
}

// next judges the free space. write means that etcd has another state, or one that is old or far from the present one.
func (d disk) next(free int64, now time.Time) (next disk, write bool) {
	low := free < lowDisk || d.low && free < roomyDisk
	switch {
	case low == d.low && d.looked && (!low || now.Sub(d.at) < cluster.DiskRecorded && free >= d.free/2 && free <= d.free*2):
		return d, false
	case low:
		return disk{looked: true, low: true, free: free, at: now}, true
	}
	return disk{looked: true}, true
}
