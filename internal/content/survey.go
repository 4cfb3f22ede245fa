package content

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

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
			flaws = append(flaws, flaw{e.Path, -1, "it is there too early"})
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
		return "it can't be looked at: " + err.Error()
	}
	kind := st.Mode & unix.S_IFMT
	switch e.Kind {
	case KindDirectory:
		switch {
		case kind != unix.S_IFDIR:
			return "it is no folder"
		case st.Mode&0o7777 != e.perm():
			return "its mode is another"
		case st.Uid != uint32(os.Geteuid()):
			return "its owner is another"
		}
		return ""
	case KindLink:
		if kind != unix.S_IFLNK {
			return "it is no link"
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
		return "it is no file"
	case st.Size != e.Size:
		return "its size is another"
	case st.Mode&0o7777 != e.perm():
		return "its mode is another"
	case st.Uid != uint32(os.Geteuid()): // another owner could change the file and hide the change
		return "its owner is another"
	// Some file systems store times in seconds only.
	case st.Mtim.Sec != want.Unix() || st.Mtim.Nsec != 0 && st.Mtim.Nsec != int64(want.Nanosecond()):
		return "it was written to"
	}
	return ""
}
