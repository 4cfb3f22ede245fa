package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	// endTree tells the entering process to end its command with all descendants. No program expects this number.
	endTree = unix.Signal(40)

	// treeDeadline is how long the end of a command's processes may take before its output is given up on.
	treeDeadline = 10 * time.Second
)

// forwarded are the signals that a command gets when they are sent to its exec.Cmd's process.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT}

// Command returns a command that runs a program in the machine: as root, in /, in a session of its own, with a minimal
// environment, its name looked up in the machine. It is an [exec.Cmd] like any other but for these differences:
//
//   - Env starts as the machine's environment; append to it. Dir and ExtraFiles must be left alone.
//   - The exit code is the program's; 128+n where signal n ended it, 127 where it was not found, 126 where it could not be
//     executed, 125 where the machine has ended.
//   - When the context ends, the program and all its descendants are killed, those in other sessions too, and Wait
//     returns after they are gone. Killing Process has the same effect some time later. Signals that ask reach the program.
//   - What the program leaves behind when it ends by itself stays: that is how a daemon is started. One that keeps
//     the command's output open makes Wait return [exec.ErrWaitDelay] after 10 s, unless that output is a file.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{argEnter, name}, args...)
	cmd.Env = []string{searchPath, "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "LANG=C.UTF-8"}
	cmd.ExtraFiles = []*os.File{m.pidfd}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C is for the program that holds the machine
	cmd.Cancel = func() error { return cmd.Process.Signal(endTree) }
	cmd.WaitDelay = treeDeadline
	select {
	case <-m.ended:
		cmd.Err = fmt.Errorf("cannot run %s in machine %s: the machine has ended", name, m.hostname)
	default:
	}
	return cmd
}

// enter runs on the host for one command. Its child, the supervisor, is born in the machine: only a child can be.
func enter(args []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append([]os.Signal{endTree}, forwarded...)...)

	runtime.LockOSThread() // namespaces are the thread's, and the supervisor is forked from this one
	// A thread that shares its root and working folder with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", os.NewSyscallError("unshare", err))
	}
	if err := unix.Setns(inherited, namespaces); errors.Is(err, unix.ESRCH) {
		return exitCannotRun, errors.New("cannot enter a machine: it has ended")
	} else if err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", os.NewSyscallError("setns", err))
	}

	// The supervisor ends its command when this pipe closes, so also when this process is killed.
	theirs, life, err := os.Pipe()
	if err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", err)
	}
	supervisor, err := os.StartProcess("/proc/self/exe", append([]string{argSupervise}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs},
	})
	if errors.Is(err, unix.ENOMEM) { // what the kernel says of a PID namespace whose first process is gone
		return exitCannotRun, errors.New("cannot enter a machine: it has ended")
	} else if err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", err)
	}
	theirs.Close()
	go func() {
		for s := range signals {
			if s == endTree {
				life.Close()
			} else {
				supervisor.Signal(s) // fails only where it has ended
			}
		}
	}()
	state, err := supervisor.Wait()
	if err != nil {
		return exitCannotRun, fmt.Errorf("cannot wait for a command in a machine: %w", err)
	}
	return exitCode(unix.WaitStatus(state.Sys().(syscall.WaitStatus))), nil
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
