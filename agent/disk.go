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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// Disk is a node's memory: the files of one folder (/var/lib/pulley). Files appear whole or not at all.
type Disk struct {
	dir  string
	root *os.Root
}

// Bounds of what a node keeps on its own disk.
const (
	maxSpooled      = 50
	maxRunsOnDisk   = 20
	maxForeignAge   = 24 * time.Hour
	maxFileBytes    = 4 << 20 // of any file that Disk reads
	disabledFile    = "disabled"
	stateFile       = "state.json"
	reportedFile    = "reported.json"
	resultsDir      = "results"
	spoolDir        = "spool"
	runsDir         = "runs"
	lockFile        = "lock"
	defaultDisabled = "no reason was given"
)

// ErrLocked says that another agent of this node is at work.
var ErrLocked = errors.New("another run is in progress")

// OpenDisk opens the folder and makes it when it is missing.
func OpenDisk(dir string) (*Disk, error) {
	for _, d := range []string{dir, filepath.Join(dir, spoolDir), filepath.Join(dir, runsDir), filepath.Join(dir, resultsDir)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make the state folder: %w", err)
		}
	}
	return ReadDisk(dir)
}

// ReadDisk opens the folder as it is, and makes nothing; fs.ErrNotExist when there is none.
func ReadDisk(dir string) (*Disk, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open the state folder: %w", err)
	}
	return &Disk{dir: dir, root: root}, nil
}

// Close lets go of the folder.
func (d *Disk) Close() error { return d.root.Close() }

// Lock takes the node's lock, or returns ErrLocked. It is held by the open file: a process that inherits it holds it too,
// so that an agent's death does not let a second Puppet start beside the first.
func (d *Disk) Lock() (*os.File, error) {
	f, err := d.root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
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

// Load reads the state and changes nothing; a missing file is an empty state. What makes no sense is a *DamagedError.
func (d *Disk) Load() (State, error) {
	var s State
	found, err := d.load(stateFile, &s)
	if s.Format > StateFormat { // before all else: what looks damaged may only be newer
		return State{}, fmt.Errorf("cannot read %s: its format %d is newer than this agent's %d; upgrade the agent", stateFile, s.Format, StateFormat)
	}
	if err != nil {
		return State{}, err
	}
	if !found {
		return d.empty(), nil
	}
	s.Format = StateFormat
	return s, nil
}

// Afresh puts a damaged state aside. The next run applies the node's target again, which is what an empty state asks for.
func (d *Disk) Afresh() (State, error) {
	if err := d.root.Rename(stateFile, stateFile+".damaged"); err != nil {
		return State{}, fmt.Errorf("cannot put the damaged %s aside: %w", stateFile, err)
	}
	return d.empty(), nil
}

// empty counts on from the runs that the disk knows: with a lower number, the newest would be taken for the oldest.
func (d *Disk) empty() State {
	s := State{Format: StateFormat}
	for _, dir := range []string{runsDir, resultsDir, spoolDir} {
		names, _ := d.list(dir) // without them it counts from the start
		for _, name := range names {
			s.Sequence = max(s.Sequence, sequence(name))
		}
	}
	return s
}

// Save writes the state; it is durable when Save returns.
func (d *Disk) Save(s State) error { return d.save(stateFile, s, true) }

// LoadReported reads what etcd last heard; a missing or damaged file means: nothing.
func (d *Disk) LoadReported() (Reported, error) {
	var r Reported
	_, err := d.load(reportedFile, &r)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return Reported{}, nil
	}
	return r, err
}

// SaveReported writes what etcd last heard. Losing it costs one more report, so nothing is flushed.
func (d *Disk) SaveReported(r Reported) error { return d.save(reportedFile, r, false) }

// Disabled is the reason why an operator disabled the agent here; "" when it is enabled.
func (d *Disk) Disabled() (Prose, error) {
	b, err := d.read(disabledFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if reason := strings.TrimSpace(string(b)); reason != "" {
		return Prose(reason), nil
	}
	return defaultDisabled, nil
}

// Disable forbids runs on this machine until Enable.
func (d *Disk) Disable(reason string) error { return d.write(disabledFile, []byte(reason+"\n"), true) }

// Enable takes Disable back; it is no error when nothing was disabled.
func (d *Disk) Enable() error {
	err := d.root.Remove(disabledFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Begin marks a run as one in which Puppet may have been started, and removes what is left of runs long gone.
func (d *Disk) Begin(run string) error {
	for _, dir := range []string{runsDir, resultsDir} {
		if err := d.trim(dir); err != nil {
			return err
		}
	}
	// Without the flush a power cut could make a touched machine look untouched.
	return d.save(result(run), Result{}, true)
}

// End writes how a run went; the details are in Puppet's own report.
func (d *Disk) End(run string, r Result) error {
	r.Log, r.Resources = nil, nil
	return d.save(result(run), r, true)
}

// Ended tells how a run went, as far as the disk knows.
func (d *Disk) Ended(run string) (r Result, began, ended bool, err error) {
	began, err = d.load(result(run), &r)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return Result{}, true, false, nil
	}
	return r, began, r.Kind != "", err
}

// result is where a run's end is kept: not in the run's folder, which is Puppet's.
func result(run string) string { return path.Join(resultsDir, run+".json") }

// trim keeps the newest runs of a folder. What else lies there (of bootstrap, of a command) goes when it is a day old.
func (d *Disk) trim(dir string) error {
	names, err := d.list(dir)
	if err != nil {
		return err
	}
	var now time.Time
	if info, err := d.root.Stat(stateFile); err == nil {
		now = info.ModTime() // the run that begins has just been put into it
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
			return fmt.Errorf("cannot remove what is left of an old run: %w", err)
		}
	}
	return nil
}

var runName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-([0-9]+)(\.json)?$`)

// sequence is the number of the run that a file or folder is named after; -1 for what is no run's.
func sequence(name string) int64 {
	m := runName.FindStringSubmatch(name)
	if m == nil {
		return -1
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Spool keeps a run record that etcd could not take; beyond the bound the oldest are lost.
func (d *Disk) Spool(r EncodedRun) error {
	names, err := d.list(spoolDir)
	if err != nil {
		return err
	}
	if slices.Contains(names, r.ID) {
		names = nil // it is replaced, not added
	}
	for len(names) >= maxSpooled {
		if err := d.root.Remove(path.Join(spoolDir, names[0])); err != nil {
			return fmt.Errorf("cannot trim the spool: %w", err)
		}
		names = names[1:]
	}
	return d.write(path.Join(spoolDir, r.ID), r.Bytes, true)
}

// Spooled returns at most limit records, the oldest first.
func (d *Disk) Spooled(limit int) ([]EncodedRun, error) {
	names, err := d.list(spoolDir)
	if err != nil {
		return nil, err
	}
	var runs []EncodedRun
	for _, name := range names[:min(limit, len(names))] {
		b, err := d.read(path.Join(spoolDir, name))
		if err != nil {
			return nil, err
		}
		runs = append(runs, EncodedRun{ID: name, Bytes: b})
	}
	return runs, nil
}

// Unspool forgets records that etcd took.
func (d *Disk) Unspool(ids []string) error {
	for _, id := range ids {
		if err := d.root.Remove(path.Join(spoolDir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot trim the spool: %w", err)
		}
	}
	return nil
}

// list returns a folder's names without temporary files, in the order of the runs that they belong to: of their numbers,
// as a clock may be set back. A folder that is not there is empty.
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

// DamagedError is a file that is there and makes no sense.
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
	f, err := d.root.Open(name)
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

func (d *Disk) flush(dir string) (err error) {
	f, err := d.root.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}
