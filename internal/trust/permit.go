package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

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
	p.V, p.At = permitFormat, p.At.UTC().Truncate(time.Second)
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("cannot encode the permit: %w", err)
	}
	return json.Marshal(p)
}

// ParsePermit parses the result of Encode. It does not verify the signature.
func ParsePermit(record []byte) (Permit, error) {
	var p Permit
	if err := checkRecord(record); err != nil {
		return Permit{}, fmt.Errorf("cannot read the permit: %w", err)
	}
	var format struct {
		V int `json:"v"`
	}
	if json.Unmarshal(record, &format) == nil && format.V > permitFormat { // check first: a newer permit looks damaged
		return Permit{}, fmt.Errorf("cannot read the permit: its format %d is newer than this program's %d; upgrade pulley on this machine", format.V, permitFormat)
	}
	err := decodeStrictly(record, &p)
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

// decodeStrictly decodes one JSON value. It refuses unknown fields and bytes after the value.
func decodeStrictly(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after its end")
	}
	return nil
}
