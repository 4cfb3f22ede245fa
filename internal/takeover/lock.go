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

// lockName is the file whose existence stops `puppet agent` from running (puppet/agent/disabler.rb). `puppet agent
// --disable` writes it.
const lockName = "agent_disabled.lock"

// ForeignError reports that an operator disabled puppet agent before. Pulley must not override that.
type ForeignError struct{ Path, Message string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("puppet agent was disabled by somebody (%s): %s", e.Path, e.Message)
}

// lockedBy returns the message of the lock in a state folder. there is false when the lock is missing.
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
	_ = json.Unmarshal(b, &lock) // the file's existence disables, whatever its content
	return lock.Message, true, nil
}

// free returns a *ForeignError if a lock exists that is not this takeover's.
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

// lock creates the file atomically with its content. It never replaces another lock.
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
		if was == message { // of an interrupted start, perhaps not yet durable
			return atomicfile.SyncFolder(dir)
		}
		return errors.Join(&ForeignError{filepath.Join(dir, lockName), was}, readErr)
	}
	if err != nil {
		return fmt.Errorf("cannot disable puppet agent: %w", err)
	}
	return nil
}

// unlock removes this takeover's lock, and never another one.
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
