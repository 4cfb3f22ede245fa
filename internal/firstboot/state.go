package firstboot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/atomicfile"
)

// State is the state of a first boot, in /var/lib/pulley/first-boot.json. After a reboot, the first boot resumes from
// it.
type State struct {
	Format  int    `json:"v"`
	ID      string `json:"id,omitempty"`      // of this first boot: it distinguishes machines with one machine id
	Machine string `json:"machine,omitempty"` // machine id: a copy of this disk starts over
	// digest of the plan without the token: another plan starts over
	Plan string `json:"plan,omitempty"`
	// digest of the plan's last token: the same token does not start over
	Tokens   []string           `json:"tokens,omitempty"` // digests of those that were given so far
	Before   time.Time          `json:"before,omitzero"`  // when this machine finished an earlier first boot
	Started  time.Time          `json:"started"`
	Finished time.Time          `json:"finished,omitzero"`
	Steps    map[Name]StepState `json:"steps"`
}

// finishedBefore returns the time of the machine's last finished first boot; zero if there was none.
func (s State) finishedBefore(machine string) time.Time {
	switch {
	case s.Machine != machine: // from a copied disk
		return time.Time{}
	case !s.Finished.IsZero():
		return s.Finished
	}
	return s.Before
}

// StepState is the state of one step.
type StepState struct {
	State    Progress      `json:"state"`
	Started  time.Time     `json:"started"`            // its last start
	Took     time.Duration `json:"took"`               // nanoseconds, of all its tries since then
	Attempts int           `json:"attempts"`           // starts; more than one means that it was interrupted, or failed
	Error    string        `json:"error,omitempty"`    // of the last try
	Replaced string        `json:"replaced,omitempty"` // Off, or the program that ran instead
}

// Progress is the progress of a step.
type Progress string

// The progress of a step.
const (
	Started Progress = "started"
	Done    Progress = "done"
	Failed  Progress = "failed"
)

// stateFormat is the version of the stored state; Load refuses newer ones.
const stateFormat = 1

// stateFile is the state's name in the agent's state folder.
const stateFile = "first-boot.json"

// Disk stores the state in the agent's state folder.
type Disk struct{ Dir string }

// Path returns the path of the file.
func (d Disk) Path() string { return filepath.Join(d.Dir, stateFile) }

// Load reads the state. A missing or invalid state is empty: every step first checks its remaining work.
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
	if s.Format > stateFormat {
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", d.Path(), s.Format, stateFormat)
	}
	if damaged != nil {
		return State{}, nil
	}
	return s, nil
}

// Save writes the state. It is durable when Save returns.
func (d Disk) Save(s State) error {
	s.Format = stateFormat
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
