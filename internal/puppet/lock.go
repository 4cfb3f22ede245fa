package puppet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/clip"
	"pulley/internal/model"
)

// The names of Puppet's locks in its state folder.
const (
	DisabledLock = "agent_disabled.lock" // its existence stops `puppet agent` (puppet/agent/disabler.rb)
	catalogLock  = "agent_catalog_run.lock"
)

// DisabledError reports that Puppet is disabled on this machine (`puppet agent --disable`).
type DisabledError struct {
	Path    string
	Message string // the reason given; may be ""
}

func (e *DisabledError) Error() string {
	why := ""
	if e.Message != "" {
		why = ": " + e.Message
	}
	return fmt.Sprintf("puppet is disabled on this machine (%s)%s\nrun `puppet agent --enable` to permit runs", e.Path, why)
}

// BusyError reports that another Puppet is applying a catalog.
type BusyError struct {
	Path string
	Pid  int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("another puppet is running on this machine (pid %d, %s)", e.Pid, e.Path)
}

// DefaultStateDirs returns the folders under root where the packagings of Puppet keep its locks.
func DefaultStateDirs(root string) []string {
	return []string{
		filepath.Join(root, "/opt/puppetlabs/puppet/cache/state"),
		filepath.Join(root, "/var/cache/puppet/state"),
		filepath.Join(root, "/var/lib/puppet/state"),
	}
}

// Blocked returns the lock of the machine's own Puppet that forbids a run, or nil.
func (p *Puppet) Blocked() *model.Blocked {
	err := p.Locks()
	var disabled *DisabledError
	var busy *BusyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &disabled):
		return &model.Blocked{Code: model.PuppetDisabled, Path: disabled.Path, Text: model.Prose(disabled.Message)}
	case errors.As(err, &busy):
		return &model.Blocked{Code: model.PuppetBusy, Path: busy.Path, Pid: busy.Pid}
	}
	return &model.Blocked{Code: model.PuppetLockUnknown, Text: model.Prose(err.Error())}
}

// Disabled returns the lock of `puppet agent --disable` in a state folder, or nil.
func Disabled(dir string) (*DisabledError, error) {
	path := filepath.Join(dir, DisabledLock)
	text, err := readSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Puppet's lock: %w", err)
	}
	var lock struct {
		Message string `json:"disabled_message"`
	}
	_ = json.Unmarshal([]byte(text), &lock) // the file's existence disables, whatever its content
	return &DisabledError{Path: path, Message: clip.Text(lock.Message, maxMessage)}, nil
}

// Locks returns a *DisabledError or a *BusyError when the machine's own Puppet forbids a run, or nil.
func (p *Puppet) Locks() error {
	for _, dir := range p.stateDirs() {
		disabled, err := Disabled(dir)
		if err != nil {
			return err
		}
		if disabled != nil && (p.Own == "" || disabled.Message != p.Own) {
			return disabled
		}
		if pid := holder(filepath.Join(dir, catalogLock)); pid != 0 {
			return &BusyError{Path: filepath.Join(dir, catalogLock), Pid: pid}
		}
	}
	return nil
}

// stateDirs returns the machine's state folders and this agent's.
func (p *Puppet) stateDirs() []string {
	dirs := p.StateDirs
	if dirs == nil {
		dirs = DefaultStateDirs("/")
	}
	return append(dirs[:len(dirs):len(dirs)], filepath.Join(p.Dir, "puppet", "var", "state"))
}

// hold takes the catalog lock for the Puppet with this pid in every existing state folder. It returns a function that
// releases the lock. The lock names Puppet and not the agent, because Puppet considers a lock of any other program
// stale. The lock also survives an agent that is killed, for as long as its Puppet runs.
func (p *Puppet) hold(pid int) (release func(), err error) {
	var held []string
	release = func() {
		for _, path := range held {
			if text, err := readSmall(path); err == nil && text == strconv.Itoa(pid) {
				_ = os.Remove(path)
			}
		}
	}
	for _, dir := range p.stateDirs() {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		path := filepath.Join(dir, catalogLock)
		if err := takeLock(path, pid); err != nil {
			release()
			return nil, err
		}
		held = append(held, path)
	}
	return release, nil
}

// takeLock creates the lock file with its content: Puppet considers an empty lock file stale and removes it.
func takeLock(path string, pid int) error {
	for tries := 1; ; tries++ {
		err := atomicfile.Create(path, []byte(strconv.Itoa(pid)), 0o644)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrExist) || tries > 3 {
			return fmt.Errorf("cannot take Puppet's lock: %w", err)
		}
		if other := holder(path); other != 0 {
			return &BusyError{Path: path, Pid: other}
		}
		_ = os.Remove(path) // stale
	}
}

// holder returns the pid of the running Puppet that a lock file names; 0 if the file is missing or stale.
func holder(path string) int {
	text, err := readSmall(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid <= 0 || !isPuppet(pid) {
		return 0
	}
	return pid
}

// readSmall reads at most 4 KiB of a file.
func readSmall(path string) (string, error) {
	f, err := bounded.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return string(data), err
}
