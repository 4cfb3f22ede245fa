package serve

import (
	"testing"
	"time"

	"pulley/internal/etcd/cluster"
)

// Status and doctor must know of a nearly full disk before etcd stops. A record every few seconds would fill the disk.
func TestDiskIsRecordedWhenItsStateChanges(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var d disk
	for i, c := range []struct {
		free  int64
		after time.Duration
		write bool
		low   bool
	}{
		{free: 5000 * mib, write: true}, // the record of an earlier serve may exist
		{free: 4000 * mib},
		{free: 1000 * mib, write: true, low: true},
		{free: 900 * mib, low: true},
		{free: 499 * mib, write: true, low: true}, // half
		{free: 1030 * mib, write: true, low: true},
		{free: 1030 * mib, low: true},                                           // above the limit, and below the end of the warning
		{free: 1030 * mib, after: cluster.DiskRecorded, write: true, low: true}, // before etcd deletes the record
		{free: 1200 * mib, write: true},
		{free: 1030 * mib},
		{free: 0, write: true, low: true},
		{free: 0, low: true},
	} {
		at = at.Add(c.after)
		next, write := d.next(c.free, at)
		if d = next; write != c.write || d.low != c.low {
			t.Errorf("step %d: written %v, low %v", i, write, d.low)
		}
	}
}
