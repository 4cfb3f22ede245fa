//go:build e2e

package nspawn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/drivers/local"
	driver "pulley/internal/drivers/nspawn"
)

// Where the inner process finds what the outer one prepared, whatever is mounted elsewhere.
const (
	binDir    = "/run/pulley/bin"      // the commands as they are shipped
	imageDir  = "/run/pulley/image"    // what machines boot from
	groupRoot = "/sys/fs/cgroup"       // control groups, version 2
	groupEnv  = "PULLEY_NSPAWN_CGROUP" // tells the inner process that it is it, and its control group
)

// Main runs the tests of m in namespaces of their own. It returns the exit code.
func Main(m *testing.M) int {
	code, err := 1, error(nil)
	if os.Getenv(groupEnv) == "" {
		code, err = outer()
	} else if err = inner(); err == nil {
		// Most of these tests wait for cron most of the time. The command line can say otherwise.
		if err = flag.Set("test.parallel", "32"); err == nil {
			code = m.Run()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// outer prepares what needs the host (the image, the commands) and runs this very program again, inside.
func outer() (int, error) {
	if os.Getuid() != 0 {
		return 1, errors.New("cannot boot machines: not root\nrun these tests as root, on a machine where that does no harm")
	}
	for _, program := range []string{"debootstrap", "systemd-nspawn", "unshare", "ip", "isoinfo", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			return 1, fmt.Errorf("cannot boot machines: %w\ninstall it with: e2e/packages debootstrap systemd-container iproute2 genisoimage curl", err)
		}
	}
	base := filepath.Join(os.TempDir(), "pulley-nspawn")
	if _, err := local.Sweep(base); err != nil { // of runs that were killed
		return 1, err
	}
	scratch, err := local.NewScratch(base)
	if err != nil {
		return 1, err
	}
	defer scratch.Close()
	build := exec.Command("go", "build", "-trimpath", "-o", scratch.Dir+"/", "../../cmd/pulley", "../../cmd/pulley-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("cannot build the commands: %w\n%s", err, out)
	}
	debian, err := driver.OpenImage(context.Background(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return 1, err
	}
	defer debian.Close()
	group, err := newGroup()
	if err != nil {
		return 1, err
	}
	defer group.remove()
	code, err := group.enter(scratch.Dir, debian.Dir)
	if left := group.processes(); left != "" {
		err = errors.Join(err, fmt.Errorf("processes were left behind: %s", left))
		code = 1
	}
	return code, err
}

// group is a control group of the host, for the inner process and all machines.
type group struct{ dir string }

// newGroup makes a group below the one of this process, as a service manager would.
func newGroup() (group, error) {
	root := groupRoot
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		root = filepath.Join(groupRoot, "unified")
		if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			return group{}, errors.New("cannot boot machines: this machine has no control groups, version 2, in " + groupRoot)
		}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return group{}, err
	}
	var parent string
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			parent = filepath.Join(root, path)
		}
	}
	old, _ := filepath.Glob(filepath.Join(parent, "pulley-nspawn-*")) // of runs that were killed; empty, or rmdir refuses
	for _, dir := range old {
		removeGroup(dir)
	}
	dir := filepath.Join(parent, fmt.Sprintf("pulley-nspawn-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return group{}, fmt.Errorf("cannot make a control group: %w", err)
	}
	return group{dir}, nil
}

// enter runs this program again, inside, until it ends.
func (g group) enter(bin, debian string) (int, error) {
	fd, err := os.Open(g.dir)
	if err != nil {
		return 1, err
	}
	defer fd.Close()
	var fs unix.Statfs_t
	root := groupRoot
	if err := unix.Statfs(root, &fs); err == nil && fs.Type != unix.CGROUP2_SUPER_MAGIC {
		root = filepath.Join(root, "unified")
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), groupEnv+"="+strings.TrimPrefix(g.dir, root), "PULLEY_NSPAWN_BIN="+bin, "PULLEY_NSPAWN_IMAGE="+debian)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UseCgroupFD: true,
		CgroupFD:    int(fd.Fd()),
		Pdeathsig:   syscall.SIGKILL, // the first process of its PID namespace: with it everything ends
	}
	// The signal is sent when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("cannot enter namespaces: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-signals:
			_ = cmd.Process.Kill()
		case <-ended:
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("the tests in their namespaces ended: %w", err)
	}
	return 0, nil
}

// processes lists those that are still in the group a while after its first process ended.
func (g group) processes() string {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = nil
		_ = filepath.WalkDir(g.dir, func(path string, _ os.DirEntry, _ error) error {
			if filepath.Base(path) == "cgroup.procs" {
				b, _ := os.ReadFile(path)
				left = append(left, strings.Fields(string(b))...)
			}
			return nil
		})
		if left == nil {
			return ""
		}
	}
	return strings.Join(left, " ")
}

// remove ends what is left, and removes the group.
func (g group) remove() {
	_ = os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	g.processes()
	removeGroup(g.dir)
}

// removeGroup removes a group with those below it. A group in which a process lives stays.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir) // removes folders only when empty, which is all that is wanted
}

// inner makes the surroundings of the tests. Its first mount is what keeps all others away from the host.
func inner() error {
	must := func(what string, err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("cannot %s in the tests' namespace: %w", what, err)
	}
	if os.Getpid() != 1 {
		return errors.New(groupEnv + " is set, and this is no namespace of the tests: leave it unset")
	}
	if err := must("keep mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	for _, s := range []struct{ what, dir, kind string }{
		{"mount /proc", "/proc", "proc"},
		{"mount /sys", "/sys", "sysfs"},
		{"mount control groups", groupRoot, "cgroup2"},
		{"mount /run", "/run", "tmpfs"}, // systemd-nspawn keeps locks and sockets there
	} {
		if err := must(s.what, unix.Mount(s.kind, s.dir, s.kind, unix.MS_NOSUID|unix.MS_NODEV, "")); err != nil {
			return err
		}
	}
	for to, from := range map[string]string{binDir: os.Getenv("PULLEY_NSPAWN_BIN"), imageDir: os.Getenv("PULLEY_NSPAWN_IMAGE")} {
		if err := must("make "+to, os.MkdirAll(to, 0o755)); err != nil {
			return err
		}
		if err := must("bind "+from, unix.Mount(from, to, "", unix.MS_BIND, "")); err != nil {
			return err
		}
	}
	// Files of machines and tests, and what systemd-nspawn leaves in /tmp when it is killed.
	if err := must("mount /tmp", unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
		return err
	}
	return bridge()
}
