package content

import (
	"errors"
	"fmt"
	"syscall"
)

// DamagedError says that a tree on disk is not what it was when it was installed. Discard it and install it again.
type DamagedError struct {
	Tree string
	Why  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("release tree %s is damaged: %v", e.Tree, e.Why)
}

func (e *DamagedError) Unwrap() error { return e.Why }

// Verify reads a whole tree from disk and says whether it is what its name says: nil, a DamagedError, a
// NotInstalledError, or that it can't tell.
func (s *Store) Verify(tree string) error {
	release, err := s.Lock(tree)
	if err != nil {
		return err
	}
	defer release()
	return verifyTree(s.Path(tree), tree)
}

func verifyTree(dir, want string) error {
	nothing := func(string, bool) bool { return false }
	m, err := readTree(dir, nothing)
	var refused *RefusedError
	if errors.As(err, &refused) || errors.Is(err, syscall.EIO) || errors.Is(err, errNotRegular) {
		return &DamagedError{want, err}
	}
	if err != nil {
		return err
	}
	if got := m.Tree(); got != want {
		return &DamagedError{want, fmt.Errorf("its tree hash is %s", got)}
	}
	return nil
}
