package stage

import (
	"errors"
	"path/filepath"

	"pulley/agent/nodeconfig"
	"pulley/hieradata"
	"pulley/internal/desired"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
)

// markFile contains the node's high-water mark, in the state folder.
const markFile = "trust.json"

// Signers returns the paths of a node's lists of signers.
func Signers(c nodeconfig.Config) trust.Files {
	f := trust.Files{Mark: filepath.Join(c.StateDir(), markFile)}
	f.Allowed, f.AllowedNamed = c.AllowedSignersFile()
	f.Revoked, f.RevokedNamed = c.RevokedSignersFile()
	return f
}

// Signatures is a node's signature state, with the refusal if the state is unusable.
type Signatures struct {
	model.Signatures
	Refusal *trust.Refusal `json:"refusal,omitempty"`
}

// Check reads the lists of signers and the high-water mark.
func Check(f trust.Files) Signatures {
	signers, mark, err := f.Read()
	var s Signatures
	switch {
	case errors.As(err, &s.Refusal):
		s.State = model.SignaturesUnusable
	case err != nil:
		s.State, s.Refusal = model.SignaturesUnusable, trust.Unreadable(err)
	case signers == nil:
		s.State = model.SignaturesNotChecked
	default:
		s.State = model.SignaturesChecked
		s.Signers, s.Keys = signers.Digest()
		s.Release, s.Data, s.Permit = mark.Release, model.Generation(mark.Data), model.Epoch(mark.Permit)
		s.Statement = model.Epoch(mark.Statement)
	}
	return s
}

// Current judges the target that d wants by its statement. keep saves the epoch and the time of the statement; nil: it is known. A node
// without usable lists judges nothing: it takes nothing new, or checks no signatures.
func Current(v *trust.Verifier, id model.Identity, d model.Desired) (stale *model.Refusal, keep func() error) {
	signers, mark, err := v.Files.Read()
	if err != nil || signers == nil {
		return nil, nil
	}
	target := d.Wanted()
	next, err := signers.Current(mark, id.Role, id.Node, wanted(id, target), d.Statement, v.Now())
	if next.Statement > mark.Statement || next.Environment == mark.Environment && next != mark {
		next.Required = true
		keep = func() error { return next.Save(v.Files.Mark) }
	}
	var refused *trust.Refusal
	if errors.As(err, &refused) {
		stale = &model.Refusal{Target: target, Error: *refused, At: d.Gate.At} // not now: each tick would write a new status
	}
	return stale, keep
}

// Report returns Check for the node's status in etcd.
func Report(f trust.Files) *model.Signatures {
	s := Check(f).Signatures
	return &s
}

// String returns the state, for people.
func (s Signatures) String() string {
	switch s.State {
	case model.SignaturesChecked:
		return "checked"
	case model.SignaturesNotChecked:
		return "not checked"
	case model.SignaturesUnusable:
		return "the node accepts no new target: " + s.Refusal.Error()
	}
	return string(s.State)
}

// wanted returns the part of a target that package trust judges.
func wanted(id model.Identity, t model.Target) trust.Target {
	return trust.Target{Environment: id.Environment, Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
}

func releaseRecord(r release.SignedRelease) trust.Record {
	return trust.Record{Version: r.Version, Tree: r.Content.Tree, Bytes: r.Record, Signatures: r.Signatures}
}

func dataRecord(g desired.SignedGeneration) trust.Record {
	return trust.Record{Environment: g.Environment, Number: g.Number, Digest: hieradata.Digest(g.Record), Bytes: g.Record, Signatures: g.Signatures}
}
