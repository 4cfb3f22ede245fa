package content

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file of a dead process that can't be removed must not block all later releases.
func TestWhatCannotBeSweptStopsNoInstallation(t *testing.T) {
	dir := onSmallDisk(t, "size=64m")
	if dir == "" {
		return
	}
	s := newStore(t, dir)
	stuck := filepath.Join(s.staging(), "trash.stuck", "mount")
	if err := os.MkdirAll(stuck, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", stuck, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) })
	r, src := publish(t, golden)
	mustInstall(t, s, src, r)
	if _, _, err := s.Collect(nil, 3); !errors.Is(err, unix.EBUSY) {
		t.Errorf("nobody is told of it: %v", err)
	}
}

// The owner of a release's file, or a user who may write to its folder, decides what root applies.
func TestOwnersAndModesOfFoldersAreLookedAt(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	src := objects{}
	r := src.build(t, modules(random, 40).make(t), Record{}, "1.0.0")
	spoils := map[string]func(string) error{
		"folder for everybody": func(p string) error { return os.Chmod(filepath.Dir(p), 0o777) },
	}
	if os.Geteuid() == 0 { // only root can change the owner of files
		spoils["folder of another"] = func(p string) error { return os.Chown(filepath.Dir(p), 65534, -1) }
		spoils["file of another"] = func(p string) error { return os.Chown(p, 65534, -1) }
	}
	for name, spoil := range spoils {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, t.TempDir())
			mustInstall(t, s, src, r)
			p := filepath.Join(s.Path(r.Tree), "modules/m1/manifests/f1.pp")
			if err := spoil(p); err != nil {
				t.Fatal(err)
			}
			k := mustLoad(t, s, r.Tree)
			if flaws, err := survey(s.Path(r.Tree), k.manifest, nil); err != nil || len(flaws) != 1 {
				t.Errorf("%v, %v", flaws, err)
			}
			if err := s.Verify(r.Tree); err != nil {
				t.Error(err)
			}
			if flaws, err := survey(s.Path(r.Tree), k.manifest, nil); err != nil || len(flaws) != 0 {
				t.Errorf("after Verify: %v, %v", flaws, err)
			}
		})
	}
}

// spendthrift returns deltas that are larger than recorded.
type spendthrift struct {
	objects
	asked int64
}

func (s *spendthrift) Deltas(_ context.Context, _ string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for range to - from + 1 {
		s.asked++
		all = append(all, make([]byte, MaxStored))
	}
	return all, nil
}

// Oversized deltas from etcd or a mirror must not fill a node's memory before they are checked.
func TestDeltasAreBoundedByTheirRecords(t *testing.T) {
	src := &spendthrift{}
	from := Chain{Line: "1.0.0", Seq: 10, Stored: 0}
	to := Chain{Line: "1.0.0", Seq: 310, Stored: 6 << 20}
	if _, err := fetchDeltas(t.Context(), src, to, from); err == nil {
		t.Error("more came than the records say, and nobody minded")
	}
	if src.asked > 50 {
		t.Errorf("%d deltas of %d bytes were taken", src.asked, MaxStored)
	}
}
