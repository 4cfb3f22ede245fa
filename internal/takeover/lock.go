package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pulley/internal/atomicfile"
)

// lockName is the file by whose being there `puppet agent` runs nothing (puppet/agent/disabler.rb): what `puppet agent
// --disable` writes.
const lockName = "agent_disabled.lock"

// ForeignError says that somebody disabled puppet agent here before, for a reason that is not Pulley's to override.
type ForeignError struct{ Path, Message string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("puppet agent was disabled by somebody (%s): %s", e.Path, e.Message)
}

// lockedBy is the message of the lock in a state folder; there is false when there is no lock.
func lockedBy(dir string) (message string, there bool, err error) {
	b, err := readSome(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("cannot read Puppet's lock: %w", err)
	}
	var lock struct {
		Message string `json:"disabled_message"`
	}
	_ = json.Unmarshal(b, &lock) // whatever it holds, its being there disables
	return lock.Message, true, nil
}

// free returns a *ForeignError when a lock is there that is not this takeover's.
func (m *Machine) free(own string) error {
	for _, dir := range m.StateDirs {
		message, there, err := lockedBy(dir)
		if err != nil {
			return err
		}
		if there && (own == "" || message != own) {
			return &ForeignError{filepath.Join(dir, lockName), message}
		}
	}
	return nil
}

// lock makes the file appear with its content or not at all; it never takes the place of another.
func lock(dir, message string) error {
	b, err := json.Marshal(map[string]string{"disabled_message": message})
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".takeover-*")
	if err != nil {
		return fmt.Errorf("cannot disable puppet agent: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Link(tmp.Name(), filepath.Join(dir, lockName))
	}
	if err == nil {
		err = atomicfile.SyncFolder(dir)
	}
	if errors.Is(err, fs.ErrExist) {
		was, _, readErr := lockedBy(dir)
		if was == message { // of a start that was cut off, perhaps before it lasted
			return atomicfile.SyncFolder(dir)
		}
		return errors.Join(&ForeignError{filepath.Join(dir, lockName), was}, readErr)
	}
	if err != nil {
		return fmt.Errorf("cannot disable puppet agent: %w", err)
	}
	return nil
}

// unlock takes away this takeover's lock, and nobody else's.
func unlock(dir, message string) error {
	was, there, err := lockedBy(dir)
	if err != nil || there && was != message {
		return err
	}
	err = os.Remove(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if _, gone := os.Stat(dir); err == nil && gone == nil {
		err = atomicfile.SyncFolder(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot enable puppet agent: %w", err)
	}
	return nil
}
