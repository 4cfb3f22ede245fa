// Package folder keeps the records of machines that a driver makes on this host: a machine is the folder <root>/<owner>/<fleet>/<name>.
//
// The package owns the paths, the locks, and the files that all such drivers have. It must never return a folder without the
// fleet's mark as a machine, and never use a root that other users may write to.
package folder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/machines"
)

// Files of a machine's folder. Folders whose names begin with a dot are not machines: they are being made or removed.
const (
	AboutFile = "machine.json"
	StateFile = "state.json"
	HeldFile  = "held" // locked for as long as anything of the machine lives

	newPrefix  = ".new."
	gonePrefix = ".gone."
)

// Hostname matches one label of a hostname (RFC 1123, 2.1), in lower case.
var Hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// About is what every driver records of a machine. It never changes.
type About struct {
	ID      string            `json:"id"`
	Mark    machines.Mark     `json:"mark"`
	Name    string            `json:"name"`
	Node    string            `json:"node"`
	Role    string            `json:"role"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
}

// NewAbout returns the record of an ordered machine.
func NewAbout(id string, mark machines.Mark, o machines.Order) About {
	return About{ID: id, Mark: mark, Name: o.Name, Node: o.Node, Role: o.Role, Labels: o.Labels, Created: time.Now().UTC().Truncate(time.Second)}
}

// State is what a machine's supervisor last wrote of it.
type State struct {
	State   machines.State `json:"state"`
	Problem string         `json:"problem,omitempty"`
	Boots   int            `json:"boots,omitempty"`
}

// Fleet is the folder of one fleet's machines.
type Fleet struct {
	Root string // of all fleets, an absolute path
	Mark machines.Mark
}

// NewFleet checks root and mark. It does not read the host.
func NewFleet(root string, mark machines.Mark) (Fleet, error) {
	if !filepath.IsAbs(root) {
		return Fleet{}, fmt.Errorf("cannot keep machines in %q: not an absolute path", root)
	}
	if mark.Owner == "" || mark.Fleet == "" {
		return Fleet{}, fmt.Errorf("cannot keep machines with the mark %q: a part is empty", mark)
	}
	return Fleet{root, mark}, nil
}

// Path returns the fleet's folder. Owner and fleet may be any text: each is one escaped segment.
func (f Fleet) Path() string {
	return filepath.Join(f.Root, segment(f.Mark.Owner), segment(f.Mark.Fleet))
}

func segment(name string) string {
	name = url.PathEscape(name)
	if rest, ok := strings.CutPrefix(name, "."); ok {
		name = "%2E" + rest
	}
	return name
}

// Machine returns the folder of a machine.
func (f Fleet) Machine(name string) string { return filepath.Join(f.Path(), name) }

// New returns the folder in which a machine is made before it has its place.
func (f Fleet) New(name, id string) string { return filepath.Join(f.Path(), newPrefix+name+"."+id) }

// IsNew reports whether a folder's name is one of New.
func IsNew(name string) bool { return strings.HasPrefix(name, newPrefix) }

// Place moves the folder of a new machine to its place, from a process that works in it. It fails where the place is taken.
func Place(name, id string) error {
	return unix.Renameat2(unix.AT_FDCWD, filepath.Join("..", newPrefix+name+"."+id), unix.AT_FDCWD, filepath.Join("..", name), unix.RENAME_NOREPLACE)
}

// Discard moves a machine's folder aside for its removal. From then on it is no machine.
func (f Fleet) Discard(name, id string) (aside string, err error) {
	aside = filepath.Join(f.Path(), gonePrefix+name+"."+id)
	return aside, os.Rename(f.Machine(name), aside)
}

// CheckOwner refuses a root in which other users could create what would count as machines.
func (f Fleet) CheckOwner() error {
	if err := CheckOwner(f.Root); err != nil {
		return fmt.Errorf("%w: %w", machines.ErrRefused, err)
	}
	return nil
}

// CheckOwner refuses a folder that users other than this one may write to. A folder that does not exist passes.
func CheckOwner(path string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that only this user may write to\nremove it, or choose another folder", path)
	}
	return nil
}

// Lock creates the root for this user only, and takes its lock: no other program makes or deletes machines until it is closed.
func (f Fleet) Lock(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(f.Root, 0o700); err != nil {
		return nil, err
	}
	if err := f.CheckOwner(); err != nil {
		return nil, err
	}
	lock, err := Lock(ctx, filepath.Join(f.Root, ".lock"))
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("another program makes or deletes machines in %s: %w", f.Root, ctx.Err())
	}
	return lock, err
}

// Names returns the names of the fleet's folders that may be machines.
func (f Fleet) Names() ([]string, error) {
	entries, err := os.ReadDir(f.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w\nrun the same command as root, for example with sudo", err)
	}
	if err == nil {
		err = f.CheckOwner()
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Look reads the records of a machine into about, whose common part is also given. ok is false where the folder is no machine
// of the fleet. A machine without a supervisor is stopped.
func (f Fleet) Look(name string, about any, common *About) (s State, ok bool, err error) {
	dir := f.Machine(name)
	if err := ReadJSON(filepath.Join(dir, AboutFile), about); err != nil {
		return s, false, unlessAbsent(err)
	}
	if common.Mark != f.Mark || common.Name != name {
		return s, false, nil
	}
	held, err := Held(filepath.Join(dir, HeldFile)) // before the state, which its supervisor writes last
	if err == nil {
		err = ReadJSON(filepath.Join(dir, StateFile), &s)
	}
	if err != nil { // absent: another program is deleting the machine
		return s, false, unlessAbsent(err)
	}
	if !held && (s.State == machines.Building || s.State == machines.Running) {
		s.State, s.Problem = machines.Stopped, "its supervisor was killed, or this host was restarted"
	}
	return s, true, nil
}

func unlessAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// Leftovers returns the folders that are being made or removed, or that a killed program left so. isNew reports whether a folder
// is of a new machine of that name.
func (f Fleet) Leftovers(name string, each func(dir string, isNew bool) error) error {
	entries, err := os.ReadDir(f.Path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the fleet's last machine was deleted
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), gonePrefix) {
			if err := each(filepath.Join(f.Path(), e.Name()), strings.HasPrefix(e.Name(), newPrefix+name+".")); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveEmpty removes the folders of fleet and owner where they are empty. The caller holds the lock.
func (f Fleet) RemoveEmpty() {
	if os.Remove(f.Path()) == nil {
		_ = os.Remove(filepath.Dir(f.Path()))
	}
}

// ReadJSON reads a record.
func ReadJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// WriteJSON replaces a record. It is durable: a folder whose record is lost in a power cut is no machine any more.
func WriteJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}
