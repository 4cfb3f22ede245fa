package trust

import (
	"bytes"
	"fmt"
	"pulley/internal/clip"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// RefusedError says why something is not authentic, or why a node may not go there: a sentence about it.
type RefusedError struct {
	Why  string // "it is not signed"
	Next string // what an operator can do, where that is not plain
}

func (e *RefusedError) Error() string { return e.Why }

// Hint says what to do.
func (e *RefusedError) Hint() string { return e.Next }

// maxWhyBytes bounds a sentence: what it quotes may be a stranger's.
const maxWhyBytes = 1000

func refused(format string, args ...any) *RefusedError {
	return &RefusedError{Why: clip.Line(fmt.Sprintf(format, args...), maxWhyBytes)}
}

// Verify returns who signed a record for an environment, as of now. One good signature of several is enough. Any error is
// a *RefusedError. Of an environment with a stack (dev@t42) the environment counts.
func (s *Signers) Verify(ns Namespace, environment string, record, signatures []byte, now time.Time) (by string, err error) {
	environment, _, _ = strings.Cut(environment, "@")
	if environment == "" || ns == "" {
		return "", refused("nobody said for which environment and what use it is to be authentic")
	}
	if err := checkRecord(record); err != nil {
		return "", refused("%v", err)
	}
	if len(signatures) == 0 {
		return "", refused("it is not signed")
	}
	blocks, err := unarmor(signatures)
	if err != nil {
		return "", refused("%v", err)
	}
	var whys []string
	for _, block := range blocks {
		by, why := s.verify(ns, environment, record, block, now)
		if why == "" {
			return by, nil
		}
		whys = append(whys, why)
	}
	if len(whys) == 1 {
		return "", refused("%s", whys[0])
	}
	return "", refused("none of its %d signatures counts: %s", len(whys), strings.Join(whys, "; "))
}

// Signature is whose a signature says that it is. Nothing of it is verified.
type Signature struct {
	Fingerprint string // of the key, as ssh-keygen -l shows it; "" for one that can't be read
	Type        string // of the key
}

// SignedBy lists what signs a document, for people to look at.
func SignedBy(signatures []byte) []Signature {
	blocks, err := unarmor(signatures)
	if err != nil {
		return []Signature{{}}
	}
	all := make([]Signature, len(blocks))
	for i, block := range blocks {
		if sig, err := parseSignature(block); err == nil {
			all[i] = Signature{ssh.FingerprintSHA256(sig.PublicKey), sig.PublicKey.Type()}
		}
	}
	return all
}

// verify judges one signature: who, or else why not. What it is is looked at before its arithmetic, so that no stranger's
// key is ever calculated with.
func (s *Signers) verify(ns Namespace, environment string, record, block []byte, now time.Time) (by, why string) {
	sig, err := parseSignature(block)
	if err != nil {
		return "", "its signature can't be read: " + clip.Line(err.Error(), 120)
	}
	if sig.Namespace != string(ns) {
		return "", fmt.Sprintf("it is signed as %q, not as %q", clip.Line(sig.Namespace, 60), ns)
	}
	fingerprint := ssh.FingerprintSHA256(sig.PublicKey)
	lines := s.of(sig.PublicKey)
	if s.revoked[string(sig.PublicKey.Marshal())] {
		return "", fmt.Sprintf("its signature is by %s, which is revoked", whose(lines, fingerprint))
	}
	if len(lines) == 0 {
		return "", fmt.Sprintf("its signature is by %s, which is no allowed signer's key", fingerprint)
	}
	if err := sshsig.Verify(bytes.NewReader(message(record)), sig, lines[0].Key, sig.HashAlgorithm, string(ns)); err != nil {
		return "", fmt.Sprintf("it was altered after it was signed: the signature by %s does not match", whose(lines, fingerprint))
	}
	for _, l := range lines {
		who, problem := l.counts(ns, environment, now)
		if problem == "" {
			return who, ""
		}
		if why == "" || l.in(environment) != "" { // the line that came closest has the most to say
			why = fmt.Sprintf("its signature is by %s, %s", whose([]Signer{l}, fingerprint), problem)
		}
	}
	return "", why
}

// whose names a key's holders with it.
func whose(lines []Signer, fingerprint string) string {
	var names []string
	for _, l := range lines {
		for _, name := range l.Names() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return fingerprint
	}
	return fmt.Sprintf("%s (%s)", strings.Join(names, ", "), fingerprint)
}

// counts says for whom a key's line lets it sign here and now, or else why not.
func (s Signer) counts(ns Namespace, environment string, now time.Time) (who, problem string) {
	who = s.in(environment)
	switch {
	case who == "":
		return "", fmt.Sprintf("who may not sign for %s, only for %s", environment, s.everywhere())
	case s.namespaces != nil && !matchesList(string(ns), s.namespaces):
		return "", fmt.Sprintf("whose key may not sign as %q, only as %s", ns, s.Namespaces)
	}
	switch s.validity(now) {
	case NotYet:
		return "", "whose key is not valid before " + day(s.ValidAfter)
	case Expired:
		return "", "whose key expired on " + day(s.ValidBefore)
	}
	return who, ""
}

// parseSignature decodes one signature, and refuses what OpenSSH refuses: another version, SHA-1, bytes that are left over.
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
		// What a hardware key adds: flags and a counter (PROTOCOL.u2f). x/crypto demands the touch too.
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
