package serve

import (
	"fmt"
	"syscall"
)

// etcdReserve is the room that etcd needs on its disk: without room for its log it stops. It is that of a node
// (disk_reserve_mib).
const etcdReserve = 256 << 20

// lowDisk is the free space of etcd's disk below which serve warns.
const lowDisk = 1 << 30

// freeBytes returns the room on the disk of a folder.
func freeBytes(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("cannot read the free space of %s: %w", dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil //nolint:gosec // a disk has fewer than 2⁶³ bytes
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

// checkDisk returns an error if etcd's disk is nearly full. Its text repeats while that lasts: the log contains it once.
func checkDisk(dir string) error {
	free, err := freeBytes(dir)
	if err == nil && free < lowDisk {
		err = fmt.Errorf("the disk of %s has less than %d MiB free", dir, lowDisk>>20)
	}
	return err
}
