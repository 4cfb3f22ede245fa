package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	version "github.com/hashicorp/go-version"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/trust/refusal"
)

// HighWaterMark is the highest release and data that a node has attempted, or that a permit lowered it to. The agent
// raises it before each attempt, to refuse older targets later.
type HighWaterMark struct {
	Environment string `json:"environment"`
	Release     string `json:"release"`  // version; "" before the first release
	Data        int64  `json:"data"`     // generation; 0 before the first data
	Permit      int64  `json:"permit"`   // epoch of the newest used permit; older permits have no effect
	Required    bool   `json:"required"` // a signers list once existed: the node requires one
	Verified    string `json:"verified"` // digest of the last verified data record, which is not verified again
}

// Target holds the parts of a node's target that trust decides about.
type Target struct {
	Environment string // the node's environment, with its stack
	Release     string // version
	Tree        string // hash of its tree
	Data        int64  // generation; 0 for none
	DataDigest  string
}

// Check returns the high-water mark to save before a node attempts t, or a *Refusal. Permits must have valid
// signatures. Each component may rise or stay without a permit. In another environment the mark starts empty.
func (f HighWaterMark) Check(t Target, permits []Permit) (HighWaterMark, error) {
	if t.Environment == "" {
		return f, refusal.New(refusal.EnvironmentMissing)
	}
	if f.Environment != t.Environment {
		f = HighWaterMark{Environment: t.Environment, Required: f.Required}
	}
	next := f
	next.Release, next.Data = t.Release, t.Data
	order, err := compareVersions(t.Release, f.Release)
	if err != nil {
		return f, refusal.New(refusal.VersionUnreadable, "release", t.Release, "detail", err)
	}
	if order < 0 {
		epoch := f.newest(permits, func(p Permit) bool { return p.allowsRelease(f.Release, t) })
		if epoch == 0 {
			return f, refusal.New(refusal.ReleaseTooOld, "release", t.Release, "high_water_mark", f.Release)
		}
		next.Permit = max(next.Permit, epoch)
	}
	if t.Data < f.Data {
		epoch := f.newest(permits, func(p Permit) bool { return p.allowsData(f.Data, t) })
		if epoch == 0 {
			return f, refusal.New(refusal.DataTooOld, "data", t.Data, "high_water_mark", f.Data)
		}
		next.Permit = max(next.Permit, epoch)
	}
	return next, nil
}

// newest returns the epoch of the newest unused permit for this environment that allows the step, or 0.
func (f HighWaterMark) newest(permits []Permit, allows func(Permit) bool) int64 {
	var epoch int64
	for _, p := range permits {
		if p.Environment == f.Environment && p.Epoch > f.Permit && p.Epoch > epoch && allows(p) {
			epoch = p.Epoch
		}
	}
	return epoch
}

// maxVersionBytes is a limit that no valid version reaches.
const maxVersionBytes = 128

// compareVersions compares versions as go-version does; "" is the lowest.
func compareVersions(a, b string) (int, error) {
	if a == "" || b == "" {
		return strings.Compare(a, b), nil
	}
	va, err := parseVersion(a)
	if err != nil {
		return 0, err
	}
	vb, err := parseVersion(b)
	if err != nil {
		return 0, err
	}
	return va.Compare(vb), nil
}

func parseVersion(s string) (*version.Version, error) {
	if len(s) > maxVersionBytes {
		return nil, fmt.Errorf("a version has at most %d bytes", maxVersionBytes)
	}
	return version.NewVersion(s)
}

// markFormat is the version of trust.json that this program writes. It refuses newer versions.
const markFormat = 1

// maxMarkBytes is a size that no valid high-water mark reaches.
const maxMarkBytes = 64 << 10

// DamagedError reports a file without a readable high-water mark. The node takes no new target until an operator has
// checked the file. With an empty mark instead, an old release could return unnoticed.
type DamagedError struct {
	Path  string
	Cause error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("cannot read %s: it is damaged: %v", e.Path, e.Cause)
}

func (e *DamagedError) Unwrap() error { return e.Cause }

// Hint returns the remedy.
func (e *DamagedError) Hint() string {
	return "check that the node's target is the intended one, then remove the file: the next target writes it anew"
}

type markFile struct {
	V int `json:"v"`
	HighWaterMark
}

// LoadHighWaterMark reads trust.json. A missing file gives an empty mark, a damaged one a *DamagedError.
func LoadHighWaterMark(path string) (HighWaterMark, error) {
	b, err := bounded.ReadFile(path, maxMarkBytes)
	var large *bounded.TooLargeError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return HighWaterMark{}, nil
	case errors.As(err, &large):
		return HighWaterMark{}, &DamagedError{path, large}
	case err != nil:
		return HighWaterMark{}, fmt.Errorf("cannot read the high-water mark: %w", err)
	}
	mark, err := parseMark(b)
	if errors.Is(err, errNewer) {
		return HighWaterMark{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if err != nil {
		return HighWaterMark{}, &DamagedError{path, err}
	}
	return mark, nil
}

var errNewer = errors.New("its format is newer than this program; upgrade pulley on this machine")

func parseMark(b []byte) (HighWaterMark, error) {
	var format struct {
		V int `json:"v"`
	}
	if json.Unmarshal(b, &format) == nil && format.V > markFormat { // check first: a newer file looks damaged
		return HighWaterMark{}, errNewer
	}
	var file markFile
	if err := decodeStrictly(b, &file); err != nil {
		return HighWaterMark{}, err
	}
	f := file.HighWaterMark
	switch {
	case file.V != markFormat:
		return HighWaterMark{}, errors.New("it has no format")
	case f.Data < 0 || f.Permit < 0:
		return HighWaterMark{}, errors.New("it has a negative number")
	case f.Environment == "" && (f.Release != "" || f.Data != 0 || f.Permit != 0):
		return HighWaterMark{}, errors.New("it names no environment")
	}
	if _, err := parseVersion(f.Release); err != nil && f.Release != "" {
		return HighWaterMark{}, err
	}
	return f, nil
}

// Save writes trust.json. The file is on disk when Save returns.
func (f HighWaterMark) Save(path string) error {
	b, err := json.Marshal(markFile{markFormat, f})
	if err == nil {
		_, err = parseMark(b) // an unreadable file would stop this node
	}
	if err == nil {
		err = atomicfile.Write(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot write the high-water mark: %w", err)
	}
	return nil
}
