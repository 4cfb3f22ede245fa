package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"strings"
	"time"
)

// Stage is the progress of a takeover. A stage that ends in -ing may have been interrupted.
type Stage string

// The stages.
const (
	None      Stage = ""          // nothing changed, and no agent found at first boot
	Found     Stage = "found"     // a first boot found an agent, and changed nothing
	Disabling Stage = "disabling" //
	Disabled  Stage = "disabled"  // the old agent is off, but still complete
	Removing  Stage = "removing"  //
	Removed   Stage = "removed"   // everything that started it is removed, and recorded
	Undoing   Stage = "undoing"   //
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
}

// Schedule is the schedule that starts Pulley in place of the old agent.
type Schedule struct {
	Cron string `json:"cron,omitempty"` // five fields; "": not by cron
	None bool   `json:"none,omitempty"` // something else starts Pulley
}

// Choose returns the schedule for a takeover. The order of precedence: the flags of this call, the choice at the
// takeover's start, the schedule requested at first boot, the default.
func (s State) Choose(cron string, none bool, usual string) Schedule {
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
	return Schedule{Cron: usual}
}

// Unit is the state of a systemd unit as found.
type Unit struct {
	Name    string     `json:"name"`
	Was     string     `json:"was"`               // output of systemctl is-enabled
	Active  bool       `json:"active,omitempty"`  // never set for a oneshot unit
	Oneshot bool       `json:"oneshot,omitempty"` // exits by itself
	Own     bool       `json:"own,omitempty"`     // created by an administrator
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
	memoryFile  = "takeover.json"
	format      = 1
	maxMemory   = 16 << 20
	maxCrontab  = 1 << 20
	ownMessage  = "taken over by Pulley on "
	messageEnds = ": see pulley-agent takeover"
)

// Load reads the record of a takeover from the agent's state folder. A missing record is the zero State.
func Load(stateDir string) (State, error) {
	path := filepath.Join(stateDir, memoryFile)
	b, err := bounded.ReadFile(path, maxMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read what was taken over: %w", err)
	}
	var s State
	err = json.Unmarshal(b, &s)
	if s.Format > format { // check this first: a newer record may look damaged
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", path, s.Format, format)
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read %s: it is damaged: %w\nit says how the old agent was: mend it by hand before anything else", path, err)
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
		return fmt.Errorf("cannot write down what is taken over: %w", err)
	}
	return nil
}

// Own returns the message of Puppet's lock that Pulley itself set, or "". If the record is unreadable, it returns "",
// and the lock counts as another program's.
func Own(stateDir string) string {
	s, err := Load(stateDir)
	if err != nil || !strings.HasPrefix(s.Message, ownMessage) {
		return ""
	}
	return s.Message
}

func messageAt(now time.Time) string {
	return ownMessage + now.UTC().Format(time.RFC3339) + messageEnds
}
