package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/release/trust"
)

// keptFile contains the copies from before a run, in the state folder. It exists until the run is checked. An
// interrupted run leaves it behind.
const keptFile = "kept.json"

// kept is the agent's schedule and the lists of signers before a run.
type kept struct {
	V        int         `json:"v"`
	Schedule []byte      `json:"schedule,omitempty"` // the cron file; nil: something else starts the agent
	Mode     fs.FileMode `json:"mode,omitempty"`     // of the cron file
	Signers  *lists      `json:"signers,omitempty"`  // nil: the lists were not usable before
}

const keptFormat = 1

// lists are the contents of a node's signer files at one moment. nil means a missing file.
type lists struct {
	Allowed []byte `json:"allowed"`
	Revoked []byte `json:"revoked"`
}

// save writes the copies durably.
func (k kept) save(path string) error {
	k.V = keptFormat
	b, err := json.Marshal(k)
	if err == nil {
		err = atomicfile.Replace(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot copy the schedule and the lists of signers: %w", err)
	}
	return nil
}

// loadKept returns nil if no run waits for its check.
func loadKept(path string) (*kept, error) {
	b, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err == nil && k.V != keptFormat {
		err = fmt.Errorf("its format is %d, not %d", k.V, keptFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the copies of the schedule and the lists of signers: %w", err)
	}
	return &k, nil
}

// keptSigners restores the lists of signers after a run that left no key able to sign for the node. Such a node could
// take no other release.
type keptSigners struct {
	files       trust.Files
	environment string
	now         func() time.Time
}

// lists reads the files.
func (k keptSigners) lists() (lists, error) {
	var l lists
	for path, into := range map[string]*[]byte{k.files.Allowed: &l.Allowed, k.files.Revoked: &l.Revoked} {
		b, err := bounded.ReadFile(path, nodeconfig.MaxFileBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return l, err
		}
		*into = b
	}
	return l, nil
}

// usable returns nil if a key can sign releases for this node now, or if signatures are not required. Only the right to
// sign releases counts, because a release can install a new list.
func (k keptSigners) usable(l lists) error {
	mark, err := trust.LoadHighWaterMark(k.files.Mark)
	required := err != nil || mark.Required
	switch {
	case l.Allowed == nil && (k.files.AllowedNamed || required):
		return fmt.Errorf("%s is missing", k.files.Allowed)
	case l.Allowed == nil:
		return nil
	case l.Revoked == nil && k.files.RevokedNamed:
		return fmt.Errorf("%s is missing", k.files.Revoked)
	}
	signers, err := trust.ParseSigners(l.Allowed, l.Revoked)
	if err != nil {
		return err
	}
	if !signers.Anybody(trust.Release, k.environment, k.now()) {
		return fmt.Errorf("%s has no key that can sign for %s now", k.files.Allowed, k.environment)
	}
	return nil
}

// remember returns the lists before a run, or nil if they are not usable.
func (k keptSigners) remember() *lists {
	l, err := k.lists()
	if err != nil || k.usable(l) != nil {
		return nil
	}
	return &l
}

// damage returns the damage to the lists since before, or nil. It judges both at the present time: a key that expired
// meanwhile is not the run's fault.
func (k keptSigners) damage(before *lists) error {
	if before == nil || k.usable(*before) != nil {
		return nil
	}
	now, err := k.lists()
	switch {
	case err != nil:
		return err
	case now.Allowed == nil && before.Allowed != nil:
		return fmt.Errorf("%s is missing", k.files.Allowed)
	}
	return k.usable(now)
}

// restoreDamaged restores the lists if a run damaged them. Its error names the damage.
func (k keptSigners) restoreDamaged(before *lists) (put bool, err error) {
	if err = k.damage(before); err == nil {
		return true, nil
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	if err := k.restore(*before); err != nil {
		return false, fmt.Errorf("the release damaged the list of allowed signers (%s), and it cannot be restored: %w", why, err)
	}
	return true, fmt.Errorf("the release damaged the list of allowed signers: %s (it was restored)", why)
}

// restore writes the revoked keys first: after a crash between the two, no additional key is valid.
func (k keptSigners) restore(l lists) error {
	for _, file := range []struct {
		path  string
		bytes []byte
	}{{k.files.Revoked, l.Revoked}, {k.files.Allowed, l.Allowed}} {
		if now, err := bounded.ReadFile(file.path, nodeconfig.MaxFileBytes); err == nil && file.bytes != nil && bytes.Equal(now, file.bytes) {
			continue
		}
		if err := putBack(file.path, file.bytes, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// putBack restores a file. nil bytes mean that the file did not exist.
func putBack(path string, b []byte, mode fs.FileMode) error {
	if b == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Replace(path, b, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // WriteFile keeps the mode of an existing file
}
