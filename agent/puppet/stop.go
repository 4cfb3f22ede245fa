package puppet

import (
	"syscall"
	"time"
)

// hardWait is how long a process may take to go after SIGKILL; only one stuck in the kernel takes longer.
const hardWait = 10 * time.Second

// stop ends a Puppet and everything that it has started and waits for. The gentle signal goes to Puppet, which then ends
// at once; a command that it was running gets the first half of grace to end by itself, because a killed package manager
// breaks the next run; then the gentle signal; and whatever is left when grace is over gets the hard one. It returns
// false when something outlived even that. gone tells when Puppet itself has ended.
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

// pause is the gap between two looks: short at first, a tenth of a second later.
func pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/10, 5*time.Millisecond), 100*time.Millisecond))
}
