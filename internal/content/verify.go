package content

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// CheckInterval is the time between complete reads of a tree. In between, Verify checks only the metadata.
const CheckInterval = 24 * time.Hour

// DamagedError reports that a tree on disk has changed since its installation. Discard the tree and install it again.
type DamagedError struct {
	Tree string
	Why  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("release tree %s is damaged: %v", e.Tree, e.Why)
}

func (e *DamagedError) Unwrap() error { return e.Why }

// Verify checks that a tree on disk matches its hash. It returns nil, a DamagedError, a NotInstalledError, or the error
// that prevented the check. It always checks names, types, sizes, modes and times. It reads contents if one of these is
// wrong, and once per CheckInterval.
func (s *Store) Verify(tree string) error {
	release, err := s.Lock(tree)
	if err != nil {
		return err
	}
	defer release()
	k, err := s.look(tree)
	if err == nil {
		err = k.load(s.manifestFile(tree))
	}
	if err != nil {
		k = nil // it will be created again
	}
	if k != nil {
		age := s.now().Sub(k.checked)
		flaws, err := survey(s.Path(tree), k.manifest, nil)
		if err == nil && len(flaws) == 0 && age >= 0 && age < CheckInterval {
			return nil
		}
	}
	return s.verifyWhole(tree, k)
}

// verifyWhole reads all of a tree. If the contents are correct but the metadata is not, it restores the metadata.
func (s *Store) verifyWhole(tree string, k *known) error {
	m, err := readTree(s.Path(tree), func(string, bool) bool { return false })
	var refused *RefusedError
	switch {
	case errors.As(err, &refused) || isDamage(err):
	case err != nil:
		return err
	case m.Tree() != tree:
		err = fmt.Errorf("its tree hash is %s", m.Tree())
		if k != nil {
			err = fmt.Errorf("%w: %s", err, firstDifference(k.manifest, m))
		}
	}
	if err != nil {
		s.distrust()
		return &DamagedError{tree, err}
	}
	if err := restoreLooks(s.Path(tree), m); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return err
	}
	now := s.now()
	if k != nil {
		err = os.Chtimes(s.manifestFile(tree), now, now)
	} else {
		err = s.exclusively(func() error { return s.remember(tree, Record{Tree: tree}, m, now) })
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) {
		return nil // the tree is correct; the next call reads it again
	}
	return err
}

// isDamage separates errors that prove a damaged tree from errors of this process.
func isDamage(err error) bool {
	for _, damage := range []error{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, errNotRegular} { // ext4, XFS: EUCLEAN, EBADMSG
		if errors.Is(err, damage) {
			return true
		}
	}
	return false
}

func firstDifference(want, got *Manifest) string {
	for _, d := range Diff(want, got) {
		switch {
		case d.Before == nil:
			return fmt.Sprintf("%q does not belong to it", d.Path)
		case d.After == nil:
			return fmt.Sprintf("%q is missing", d.Path)
		default:
			return fmt.Sprintf("%q is another", d.Path)
		}
	}
	return "its manifest is"
}

// restoreLooks restores the owners, modes and times that Verify expects.
func restoreLooks(dir string, m *Manifest) error {
	flaws, err := survey(dir, m, nil)
	if err != nil || len(flaws) == 0 {
		return err
	}
	b, err := openBeneath(dir)
	if err != nil {
		return err
	}
	defer b.close()
	for _, f := range flaws {
		if f.entry < 0 || m.Entries[f.entry].Kind == KindLink {
			continue
		}
		if err := restoreLook(b, m.Entries[f.entry]); err != nil {
			return err
		}
	}
	return nil
}

func restoreLook(b *beneath, e Entry) error {
	f, err := b.open(e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chown(os.Geteuid(), -1); err != nil {
		return err
	}
	if err := f.Chmod(fs.FileMode(e.perm())); err != nil || e.Kind == KindDirectory {
		return err
	}
	return pathError("set the time of", e.Path, setTime(int(f.Fd()), e))
}
