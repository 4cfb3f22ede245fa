package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
	"slices"
	"time"
)

// Machine is the machine whose agent Pulley replaces. The caller must hold the node's lock.
type Machine struct {
	Root      string   // prefix of all paths; "/" for this machine
	StateDir  string   // of Pulley's agent; contains takeover.json
	StateDirs []string // of Puppet, searched for its lock
	Now       func() time.Time
	Interrupt func(step string) error // called before each change; may be nil
}

func (m *Machine) path(under string) string { return filepath.Join(m.Root, under) }

// change is one change to the machine. It must be repeatable.
type change struct {
	name string
	do   func() error
}

func (m *Machine) carryOut(ctx context.Context, changes []change) error {
	for _, c := range changes {
		err := ctx.Err()
		if err == nil && m.Interrupt != nil {
			err = m.Interrupt(c.name)
		}
		if err == nil {
			err = c.do()
		}
		if err != nil {
			return fmt.Errorf("cannot finish: %s: %w\nthe same command goes on where it stopped; `pulley-agent takeover undo` brings back how it was", c.name, err)
		}
	}
	return nil
}

// Find records that a first boot found an agent, and the schedule that it did not set up; "" for none.
func (m *Machine) Find(schedule, by string) error {
	s, err := Load(m.StateDir)
	if err != nil || s.Stage != None {
		return err
	}
	return m.at(&s, Found, by, func() { s.Schedule = schedule })
}

// at records a stage.
func (m *Machine) at(s *State, stage Stage, by string, set func()) error {
	if set != nil {
		set()
	}
	s.Stage, s.At = stage, m.Now().UTC()
	if by != "" {
		s.By = by
	}
	return s.save(m.StateDir)
}

// Forget reverts Find: the operator reports that no puppet agent manages the machine.
func (m *Machine) Forget() error {
	s, err := Load(m.StateDir)
	if err != nil || s.Stage != Found {
		return err
	}
	if err := os.Remove(filepath.Join(m.StateDir, memoryFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot forget the agent that was found: %w", err)
	}
	return nil
}

// Disable turns the old agent off without removing any of it, and then starts Pulley's schedule through the function
// on. It records the chosen schedule before any change. If an operator has disabled the agent, it returns a
// *ForeignError.
func (m *Machine) Disable(ctx context.Context, by string, chosen Schedule, on func(context.Context) error) error {
	s, err := Load(m.StateDir)
	if err != nil {
		return err
	}
	switch s.Stage {
	case None, Found, Disabling:
	case Undoing:
		return errors.New("cannot disable the old agent: an undo was cut off\n`pulley-agent takeover undo` finishes it")
	default:
		return fmt.Errorf("cannot disable the old agent: that was done, and it is %s since %s", s.Stage, s.At.Format(time.RFC3339))
	}
	if err := m.free(s.Message); err != nil {
		return fmt.Errorf("cannot disable the old agent: %w\nask whoever did; `puppet agent --enable` lifts it", err)
	}
	if err := m.survey(ctx, &s, by, chosen); err != nil {
		return err
	}
	var all []change
	for _, dir := range s.Locks {
		all = append(all, change{"disable puppet agent in " + dir, func() error { return lock(dir, s.Message) }})
	}
	for _, u := range s.Units {
		all = append(all, change{"disable " + u.Name, func() error { return m.disableUnit(ctx, u) }})
	}
	for _, f := range s.Files {
		all = append(all, change{"comment out /" + f.Path, func() error { return m.replace(f, f.Before, f.Disabled) }})
	}
	all = append(all, change{"set up Pulley's schedule", func() error { return on(ctx) }})
	if err := m.carryOut(ctx, all); err != nil {
		return err
	}
	return m.at(&s, Disabled, by, nil)
}

// survey records the state of everything that will be changed. It keeps the record of an earlier, interrupted start.
func (m *Machine) survey(ctx context.Context, s *State, by string, chosen Schedule) error {
	f, err := m.Look(ctx)
	if err != nil {
		return err
	}
	tabs, err := m.crontabs()
	if err != nil {
		return err
	}
	for _, u := range f.Units {
		if !slices.ContainsFunc(s.Units, func(o Unit) bool { return o.Name == u.Name }) {
			s.Units = append(s.Units, u)
		}
	}
	for _, t := range tabs {
		if !slices.ContainsFunc(s.Files, func(o File) bool { return o.Path == t.Path }) {
			t.Disabled = commented(t.Before, t.system())
			s.Files = append(s.Files, t)
		}
	}
	for _, dir := range m.StateDirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && !slices.Contains(s.Locks, dir) {
			s.Locks = append(s.Locks, dir)
		}
	}
	if s.Message == "" {
		s.Message = messageAt(m.Now())
	}
	s.Chosen = &chosen
	return m.at(s, Disabling, by, nil)
}

