package puppet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/clip"
)

// maxScriptOutput limits the output of a script to keep, in bytes.
const maxScriptOutput = 4 << 10

// runScript runs a command line of a release and returns its standard output. No process of it outlives the call and
// it can't change the tree, if this process may create namespaces. Otherwise confined is false: processes that left its
// session live on.
func runScript(ctx context.Context, line, tree string, deadline time.Duration) (out string, confined bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	make := func() (*exec.Cmd, *head, *head) {
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
		out, said := &head{}, &head{}
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = tree, environ(), out, said
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Second // a process that it left may keep the output open
		return cmd, out, said
	}
	cmd, result, said := make()
	err = startConfined(cmd, tree)
	confined = err == nil
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		cmd, result, said = make()
		err = cmd.Start()
	}
	if err != nil {
		return "", confined, err
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	switch {
	case ctx.Err() != nil:
		return "", confined, fmt.Errorf("it took longer than %s", deadline)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well; what it left is ended as well
	case err != nil:
		lines := strings.Split(strings.TrimSpace(string(*said)), "\n")
		if last := clip.Text(lines[len(lines)-1], maxVersion); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
	}
	return string(*result), confined, err
}

// startConfined starts a command that sees the tree read-only, in a PID namespace of its own: when the command ends,
// the kernel ends all processes that it started.
func startConfined(cmd *exec.Cmd, tree string) error {
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	started := make(chan error)
	go func() {
		// The thread is never unlocked, and ends with this goroutine. Its mount namespace stays with the command.
		runtime.LockOSThread()
		err := protect(tree)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	return <-started
}

// protect makes a folder read-only for the current thread and the processes that it starts.
func protect(dir string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// head keeps the first bytes that are written to it.
type head []byte

var _ io.Writer = (*head)(nil)

func (h *head) Write(p []byte) (int, error) {
	*h = append(*h, p[:min(len(p), maxScriptOutput-len(*h))]...)
	return len(p), nil
}
