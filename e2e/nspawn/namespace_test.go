//go:build e2e

package nspawn

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	driver "pulley/internal/machines/drivers/nspawn"
)

// The paths and the variable that the outer process prepares for the inner one.
const (
	binDir    = "/run/pulley/bin"      // the released commands
	imageDir  = "/run/pulley/image"    // the machines' boot image
	groupRoot = "/sys/fs/cgroup"       // control groups, version 2
	groupEnv  = "PULLEY_NSPAWN_CGROUP" // set in the inner process: its control group
)

// main runs the tests of m in their own namespaces. It returns the exit code.
func main(m *testing.M) int {
	code, err := 1, error(nil)
	if os.Getenv(groupEnv) == "" {
		code, err = outer()
	} else if err = inner(); err == nil {
		// Most of these tests wait most of the time. takeSlots limits the others.
		if err = flag.Set("test.parallel", "32"); err == nil {
			code = m.Run()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// outer prepares the image and the commands on the host, and runs this program again in namespaces.
func outer() (int, error) {
	if os.Getuid() != 0 {
		return 1, errors.New("cannot boot machines: not root\nrun these tests as root, on a machine where that does no harm")
	}
	for _, program := range []string{"debootstrap", "systemd-nspawn", "unshare", "ip", "isoinfo", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			return 1, fmt.Errorf("cannot boot machines: %w\ninstall it with: e2e/packages debootstrap systemd-container iproute2 genisoimage curl", err)
		}
	}
	bin, err := newBin()
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(bin)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "../../cmd/pulley", "../../cmd/pulley-agent")
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
	code, err := group.enter(bin, debian.Dir)
	if left := group.processes(); left != "" {
		err = errors.Join(err, fmt.Errorf("these processes are left: %s", left))
		code = 1
	}
	return code, err
}

// newBin returns a folder for the commands, and removes those of killed runs.
func newBin() (string, error) {
	base := filepath.Join(os.TempDir(), "pulley-nspawn-")
	old, err := filepath.Glob(base + "[0-9]*")
	for _, dir := range old {
		if !exists(filepath.Join("/proc", strings.TrimPrefix(dir, base))) {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	bin := base + strconv.Itoa(os.Getpid())
	return bin, errors.Join(err, os.Mkdir(bin, 0o700))
}

// group is a control group of the host, for the inner process and all machines.
type group struct{ dir string }

// newGroup creates a group below that of this process.
func newGroup() (group, error) {
	root := groupRoot
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		root = filepath.Join(groupRoot, "unified")
		if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			return group{}, errors.New("cannot boot machines: no control groups of version 2 in " + groupRoot)
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
	old, _ := filepath.Glob(filepath.Join(parent, "pulley-nspawn-*")) // of killed runs
	for _, dir := range old {
		removeGroup(dir)
	}
	dir := filepath.Join(parent, fmt.Sprintf("pulley-nspawn-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return group{}, fmt.Errorf("cannot create a control group: %w", err)
	}
	return group{dir}, nil
}

// enter runs this program again in namespaces until it ends.
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
		Pdeathsig:   syscall.SIGKILL, // first process of its PID namespace: its end ends all others
	}
	// The signal is sent when the thread that started the process ends.
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

// processes waits until the group has no processes, and returns those that remain.
func (g group) processes() string {
	var left []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
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

// remove kills the remaining processes and removes the group.
func (g group) remove() {
	_ = os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	g.processes()
	removeGroup(g.dir)
}

// removeGroup removes a group and those below it. A group with a process stays.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir) // fails if the group has a process
}

// inner prepares the namespaces of the tests. The first mount call prevents propagation of all later ones to the host.
func inner() error {
	must := func(what string, err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("cannot %s in the tests' namespace: %w", what, err)
	}
	if os.Getpid() != 1 {
		return errors.New("cannot run the tests: " + groupEnv + " is set outside of their namespace\nunset it")
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
	// For the files of machines and tests, and for the leftovers of a killed systemd-nspawn.
	if err := must("mount /tmp", unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
		return err
	}
	return bridge()
}

// The bridge of all machines, in a network namespace without other interfaces.
const (
	bridgeName  = "pulley0"
	networkBits = 16 // 10.77.0.0: .0.x are servers, .1.x machines
)

var lastServer, lastMachine atomic.Int32

func bridge() error {
	for _, args := range []string{
		"link set lo up",
		// With a fixed hardware address: otherwise the bridge uses that of a port, and changes it when that machine
		// ends.
		"link add " + bridgeName + " address 02:70:75:6c:6c:65 type bridge",
		"link set " + bridgeName + " up",
		"address add 10.77.255.254/16 dev " + bridgeName, // makes the bridge reachable from this namespace
	} {
		if err := ip(args); err != nil {
			return err
		}
	}
	return nil
}

// serverAddress adds an address to the bridge for the server of one test.
func serverAddress(t *testing.T) string {
	t.Helper()
	address := fmt.Sprintf("10.77.0.%d", lastServer.Add(1))
	if err := ip(fmt.Sprintf("address add %s/%d dev %s", address, networkBits, bridgeName)); err != nil {
		t.Fatal(err)
	}
	return address
}

// machineNumber returns a unique number among these tests, for a machine's name and address.
func machineNumber() int { return int(lastMachine.Add(1)) }

func ip(args string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run ip %s: %w: %s", args, err, out)
	}
	return nil
}

// ping returns an error unless the kernel of a machine answers on the bridge.
func ping(address string) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "9"), time.Second)
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) { // an answer: no program listens on the port
		return nil
	}
	return err
}

