package content

import (
	"fmt"
	"syscall"
)

// plan is what installing a tree takes. It is for a node that holds no part of the tree yet: everything is fetched.
type plan struct {
	packs  []Object
	bytes  int64 // on disk, in whole blocks
	inodes int64
}

func planInstall(r Record, m *Manifest, blockSize int64) plan {
	blocks := func(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }
	p := plan{packs: r.Packs, bytes: blockSize, inodes: 1} // the root
	for _, e := range m.Entries {
		p.inodes++
		if e.Kind == KindDirectory {
			p.bytes += blockSize
		} else {
			p.bytes += blocks(e.Size)
		}
	}
	return p
}

// room is what a file system has.
type room struct {
	blockSize               int64
	freeBytes, totalBytes   int64
	freeInodes, totalInodes int64 // both 0 where the file system makes inodes as it needs them
}

// DefaultReserve is how much an installation leaves free for the rest of the machine, in bytes.
const DefaultReserve = 256 << 20

// NoSpaceError says that a tree was not installed because that would fill the disk. errors.Is(err, syscall.ENOSPC) is true
// of it, as it is when the disk fills up while a tree is being written. Collecting old trees may help.
type NoSpaceError struct {
	Dir                         string
	NeedBytes, NeedInodes       int64
	FreeBytes, FreeInodes       int64
	ReserveBytes, ReserveInodes int64 // what has to stay free
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("not enough room in %s: %d bytes and %d inodes are needed, %d and %d are free, %d and %d of them stay reserved\n"+
		"free some space there",
		e.Dir, e.NeedBytes, e.NeedInodes, e.FreeBytes, e.FreeInodes, e.ReserveBytes, e.ReserveInodes)
}

func (e *NoSpaceError) Unwrap() error { return syscall.ENOSPC }

// fits says why p does not fit, or nil. The reserve is reserveBytes, or 3% of the file system where that is more: taking
// the last block or inode would hurt others more than an old release hurts this node.
func (p plan) fits(r room, dir string, reserveBytes int64) error {
	e := &NoSpaceError{
		Dir: dir, NeedBytes: p.bytes, NeedInodes: p.inodes, FreeBytes: r.freeBytes, FreeInodes: r.freeInodes,
		ReserveBytes: max(reserveBytes, r.totalBytes/100*3), ReserveInodes: r.totalInodes / 100 * 3,
	}
	if e.NeedBytes > e.FreeBytes-e.ReserveBytes || r.totalInodes > 0 && e.NeedInodes > e.FreeInodes-e.ReserveInodes {
		return e
	}
	return nil
}
