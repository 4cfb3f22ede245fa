package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// PermitFormat is the version of permits that this program writes; it reads no newer one.
const PermitFormat = 1

// Permit is what an operator signs to let the nodes of an environment go back. It is a record like a release's: one line of
// JSON, signed in the namespace Rollback.
type Permit struct {
	V           int          `json:"v"`
	Environment string       `json:"environment"` // with its stack
	Epoch       int64        `json:"epoch"`       // of the change that it belongs to
	Release     *ReleaseStep `json:"release,omitempty"`
	Data        *DataStep    `json:"data,omitempty"`
	By          string       `json:"by,omitempty"`
	Why         string       `json:"why,omitempty"`
	At          time.Time    `json:"at"`
}

// ReleaseStep lets nodes whose floor is From or lower go down to To.
type ReleaseStep struct {
	From string `json:"from"` // version
	To   string `json:"to"`   // version; "" for none
	Tree string `json:"tree"` // hash of To's tree
}

// DataStep lets nodes whose floor is From or lower go down to To.
type DataStep struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`     // 0 for none
	Digest string `json:"digest"` // of To
}

// Encode is the permit as a record: one line, without its newline.
func (p Permit) Encode() ([]byte, error) {
	p.V, p.At = PermitFormat, p.At.UTC().Truncate(time.Second)
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("cannot write the permit to go back: %w", err)
	}
	return json.Marshal(p)
}

// ParsePermit reads what Encode wrote. Whether it counts is for its signature to say.
func ParsePermit(record []byte) (Permit, error) {
	var p Permit
	if err := checkRecord(record); err != nil {
		return Permit{}, fmt.Errorf("cannot read the permit to go back: %w", err)
	}
	var format struct {
		V int `json:"v"`
	}
	if json.Unmarshal(record, &format) == nil && format.V > PermitFormat { // before all else: what looks damaged may only be newer
		return Permit{}, fmt.Errorf("cannot read the permit to go back: its format %d is newer than this program's %d; upgrade pulley here", format.V, PermitFormat)
	}
	err := decodeStrictly(record, &p)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return Permit{}, fmt.Errorf("cannot read the permit to go back: %w", err)
	}
	return p, nil
}

func (p Permit) check() error {
	switch {
	case p.V != PermitFormat:
		return fmt.Errorf("its format is %d, not %d", p.V, PermitFormat)
	case p.Environment == "":
		return errors.New("it names no environment")
	case p.Epoch < 1:
		return errors.New("it has no epoch")
	case p.Release == nil && p.Data == nil:
		return errors.New("it lets nothing go back")
	}
	if r := p.Release; r != nil {
		if _, err := parseVersion(r.From); err != nil {
			return err
		}
		if _, err := parseVersion(r.To); err != nil && r.To != "" {
			return err
		}
		if (r.To == "") != (r.Tree == "") {
			return errors.New("its release has a version and no tree, or the reverse")
		}
	}
	if d := p.Data; d != nil && (d.From < 1 || d.To < 0 || (d.To == 0) != (d.Digest == "")) {
		return errors.New("its data has no generation, or a generation and no digest")
	}
	return nil
}

// allowsRelease says whether a node with this floor may go down to the target's release.
func (p Permit) allowsRelease(floor string, t Target) bool {
	r := p.Release
	if r == nil || r.To != t.Release || r.To != "" && r.Tree != t.Tree {
		return false
	}
	order, err := compareVersions(floor, r.From)
	return err == nil && order <= 0
}

// allowsData is allowsRelease for the generation of data.
func (p Permit) allowsData(floor int64, t Target) bool {
	d := p.Data
	return d != nil && d.To == t.Data && (d.To == 0 || d.Digest == t.DataDigest) && floor <= d.From
}

// decodeStrictly reads one JSON value that has no field that v lacks, and nothing behind it.
func decodeStrictly(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	return nil
}
