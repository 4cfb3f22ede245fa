package stage

import (
	"errors"
	"path/filepath"

	"pulley/agent"
	"pulley/hieradata"
	"pulley/internal/nodeconfig"
	"pulley/internal/store"
	"pulley/internal/trust"
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

// SignatureState tells whether a node checks signatures.
type SignatureState string

// The states. In an unusable state, the node takes no new target.
const (
	Checked    SignatureState = "checked"
	NotChecked SignatureState = "not_checked"
	Unusable   SignatureState = "unusable"
)

// Signatures is a node's signature state, with the refusal if the state is unusable.
type Signatures struct {
	State   SignatureState `json:"state"`
	Refusal *trust.Refusal `json:"refusal,omitempty"`
}

// Check reads the lists of signers.
func Check(f trust.Files) Signatures {
	signers, _, err := f.Read()
	var refusal *trust.Refusal
	switch {
	case errors.As(err, &refusal):
		return Signatures{Unusable, refusal}
	case err != nil:
		return Signatures{Unusable, trust.Unreadable(err)}
	case signers == nil:
		return Signatures{State: NotChecked}
	}
	return Signatures{State: Checked}
}

// String returns the state, for people.
func (s Signatures) String() string {
	switch s.State {
	case Checked:
		return "checked"
	case NotChecked:
		return "not checked"
	case Unusable:
		return "the node accepts no new target: " + s.Refusal.Error()
	}
	return string(s.State)
}

// wanted returns the part of a target that package trust judges.
func wanted(id agent.Identity, t agent.Target) trust.Target {
	return trust.Target{Environment: id.Environment, Release: t.Release, Tree: t.Tree, Data: int64(t.Data), DataDigest: t.DataDigest}
}

func releaseRecord(r store.SignedRelease) trust.Record {
	return trust.Record{Version: r.Version, Tree: r.Content.Tree, Bytes: r.Record, Signatures: r.Signatures}
}

func dataRecord(g store.SignedGeneration) trust.Record {
	return trust.Record{Environment: g.Environment, Number: g.Number, Digest: hieradata.Digest(g.Record), Bytes: g.Record, Signatures: g.Signatures}
}
