package firstboot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
	"time"
)

// State is the state of a first boot, in /var/lib/pulley/first-boot.json: a reboot resumes there.
type State struct {
	Format   int                `json:"v"`
	Machine  string             `json:"machine,omitempty"` // machine id: a copy of this machine begins anew
	Plan     string             `json:"plan,omitempty"`    // digest of the plan without the token: another plan begins anew
	Token    string             `json:"token,omitempty"`   // digest of the last token that the plan had: the same one is no word of an operator
	Before   time.Time          `json:"before,omitzero"`   // when an earlier first boot of this very machine was finished
	Started  time.Time          `json:"started"`
	Finished time.Time          `json:"finished,omitzero"`
	Steps    map[Name]StepState `json:"steps"`
}

// finishedBefore is when a first boot of the machine was finished last; zero when none was.
func (s State) finishedBefore(machine string) time.Time {
	switch {
	case s.Machine != machine: // a copy's is another machine's
		return time.Time{}
	case !s.Finished.IsZero():
		return s.Finished
	}
	return s.Before
}

// StepState is where one step is.
type StepState struct {
	State    Progress      `json:"state"`
	Started  time.Time     `json:"started"`            // its last start
	Took     time.Duration `json:"took"`               // nanoseconds, of all its tries since then
	Attempts int           `json:"attempts"`           // starts; more than one says that it was cut off, or failed
	Error    string        `json:"error,omitempty"`    // of the last try
	Replaced string        `json:"replaced,omitempty"` // Off, or the program that ran instead
}

// Progress is how far a step is.
type Progress string

// How far a step can be.
const (
	Started Progress = "started"
	Done    Progress = "done"
	Failed  Progress = "failed"
)

// StateFormat is the version of the state that is written; no newer one is read.
const StateFormat = 1

// stateFile is the state's name in the agent's state folder.
const stateFile = "first-boot.json"

// Disk keeps the state in the agent's state folder.
type Disk struct{ Dir string }

// Path is the file.
func (d Disk) Path() string { return filepath.Join(d.Dir, stateFile) }

// Load reads the state; none, or one that makes no sense, is an empty one: every step looks first what is left for it.
func (d Disk) Load() (State, error) {
	b, err := os.ReadFile(d.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read the state of the first boot: %w", err)
	}
	var s State
	damaged := json.Unmarshal(b, &s)
	if s.Format > StateFormat {
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", d.Path(), s.Format, StateFormat)
	}
	if damaged != nil {
		return State{}, nil
	}
	return s, nil
}

// Save writes the state; it is durable when Save returns.
func (d Disk) Save(s State) error {
	s.Format = StateFormat
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.MkdirAll(d.Dir, 0o755)
	}
	if err == nil {
		err = atomicfile.Write(d.Path(), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot keep the state of the first boot: %w", err)
	}
	return nil
}