// Remove permanently removes the units and lines that started the old agent. Their record stays.
func (m *Machine) Remove(ctx context.Context, by string) error {
	s, err := Load(m.StateDir)
	if err != nil {
		return err
	}
	switch s.Stage {
	case Disabled, Removing:
	case Removed:
		return fmt.Errorf("cannot remove the old agent: that was done at %s", s.At.Format(time.RFC3339))
	default:
		return errors.New("cannot remove the old agent: it has to be disabled first\n`pulley-agent takeover disable` does so")
	}
	for i, u := range s.Units {
		s.Units[i].Masked = u.Masked || m.maskable(u.Name)
	}
	for i, f := range s.Files {
		now, err := m.crontab(f.Path)
		if err != nil {
			return err
		}
		if now != nil && f.Removed == nil {
			text := dropped(now.Before)
			s.Files[i].Removed = &text
		}
	}
	if err := m.at(&s, Removing, by, nil); err != nil {
		return err
	}
	var all []change
	for _, u := range s.Units {
		if u.Masked {
			all = append(all, change{"mask " + u.Name, func() error { _, err := m.systemctl(ctx, "mask", u.Name); return err }})
		}
	}
	for _, f := range s.Files {
		if f.Removed != nil {
			all = append(all, change{"remove the lines in /" + f.Path, func() error { return m.edit(f, dropped) }})
		}
	}
	if err := m.carryOut(ctx, all); err != nil {
		return err
	}
	return m.at(&s, Removed, by, nil)
}

// Undo restores everything from the record, and stops Pulley's schedule through the function off. The record still
// states that the agent manages the machine, and keeps the schedule for a takeover. A repeated first boot then sets up
// no second schedule.
func (m *Machine) Undo(ctx context.Context, by string, off func() error) error {
	s, err := Load(m.StateDir)
	if err != nil {
		return err
	}
	if s.Stage == None || s.Stage == Found {
		return errors.New("cannot undo: nothing was taken over on this machine")
	}
	if err := m.at(&s, Undoing, by, nil); err != nil {
		return err
	}
	all := []change{{"remove Pulley's schedule", off}}
	// Unlock before the units start: an agent that starts locked would skip its first run.
	for _, dir := range s.Locks {
		all = append(all, change{"enable puppet agent in " + dir, func() error { return unlock(dir, s.Message) }})
	}
	for _, f := range s.Files {
		all = append(all, change{"restore /" + f.Path, func() error { return m.edit(f, f.restored) }})
	}
	for _, u := range s.Units {
		all = append(all, change{"restore " + u.Name, func() error { return m.restoreUnit(ctx, u) }})
	}
	all = append(all, change{"forget the takeover", func() error {
		found := State{Schedule: s.Schedule}
		if s.Chosen != nil && found.Schedule == "" {
			found.Schedule = s.Chosen.Cron
		}
		return m.at(&found, Found, by, nil)
	}})
	return m.carryOut(ctx, all)
}

// replace restores an unmodified crontab. In a modified one, it comments out the agent's lines.
func (m *Machine) replace(f File, was, to string) error {
	return m.edit(f, func(now string) string {
		if now == was {
			return to
		}
		return commented(now, f.system())
	})
}

// edit rewrites a crontab with its mode and owner. cron detects a new file by its folder's modification time. A deleted
// crontab stays deleted, unless it is restored as found.
func (m *Machine) edit(f File, to func(now string) string) error {
	now, err := m.crontab(f.Path)
	if err != nil {
		return err
	}
	text := ""
	switch {
	case now == nil:
		if text = to(""); text == "" {
			return nil
		}
	case to(now.Before) == now.Before:
		return nil
	default:
		text = to(now.Before)
		f.Mode, f.UID, f.GID = now.Mode, now.UID, now.GID
	}
	return writeAs(m.path(f.Path), text, f)
}

// writeAs writes a file atomically with its owner and mode. cron skips names that begin with a dot.
func writeAs(path, text string, f File) error {
	err := atomicfile.WriteFunc(path, f.Mode, func(out *os.File) error {
		_, err := out.WriteString(text)
		return errors.Join(err, out.Chown(f.UID, f.GID))
	})
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}
