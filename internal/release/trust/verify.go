package trust

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"pulley/internal/model/refusal"
)

// Refusal is the reason why a record is not authentic, or why a node may not take a target.
type Refusal = refusal.Error

// Verify returns the signer of a record for an environment at time now. One valid signature is enough. Any error is a
// *Refusal. The stack is ignored: dev@t42 counts as dev.
func (s *Signers) Verify(ns Namespace, environment string, record, signatures []byte, now time.Time) (by string, err error) {
	return s.verifyAll(environment, record, signatures, now, ns)
}

// verifyAll is Verify for a signature in the first of the uses, by a key that is allowed all of them.
func (s *Signers) verifyAll(environment string, record, signatures []byte, now time.Time, uses ...Namespace) (by string, err error) {
	environment, _, _ = strings.Cut(environment, "@")
	if environment == "" || uses[0] == "" {
		return "", refusal.New(refusal.EnvironmentMissing)
	}
	if err := checkRecord(record); err != nil {
		return "", err
	}
	if len(signatures) == 0 {
		return "", refusal.New(refusal.NotSigned)
	}
	blocks, err := unarmor(signatures)
	if err != nil {
		return "", err
	}
	var refusals []*Refusal
	for _, block := range blocks {
		by, why := s.verify(environment, record, block, now, uses)
		if why == nil {
			return by, nil
		}
		refusals = append(refusals, why)
	}
	return "", refusal.NoneOf(refusals)
}

// Signature is the unverified key of a signature.
type Signature struct {
	Key  string `json:"key"`  // its fingerprint, as ssh-keygen -l prints it; "unreadable" without a type
	Type string `json:"type"` // of the key
}

// SignedBy lists the signatures of a document for display. It verifies nothing.
func SignedBy(signatures []byte) []Signature {
	if len(signatures) == 0 {
		return []Signature{}
	}
	unreadable := Signature{Key: "unreadable"}
	blocks, err := unarmor(signatures)
	if err != nil {
		return []Signature{unreadable}
	}
	all := make([]Signature, len(blocks))
	for i, block := range blocks {
		all[i] = unreadable
		if sig, err := parseSignature(block); err == nil {
			all[i] = Signature{ssh.FingerprintSHA256(sig.PublicKey), sig.PublicKey.Type()}
		}
	}
	return all
}

// verify checks one signature. It returns the signer, or why the signature is invalid. It checks the key first, because
// signature arithmetic must not use an unknown key.
func (s *Signers) verify(environment string, record, block []byte, now time.Time, uses []Namespace) (by string, refused *Refusal) {
	ns := uses[0]
	sig, err := parseSignature(block)
	if err != nil {
		return "", badSignature(refusal.Clean(err.Error(), 120))
	}
	if sig.Namespace != string(ns) {
		return "", refusal.New(refusal.WrongUse, "use", refusal.Clean(sig.Namespace, 60), "want", ns)
	}
	fingerprint := ssh.FingerprintSHA256(sig.PublicKey)
	lines := s.of(sig.PublicKey)
	if s.revoked[string(sig.PublicKey.Marshal())] {
		return "", refusal.New(refusal.KeyRevoked, "by", holders(lines), "key", fingerprint)
	}
	if len(lines) == 0 {
		return "", refusal.New(refusal.KeyUnknown, "key", fingerprint)
	}
	if err := sshsig.Verify(bytes.NewReader(message(record)), sig, lines[0].Key, sig.HashAlgorithm, string(ns)); err != nil {
		return "", refusal.New(refusal.SignatureMismatch, "by", holders(lines), "key", fingerprint)
	}
	for _, l := range lines {
		who, why := "", (*Refusal)(nil)
		for _, ns := range uses {
			if who, why = l.counts(ns, environment, now); why != nil {
				break
			}
		}
		if why == nil {
			return who, nil
		}
		if refused == nil || l.in(environment) != "" { // report the reason of the line that matches most
			refused = why
		}
	}
	return "", refused
}

// holders returns the names of the holders of a key.
func holders(lines []Signer) string {
	var names []string
	for _, l := range lines {
		for _, name := range l.Names() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// counts returns the name for which a line allows its key to sign now, or the refusal.
func (s Signer) counts(ns Namespace, environment string, now time.Time) (who string, refused *Refusal) {
	no := func(code refusal.Code, pairs ...any) (string, *Refusal) {
		return "", refusal.New(code, append([]any{"by", holders([]Signer{s}), "key", s.Fingerprint()}, pairs...)...)
	}
	who = s.in(environment)
	switch {
	case who == "":
		return no(refusal.EnvironmentNotAllowed, "environment", environment, "allowed", s.everywhere())
	case s.namespaces != nil && !matchesList(string(ns), s.namespaces):
		return no(refusal.UseNotAllowed, "use", ns, "allowed", s.Namespaces)
	}
	switch s.validity(now) {
	case NotYet:
		return no(refusal.KeyNotYetValid, "at", s.ValidAfter.UTC().Format(time.RFC3339))
	case Expired:
		return no(refusal.KeyExpired, "at", s.ValidBefore.UTC().Format(time.RFC3339))
	}
	return who, nil
}

// parseSignature decodes one signature. Like OpenSSH, it refuses other versions, SHA-1 and trailing bytes.
func parseSignature(block []byte) (*sshsig.Signature, error) {
	sig, err := sshsig.ParseSignature(block)
	if err != nil {
		return nil, err
	}
	if err := checkKey(sig.PublicKey); err != nil {
		return nil, err
	}
	rest := sig.Signature.Rest
	if strings.HasPrefix(sig.PublicKey.Type(), "sk-") {
		// A hardware key adds flags and a counter (PROTOCOL.u2f). x/crypto also requires the touch.
		if len(rest) != 5 {
			return nil, fmt.Errorf("%d bytes follow it, not a hardware key's 5", len(rest))
		}
		if rest[0]&1 == 0 {
			return nil, fmt.Errorf("the hardware key signed without being touched")
		}
	} else if len(rest) != 0 {
		return nil, fmt.Errorf("%d bytes follow it", len(rest))
	}
	return sig, nil
}
