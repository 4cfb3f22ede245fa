//go:build darwin || freebsd

package child

import (
	"runtime"
	"syscall"
)

const (
	ownDescriptors = "/dev/fd"
	noexec         = 4 // MNT_NOEXEC of statfs(2)
)

// waitCall returns the numbers of waitid(2) of macOS, or of wait6(2) of FreeBSD, and of P_PID. Their first four parameters are alike.
func waitCall() (call, byPID uintptr) {
	if runtime.GOOS == "freebsd" {
		return 532, 0
	}
	return 173, 1
}

// bind does nothing: macOS cannot end a program with its parent.
func bind(*syscall.SysProcAttr) {}

// protect fails as on a kernel without namespaces.
func protect(*syscall.SysProcAttr, string) error { return syscall.ENOSYS }
