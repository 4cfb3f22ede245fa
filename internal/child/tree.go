package child

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a process as /proc shows it, see proc(5). The PID and the start time together are unique; a PID alone is reused.
type Process struct {
	PID, Parent, Session int

	Start  uint64 // clock ticks after boot
	Comm   string // name of the program, at most 15 bytes
	Zombie bool   // ended, and its parent has not read its status yet
}

// Read returns the process with this PID, or false if it does not exist.
func Read(pid int) (Process, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, false
	}
	open, shut := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')') // a name may contain both
	if open < 0 || shut < open {
		return Process{}, false
	}
	fields := strings.Fields(string(data[shut+1:]))
	if len(fields) < 20 {
		return Process{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	start, err3 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return Process{}, false
	}
	return Process{pid, parent, session, start, string(data[open+1 : shut]), fields[0] == "Z"}, true
}

// Alive reports whether this process still runs.
func (p Process) Alive() bool {
	now, ok := Read(p.PID)
	return ok && now.Start == p.Start && !now.Zombie
}

// Tree is a set of processes. Parents come before their children.
type Tree []Process

// Of returns a process with its current descendants.
func Of(p Process) Tree { return Tree{p}.Grow() }

// Grow adds the current descendants. It does not find a process whose parent ended before: such a process is a child of init.
func (t Tree) Grow() Tree {
	children := map[int][]Process{}
	for _, p := range all() {
		children[p.Parent] = append(children[p.Parent], p)
	}
	seen := map[int]bool{}
	for _, p := range t {
		seen[p.PID] = true
	}
	for i := 0; i < len(t); i++ {
		for _, child := range children[t[i].PID] {
			if !seen[child.PID] && t[i].Alive() {
				seen[child.PID] = true
				t = append(t, child)
			}
		}
	}
	return t
}

// all returns all processes of the machine.
func all() (found Tree) {
	entries, _ := os.ReadDir("/proc") // without /proc, none is found
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := Read(pid); ok {
				found = append(found, p)
			}
		}
	}
	return found
}

// Alive reports whether one of the processes still runs.
func (t Tree) Alive() bool {
	for _, p := range t {
		if p.Alive() {
			return true
		}
	}
	return false
}

// Signal sends a signal to each process that still runs.
func (t Tree) Signal(s syscall.Signal) {
	for _, p := range t {
		if p.Alive() {
			_ = syscall.Kill(p.PID, s)
		}
	}
}

// hardWait limits the wait for a process after SIGKILL. Only a process that is blocked in the kernel takes longer.
const hardWait = 10 * time.Second

// End ends a process that leads a group, with the processes that it started and waits for, those in sessions of their own
// included. A process that became a child of init stays. The group receives SIGTERM first. Another session may use the first
// half of grace to exit, because a killed package manager breaks the next run; then it receives SIGTERM too. After grace, all
// receive SIGKILL. The result is false if a process survives SIGKILL.
func (p Process) End(grace time.Duration) bool {
	return p.end(-p.PID, grace, func() bool { return !p.Alive() })
}

// end is End; target is the process or its group, as for kill(2). While gone returns false, the number of the process is not reused.
func (p Process) end(target int, grace time.Duration, gone func() bool) bool {
	tree := Tree{p}
	send := func(s syscall.Signal) {
		if !gone() {
			_ = syscall.Kill(target, s)
		}
	}
	if grace > 0 {
		send(syscall.SIGSTOP) // else it may start another process while the tree is read
		tree = tree.Grow()
		send(syscall.SIGTERM)
		send(syscall.SIGCONT)
	}
	began, asked := time.Now(), false
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
		send(syscall.SIGKILL)
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
