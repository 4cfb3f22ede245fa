package puppet

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/child"

	"pulley/internal/pattern"
)

var puppetName = pattern.Lazy(`puppet(-.*)?$`)

// isPuppet applies Puppet's own test for a held or stale lock (puppet/util/pidlock.rb). An existing process that /proc
// does not show counts as Puppet.
func isPuppet(pid int) bool {
	p, ok := child.Read(pid)
	if !ok {
		err := syscall.Kill(pid, 0)
		return err == nil || errors.Is(err, syscall.EPERM)
	}
	if p.Zombie {
		return false
	}
	if puppetName().MatchString(p.Comm) {
		return true
	}
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.Contains(p.Comm, "ruby") && bytes.Contains(args, []byte("puppet"))
}

// sinceBoot returns a clock that cannot be set and that continues while the machine sleeps.
func sinceBoot() time.Duration {
	const bootTime = 7 // CLOCK_BOOTTIME of Linux: operators' commands, which run on other systems too, do not call it
	var ts unix.Timespec
	if err := unix.ClockGettime(bootTime, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// bootID identifies this boot of the machine; "" if the kernel does not provide it.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}
