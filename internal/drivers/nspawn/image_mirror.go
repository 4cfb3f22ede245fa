package nspawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// debianMirror is where Debian is installed from: what PULLEY_DEBIAN_MIRROR says, else where this machine's own apt gets it.
func debianMirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("PULLEY_DEBIAN_MIRROR"); mirror != "" {
		return mirror, nil
	}
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask apt for a mirror of Debian: %w\nname one in PULLEY_DEBIAN_MIRROR", err)
	}
	of := map[string]string{} // by the codename of what is there
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[1] == "main" && !strings.Contains(f[0], "-") && strings.Contains(f[2], "/debian") {
			of[f[0]] = f[2]
			if of[""] == "" {
				of[""] = f[2]
			}
		}
	}
	if mirror := cmp.Or(of[suite], of[""]); mirror != "" {
		return mirror, nil
	}
	return "", errors.New("cannot find a mirror of Debian in apt's sources\nname one in PULLEY_DEBIAN_MIRROR")
}

// sweepImages removes images that an older script made, unless somebody boots from them right now.
func sweepImages(cache, keep string) {
	locks, _ := filepath.Glob(filepath.Join(cache, "*.lock"))
	for _, path := range locks {
		dir := strings.TrimSuffix(path, ".lock")
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if dir == keep || err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
			_ = os.RemoveAll(dir + ".new")
		}
		_ = lock.Close()
	}
}

// pinned runs a command on a thread that lives until it ends: a process with a Pdeathsig dies with the thread that forked it.
func pinned(run func() ([]byte, error)) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return run()
}

// need says how to install what is missing of these programs.
func need(programs ...string) error {
	packages := map[string]string{"systemd-nspawn": "systemd-container", "unshare": "util-linux"}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed\nin Debian: apt-get install %s", program, cmp.Or(packages[program], program))
		}
	}
	return nil
}

// tail returns the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
