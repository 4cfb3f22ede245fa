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

	// endTree lets the entering process end its command with all descendants. No program expects this number.
	endTree = unix.Signal(40)

	// treeDeadline bounds the wait for the output of a command that has ended.
	treeDeadline = 10 * time.Second
)

// forwarded are the signals that the process of the exec.Cmd passes on to the command.
var forwarded = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT}

// Command returns a command that runs a program in the machine: as root, in /, in a session of its own, with a minimal
// environment, its name looked up in the machine. It differs from other [exec.Cmd]s:
//
//   - Env is the machine's environment; append to it. Do not change Dir and ExtraFiles.
//   - The exit code is the program's; 128+n where signal n ended it, 127 where it was not found, 126 where it could not be
//     executed, 125 where the machine has ended.
//   - When the context ends, the program and all its descendants are killed, those in other sessions too, and Wait
//     returns after their end. Killing Process has the same effect some time later. Other signals reach the program.
//   - Processes that the program leaves when it ends by itself stay: a daemon is started so. If one keeps the command's
//     output open, Wait returns [exec.ErrWaitDelay] after 10 s, unless that output is a file.
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

// enter runs on the host for one command. Its child, the runner, starts in the machine: only a child can.
func enter(args []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append([]os.Signal{endTree}, forwarded...)...)

	runtime.LockOSThread() // namespaces are the thread's, and the runner is forked from this one
	// A thread that shares root and working folder with others cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", os.NewSyscallError("unshare", err))
	}
	if err := unix.Setns(inherited, namespaces); errors.Is(err, unix.ESRCH) {
		return exitCannotRun, errors.New("cannot enter a machine: it has ended")
	} else if err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", os.NewSyscallError("setns", err))
	}

	// The runner ends its command when this pipe closes, so also when this process is killed.
	theirs, life, err := os.Pipe()
	if err != nil {
		return exitCannotRun, fmt.Errorf("cannot enter a machine: %w", err)
	}
	runner, err := os.StartProcess("/proc/self/exe", append([]string{argRun}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs},
	})
	if errors.Is(err, unix.ENOMEM) { // the first process of the PID namespace has ended
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
				runner.Signal(s) // fails only where it has ended
			}
		}
	}()
	state, err := runner.Wait()
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
