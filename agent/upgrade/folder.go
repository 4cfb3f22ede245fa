package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pulley/agent"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/failpoint"
	"pulley/internal/model"
)

// Folder is the folder of a node's agent upgrades, and the path of the installed program.
type Folder struct {
	Dir       string // agent/ of the state folder; created on the first write
	Installed string // the program that cron starts
}

// CrashPoints are the points at which tests kill an upgrade, in order; a revert has none.
var CrashPoints = []string{"upgrade:fetched", "upgrade:tested", "upgrade:on-probation", "upgrade:credited", "upgrade:previous-kept", "upgrade:in-place", "upgrade:taken-over"}

// format is the version of state.json that this agent writes. It reads no newer one.
const format = 1

const (
	stateFile    = "state.json"
	previousFile = "previous"
	programFile  = "pulley-agent"
	maxState     = 64 << 10
)

// Candidate returns the path of a candidate's program.
func (f Folder) Candidate(digest string) string { return filepath.Join(f.Dir, digest, programFile) }

// previous returns the path of the program that was in place before.
func (f Folder) previous() string { return filepath.Join(f.Dir, previousFile) }

// Lock prevents a second agent from upgrading at the same time, or returns agent.ErrLocked. The open file holds the
// lock.
func (f Folder) Lock() (*os.File, error) {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the folder of the agent's upgrades: %w", err)
	}
	lock, err := atomicfile.OpenLock(filepath.Join(f.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("cannot lock the agent's upgrade: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = agent.ErrLocked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock the agent's upgrade: %w", err), lock.Close())
	}
	return lock, nil
}

// Load reads the state. A missing file is an empty state. A damaged file is renamed, and its record is
// lost: a dropped agent is tried again. The record of another installed file is ignored.
func (f Folder) Load() (State, error) {
	path := filepath.Join(f.Dir, stateFile)
	file, err := bounded.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{Format: format}, nil
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(file, maxState+1))
		file.Close()
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot read the state of the agent's upgrade: %w", err)
	}
	s, err := parseState(b)
	if errors.Is(err, errNewer) {
		return State{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if err != nil {
		if err := os.Rename(path, path+".damaged"); err != nil {
			return State{}, fmt.Errorf("cannot rename the damaged %s: %w", path, err)
		}
		return State{Format: format}, nil
	}
	if s.Installed != nil && s.Installed.File != f.File() {
		s.Installed = nil
	}
	return s, nil
}

var errNewer = errors.New("its format is newer than this agent's: a newer agent wrote it")

func parseState(b []byte) (State, error) {
	if len(b) > maxState {
		return State{}, errors.New("it is too large")
	}
	var s State
	err := json.Unmarshal(b, &s)
	if s.Format > format { // check this first: a newer state may look damaged
		return State{}, errNewer
	}
	if err != nil {
		return State{}, err
	}
	if c := s.Candidate; c != nil && (!isDigest(c.Digest) || c.Good < 0 || c.Doubts < 0) {
		return State{}, errors.New("its candidate is not valid")
	}
	s.Format = format
	return s, nil
}

func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && hex.EncodeToString(b) == s
}

// Save writes the state durably.
func (f Folder) Save(s State) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.MkdirAll(f.Dir, 0o700)
	}
	if err == nil {
		_, err = writeFile(filepath.Join(f.Dir, stateFile), 0o600, func(w io.Writer) error { _, err := w.Write(append(b, '\n')); return err })
	}
	if err != nil {
		return fmt.Errorf("cannot write the state of the agent's upgrade: %w", err)
	}
	return nil
}

// Fetch writes a candidate's program to disk with write. It keeps an existing file with the right digest.
func (f Folder) Fetch(digest string, write func(io.Writer) error) error {
	path := f.Candidate(digest)
	if have, err := Digest(path); err == nil && have == digest {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		var got string
		if got, err = writeFile(path, 0o755, write); err == nil && got != digest {
			err = errors.Join(errors.New("its digest is not the published one"), os.Remove(path))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the new agent: %w", err)
	}
	failpoint.Here("upgrade:fetched")
	return nil
}

// Tidy removes programs that are no longer candidates, and partial files after a crash. The caller must hold the lock:
// files that another agent is fetching look the same.
func (f Folder) Tidy(s State) error {
	names, err := f.leftover(s)
	for _, name := range names {
		err = errors.Join(err, os.RemoveAll(filepath.Join(f.Dir, name)))
	}
	return err
}

// Untidy reports whether Tidy may have work.
func (f Folder) Untidy(s State) bool {
	names, err := f.leftover(s)
	return err == nil && len(names) > 0
}

func (f Folder) leftover(s State) (names []string, err error) {
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		name := e.Name()
		kept := s.Candidate != nil && name == s.Candidate.Digest
		if half, _ := filepath.Match(".*.new", name); !kept && isDigest(name) || half {
			names = append(names, name)
		}
	}
	return names, err
}

