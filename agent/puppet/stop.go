package puppet

import (
	"syscall"
	"time"
)

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
