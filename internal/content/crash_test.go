//go:build failpoint

package content

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const crashDir = "PULLEY_TEST_CRASH_DIR"

// TestCrashChild is what dies: it installs and activates the tree of a folder.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		return // the parent starts it
	}
	r, src := mustBuild(t, filepath.Join(dir, "tree"))
	s := newStore(t, filepath.Join(dir, "state"))
	mustInstall(t, s, src, r)
	mustActivate(t, s, r.Tree)
}

// A power switch, an OOM kill or a reboot in the middle must leave the node on a whole release, and the next run must
// end where it would have ended without.
func TestCrashAnywhere(t *testing.T) {
	for i, place := range CrashPoints {
		for _, how := range []string{"exit", "kill"} {
			t.Run(place+"="+how, func(t *testing.T) {
				dir := t.TempDir()
				whole().write(t, filepath.Join(dir, "tree"))
				r, src := mustBuild(t, filepath.Join(dir, "tree"))
				old, oldSrc := publish(t, golden)
				s := newStore(t, filepath.Join(dir, "state"))
				mustInstall(t, s, oldSrc, old)
				mustActivate(t, s, old.Tree)

				crash(t, dir, place, how)

				current, err := s.Current()
				if swapped := place == "install:after-swap"; err != nil || swapped && current != r.Tree || !swapped && current != old.Tree {
					t.Errorf("current is %q, %v", current, err)
				}
				trees, err := s.installed()
				if want := 1 + min(1, i/5); err != nil || len(trees) != want {
					t.Errorf("%d trees, %v; want %d", len(trees), err, want)
				}
				for _, tree := range trees {
					if err := s.Verify(tree.tree); err != nil {
						t.Error(err)
					}
				}

				s = newStore(t, filepath.Join(dir, "state"))
				mustInstall(t, s, src, r)
				mustActivate(t, s, r.Tree)
				wantTrees(t, s, old.Tree, r.Tree)
				if removed, _, err := s.Collect(nil, 0); err != nil || len(removed) != 1 {
					t.Errorf("collect: %q, %v", removed, err)
				}
			})
		}
	}
}

func crash(t *testing.T, dir, place, how string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, "PULLEY_FAILPOINT="+place+"="+how)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("it did not die: %v\n%s", err, out)
	}
	status := exit.Sys().(syscall.WaitStatus)
	if how == "kill" && status.Signal() != syscall.SIGKILL || how == "exit" && exit.ExitCode() != 3 {
		t.Fatalf("it died otherwise: %v\n%s", err, out)
	}
}
