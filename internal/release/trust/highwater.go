package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	version "github.com/hashicorp/go-version"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/model/refusal"
)

// HighWaterMark is the highest release and data that a node has attempted, or that a permit lowered it to. The agent
// raises it before each attempt, to refuse older targets later.
type HighWaterMark struct {
	Environment string `json:"environment"`
	Release     string `json:"release"`  // version; "" before the first release
	Data        int64  `json:"data"`     // generation; 0 before the first data
	Permit      int64  `json:"permit"`   // epoch of the newest used permit; older permits have no effect
	Required    bool   `json:"required"` // a signers list once existed: the node requires one

	// Of the last verified data record, which is not verified again: its digest and its number, only together. A file of
	// an earlier agent has no number, and its data is verified once more.
	Verified     string `json:"verified"`
	VerifiedData int64  `json:"verified_data,omitempty"`

	Statement   int64 `json:"statement,omitempty"`    // epoch of the newest statement; 0: the node never saw one, and needs none
	StatementAt int64 `json:"statement_at,omitempty"` // its time, in seconds; an earlier one of the same epoch is a repetition
}

// Knows reports whether the data of t is the pair of number and digest that the node verified last. A known digest with
// another number is not known: only the record's signature covers the number.
func (f HighWaterMark) Knows(t Target) bool {
	return t.Data != 0 && f.Environment == t.Environment && f.VerifiedData == t.Data && f.Verified == t.DataDigest
}

// epochsAhead is far more than the changes of any environment, and than the error of a clock: 63 years, in seconds.
const epochsAhead = 2_000_000_000

// PlausibleEpoch reports whether a change can have an epoch at a time. A change raises it by one, a restore to the time in
// seconds. The holder of a stolen key can sign any number, and nodes never go below what they verified: without this
// limit, no later change could be above it. The limit rises each second, and the next epoch is always possible.
func PlausibleEpoch(epoch int64, now time.Time) bool {
	return epoch >= 0 && epoch <= MaxEpoch(now)
}

// PlausibleData reports whether data can have a generation at a time: a change of data raises it by one, and has an epoch.
func PlausibleData(generation int64, now time.Time) bool { return PlausibleEpoch(generation, now) }

// MaxEpoch returns the highest plausible epoch.
func MaxEpoch(now time.Time) int64 { return now.Unix() + epochsAhead }

