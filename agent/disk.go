package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// Disk is a node's persistent memory: the files of one folder (/var/lib/pulley). Files appear complete or not at all.
type Disk struct {
	dir  string
	root *os.Root
}

// Limits of the node's own files.
const (
	maxSpooled      = 50
	maxRunsOnDisk   = 20
	maxForeignAge   = 24 * time.Hour
	maxFileBytes    = 4 << 20 // of any file that Disk reads
	disabledFile    = "disabled"
	firstBootFile   = "disabled-by-first-boot"
	stateFile       = "state.json"
	reportedFile    = "reported.json"
	resultsDir      = "results"
	spoolDir        = "spool"
	runsDir         = "runs"
	lockFile        = "lock"
	defaultDisabled = "no reason was given"
	inFirstBoot     = "its first boot is in progress"
)

// ErrLocked reports that another agent of this node is running.
var ErrLocked = errors.New("another run is in progress")

// OpenDisk opens the folder and creates it if it is missing. It closes the folder to other users: releases, data and the
// output of runs may contain secrets.
func OpenDisk(dir string) (*Disk, error) {
	err := os.MkdirAll(filepath.Dir(dir), 0o755)
	for _, d := range []string{dir, filepath.Join(dir, spoolDir), filepath.Join(dir, runsDir), filepath.Join(dir, resultsDir)} {
		if err == nil {
			err = os.MkdirAll(d, 0o700)
		}
	}
	if info, statErr := os.Stat(dir); err == nil && statErr == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(dir, info.Mode().Perm()&0o700) // an earlier agent or a first boot made it
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the state folder: %w", err)
	}
	return ReadDisk(dir)
}

// ReadDisk opens the folder read-only. It returns fs.ErrNotExist if the folder is missing.
func ReadDisk(dir string) (*Disk, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the state folder: %w", err)
	}
	return &Disk{dir: dir, root: root}, nil
}

// Close closes the folder.
func (d *Disk) Close() error { return d.root.Close() }

// Lock takes the node's lock, or returns ErrLocked. The open file holds the lock, and a child process inherits it. If
// the agent dies, no second Puppet can start beside the first.
func (d *Disk) Lock() (*os.File, error) {
	f, err := atomicfile.OpenLockIn(d.root, lockFile)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock this node: %w", err), f.Close())
	}
	return f, nil
}

// Load reads the state and changes nothing. A missing file is an empty state. An invalid file is a *DamagedError.
func (d *Disk) Load() (model.State, error) {
	var s model.State
	found, err := d.load(stateFile, &s)
	if s.Format > model.StateFormat { // check this first: a newer state may look damaged
		return model.State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", stateFile, s.Format, model.StateFormat)
	}
	if err != nil {
		return model.State{}, err
	}
	if !found {
		return d.empty(), nil
	}
	s.Format = model.StateFormat
	return s, nil
}

// Afresh renames a damaged state and returns an empty one. The next run applies the node's target again.
func (d *Disk) Afresh() (model.State, error) {
	if err := d.root.Rename(stateFile, stateFile+".damaged"); err != nil {
		return model.State{}, fmt.Errorf("cannot rename the damaged %s: %w", stateFile, err)
	}
	return d.empty(), nil
}

// empty continues the numbering of the runs on disk. With a lower number, the newest run would count as the oldest.
func (d *Disk) empty() model.State {
	s := model.State{Format: model.StateFormat}
	for _, dir := range []string{runsDir, resultsDir, spoolDir} {
		names, _ := d.list(dir) // without them, numbering restarts
		for _, name := range names {
			s.Sequence = max(s.Sequence, sequence(name))
		}
	}
	return s
}

// Save writes the state; it is durable when Save returns.
func (d *Disk) Save(s model.State) error { return d.save(stateFile, s, true) }

// LoadReported reads the last report to etcd. A missing or damaged file means no report.
func (d *Disk) LoadReported() (model.Reported, error) {
	var r model.Reported
	_, err := d.load(reportedFile, &r)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return model.Reported{}, nil
	}
	return r, err
}

// SaveReported writes the last report to etcd without a flush: its loss costs one more report.
func (d *Disk) SaveReported(r model.Reported) error { return d.save(reportedFile, r, false) }

