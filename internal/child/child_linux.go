package child

import "syscall"

const (
	ownDescriptors = "/proc/self/fd"
	noexec         = 8 // ST_NOEXEC of statvfs(3)
)

// waitCall returns the numbers of waitid(2) and of its P_PID.
func waitCall() (call, byPID uintptr) { return syscall.SYS_WAITID, 1 }

// bind has a program killed when the thread that starts it ends.
func bind(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// protect makes a folder read-only for the current thread and the program that it starts.
func protect(attr *syscall.SysProcAttr, dir string) error {
	attr.Cloneflags = syscall.CLONE_NEWPID
	if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}
