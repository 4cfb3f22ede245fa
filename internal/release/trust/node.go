package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/model/refusal"
)

// Files are the paths of a node's allowed signers, revoked keys and high-water mark. A file named in the settings must
// exist; a default file may be missing.
type Files struct {
	Allowed, Revoked           string
	AllowedNamed, RevokedNamed bool
	Mark                       string
}

// Read returns the signers and the high-water mark. If the signers are nil, signatures are not checked: no list exists
// or ever existed. Any error is a *Refusal: the node takes no new target until it is fixed.
func (f Files) Read() (*Signers, HighWaterMark, error) {
	mark, err := LoadHighWaterMark(f.Mark)
	if err != nil {
		detail, hint, _ := strings.Cut(err.Error(), "\n")
		return nil, mark, refusal.New(refusal.MarkUnreadable, "detail", detail, "hint", hint)
	}
	allowed, err := bounded.ReadFile(f.Allowed, maxListBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !f.AllowedNamed && !mark.Required:
		return nil, mark, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, mark, refusal.New(refusal.SignersMissing, "file", f.Allowed)
	case err != nil:
		return nil, mark, refusal.New(refusal.SignersUnreadable, "file", f.Allowed, "detail", err)
	}
	revoked, err := bounded.ReadFile(f.Revoked, maxListBytes)
	if err != nil && (f.RevokedNamed || !errors.Is(err, fs.ErrNotExist)) {
		return nil, mark, refusal.New(refusal.RevokedUnreadable, "file", f.Revoked, "detail", err)
	}
	s, err := parseAllowed(allowed)
	if err != nil {
		return nil, mark, refusal.New(refusal.SignersUnreadable, "file", f.Allowed, "detail", err)
	}
	if err := s.revoke(revoked); err != nil {
		return nil, mark, refusal.New(refusal.RevokedUnreadable, "file", f.Revoked, "detail", err)
	}
	return s, mark, nil
}

// Verifier verifies the targets of one node.
type Verifier struct {
	Files Files
	// Permits reads the permits of an environment, newest first, page by page, until more returns false.
	Permits func(ctx context.Context, environment string, more func([]SignedPermit) bool) error
	Now     func() time.Time
}

// Signers reads the lists for each target, because a release may have changed them. Once a list existed, the node
// requires one.
func (v *Verifier) Signers() (*Signers, HighWaterMark, error) {
	signers, mark, err := v.Files.Read()
	if err == nil && signers != nil && !mark.Required {
		mark.Required = true
		err = mark.Save(v.Files.Mark)
	}
	return signers, mark, err
}

// Record is a signed record from etcd, with the unverified fields of its content.
type Record struct {
	Version, Tree string // of a release
	Environment   string // of data
	Number        int64  // of data
	Digest        string // of data
	Bytes         []byte
	Signatures    []byte
}

// Release verifies the record of the target's release.
func (v *Verifier) Release(s *Signers, t Target, r Record) error {
	if r.Version != t.Release || r.Tree != t.Tree {
		return refusal.New(refusal.RecordMismatch, "release", t.Release,
			"found", fmt.Sprintf("%s with tree %.12s", r.Version, r.Tree), "want", fmt.Sprintf("tree %.12s", t.Tree))
	}
	_, err := s.Verify(Release, t.Environment, r.Bytes, r.Signatures, v.Now())
	return of(err, "release", t.Release)
}

// Data verifies the record of the target's data. The data must belong to the node's environment.
func (v *Verifier) Data(s *Signers, t Target, r Record) error {
	name := fmt.Sprint(t.Data)
	if r.Digest != t.DataDigest {
		return refusal.New(refusal.RecordMismatch, "data", name, "found", fmt.Sprintf("%.12s", r.Digest), "want", fmt.Sprintf("%.12s", t.DataDigest))
	}
	if !PlausibleData(t.Data, v.Now()) { // signed with a stolen key, or by a signer who continued a number that somebody wrote
		return refusal.New(refusal.RecordUnreadable, "data", name, "detail", "no data can have generation "+name)
	}
	if _, err := s.Verify(Data, t.Environment, r.Bytes, r.Signatures, v.Now()); err != nil {
		return of(err, "data", name)
	}
	switch {
	case r.Environment != t.Environment:
		return refusal.New(refusal.WrongEnvironment, "data", name, "environment", r.Environment, "want", t.Environment)
	case r.Number != t.Data:
		return refusal.New(refusal.RecordMismatch, "data", name, "found", fmt.Sprintf("generation %d", r.Number), "want", "generation "+name)
	}
	return nil
}

func of(err error, kind, name string) error {
	var refused *Refusal
	if errors.As(err, &refused) {
		return refused.Of(kind, name)
	}
	return err
}

// Unreadable returns the refusal of a record that cannot be decoded. A single changed byte can be the cause.
func Unreadable(err error) *Refusal { return refusal.New(refusal.RecordUnreadable, "detail", err) }

// Raise returns the high-water mark to save before t is attempted. The records of t must be verified: the mark must
// rise only by what a signature covers. Raise reads permits only for a target below the mark.
func (v *Verifier) Raise(ctx context.Context, s *Signers, mark HighWaterMark, t Target) (HighWaterMark, error) {
	raised, err := mark.Check(t, nil)
	if err == nil {
		return raised.verified(t), nil
	}
	var permits []Permit
	readErr := v.Permits(ctx, t.Environment, func(page []SignedPermit) bool {
		for _, p := range page {
			if p.Ended(v.Now()) || !PlausibleEpoch(p.Epoch, v.Now()) {
				continue
			}
			if _, err := s.Verify(Rollback, t.Environment, p.Record, p.Signatures, v.Now()); err == nil {
				permits = append(permits, p.Permit)
			}
		}
		raised, err = mark.At(v.Now()).Check(t, permits)
		return err != nil
	})
	if err = cmp.Or(readErr, err); err != nil {
		return mark, err
	}
	return raised.verified(t), nil
}

// verified remembers the data of a target, whose record was verified. A target without data has no record.
func (f HighWaterMark) verified(t Target) HighWaterMark {
	f.Verified, f.VerifiedData = "", t.Data
	if t.Data != 0 {
		f.Verified = t.DataDigest
	}
	return f
}
