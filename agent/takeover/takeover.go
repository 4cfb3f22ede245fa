// Package takeover replaces the puppet agent of a machine by Pulley, in steps that can be undone. It owns the units and
// crontab lines that start Puppet without Pulley, Puppet's own lock against it, and takeover.json. It records every change in
// takeover.json before it makes the change. It must never run Puppet or remove a package, and it starts and
// stops only units of systemd: the lock stops a running agent from applying catalogs.
package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/schedule"
)

// Stage is the progress of a takeover. A stage that ends in -ing may have been interrupted.
type Stage string

// The stages.
const (
	None      Stage = ""          // nothing changed, and no agent found at first boot
	Found     Stage = "found"     // a first boot found an agent, and changed nothing
	Disabling Stage = "disabling" // in progress, or interrupted
	Disabled  Stage = "disabled"  // the old agent does not start, and all of it is still there
	Removing  Stage = "removing"  // in progress, or interrupted
	Removed   Stage = "removed"   // everything that started it is removed, and recorded
	Undoing   Stage = "undoing"   // in progress, or interrupted
)

// State is the record of everything found and changed. It is sufficient for a complete undo.
type State struct {
	Format   int       `json:"v"`
	Stage    Stage     `json:"stage"`
	At       time.Time `json:"at"` // of this stage
	By       string    `json:"by,omitempty"`
	Message  string    `json:"message,omitempty"`  // of Puppet's lock
	Schedule string    `json:"schedule,omitempty"` // requested at first boot, and not set up; "" for none
	Chosen   *Schedule `json:"chosen,omitempty"`   // replaces the agent's schedule; nil before a takeover starts
	Locks    []string  `json:"locks,omitempty"`    // folders with this takeover's lock
	Units    []Unit    `json:"units,omitempty"`
	Files    []File    `json:"files,omitempty"`
	Bare     bool      `json:"bare,omitempty"` // the catalog of the last look has no class
}

// Schedule is the schedule that starts Pulley in place of the old agent.
type Schedule struct {
	Cron string `json:"cron,omitempty"` // five fields; "": not by cron
	None bool   `json:"none,omitempty"` // something else starts Pulley
}

// Choose returns the schedule for a takeover. The order of precedence: the flags of this call, the choice at the
// takeover's start, none if the first boot found an agent and was asked for no schedule, the schedule of the first boot, the default.
func (s State) Choose(cron string, none bool) Schedule {
	switch {
	case none:
		return Schedule{None: true}
	case cron != "":
		return Schedule{Cron: cron}
	case s.Chosen != nil:
		return *s.Chosen
	case s.Stage == Found && s.Schedule == "":
		return Schedule{None: true}
	case s.Schedule != "":
		return Schedule{Cron: s.Schedule}
	}
	return Schedule{Cron: schedule.Default}
}

// Unit is the state of a systemd unit as found.
type Unit struct {
	Name    string     `json:"name"`
	Was     string     `json:"was"`               // output of systemctl is-enabled
	Active  bool       `json:"active,omitempty"`  // never set for a oneshot unit
	Oneshot bool       `json:"oneshot,omitempty"` // exits by itself
	Own     bool       `json:"own,omitempty"`     // created by an administrator
	Starts  string     `json:"starts,omitempty"`  // subcommand of Puppet; "": agent
	Masked  bool       `json:"masked,omitempty"`  // by the takeover
	Links   []UnitLink `json:"links,omitempty"`   // links that start it
}

// UnitLink is a link in systemd's folder.
type UnitLink struct {
	Path string `json:"path"` // below the root
	To   string `json:"to"`
}

// File is a crontab as found, and as changed by the takeover.
type File struct {
	Path     string      `json:"path"`           // below the root
	Link     string      `json:"link,omitempty"` // the path from which cron reads it, if that is a link to Path
	Mode     fs.FileMode `json:"mode"`
	UID      int         `json:"uid"`
	GID      int         `json:"gid"`
	Before   string      `json:"before"`
	Disabled string      `json:"disabled"`
	Removed  *string     `json:"removed,omitempty"`
}