// TakeOver installs the candidate in place of the installed program, of version own, and keeps that program as the
// previous one.
func (f Folder) TakeOver(s State, own string, now time.Time) (State, error) {
	fail := func(err error) (State, error) { return s, fmt.Errorf("cannot put the new agent in place: %w", err) }
	c := s.Candidate
	switch have, err := Digest(f.Candidate(c.Digest)); {
	case err != nil:
		return fail(err)
	case have != c.Digest:
		return fail(fmt.Errorf("its program on disk is damaged: its digest is %s", have))
	}
	digest, err := copyProgram(f.Installed, f.previous())
	if err != nil {
		return fail(err)
	}
	failpoint.Here("upgrade:previous-kept")
	previous := Program{Version: own, Digest: digest}
	if s.Installed != nil {
		previous.Version = s.Installed.Version
	}
	s.Previous = &Previous{Program: previous, Until: now.UTC().Truncate(time.Second)}
	if err := f.Save(s); err != nil {
		return fail(err)
	}
	if _, err := copyProgram(f.Candidate(c.Digest), f.Installed); err != nil {
		return fail(err)
	}
	failpoint.Here("upgrade:in-place")
	return f.settle(s)
}

// Finish completes a takeover that a crash interrupted after the installation of the program, and reports whether it
// did.
func (f Folder) Finish(s State) (State, bool, error) {
	if s.Candidate == nil {
		return s, false, nil
	}
	if have, err := Digest(f.Installed); err != nil || have != s.Candidate.Digest {
		return s, false, nil
	}
	s, err := f.settle(s)
	return s, true, err
}

// settle returns the state after the installation of the candidate.
func (f Folder) settle(s State) (State, error) {
	c := s.Candidate
	s = s.Found(c.Program, c.Try, f.File())
	s.Installed.Order, s.Candidate = c.Order, nil
	if err := f.Save(s); err != nil {
		return s, err
	}
	failpoint.Here("upgrade:taken-over")
	return s, f.Tidy(s)
}

// Back reinstalls the previous program. The replaced program is dropped like one that failed.
func (f Folder) Back(s State, own string, why model.Problem, now time.Time) (State, error) {
	fail := func(err error) (State, error) {
		return s, fmt.Errorf("cannot restore the previous agent: %w", err)
	}
	previous, err := Digest(f.previous())
	if errors.Is(err, fs.ErrNotExist) {
		return fail(fmt.Errorf("%s does not exist", f.previous()))
	}
	if err != nil {
		return fail(err)
	}
	have, err := Digest(f.Installed)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fail(err)
	case have == previous: // dropping it too would allow the reverted program again
		return fail(errors.New("it is in place already"))
	case s.Previous != nil && s.Previous.Digest != previous:
		return fail(fmt.Errorf("%s was changed since it was stored", f.previous()))
	}
	now = now.UTC()
	bad, want := Program{Version: own, Digest: have}, model.AgentChoice{}
	if s.Installed != nil {
		bad, want.Try, want.Order = s.Installed.Program, s.Installed.Try, s.Installed.Order
	}
	// Drop the replaced program before the installation: an interruption between the two then leaves it in place, and
	// loses nothing.
	s = s.Drop(bad, want, why, now)
	s.Dropped.ByHand = true
	if err := f.Save(s); err != nil {
		return fail(err)
	}
	if _, err := copyProgram(f.previous(), f.Installed); err != nil {
		return fail(err)
	}
	s.Installed = nil
	if s.Previous != nil {
		s = s.Found(s.Previous.Program, 0, f.File())
	}
	s.Previous = nil
	return s, f.Save(s)
}

// Digest returns the sha256 of a file, as 64 hex digits.
func Digest(path string) (string, error) {
	f, err := bounded.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// File identifies the file of the installed program: a changed one is compared with the published version again.
func (f Folder) File() string {
	info, err := os.Stat(f.Installed)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf("%d bytes, inode %d, %s", info.Size(), inode, info.ModTime().UTC().Format(time.RFC3339Nano))
}

func copyProgram(from, to string) (digest string, err error) {
	src, err := bounded.Open(from)
	if err != nil {
		return "", err
	}
	defer src.Close()
	return writeFile(to, 0o755, func(w io.Writer) error { _, err := io.Copy(w, src); return err })
}

// writeFile writes a file atomically and durably, and returns its digest.
func writeFile(path string, mode fs.FileMode, write func(io.Writer) error) (digest string, err error) {
	sum := sha256.New()
	err = atomicfile.WriteFunc(path, mode, func(f *os.File) error { return write(io.MultiWriter(f, sum)) })
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