// At returns the mark without an epoch that no permit can have at a time: of an earlier agent, or of a clock that was ahead.
func (f HighWaterMark) At(now time.Time) HighWaterMark {
	if !PlausibleEpoch(f.Permit, now) {
		f.Permit = 0
	}
	return f
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
	f = f.in(t.Environment)
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

// in returns the mark for an environment. In another environment it starts empty.
func (f HighWaterMark) in(environment string) HighWaterMark {
	if f.Environment != environment {
		return HighWaterMark{Environment: environment, Required: f.Required}
	}
	return f
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

type markFile struct {
	V int `json:"v"`
	HighWaterMark
}

// LoadHighWaterMark reads trust.json. A missing file gives an empty mark. A damaged one is an error: with an empty mark
// instead, an old release could return unnoticed.
func LoadHighWaterMark(path string) (HighWaterMark, error) {
	b, err := bounded.ReadFile(path, maxMarkBytes)
	var large *bounded.TooLargeError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return HighWaterMark{}, nil
	case err != nil && !errors.As(err, &large):
		return HighWaterMark{}, fmt.Errorf("cannot read the high-water mark: %w", err)
	}
	var mark HighWaterMark
	if err == nil {
		mark, err = parseMark(b)
	}
	if err != nil && !errors.Is(err, errNewer) {
		err = fmt.Errorf("it is damaged: %w\n"+
			"check that the node's target is the intended one, then remove the file: the next target writes it anew", err)
	}
	if err != nil {
		return HighWaterMark{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return mark, nil
}

func parseMark(b []byte) (HighWaterMark, error) {
	var file markFile
	if err := decodeFormat(b, markFormat, &file); err != nil {
		return HighWaterMark{}, err
	}
	f := file.HighWaterMark
	switch {
	case file.V != markFormat:
		return HighWaterMark{}, errors.New("it has no format")
	case f.Data < 0 || f.Permit < 0 || f.Statement < 0 || f.StatementAt < 0:
		return HighWaterMark{}, errors.New("it has a negative number")
	case f.Environment == "" && (f.Release != "" || f.Data != 0 || f.Permit != 0 || f.Statement != 0 || f.StatementAt != 0):
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

// permitFormat is the version of permits that this program writes. It refuses newer versions.
const permitFormat = 1

// Permit is signed by an operator to allow a downgrade of the nodes of an environment. It is one line of JSON, signed
// in the namespace Rollback.
type Permit struct {
	V           int          `json:"v"`
	Environment string       `json:"environment"` // with its stack
	Epoch       int64        `json:"epoch"`       // of the change that the permit belongs to
	Release     *ReleaseStep `json:"release,omitempty"`
	Data        *DataStep    `json:"data,omitempty"`
	Until       time.Time    `json:"until,omitzero"` // end of a recovery; zero: no end
	By          string       `json:"by,omitempty"`
	Why         string       `json:"why,omitempty"`
	At          time.Time    `json:"at"`
}

// ReleaseStep allows nodes with a high-water mark of From or lower to go down to To.
type ReleaseStep struct {
	From string `json:"from"` // version
	To   string `json:"to"`   // version; "" for none
	Tree string `json:"tree"` // hash of To's tree
}

// DataStep allows nodes with a high-water mark of From or lower to go down to To.
type DataStep struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`     // 0 for none
	Digest string `json:"digest"` // of To
}

// SignedPermit is a permit with its signed bytes. The signatures are not verified yet.
type SignedPermit struct {
	Permit
	Record     []byte // one line of JSON, without its newline
	Signatures []byte // nil if it is not signed
}

// Encode returns the permit as a record: one line, without its newline.
func (p Permit) Encode() ([]byte, error) {
	p.V, p.At, p.Until = permitFormat, p.At.UTC().Truncate(time.Second), p.Until.UTC().Truncate(time.Second)
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("cannot encode the permit: %w", err)
	}
	return json.Marshal(p)
}

// ParsePermit parses the result of Encode. It does not verify the signature.
func ParsePermit(record []byte) (Permit, error) {
	var p Permit
	err := checkRecord(record)
	if err == nil {
		err = decodeFormat(record, permitFormat, &p)
	}
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return Permit{}, fmt.Errorf("cannot read the permit: %w", err)
	}
	return p, nil
}

func (p Permit) check() error {
	switch {
	case p.V != permitFormat:
		return fmt.Errorf("its format is %d, not %d", p.V, permitFormat)
	case p.Environment == "":
		return errors.New("it names no environment")
	case p.Epoch < 1:
		return errors.New("it has no epoch")
	case p.Release == nil && p.Data == nil:
		return errors.New("it permits nothing")
	}
	if r := p.Release; r != nil {
		if _, err := parseVersion(r.From); err != nil {
			return err
		}
		if _, err := parseVersion(r.To); err != nil && r.To != "" {
			return err
		}
		if (r.To == "") != (r.Tree == "") {
			return errors.New("its release needs both a version and a tree")
		}
	}
	if d := p.Data; d != nil && (d.From < 1 || d.To < 0 || (d.To == 0) != (d.Digest == "")) {
		return errors.New("its data needs both a generation and a digest")
	}
	return nil
}

// Ended reports whether the permit has an end, and it passed.
func (p Permit) Ended(now time.Time) bool { return !p.Until.IsZero() && !now.Before(p.Until) }

// allowsRelease reports whether a node with this high-water mark may go down to the target's release.
func (p Permit) allowsRelease(mark string, t Target) bool {
	r := p.Release
	if r == nil || r.To != t.Release || r.To != "" && r.Tree != t.Tree {
		return false
	}
	order, err := compareVersions(mark, r.From)
	return err == nil && order <= 0
}

// allowsData reports whether a node with this high-water mark may go down to the target's data.
func (p Permit) allowsData(mark int64, t Target) bool {
	d := p.Data
	return d != nil && d.To == t.Data && (d.To == 0 || d.Digest == t.DataDigest) && mark <= d.From
}

var errNewer = errors.New("its format is newer than this program; upgrade pulley on this machine")

// decodeFormat decodes one JSON value of a format. It refuses a newer format first, because such a value looks damaged,
// then unknown fields and bytes after the value.
func decodeFormat(b []byte, format int, v any) error {
	var its struct {
		V int `json:"v"`
	}
	if json.Unmarshal(b, &its) == nil && its.V > format {
		return errNewer
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data follows its end")
	}
	return nil
}
