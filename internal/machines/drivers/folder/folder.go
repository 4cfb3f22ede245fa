// Package folder is the part that all drivers of this host share: a machine is the folder <root>/<owner>/<fleet>/<name>, and a
// supervisor, a process that keeps the machine and outlives the program that started it.
//
// The package owns the paths, the locks, the records, and the start and end of supervisors. It must never return a folder without the
// fleet's mark as a machine, never use a root that other users may write to, and never leave a machine without a supervisor running.
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
	LogFile   = "log"  // output of the supervisor and of the machine
	heldFile  = "held" // locked for as long as anything of the machine lives

	newPrefix  = ".new."
	gonePrefix = ".gone."
)

// About is what is recorded of a machine.
type About struct {
	ID        string            `json:"id"`
	Mark      machines.Mark     `json:"mark"`
	Name      string            `json:"name"`
	Node      string            `json:"node"`
	Role      string            `json:"role"`
	Flavor    string            `json:"flavor,omitempty"`
	Image     string            `json:"image,omitempty"`
	Addresses []string          `json:"addresses,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Group     string            `json:"group,omitempty"` // control group of all its processes, where it has its own
}

// State is what a machine's supervisor last wrote of it.
type State struct {
	State   machines.State `json:"state"`
	Problem string         `json:"problem,omitempty"`
	Boots   int            `json:"boots,omitempty"`
	Pid     int            `json:"pid,omitempty"` // the host's number of its first process, of a driver whose machines can be entered
}

// Fleet is the machines of one fleet. With Create of a driver it is a machines.Provider. Its errors name the cause: callers name the
// call.
type Fleet struct {
	Driver string // its name in an environment file
	Root   string // folder of all fleets, an absolute path
	Mark   machines.Mark
	// Free releases the control group of a machine without a supervisor; nil for a driver without groups.
	Free func(ctx context.Context, group string) error
}

// Validate checks root and mark. It does not read the host.
func (f Fleet) Validate() error {
	if !filepath.IsAbs(f.Root) {
		return fmt.Errorf("cannot keep machines in %q: not an absolute path", f.Root)
	}
	if f.Mark.Owner == "" || f.Mark.Fleet == "" {
		return fmt.Errorf("cannot keep machines with the mark %q: a part is empty", f.Mark)
	}
	return nil
}

// path returns the fleet's folder. Owner and fleet may be any text: each is one escaped segment.
func (f Fleet) path() string {
	return filepath.Join(f.Root, segment(f.Mark.Owner), segment(f.Mark.Fleet))
}

func segment(name string) string {
	name = url.PathEscape(name)
	if rest, ok := strings.CutPrefix(name, "."); ok {
		name = "%2E" + rest
	}
	return name
}

func (f Fleet) machine(name string) string { return filepath.Join(f.path(), name) }

// new returns the folder in which a machine is made before it has its place.
func (f Fleet) new(name, id string) string { return filepath.Join(f.path(), newPrefix+name+"."+id) }

// place moves the folder of a new machine to its place, from a process that works in it. It fails where the place is taken.
func place(a About) error {
	return unix.Renameat2(unix.AT_FDCWD, filepath.Join("..", newPrefix+a.Name+"."+a.ID), unix.AT_FDCWD, filepath.Join("..", a.Name), unix.RENAME_NOREPLACE)
}

// discard moves a machine's folder aside for its removal. From then on it is no machine.
func (f Fleet) discard(name, id string) (aside string, err error) {
	aside = filepath.Join(f.path(), gonePrefix+name+"."+id)
	return aside, os.Rename(f.machine(name), aside)
}

// checkOwner refuses a root in which other users could create what would count as machines. A missing root passes.
func (f Fleet) checkOwner() error {
	var stat unix.Stat_t
	if err := unix.Lstat(f.Root, &stat); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "lstat", Path: f.Root, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%w: %s is not a folder that only this user may write to\nremove it, or choose another folder", machines.ErrRefused, f.Root)
	}
	return nil
}

// lock creates the root for this user only, and takes its lock: no other program makes or deletes machines until it is closed.
func (f Fleet) lock(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(f.Root, 0o700); err != nil {
		return nil, err
	}
	if err := f.checkOwner(); err != nil {
		return nil, err
	}
	held, err := lock(ctx, filepath.Join(f.Root, ".lock"))
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("another program makes or deletes machines in %s: %w", f.Root, ctx.Err())
	}
	return held, err
}

// look returns the machine of a folder. ok is false where the folder is not a machine of the fleet. A machine without a supervisor is
// stopped.
func (f Fleet) look(name string) (m machines.Machine, ok bool, err error) {
	var a About
	dir := f.machine(name)
	if err := ReadJSON(filepath.Join(dir, AboutFile), &a); err != nil {
		return m, false, unlessAbsent(err)
	}
	if a.Mark != f.Mark || a.Name != name {
		return m, false, nil
	}
	var s State
	held, err := isHeld(dir) // before the state, which its supervisor writes last
	if err == nil {
		err = ReadJSON(filepath.Join(dir, StateFile), &s)
	}
	if err != nil { // absent: another program is deleting the machine
		return m, false, unlessAbsent(err)
	}
	if !held && (s.State == machines.Building || s.State == machines.Running) {
		s.State, s.Problem = machines.Stopped, "its supervisor was killed, or this host was restarted"
	}
	return machines.Machine{
		Name: name, ID: a.ID, State: s.State, Problem: s.Problem, Flavor: a.Flavor, Image: a.Image, Addresses: a.Addresses, Created: a.Created,
	}, true, nil
}

// Process returns the host's number of the first process of a machine. Its supervisor lives, so that the number is still the
// machine's.
func (f Fleet) Process(name string) (int, error) {
	var s State
	m, ok, err := f.look(name)
	switch {
	case err != nil:
		return 0, err
	case !ok:
		return 0, fmt.Errorf("there is no machine %s", name)
	case m.State == machines.Stopped:
		return 0, fmt.Errorf("it is stopped: %s", m.Problem)
	}
	if err := ReadJSON(filepath.Join(f.machine(name), StateFile), &s); err != nil {
		return 0, err
	}
	if held, err := isHeld(f.machine(name)); err != nil || !held || s.Pid == 0 {
		return 0, errors.Join(err, fmt.Errorf("it is %s", s.State))
	}
	return s.Pid, nil
}

func unlessAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
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