const (
	memoryFile = "takeover.json"
	format     = 1
	maxMemory  = 16 << 20
	maxCrontab = 1 << 20
	ownMessage = "taken over by Pulley on "
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
			return fmt.Errorf("cannot finish: %s: %w\nrun the same command again to resume; `pulley-agent takeover undo` restores the machine", c.name, err)
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

// Looked records whether the catalog of the last look has no class.
func (m *Machine) Looked(bare bool) error {
	s, err := Load(m.StateDir)
	if err != nil || s.Bare == bare {
		return err
	}
	s.Bare = bare
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
// *puppet.DisabledError. bare confirms a node whose last look, or last run, applied no class.
func (m *Machine) Disable(ctx context.Context, by string, chosen Schedule, node model.State, bare bool, on func(context.Context) error) error {
	s, err := Load(m.StateDir)
	if err != nil {
		return err
	}
	switch s.Stage {
	case None, Found, Disabling:
		if (node.Unclassified || s.Bare) && !bare {
			return errors.New("cannot disable the old agent: Pulley's catalog for this machine has 0 classes, and nothing would apply the old ones\ncheck what selects the classes of this machine, and run `pulley-agent takeover look` again; or confirm it with --no-classes")
		}
	case Undoing:
		return errors.New("cannot disable the old agent: an undo was interrupted\nrun `pulley-agent takeover undo` to finish it")
	default:
		return fmt.Errorf("cannot disable the old agent: it is %s already, since %s", s.Stage, s.At.Format(time.RFC3339))
	}
	if err := m.free(s.Message); err != nil {
		return fmt.Errorf("cannot disable the old agent: %w", err)
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
		if t.Disabled = commented(t.Before, t.system()); t.Disabled != t.Before && !slices.ContainsFunc(s.Files, func(o File) bool { return o.Path == t.Path }) {
			s.Files = append(s.Files, t)
		}
	}
	for _, dir := range m.StateDirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && !slices.Contains(s.Locks, dir) {
			s.Locks = append(s.Locks, dir)
		}
	}
	if s.Message == "" {
		s.Message = ownMessage + m.Now().UTC().Format(time.RFC3339) + ": see pulley-agent takeover"
	}
	s.Chosen = &chosen
	return m.at(s, Disabling, by, nil)
}

// Remove permanently removes the units and lines that started the old agent. Their record stays. It needs a good run of
// Pulley since the old agent was disabled, by the node's state. bare confirms a run that applied no class.
func (m *Machine) Remove(ctx context.Context, by string, node model.State, bare bool) error {
	s, err := Load(m.StateDir)
	if err != nil {
		return err
	}
	switch s.Stage {
	case Removing:
	case Disabled:
		if node.Unclassified && !bare {
			return errors.New("cannot remove the old agent: Pulley's last run applied 0 classes\ncheck what selects the classes of this machine, or confirm it with --no-classes")
		}
		if !node.GoodSince(s.At) {
			return fmt.Errorf("cannot remove the old agent: Pulley has had no good run since %s\nrun `pulley-agent run`; `pulley-agent status` shows its result", s.At.Format(time.RFC3339))
		}
	case Removed:
		return fmt.Errorf("cannot remove the old agent: it was removed at %s", s.At.Format(time.RFC3339))
	default:
		return errors.New("cannot remove the old agent: it is not disabled\nrun `pulley-agent takeover disable` first")
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
		found := State{Schedule: s.Schedule, Bare: s.Bare}
		if s.Chosen != nil && found.Schedule == "" {
			found.Schedule = s.Chosen.Cron
		}
		return m.at(&found, Found, by, nil)
	}})
	return m.carryOut(ctx, all)
}

// replace writes another text into a crontab that is as it was. In a modified one, it comments out the agent's lines.
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
	path := m.path(f.Path)
	err = atomicfile.WriteFunc(path, f.Mode, func(out *os.File) error { // cron skips names that begin with a dot
		_, err := out.WriteString(text)
		return errors.Join(err, out.Chown(f.UID, f.GID))
	})
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// Load reads the record of a takeover from the agent's state folder. A missing record is the zero State.
func Load(stateDir string) (State, error) {
	path := filepath.Join(stateDir, memoryFile)
	b, err := bounded.ReadFile(path, maxMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read the record of the takeover: %w", err)
	}
	var s State
	err = json.Unmarshal(b, &s)
	if s.Format > format { // check this first: a newer record may look damaged
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", path, s.Format, format)
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read %s: it is damaged: %w\nit records the old agent: repair the file before any other step", path, err)
	}
	return s, nil
}

// save writes the record durably, because the recorded changes follow.
func (s State) save(stateDir string) error {
	s.Format = format
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.MkdirAll(stateDir, 0o755)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(stateDir, memoryFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the record of the takeover: %w", err)
	}
	return nil
}

// Replaces reports whether Pulley manages the machine in the place of a puppet agent.
func (s State) Replaces() bool {
	return s.Stage == Disabled || s.Stage == Removing || s.Stage == Removed
}

// Services returns the services of the puppet agent that Pulley replaces, as Puppet names them; nil without a takeover.
func (s State) Services() []string {
	if !s.Replaces() {
		return nil
	}
	return servicesOf(s.Units)
}

// servicesOf returns the names of Puppet's service type that mean a puppet agent, for the units that start it.
func servicesOf(units []Unit) []string {
	services := []string{"puppet", "pe-puppet"}
	for _, u := range units {
		services = append(services, u.Name, strings.TrimSuffix(u.Name, ".service"))
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// Services returns the services of the puppet agents that were found, as Puppet's resource list names them: service[puppet].
func (f Findings) Services() (resources []string) {
	for _, name := range servicesOf(f.Units) {
		resources = append(resources, "service["+strings.ToLower(name)+"]")
	}
	return resources
}
