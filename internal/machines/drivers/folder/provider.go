package folder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
)

// List returns the machines of the fleet.
func (f Fleet) List(ctx context.Context) ([]machines.Machine, error) {
	entries, err := os.ReadDir(f.path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w\nrun the same command as root, for example with sudo", err)
	case err == nil:
		err = f.checkOwner()
	}
	if err != nil {
		return nil, err
	}
	var all []machines.Machine
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		m, ok, err := f.look(e.Name())
		if err := errors.Join(ctx.Err(), err); err != nil {
			return nil, err
		}
		if ok {
			all = append(all, m)
		}
	}
	return all, nil
}

// New is a machine that is being made.
type New struct {
	About
	Dir string // its folder, aside

	held *os.File // the lock of the folder
}

// Record writes the record of the machine.
func (n *New) Record() error { return WriteJSON(filepath.Join(n.Dir, AboutFile), n.About) }

// Create makes a machine's folder aside and starts a supervisor in it, which moves the folder to its place when the machine is ready. A
// machine therefore always has a supervisor, whichever program is killed.
//
// prepare checks what the driver requires of an order, and may take minutes. start starts the supervisor, and returns the supervisor's
// handover. A supervisor that has read its handover continues when ctx ends; another one ends.
func (f Fleet) Create(ctx context.Context, o machines.Order, prepare func() error, start func(*New) (*Supervisor, any, error)) (m machines.Machine, err error) {
	valid := machines.Hostname.MatchString(o.Name)
	if valid && f.checkOwner() == nil {
		if m, ok, err := f.look(o.Name); ok && err == nil { // whatever the order contains
			return m, nil
		}
	}
	flaw := environments.NotGiven(f.Driver, o.Flavor, o.Image, o.Networks)
	switch {
	case !valid:
		return m, fmt.Errorf("%w: %q is not a hostname of one label", machines.ErrRefused, o.Name)
	case flaw != nil: // nothing of an order is ignored
		return m, fmt.Errorf("%w: %s\n%s", machines.ErrRefused, flaw.Problem, flaw.Advice)
	case os.Geteuid() != 0:
		return m, fmt.Errorf("%w: it needs root\nrun the same command as root, for example with sudo", machines.ErrRefused)
	}
	if err := prepare(); err != nil {
		return m, err
	}
	lock, err := f.lock(ctx)
	if err != nil {
		return m, err
	}
	defer lock.Close()
	if err := os.MkdirAll(f.path(), 0o700); err != nil {
		return m, err
	}
	if err := f.sweep(ctx, o.Name); err != nil {
		return m, err
	}
	if m, ok, err := f.look(o.Name); ok || err != nil {
		return m, err
	}
	if _, err := os.Lstat(f.machine(o.Name)); err == nil {
		return m, &machines.TakenError{Name: o.Name}
	}
	if err := f.start(ctx, o, start); err != nil {
		return m, err
	}
	m, ok, err := f.look(o.Name)
	if err == nil && !ok {
		err = errors.New("its folder was removed")
	}
	return m, err
}

func (f Fleet) start(ctx context.Context, o machines.Order, start func(*New) (*Supervisor, any, error)) error {
	id := make([]byte, 5) // the name of a network interface has room for it
	rand.Read(id)
	n := &New{About: About{
		ID: fmt.Sprintf("%x", id), Mark: f.Mark, Name: o.Name, Node: o.Node, Role: o.Role, Flavor: o.Flavor, Image: o.Image, Labels: o.Labels,
		Created: time.Now().UTC().Truncate(time.Second),
	}}
	n.Dir = f.new(n.Name, n.ID)
	if err := os.Mkdir(n.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if n.held, err = lock(ctx, filepath.Join(n.Dir, heldFile)); err != nil {
		return err
	}
	defer n.held.Close() // the supervisor has it, too
	var s *Supervisor
	var handover any
	if err = WriteJSON(filepath.Join(n.Dir, StateFile), State{State: machines.Building}); err == nil {
		s, handover, err = start(n)
	}
	if err == nil {
		if err = s.tell(ctx, handover); err == nil {
			return nil
		}
	}
	if s != nil {
		_ = s.talk.Close()
	}
	if ctx.Err() != nil { // the supervisor continues or ends: the next call sees which
		return err
	}
	if s != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
	return errors.Join(err, f.undo(ctx, n.About))
}

// undo removes a machine that did not start and has no supervisor. Its supervisor may have moved it to its place before it ended.
func (f Fleet) undo(ctx context.Context, a About) error {
	err := f.erase(ctx, f.new(a.Name, a.ID))
	is, ok, lookErr := f.look(a.Name)
	if lookErr != nil || !ok || is.ID != a.ID {
		return errors.Join(err, lookErr)
	}
	gone, discardErr := f.discard(a.Name, a.ID)
	return errors.Join(err, discardErr, f.erase(ctx, gone))
}

// Delete ends a machine as a power cut does, and removes its folder.
func (f Fleet) Delete(ctx context.Context, v machines.Ref) error {
	if !machines.Hostname.MatchString(v.Name) {
		return nil // Create refuses the name
	}
	if _, err := os.Lstat(f.path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	gone, err := f.end(ctx, v)
	if err == nil && gone != "" { // the removal of a large disk needs no lock
		err = f.erase(ctx, gone)
	}
	if err != nil {
		return err
	}
	if lock, err := f.lock(ctx); err == nil {
		if os.Remove(f.path()) == nil { // it was empty
			_ = os.Remove(filepath.Dir(f.path()))
		}
		_ = lock.Close()
	}
	return nil
}

// end ends a machine and moves its folder aside. It returns "" where there is no such machine.
func (f Fleet) end(ctx context.Context, v machines.Ref) (aside string, err error) {
	lock, err := f.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := f.sweep(ctx, v.Name); err != nil {
		return "", err
	}
	m, ok, err := f.look(v.Name)
	if err != nil || !ok || v.ID != "" && v.ID != m.ID {
		return "", err
	}
	if err := endSupervisor(ctx, f.machine(v.Name)); err != nil {
		return "", err
	}
	return f.discard(v.Name, m.ID)
}

// sweep removes the folders that killed programs left. It waits for a new machine of that name: its supervisor finishes it without
// the program that started it. The caller holds the lock.
func (f Fleet) sweep(ctx context.Context, name string) error {
	entries, err := os.ReadDir(f.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the fleet's last machine was deleted
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newPrefix) && !strings.HasPrefix(e.Name(), gonePrefix) {
			continue
		}
		dir, held := f.machine(e.Name()), false
		err := Poll(ctx, func() (_ bool, err error) {
			held, err = isHeld(dir)
			return !held || !strings.HasPrefix(e.Name(), newPrefix+name+"."), err
		})
		if err == nil && !held {
			err = f.erase(ctx, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// erase removes a folder without a supervisor, and its control group. When ctx ends first, the next sweep removes the rest.
func (f Fleet) erase(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var a About
	if err := ReadJSON(filepath.Join(dir, AboutFile), &a); err == nil && a.Group != "" {
		if err := f.Free(ctx, a.Group); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	go func() { done <- os.RemoveAll(dir) }() // a complete system takes a while
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot wait until %s is removed: %w", dir, ctx.Err())
	}
}
