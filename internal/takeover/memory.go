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

// Stage is how far a takeover is. The ones that end in -ing were begun and may have been cut off.
type Stage string

// The stages.
const (
	None      Stage = ""          // nothing was changed, nor found by a first boot
	Found     Stage = "found"     // a first boot found an agent, and put nothing in its place
	Disabling Stage = "disabling" //
	Disabled  Stage = "disabled"  // the old agent is off, and everything of it still there
	Removing  Stage = "removing"  //
	Removed   Stage = "removed"   // what started it is gone; what it was is written down
	Undoing   Stage = "undoing"   //
)

// State is what was found and changed: enough to bring all of it back.
type State struct {
	Format   int       `json:"v"`
	Stage    Stage     `json:"stage"`
	At       time.Time `json:"at"` // of this stage
	By       string    `json:"by,omitempty"`
	Message  string    `json:"message,omitempty"`  // in Puppet's lock
	Schedule string    `json:"schedule,omitempty"` // that a first boot was told, and did not set up; "" for none
	Chosen   *Schedule `json:"chosen,omitempty"`   // that takes the agent's place; nil until a takeover was begun
	Locks    []string  `json:"locks,omitempty"`    // folders that Puppet's lock was put into
	Units    []Unit    `json:"units,omitempty"`
	Files    []File    `json:"files,omitempty"`
}

// Schedule is what has Pulley started in the agent's place.
type Schedule struct {
	Cron string `json:"cron,omitempty"` // five fields; "" where cron is not to
	None bool   `json:"none,omitempty"` // something else starts Pulley
}

// Choose is the schedule for a takeover: what somebody says now, else what was chosen when it was begun, else what a first boot
// was told, else the usual one.
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

// Unit is a unit of systemd as it was found.
type Unit struct {
	Name    string     `json:"name"`
	Was     string     `json:"was"`               // as systemctl is-enabled says
	Active  bool       `json:"active,omitempty"`  // never of one that ends by itself
	Oneshot bool       `json:"oneshot,omitempty"` // ends by itself
	Own     bool       `json:"own,omitempty"`     // somebody made it on this machine
	Masked  bool       `json:"masked,omitempty"`  // by the takeover
	Links   []UnitLink `json:"links,omitempty"`   // that have it started
}

// UnitLink is a link in systemd's folder.
type UnitLink struct {
	Path string `json:"path"` // below the root
	To   string `json:"to"`
}

// File is a crontab as it was found, and what the takeover made of it.
type File struct {
	Path     string      `json:"path"`           // below the root
	Link     string      `json:"link,omitempty"` // where cron reads it, when that is a link to Path
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

// Load reads what is known of a takeover in the agent's state folder; the zero State when there was none.
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
	if s.Format > format { // before all else: what looks damaged may only be newer
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", path, s.Format, format)
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read %s: it is damaged: %w\nit says how the old agent was: mend it by hand before anything else", path, err)
	}
	return s, nil
}

// save is durable when it returns: what it says is about to be changed.
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

// Own is the message of Puppet's lock that does not concern Pulley, as it is its own; "" when there is none. What can't be read
// is nobody's: then the lock counts.
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
