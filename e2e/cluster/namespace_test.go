//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"pulley/internal/testbed/puppettest"
)

// binEnv is set in the inner process: the folder of the released commands.
const binEnv = "PULLEY_CLUSTER_BIN"

// segmentBytes is the size of etcd's log files, which etcd reserves in advance. Disks of members may then be small.
const segmentBytes = 4 << 20

func TestMain(m *testing.M) {
	puppettest.RunAsPuppet()
	if filepath.Base(os.Args[0]) == "etcd" { // etcd's own program, of the version that Pulley embeds
		wal.SegmentSizeBytes = segmentBytes
		etcdmain.Main(os.Args)
		os.Exit(0)
	}
	code, err := 1, error(nil)
	if os.Getenv(binEnv) == "" {
		code, err = outer()
	} else if err = inner(); err == nil {
		code = m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// outer builds the commands, and runs this program again in namespaces.
func outer() (int, error) {
	if os.Getuid() != 0 {
		return 1, errors.New("cannot make networks and disks for members: not root\nrun these tests as root; they change nothing of the host")
	}
	for _, program := range []string{"ip", "flock", "puppet"} {
		if _, err := exec.LookPath(program); err != nil {
			return 1, fmt.Errorf("cannot run a cluster: %w\ninstall it with: e2e/packages iproute2 util-linux puppet-agent", err)
		}
	}
	bin, err := os.MkdirTemp("", "pulley-cluster-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(bin)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin+"/", "../../cmd/pulley", "../../cmd/pulley-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("cannot build the commands: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = []string{binEnv + "=" + bin, "NO_PROXY=*", "no_proxy=*", "SUDO_USER=ann", "PULLEY_ENVIRONMENT=dev"}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(v, "PULLEY_") || name == minutesEnv || name == seedEnv || name == rolloutsEnv {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL, // first process of its PID namespace: its end ends all others
	}
	// The signal is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("cannot run the tests in namespaces: %w", err)
	}
	return 0, nil
}

// The network of all members, in a namespace without other interfaces. Members have 10.78.0.1 and so on.
const (
	bridgeName = "pulley0"
	ownAddress = "10.78.0.254" // of the serves, the operators and the nodes
)

// inner prepares the namespaces. The first mount call prevents propagation of all later ones to the host.
func inner() error {
	if os.Getpid() != 1 {
		return errors.New("cannot run the tests: " + binEnv + " is set outside of their namespace\nunset it")
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	for _, s := range [][2]string{{"/proc", "proc"}, {"/sys", "sysfs"}, {"/run", "tmpfs"}} { // ip keeps the names of networks below /run
		err = errors.Join(err, unix.Mount(s[1], s[0], s[1], unix.MS_NOSUID|unix.MS_NODEV, ""))
	}
	if err != nil {
		return fmt.Errorf("cannot mount in the tests' namespace: %w", err)
	}
	for _, args := range []string{
		"link set lo up",
		"link add " + bridgeName + " address 02:70:75:6c:6c:65 type bridge",
		"link set " + bridgeName + " up",
		"address add " + ownAddress + "/24 dev " + bridgeName,
	} {
		if err := ip(args); err != nil {
			return err
		}
	}
	return nil
}

func ip(args string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run ip %s: %w: %s", args, err, out)
	}
	return nil
}
