package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	scratchPrefix = "scratch-"
	lockName      = ".lock"
)

// Scratch is a folder of the host for what belongs to a fleet of machines: an etcd's data, a control repository. Machines
// themselves need none.
type Scratch struct {
	Dir  string
	lock *os.File // held as long as the owner lives: the kernel lets go of it even after SIGKILL
}

// NewScratch makes a scratch folder in base, which is made if missing, and which no one else may write to.
func NewScratch(base string) (*Scratch, error) {
	s, err := newScratch(base)
	if err != nil {
		return nil, fmt.Errorf("cannot make a scratch folder in %s: %w", base, err)
	}
	return s, nil
}

// Close removes the folder.
func (s *Scratch) Close() error {
	defer s.lock.Close()
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("cannot remove scratch folder %s: %w", s.Dir, err)
	}
	return nil
}

// Sweep removes the scratch folders in base whose owner has died, and returns how many. A base that does not exist has
// none. Nothing else in base is touched.
func Sweep(base string) (removed int, err error) {
	removed, err = sweep(base)
	if err != nil {
		return removed, fmt.Errorf("cannot sweep scratch folders in %s: %w", base, err)
	}
	return removed, nil
}

func newScratch(base string) (*Scratch, error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockBase(base)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(base, scratchPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, lockName), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Scratch{Dir: dir, lock: lock}, nil
}

func sweep(base string) (removed int, err error) {
	if _, err := os.Lstat(base); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	unlock, err := lockBase(base)
	if err != nil {
		return 0, err
	}
	defer unlock()
	entries, err := os.ReadDir(base)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), scratchPrefix) {
			continue
		}
		dir := filepath.Join(base, entry.Name())
		// A folder without a lock file was left in the middle of being made or removed: it gets one here.
		lock, err := lockFile(filepath.Join(dir, lockName), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its owner lives
		} else if err != nil {
			return removed, err
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// lockBase keeps a sweep from seeing a folder before its owner has locked it.
func lockBase(base string) (unlock func(), err error) {
	var stat unix.Stat_t
	if err := unix.Lstat(base, &stat); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: base, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return nil, errors.New("not a folder that only its owner, this user, may write to\nname another one, or remove it")
	}
	lock, err := lockFile(filepath.Join(base, lockName), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { lock.Close() }, nil
}

func lockFile(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return file, nil
}
