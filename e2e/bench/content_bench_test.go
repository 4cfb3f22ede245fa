//go:build bench

package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	coldRounds   = 5
	updateRounds = 10
	lastCommits  = 50 // range for counting bytes and requests
)

// Measures the cost, for a node and for etcd, of following a control repository, beside other programs for this
// purpose.
func TestBenchContent(t *testing.T) {
	requirePeers(t, "g10k", "r10k", "casync", "rsync", "git", "tar")
	dir := t.TempDir()
	h := newHistory(t, dir)
	p := newPulley(t, h, dir)
	others := newPeers(h, filepath.Join(dir, "peers"))
	room := func(name string) string {
		d := filepath.Join(dir, name)
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		return d
	}
	fmt.Printf("\n### %s\n\n%s\nPeers: %s.\n\n", h.name, surroundings(dir), versions())

	benchPublish(t, p)

	last := commits
	if err := errors.Join(others.publish(last), others.archive()); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("Cold: into an empty folder, %d runs each, in turn\n\n", coldRounds)
	printTimings(inTurn(t, coldRounds, func(int) string { return h.hashes[last] }, append([]job{p.cold(room("cold"), last)}, others.cold(room("cold"))...)))

	first := last - updateRounds
	if err := others.publish(first); err != nil {
		t.Fatal(err)
	}
	jobs := append(p.update(room("update"), first), others.update(room("update"))...)
	jobs[0].prepare = func(round int) error { return others.publish(first + 1 + round) }
	fmt.Printf("Update: by one commit, %d runs each, in turn\n\n", updateRounds)
	printTimings(inTurn(t, updateRounds, func(round int) string { return h.hashes[first+1+round] }, jobs))

	benchTransfers(p, room("transfers"))
	benchReaders(t, p, others, room("readers"))
	benchFleet(t, p, room("fleet"))
	fmt.Printf("Peak memory of a node's process: %.1f MiB cold, %.1f MiB in an update (wanted: at most 64)\n\n", p.peak["cold"]/1024, p.peak["update"]/1024)
}

// surroundings describes the machine of the measurement.
func surroundings(dir string) string {
	var u unix.Utsname
	var fs unix.Statfs_t
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	if err := unix.Statfs(dir, &fs); err != nil {
		return err.Error()
	}
	name, ok := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs"}[fs.Type]
	if !ok {
		name = fmt.Sprintf("file system %x", fs.Type)
	}
	return fmt.Sprintf("%d CPUs, Linux %s, %s, %s.", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), name, runtime.Version())
}

// benchPublish publishes the commits of the history in order. It prints the time and the size in etcd.
func benchPublish(t *testing.T, p *pulley) {
	t.Helper()
	var took figures
	var inUse, values, grownInUse, grownValues float64
	for i := range p.h.commits {
		if err := p.h.checkout(i); err != nil {
			t.Fatal(err)
		}
		if i == commits-lastCommits+1 {
			inUse, values = p.compact()
		}
		s := p.publish(i)
		if i > commits-lastCommits {
			took = append(took, s)
		}
	}
	grownInUse, grownValues = p.compact()
	_, files := p.h.names(t)
	fmt.Println("| publish | |\n|---|---|")
	fmt.Printf("| a release, of %d files, after a change, seconds | %s |\n", len(files), took.spread(3))
	fmt.Printf("| database in use, a release, over %d releases, KiB | %.2f |\n", lastCommits, (grownInUse-inUse)/lastCommits/1024)
	fmt.Printf("| keys and values, a release, KiB | %.2f |\n", (grownValues-values)/lastCommits/1024)
	fmt.Printf("| all keys and values, KiB | %.0f |\n\n", grownValues/1024)
}

// benchTransfers counts a node's reads from etcd: for each of the last commits, for all of them at once, and for an
// empty node. They include the release's signed record.
func benchTransfers(p *pulley, dir string) {
	p.t.Helper()
	first := commits - lastCommits
	through := startTap(p.t, p.endpoint)
	cold := p.measured(through, filepath.Join(dir, "cold"), commits)
	behind := filepath.Join(dir, "behind")
	if err := p.install(p.endpoint, behind, first); err != nil {
		p.t.Fatal(err)
	}
	all := p.measured(through, behind, commits)
	node := filepath.Join(dir, "node")
	if err := p.install(p.endpoint, node, first); err != nil {
		p.t.Fatal(err)
	}
	var wire, payload, requests figures
	for i := first + 1; i <= commits; i++ {
		one := p.measured(through, node, i)
		wire, payload, requests = append(wire, one.wire), append(payload, one.payload), append(requests, one.requests)
	}
	fmt.Println("| read from etcd | bytes on the wire | of them gRPC payload | requests |\n|---|---|---|---|")
	fmt.Printf("| by one commit, each of the last %d | %s | %s | %s |\n", lastCommits, wire.spread(0), payload.spread(0), requests.spread(0))
	fmt.Printf("| %d commits behind | %.0f | %.0f | %.0f |\n", lastCommits, all.wire, all.payload, all.requests)
	fmt.Printf("| cold | %.0f | %.0f | %.0f |\n\n", cold.wire, cold.payload, cold.requests)
	fmt.Printf("%d commits behind reads %.1f %% of what a cold start reads.\n\n", lastCommits, 100*all.wire/cold.wire)
}