// allMachines is whether the tests run all of their cases, each with a machine of its own.
var allMachines = os.Getenv("PULLEY_TEST_MACHINES") == "all"

func TestMain(m *testing.M) {
	driver.MaybeInit() // a supervisor runs this program under another name
	maybeRequest()
	os.Exit(main(m))
}

// The other scenarios rely on real cloud-init, cron, networks and power cuts.
func TestMachinesAreReal(t *testing.T) {
	t.Parallel()
	m := NewMachine(t)
	m.Seed(map[string]string{
		"meta-data": "instance-id: first\nlocal-hostname: compute1\n",
		"user-data": "#!/bin/sh\necho ran >>/root/seed\necho '* * * * * root echo ticked >>/root/cron' >/etc/cron.d/tick\n",
	})
	m.boot()
	file := func(name, want string) func() string {
		return func() string {
			got, _ := m.read(name)
			if got == want {
				return ""
			}
			return name + " has " + got
		}
	}
	m.Wait("the seed's script", file("/root/seed", "ran\n"))
	if err := ping(m.Address); err != nil {
		t.Errorf("%v\n%s", err, m.story())
	}
	id := strings.TrimSpace(m.Read("/etc/machine-id"))
	if len(id) != 32 || m.Read("/etc/hostname") != "compute1\n" {
		t.Errorf("machine id %q, hostname %q", id, m.Read("/etc/hostname"))
	}
	m.cut()
	if ping(m.Address) == nil {
		t.Error("a machine that is off answers")
	}

	m.boot()
	m.Wait("cron", file("/root/cron", "ticked\n"))
	if seed, now := m.Read("/root/seed"), strings.TrimSpace(m.Read("/etc/machine-id")); seed != "ran\n" || now != id {
		t.Errorf("after the second boot the seed is %q, and the machine ID is %s", seed, now)
	}
	if _, err := m.In("systemctl", "--no-block", "poweroff"); err != nil {
		t.Error(err)
	}
	m.off()
	other := m.duplicate()
	other.boot()
	other.Wait("a machine ID of its own", func() string {
		if now := strings.TrimSpace(other.Read("/etc/machine-id")); len(now) == 32 && now != id {
			return ""
		}
		return "its machine ID is " + strings.TrimSpace(other.Read("/etc/machine-id"))
	})
	other.Wait("its address", func() string {
		if err := ping(other.Address); err != nil {
			return err.Error()
		}
		return ""
	})
}
