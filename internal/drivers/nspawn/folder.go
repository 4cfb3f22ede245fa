package nspawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/atomicfile"
	"pulley/internal/machines"
)

// What a machine's folder holds. Folders that begin with a dot are on their way in or out, and are no machines.
const (
	aboutFile   = "machine.json"
	stateFile   = "state.json"
	lockName    = "lock"    // held by the keeper
	consoleFile = "console" // of all boots
	newPrefix   = ".new-"
	gonePrefix  = ".gone-"
)

// about is what a machine is. It never changes.
type about struct {
	ID      string            `json:"id"`
	Mark    machines.Mark     `json:"mark"`
	Name    string            `json:"name"`
	Node    string            `json:"node"`
	Role    string            `json:"role"`
	Image   string            `json:"image,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Network network           `json:"network"`
	Group   string            `json:"group"` // of all its processes, below the root of control groups
	Created time.Time         `json:"created"`
}

// state is how a machine is, as its keeper last said. Without a keeper that holds the lock, a machine is not building or running.
type state struct {
	State   machines.State `json:"state"`
	Problem string         `json:"problem,omitempty"`
	Boots   int            `json:"boots"`
}

// place is the folder of one fleet. Names of owners and fleets are others' to choose: each is one escaped segment.
func (p *Provider) place() string {
	return filepath.Join(p.config.Folder, segment(p.config.Mark.Owner), segment(p.config.Mark.Fleet))
}

func segment(name string) string {
	name = url.PathEscape(name)
	if rest, ok := strings.CutPrefix(name, "."); ok {
		name = "%2E" + rest
	}
	return name
}

// makeFolder makes the folder of all fleets, for nobody else to read: userdata holds tokens.
func (p *Provider) makeFolder() error {
	if err := os.MkdirAll(p.config.Folder, 0o700); err != nil {
		return err
	}
	return p.owned()
}

// owned refuses a folder in which others could put what is then taken for machines. One that is not there is nobody's.
func (p *Provider) owned() error {
	var stat unix.Stat_t
	if err := unix.Lstat(p.config.Folder, &stat); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "lstat", Path: p.config.Folder, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%w: %s is not a folder that only its owner, this user, may write to\nname another one, or remove it", machines.ErrRefused, p.config.Folder)
	}
	return nil
}

// lock is that of the whole folder: addresses are shared by all fleets in it.
func (p *Provider) lock(ctx context.Context) (*os.File, error) {
	return lockFile(ctx, filepath.Join(p.config.Folder, ".lock"))
}

// look returns the machine of a folder. ok is false where there is none of ours; what is there instead is left alone.
func (p *Provider) look(name string) (a about, m machines.Machine, ok bool, err error) {
	dir := filepath.Join(p.place(), name)
	if err := readJSON(filepath.Join(dir, aboutFile), &a); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			err = nil
		}
		return about{}, machines.Machine{}, false, err
	}
	if a.Mark != p.config.Mark || a.Name != name {
		return about{}, machines.Machine{}, false, nil
	}
	alive, err := held(filepath.Join(dir, lockName)) // before the state, which its keeper writes last
	if err != nil {
		return about{}, machines.Machine{}, false, err
	}
	var s state
	if err := readJSON(filepath.Join(dir, stateFile), &s); err != nil {
		return about{}, machines.Machine{}, false, err
	}
	if !alive && (s.State == machines.Building || s.State == machines.Running) {
		s.State, s.Problem = machines.Stopped, "its keeper was killed, or this host was started again"
	}
	return a, machines.Machine{Name: name, ID: a.ID, State: s.State, Problem: s.Problem, Image: a.Image,
		Addresses: []string{a.Network.Address.Addr().String()}, Created: a.Created}, true, nil
}

// addresses are those of all machines of all fleets in the folder. The caller holds the lock.
func (p *Provider) addresses() ([]netip.Addr, error) {
	var used []netip.Addr
	paths, err := filepath.Glob(filepath.Join(escapeGlob(p.config.Folder), "*", "*", "*", aboutFile))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		var a about
		err := readJSON(path, &a)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed just now
		}
		if err != nil { // its address is not known, so none is free for certain
			return nil, err
		}
		used = append(used, a.Network.Address.Addr())
	}
	return used, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// sweep removes what was left on its way in or out by a program that was killed. A machine of that name that is just being
// made is waited for: its keeper finishes it without the program that started it. The caller holds the lock.
func (p *Provider) sweep(ctx context.Context, name string) error {
	entries, err := os.ReadDir(p.place())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was the fleet's last
		return err
	}
	for _, e := range entries {
		isNew := strings.HasPrefix(e.Name(), newPrefix)
		if !isNew && !strings.HasPrefix(e.Name(), gonePrefix) {
			continue
		}
		dir := filepath.Join(p.place(), e.Name())
		alive := false
		err := poll(ctx, func() (bool, error) {
			alive, err = held(filepath.Join(dir, lockName))
			return !alive || !strings.HasPrefix(e.Name(), newPrefix+name+"."), err
		})
		if err != nil {
			return err
		}
		if !alive {
			err = p.erase(ctx, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// erase removes a folder that no keeper holds, with its control group. Where ctx ends first, what is left of the folder is for
// the next sweep.
func (p *Provider) erase(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var a about
	if err := readJSON(filepath.Join(dir, aboutFile), &a); err == nil && a.Group != "" {
		if err := removeGroup(ctx, a.Group); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	go func() { done <- os.RemoveAll(dir) }() // of a whole system: that takes a while
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot wait until %s is removed: %w", dir, ctx.Err())
	}
}

// tidy removes the folders of a fleet and of an owner that have nothing left, if it can. Others make theirs under the same lock.
func (p *Provider) tidy(ctx context.Context) {
	lock, err := p.lock(ctx)
	if err != nil {
		return
	}
	defer lock.Close()
	if os.Remove(p.place()) == nil { // which fails where something is in it
		_ = os.Remove(filepath.Dir(p.place()))
	}
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file, whole and flushed: a folder whose files a power cut has emptied could not be told from others'.
func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}
