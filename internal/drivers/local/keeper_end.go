package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// endDeadline is how long the kernel may take to end a machine.
const endDeadline = 30 * time.Second

// identify takes a lock of which the kernel tells who has it. It is let go of when this process ends, or closes the file:
// nothing else in it may open that.
func identify(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return nil
}

// endKeeper kills the keeper of the machine in a folder, and waits until all of the machine is gone with it.
func endKeeper(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, endDeadline)
	defer cancel()
	for {
		held, err := lockFile(filepath.Join(dir, heldFile), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return held.Close()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if err := killKeeper(dir); err != nil {
			return err
		}
		select {
		case <-time.After(keeperPoll):
		case <-ctx.Done():
			return fmt.Errorf("its processes are still there: %w", ctx.Err())
		}
	}
}

// killKeeper kills who has the lock, if anybody has. It never kills another process that got the number since.
func killKeeper(dir string) error {
	file, err := os.Open(filepath.Join(dir, keeperFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has only just started
	} else if err != nil {
		return err
	}
	defer file.Close()
	pid, err := holder(file)
	if err != nil || pid == 0 {
		return err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	// The same process has the lock after its number was used: so the descriptor is that process's.
	if again, err := holder(file); err != nil || again != pid {
		return err
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

// holder returns the number of the process that has the lock, 0 where nobody has it.
func holder(file *os.File) (pid int, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, &os.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	switch {
	case lock.Type == unix.F_UNLCK:
		return 0, nil
	case lock.Pid <= 0:
		return 0, errors.New("its keeper is in another PID namespace\nrun the same command where the machine was made")
	}
	return int(lock.Pid), nil
}
