package folder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
)

// PollInterval is the pause between two looks of Poll.
const PollInterval = 20 * time.Millisecond

// lock opens a file, creates it where it is missing, and waits for its lock until ctx ends. Closing the file, or the end of all
// processes that have it open, releases the lock.
func lock(ctx context.Context, path string) (*os.File, error) {
	f, err := atomicfile.OpenLock(path)
	if err != nil {
		return nil, err
	}
	if err := Flock(ctx, f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// Flock waits for a lock of a file, unix.LOCK_EX or unix.LOCK_SH, until ctx ends.
func Flock(ctx context.Context, f *os.File, how int) error {
	return Poll(ctx, func() (bool, error) {
		err := flock(f, how)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isHeld reports whether a process holds the lock of a machine's folder. A missing lock is not held.
func isHeld(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, heldFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH) // shared: two that look at one time do not see each other
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// identify takes a second lock of a supervisor's folder: the kernel reports its holder, and processes do not inherit it. Closing any
// descriptor of the file releases it: nothing else in this process may open the file.
func identify(held uintptr) error {
	err := unix.FcntlFlock(held, unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	return os.NewSyscallError("fcntl", err)
}

// holder returns the number of the process that has identified itself, 0 where none has.
func holder(file *os.File) (pid int, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, &os.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	switch {
	case lock.Type == unix.F_UNLCK:
		return 0, nil
	case lock.Pid <= 0:
		return 0, errors.New("its supervisor is in another PID namespace\nrun the same command where the machine was made")
	}
	return int(lock.Pid), nil
}

// Poll calls done until it returns true or an error, or until ctx ends.
func Poll(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(PollInterval):
		}
	}
}
