package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pulley/internal/atomicfile"
	"pulley/internal/puppet"
)

// Own returns the message of Puppet's lock that Pulley itself set, or "". If the record is unreadable, it returns "",
// and the lock is treated as if another program had set it.
func Own(stateDir string) string {
	s, err := Load(stateDir)
	if err != nil || !strings.HasPrefix(s.Message, ownMessage) {
		return ""
	}
	return s.Message
}

// free returns a *puppet.DisabledError if a lock exists that is not this takeover's.
func (m *Machine) free(own string) error {
	for _, dir := range m.StateDirs {
		lock, err := puppet.Disabled(dir)
		if err != nil {
			return err
		}
		if lock != nil && (own == "" || lock.Message != own) {
			return lock
		}
	}
	return nil
}

// lock stops `puppet agent` from running, as `puppet agent --disable` does. It never replaces another lock.
func lock(dir, message string) error {
	b, err := json.Marshal(map[string]string{"disabled_message": message})
	if err == nil {
		err = atomicfile.Create(filepath.Join(dir, puppet.DisabledLock), b, 0o644)
	}
	if errors.Is(err, fs.ErrExist) {
		switch was, readErr := puppet.Disabled(dir); {
		case readErr != nil:
			err = readErr
		case was != nil && was.Message == message: // of an interrupted start, perhaps not yet durable
			err = atomicfile.SyncFolder(dir)
		case was != nil:
			return was
		}
	}
	if err != nil {
		return fmt.Errorf("cannot disable puppet agent: %w", err)
	}
	return nil
}

// unlock removes this takeover's lock, and never another one.
func unlock(dir, message string) error {
	was, err := puppet.Disabled(dir)
	if err != nil || was != nil && was.Message != message {
		return err
	}
	err = os.Remove(filepath.Join(dir, puppet.DisabledLock))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if _, statErr := os.Stat(dir); err == nil && statErr == nil {
		err = atomicfile.SyncFolder(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot enable puppet agent: %w", err)
	}
	return nil
}
