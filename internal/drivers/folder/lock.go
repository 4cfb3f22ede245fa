package folder

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// PollInterval is the pause between two looks of Poll.
const PollInterval = 20 * time.Millisecond

// Lock opens a file, creates it where it is missing, and waits for its lock until ctx ends. Closing the file, or the end of all
// processes that have it open, releases the lock.
func Lock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Flock(ctx, f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// TryLock is Lock without waiting: where another process has the lock, the error is unix.EWOULDBLOCK.
func TryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
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

// Held reports whether a process holds the lock of a file. A missing file is not held.
func Held(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
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
