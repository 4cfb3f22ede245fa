package content

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// checkInterval is the time between complete reads of a tree. In between, Verify checks only the metadata.
const checkInterval = 24 * time.Hour

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
// wrong, and once per checkInterval.
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
		age := s.Now().Sub(k.checked)
		flaws, err := survey(s.Path(tree), k.manifest, nil)
		if err == nil && len(flaws) == 0 && age >= 0 && age < checkInterval {
			return nil
		}
	}
	return s.verifyWhole(tree, k)
}

// verifyWhole reads all of a tree. If the contents are correct but the metadata is not, it restores the metadata.
func (s *Store) verifyWhole(tree string, k *known) error {
	m, err := readTree(s.Path(tree), func(string, bool) bool { return false })
	var refused *refusedError
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
	now := s.Now()
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
	for _, damage := range []error{syscall.EIO, errFileSystem, syscall.EBADMSG, errNotRegular} {
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

// flaw is a difference between a folder and its manifest.
type flaw struct {
	path  string
	entry int // index in the manifest; -1 for an unlisted name
	why   string
}

// survey compares a folder with a manifest without reading contents. It compares names, types, link targets, owners and
// modes, and the size and time of each file. Pending lists the entries, by index, that must not exist yet; it may be
// nil.
func survey(dir string, m *Manifest, pending map[int]bool) ([]flaw, error) {
	all := listings(m)
	half := len(all) / 2
	var other []flaw
	var otherErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		other, otherErr = surveyFolders(dir, m, all[half:], pending)
	}()
	flaws, err := surveyFolders(dir, m, all[:half], pending)
	<-done
	return append(flaws, other...), errors.Join(err, otherErr)
}

func surveyFolders(dir string, m *Manifest, all []listing, pending map[int]bool) ([]flaw, error) {
	b, err := openBeneath(dir)
	if err != nil {
		return nil, err
	}
	defer b.close()
	buffer := make([]byte, 32<<10)
	var flaws []flaw
	for _, f := range all {
		found, err := surveyFolder(b, m, f, pending, buffer)
		if err != nil {
			return nil, err
		}
		flaws = append(flaws, found...)
	}
	return flaws, nil
}

// listing is one folder of a manifest and its entries, sorted by name.
type listing struct {
	path     string
	entry    int // index; -1 for the root
	children []int
}

func listings(m *Manifest) []listing {
	all := []listing{{path: ".", entry: -1}}
	where := map[string]int{".": 0}
	for i, e := range m.Entries {
		if e.Kind == KindDirectory {
			where[e.Path] = len(all)
			all = append(all, listing{path: e.Path, entry: i})
		}
		parent := where[path.Dir(e.Path)]
		all[parent].children = append(all[parent].children, i)
	}
	return all
}

func surveyFolder(b *beneath, m *Manifest, f listing, pending map[int]bool, buffer []byte) ([]flaw, error) {
	fd, err := b.in(f.path)
	if err != nil {
		// The parent already reports this flaw, unless the folder vanished just now.
		return []flaw{{f.path, f.entry, "it can't be opened: " + err.Error()}}, nil
	}
	names, err := readNames(fd, f.path, buffer)
	if err != nil {
		return nil, err
	}
	var flaws []flaw
	for _, i := range f.children {
		e := m.Entries[i]
		name := path.Base(e.Path)
		there := len(names) > 0
		for there && names[0] < name {
			flaws = append(flaws, flaw{path.Join(f.path, names[0]), -1, "it does not belong to the release"})
			names = names[1:]
			there = len(names) > 0
		}
		there = there && names[0] == name
		if there {
			names = names[1:]
		}
		switch {
		case pending[i] && there:
			flaws = append(flaws, flaw{e.Path, -1, "it exists already"})
		case pending[i]:
		case !there:
			flaws = append(flaws, flaw{e.Path, i, "it is missing"})
		default:
			if why := differs(fd, name, e); why != "" {
				flaws = append(flaws, flaw{e.Path, i, why})
			}
		}
	}
	for _, name := range names {
		flaws = append(flaws, flaw{path.Join(f.path, name), -1, "it does not belong to the release"})
	}
	return flaws, nil
}

// readNames returns the sorted names in an open folder.
func readNames(fd int, dir string, buffer []byte) ([]string, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, pathError("read", dir, err)
	}
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, pathError("read", dir, err)
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
	slices.Sort(names)
	return names, nil
}

// differs describes how a name differs from its entry, or returns "".
func differs(dir int, name string, e Entry) string {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "its attributes cannot be read: " + err.Error()
	}
	kind := st.Mode & unix.S_IFMT
	switch e.Kind {
	case KindDirectory:
		switch {
		case kind != unix.S_IFDIR:
			return "it is not a folder"
		case uint32(st.Mode)&0o7777 != e.perm():
			return "it has another mode"
		case st.Uid != uint32(os.Geteuid()):
			return "it has another owner"
		}
		return ""
	case KindLink:
		if kind != unix.S_IFLNK {
			return "it is not a link"
		}
		target := make([]byte, len(e.Target)+1)
		if n, err := unix.Readlinkat(dir, name, target); err != nil || string(target[:n]) != e.Target {
			return "it points elsewhere"
		}
		return ""
	}
	want := mtime(e)
	switch {
	case kind != unix.S_IFREG:
		return "it is not a file"
	case st.Size != e.Size:
		return "it has another size"
	case uint32(st.Mode)&0o7777 != e.perm():
		return "it has another mode"
	case st.Uid != uint32(os.Geteuid()): // another owner could change the file and hide the change
		return "it has another owner"
	// Some file systems store times in seconds only.
	case st.Mtim.Sec != want.Unix() || st.Mtim.Nsec != 0 && st.Mtim.Nsec != int64(want.Nanosecond()):
		return "it was changed"
	}
	return ""
}
