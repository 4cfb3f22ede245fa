// Package proctree finds processes with their descendants in /proc, see proc(5), and sends them signals. A signal to a process
// group does not reach a descendant that began a session of its own. Where there is no /proc, no descendant is found.
package proctree

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is a process as /proc shows it. The PID and the start time together are unique; a PID alone is reused.
type Process struct {
	PID, Parent int
	Start       uint64 // clock ticks after boot
	Comm        string // name of the program, at most 15 bytes
	Zombie      bool   // ended, and its parent has not read its status yet
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
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return Process{}, false
	}
	return Process{pid, parent, start, string(data[open+1 : shut]), fields[0] == "Z"}, true
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
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return t
	}
	children := map[int][]Process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := Read(pid); ok {
			children[p.Parent] = append(children[p.Parent], p)
		}
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
