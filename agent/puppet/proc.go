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
)

// process is what /proc says of one. Pid and start together name a process for good: a pid alone is used again.
type process struct {
	pid, parent int
	start       uint64 // clock ticks after boot
	comm        string
	zombie      bool
}

// readProcess reads /proc/<pid>/stat (proc(5)); false when there is no such process.
func readProcess(pid int) (process, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, false
	}
	open, shut := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')') // a name may hold both
	if open < 0 || shut < open {
		return process{}, false
	}
	fields := strings.Fields(string(data[shut+1:]))
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, start: start, comm: string(data[open+1 : shut]), zombie: fields[0] == "Z"}, true
}

// alive reports whether this very process still runs.
func (p process) alive() bool {
	now, ok := readProcess(p.pid)
	return ok && now.start == p.start && !now.zombie
}

var puppetName = regexp.MustCompile(`puppet(-.*)?$`)

// isPuppet is Puppet's own test of whether a lock is held or stale (puppet/util/pidlock.rb). A process that /proc does
// not show but that exists is taken for Puppet.
func isPuppet(pid int) bool {
	p, ok := readProcess(pid)
	if !ok {
		err := syscall.Kill(pid, 0)
		return err == nil || errors.Is(err, syscall.EPERM)
	}
	if p.zombie {
		return false
	}
	if puppetName.MatchString(p.comm) {
		return true
	}
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.Contains(p.comm, "ruby") && bytes.Contains(args, []byte("puppet"))
}

// grow adds to the processes their children, and the children's, as they are now. Puppet starts each command in a
// session of its own, so its process group alone does not reach them; a service that left for init is rightly not found.
func grow(known []process) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return known
	}
	children := map[int][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	seen := map[int]bool{}
	for _, p := range known {
		seen[p.pid] = true
	}
	for i := 0; i < len(known); i++ {
		for _, child := range children[known[i].pid] {
			if !seen[child.pid] && known[i].alive() {
				seen[child.pid] = true
				known = append(known, child)
			}
		}
	}
	return known
}

// sinceBoot is a clock that nobody sets and that goes on while the machine sleeps.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// bootID names this boot of the machine; "" where the kernel does not say.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}
