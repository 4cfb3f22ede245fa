package puppet

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/proctree"
)

var puppetName = regexp.MustCompile(`puppet(-.*)?$`)

// isPuppet applies Puppet's own test for a held or stale lock (puppet/util/pidlock.rb). An existing process that /proc
// does not show counts as Puppet.
func isPuppet(pid int) bool {
	p, ok := proctree.Read(pid)
	if !ok {
		err := syscall.Kill(pid, 0)
		return err == nil || errors.Is(err, syscall.EPERM)
	}
	if p.Zombie {
		return false
	}
	if puppetName.MatchString(p.Comm) {
		return true
	}
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.Contains(p.Comm, "ruby") && bytes.Contains(args, []byte("puppet"))
}

// sinceBoot returns a clock that cannot be set and that continues while the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// bootID identifies this boot of the machine; "" if the kernel does not provide it.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// hardWait limits the wait for a process after SIGKILL. Only a process that is blocked in the kernel takes longer.
const hardWait = 10 * time.Second

// stop ends a Puppet and the processes that it started and waits for. Puppet starts each command in its own session, so that
// a signal to its process group does not reach the commands. A service that became a child of init stays. Puppet receives SIGTERM first, and ends at once.
// A running command may use the first half of grace to exit, because a killed package manager breaks the next run. Then
// the command receives SIGTERM. After grace, all remaining processes receive SIGKILL. stop returns false if a process
// survives SIGKILL. gone reports whether Puppet itself has exited.
func stop(puppet proctree.Process, grace time.Duration, gone func() bool) bool {
	tree := proctree.Of(puppet)
	_ = syscall.Kill(-puppet.PID, syscall.SIGTERM)
	began := time.Now()
	asked := false
	for time.Since(began) < grace {
		if tree = tree.Grow(); gone() && !tree.Alive() {
			return true
		}
		if !asked && time.Since(began) > grace/2 {
			asked = true
			tree.Signal(syscall.SIGTERM)
		}
		pause(began)
	}
	for began = time.Now(); time.Since(began) < hardWait; pause(began) {
		tree = tree.Grow()
		if !gone() {
			_ = syscall.Kill(-puppet.PID, syscall.SIGKILL)
		}
		tree.Signal(syscall.SIGKILL)
		if gone() && !tree.Alive() {
			return true
		}
	}
	return false
}

// pause waits between two checks: shortly at first, then a tenth of a second.
func pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/10, 5*time.Millisecond), 100*time.Millisecond))
}
