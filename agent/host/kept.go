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

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/nodeconfig"
	"pulley/internal/trust"
)

// keptFile holds, in the state folder, the copies from before a run. It exists until the run was checked: an interrupted run
// leaves it.
const keptFile = "kept.json"

// kept is the agent's schedule and the lists of signers before a run.
type kept struct {
	V        int         `json:"v"`
	Schedule []byte      `json:"schedule,omitempty"` // the cron file; nil where something else starts the agent
	Mode     fs.FileMode `json:"mode,omitempty"`     // of the cron file
	Signers  *lists      `json:"signers,omitempty"`  // nil when the lists were not usable before
}

const keptFormat = 1

// lists are the files of a node's signers at one moment; nil is one that is not there.
type lists struct {
	Allowed []byte `json:"allowed"`
	Revoked []byte `json:"revoked"`
}

// save is durable when it returns.
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

// loadKept returns nil when no run is looked at yet.
func loadKept(path string) (*kept, error) {
	b, err := os.ReadFile(path)
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

// keptSigners restores the lists of signers after a run with which nobody could sign for the node any more: it could take no
// other release.
type keptSigners struct {
	files       trust.Files
	environment string
	now         func() time.Time
}

// lists reads the files as they are.
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

// usable returns nil when a key can sign releases for this node now, or when signatures are not required. Releases decide: a
// release can bring a longer list.
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

// remember is the lists before a run; nil when they are not usable.
func (k keptSigners) remember() *lists {
	l, err := k.lists()
	if err != nil || k.usable(l) != nil {
		return nil
	}
	return &l
}

// spoiled returns what is wrong with the lists since before; nil for nothing. Both are judged by the present time: a key that
// expired meanwhile is no run's fault.
func (k keptSigners) spoiled(before *lists) error {
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

// mend restores the lists when a run spoiled them. Its error names the damage.
func (k keptSigners) restoreSpoiled(before *lists) (put bool, err error) {
	if err = k.spoiled(before); err == nil {
		return true, nil
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	if err := k.restore(*before); err != nil {
		return false, fmt.Errorf("the release spoiled the list of allowed signers (%s), and it cannot be restored: %w", why, err)
	}
	return true, fmt.Errorf("the release spoiled the list of allowed signers: %s (it was restored)", why)
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

// putBack writes a file as it was; nil bytes: it was not there.
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
	return os.Chmod(path, mode) // WriteFile leaves the mode of what is there
}
