package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"pulley/internal/child"
)

const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// withheld are the capabilities that would reach the host. A machine's root has all others.
var withheld = []uintptr{
	unix.CAP_NET_ADMIN, // the network is the host's
	unix.CAP_SYS_TIME, unix.CAP_SYS_MODULE, unix.CAP_SYS_BOOT, unix.CAP_SYS_RAWIO, unix.CAP_MKNOD,
}

// runCommand runs one command in the machine, and adopts orphans of its descendants: none can escape.
func runCommand(args []string) (int, error) {
	if !isInherited(unix.S_IFIFO) || len(args) == 0 {
		return exitCannotRun, errors.New("cannot run a command in a machine: not started in one")
	}
	life := os.NewFile(inherited, "life line")
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)

	runtime.LockOSThread() // capabilities are the thread's, and the command is forked from this one
	if err := confine(); err != nil {
		return exitCannotRun, fmt.Errorf("cannot run %s in a machine: %w", args[0], err)
	}
	command, err := run(args)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return exitNotFound, fmt.Errorf("cannot run %s in a machine: not found", args[0])
		}
		return exitNotExecutable, fmt.Errorf("cannot run %s in a machine: %w", args[0], err)
	}
	go func() {
		for s := range signals {
			unix.Kill(command, s.(unix.Signal))
		}
	}()
	var ending atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, life)
		ending.Store(true) // before the first kill: otherwise the command would seem to have ended by itself
		killDescendants()
	}()
	return waitAll(command, &ending), nil
}

func confine() error {
	unix.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	for _, capability := range withheld {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	return nil
}

func run(args []string) (pid int, err error) {
	program, err := exec.LookPath(args[0])
	if err != nil {
		return 0, err
	}
	// Not os.StartProcess: waitAll waits for every child.
	return syscall.ForkExec(program, args, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// waitAll waits for the command. After the order to end, it waits for all descendants.
func waitAll(command int, ending *atomic.Bool) (code int) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil: // no children are left
			return 128 + int(unix.SIGKILL)
		case ending.Load():
			killDescendants() // those whose parent started them before its kill
		case pid == command:
			return exitCode(status)
		}
	}
}

// killDescendants kills all current processes below this one.
func killDescendants() {
	if me, ok := child.Read(os.Getpid()); ok {
		child.Of(me)[1:].Signal(unix.SIGKILL)
	}
}
