package content

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// CheckInterval is how often a tree is read whole. In between Verify only looks whether it was written to.
const CheckInterval = 24 * time.Hour

// DamagedError says that a tree on disk is not what it was when it was installed. Discard it and install it again.
type DamagedError struct {
	Tree string
	Why  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("release tree %s is damaged: %v", e.Tree, e.Why)
}

func (e *DamagedError) Unwrap() error { return e.Why }

// Verify says whether a tree on disk is what its name says: nil, a DamagedError, a NotInstalledError, or that it can't
// tell. Names, types, sizes, modes and times are looked at always; contents when one of these is not as it should be, and
// once per CheckInterval.
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
		k = nil // it is made anew
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

// verifyWhole reads all of a tree. One that is right although something made it look otherwise gets its looks back.
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
		return nil // it is right, and read again the next time
	}
	return err
}

// isDamage tells errors that say something of the tree from those that say something of this process.
func isDamage(err error) bool {
	for _, damage := range []error{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, errNotRegular} { // the second and third are ext4's and XFS's
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

// restoreLooks gives files and folders the owners, modes and times that Verify goes by.
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