// ForgetReported makes the next tick of the node with this state folder report everything, as to an etcd that lost it.
func ForgetReported(dir string) error {
	if err := os.Remove(filepath.Join(dir, reportedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Disabled returns the operator's reason for disabling the agent on this machine, or why it waits for a first boot; "" means enabled.
func (d *Disk) Disabled() (model.Prose, error) {
	for _, f := range []struct {
		name  string
		empty model.Prose
	}{{disabledFile, defaultDisabled}, {firstBootFile, inFirstBoot}} {
		b, err := d.read(f.name)
		if err == nil {
			return cmp.Or(model.Prose(strings.TrimSpace(string(b))), f.empty), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// Disable forbids runs on this machine until Enable.
func (d *Disk) Disable(reason string) error { return d.write(disabledFile, []byte(reason+"\n"), true) }

// Enable allows runs again. It is no error if runs were not disabled.
func (d *Disk) Enable() error { return errors.Join(d.remove(disabledFile), d.EndFirstBoot()) }

// AwaitFirstBoot forbids runs until EndFirstBoot; "" means that the first boot is in progress. An operator's reason is stored apart.
func (d *Disk) AwaitFirstBoot(reason string) error {
	return d.write(firstBootFile, []byte(reason), true)
}

// EndFirstBoot allows runs that only the first boot forbids.
func (d *Disk) EndFirstBoot() error { return d.remove(firstBootFile) }

// InFirstBoot reports whether a first boot forbids runs.
func (d *Disk) InFirstBoot() (bool, error) {
	_, err := d.root.Lstat(firstBootFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (d *Disk) remove(name string) error {
	if err := d.root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Begin marks a run in which Puppet may have been started, and removes the files of old runs.
func (d *Disk) Begin(run string) error {
	for _, dir := range []string{runsDir, resultsDir} {
		if err := d.trim(dir); err != nil {
			return err
		}
	}
	// Without the flush, a power cut could make a changed machine look untouched.
	return d.save(result(run), model.Result{}, true)
}

// End writes a run's result. Puppet's own report contains the details.
func (d *Disk) End(run string, r model.Result) error {
	r.Log, r.Resources = nil, nil
	return d.save(result(run), r, true)
}

// Ended returns a run's result as recorded on disk.
func (d *Disk) Ended(run string) (r model.Result, began, ended bool, err error) {
	began, err = d.load(result(run), &r)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return model.Result{}, true, false, nil
	}
	return r, began, r.Kind != "", err
}

// result returns the path of a run's result, outside the run's folder, which belongs to Puppet.
func result(run string) string { return path.Join(resultsDir, run+".json") }

// trim keeps the newest runs of a folder. Other entries (of bootstrap, of a command) are removed after one day.
func (d *Disk) trim(dir string) error {
	names, err := d.list(dir)
	if err != nil {
		return err
	}
	var now time.Time
	if info, err := d.root.Stat(stateFile); err == nil {
		now = info.ModTime() // modified a moment ago by the run that begins
	}
	var old, runs []string
	for _, name := range names {
		info, err := d.root.Lstat(path.Join(dir, name))
		switch {
		case sequence(name) >= 0:
			runs = append(runs, name)
		case err == nil && now.Sub(info.ModTime()) > maxForeignAge:
			old = append(old, name)
		}
	}
	old = append(old, runs[:max(0, len(runs)-maxRunsOnDisk+1)]...)
	for _, name := range old {
		if err := d.root.RemoveAll(path.Join(dir, name)); err != nil {
			return fmt.Errorf("cannot remove the remains of an old run: %w", err)
		}
	}
	return nil
}

var runName = pattern.Lazy(`^[0-9]{8}T[0-9]{6}Z-([0-9]+)(\.json)?$`)

// sequence returns the run number in the name of a file or folder, or -1 if it names no run.
func sequence(name string) int64 {
	m := runName().FindStringSubmatch(name)
	if m == nil {
		return -1
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Spool stores a run record that etcd could not take. Above the limit, the oldest are deleted.
func (d *Disk) Spool(r model.EncodedRun) error {
	names, err := d.list(spoolDir)
	if err != nil {
		return err
	}
	if slices.Contains(names, r.ID) {
		names = nil // the record is replaced, not added
	}
	for len(names) >= maxSpooled {
		if err := d.root.Remove(path.Join(spoolDir, names[0])); err != nil {
			return fmt.Errorf("cannot trim the spool: %w", err)
		}
		names = names[1:]
	}
	return d.write(path.Join(spoolDir, r.ID), r.Bytes, true)
}

// SpoolRun stores the record of a run outside a tick. The next tick sends it.
func (d *Disk) SpoolRun(r model.Run) error {
	e, err := model.EncodeRun(r)
	if err == nil {
		err = d.Spool(e)
	}
	return err
}

// Spooled returns at most limit records, the oldest first.
func (d *Disk) Spooled(limit int) ([]model.EncodedRun, error) {
	names, err := d.list(spoolDir)
	if err != nil {
		return nil, err
	}
	var runs []model.EncodedRun
	for _, name := range names[:min(limit, len(names))] {
		b, err := d.read(path.Join(spoolDir, name))
		if err != nil {
			return nil, err
		}
		runs = append(runs, model.EncodedRun{ID: name, Bytes: b})
	}
	return runs, nil
}

// Unspool deletes records that etcd has taken.
func (d *Disk) Unspool(ids []string) error {
	for _, id := range ids {
		if err := d.root.Remove(path.Join(spoolDir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot trim the spool: %w", err)
		}
	}
	return nil
}

// list returns a folder's names without temporary files, ordered by run number, because a clock may be set back. A
// missing folder is empty.
func (d *Disk) list(dir string) ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list %s: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
	return names, nil
}

// DamagedError reports a file with invalid content.
type DamagedError struct {
	name string
	err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("cannot read %s: it is damaged: %v", e.name, e.err)
}
func (e *DamagedError) Unwrap() error { return e.err }

func (d *Disk) load(name string, into any) (found bool, err error) {
	b, err := d.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return true, &DamagedError{name, err}
	}
	return true, nil
}

func (d *Disk) read(name string) ([]byte, error) {
	f, err := bounded.OpenIn(d.root, name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer f.Close()
	b, err := bounded.Read(f, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return b, nil
}

func (d *Disk) save(name string, value any, durable bool) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", name, err)
	}
	return d.write(name, append(b, '\n'), durable)
}

func (d *Disk) write(name string, b []byte, durable bool) error {
	err := atomicfile.WriteIn(d.root, name, 0o600, durable, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", filepath.Join(d.dir, name), err)
	}
	return nil
}
