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

// process is a process as /proc shows it. The pid and the start time together are unique; a pid alone is reused.
type process struct {
	pid, parent int
	start       uint64 // clock ticks after boot
	comm        string
	zombie      bool
}

// readProcess reads /proc/<pid>/stat, see proc(5). It returns false if the process does not exist.
func readProcess(pid int) (process, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, false
	}
	open, shut := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')') // a name may contain both
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

// alive reports whether this process still runs.
func (p process) alive() bool {
	now, ok := readProcess(p.pid)
	return ok && now.start == p.start && !now.zombie
}

var puppetName = regexp.MustCompile(`puppet(-.*)?$`)

// isPuppet applies Puppet's own test for a held or stale lock (puppet/util/pidlock.rb). An existing process that /proc
// does not show counts as Puppet.
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

// grow adds the current descendants of the processes. Puppet starts each command in its own session, so that a signal
// to Puppet's process group does not reach the commands. It does not find a service that became a child of init, on
// purpose.
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

// stop ends a Puppet and the processes that it started and waits for. Puppet receives SIGTERM first, and ends at once.
// A running command may use the first half of grace to exit, because a killed package manager breaks the next run. Then
// the command receives SIGTERM. After grace, all remaining processes receive SIGKILL. stop returns false if a process
// survives SIGKILL. gone reports whether Puppet itself has exited.
func stop(puppet process, grace time.Duration, gone func() bool) bool {
	tree := grow([]process{puppet})
	_ = syscall.Kill(-puppet.pid, syscall.SIGTERM)
	began := time.Now()
	asked := false
	for time.Since(began) < grace {
		if tree = grow(tree); gone() && !anyAlive(tree) {
			return true
		}
		if !asked && time.Since(began) > grace/2 {
			asked = true
			signal(tree, syscall.SIGTERM)
		}
		pause(began)
	}
	for began = time.Now(); time.Since(began) < hardWait; pause(began) {
		tree = grow(tree)
		if !gone() {
			_ = syscall.Kill(-puppet.pid, syscall.SIGKILL)
		}
		signal(tree, syscall.SIGKILL)
		if gone() && !anyAlive(tree) {
			return true
		}
	}
	return false
}

func anyAlive(tree []process) bool {
	for _, p := range tree {
		if p.alive() {
			return true
		}
	}
	return false
}

func signal(tree []process, s syscall.Signal) {
	for _, p := range tree {
		if p.alive() {
			_ = syscall.Kill(p.pid, s)
		}
	}
}

// pause waits between two checks: shortly at first, then a tenth of a second.
func pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/10, 5*time.Millisecond), 100*time.Millisecond))
}
