package trust

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxListBytes limits a file of allowed or revoked keys, maxLineBytes one of its lines.
const (
	maxListBytes = 1 << 20
	maxLineBytes = 16 << 10
)

// Signer is one line of the list of allowed signers: a key, its holders, and the uses, environments and times it is
// valid for.
type Signer struct {
	Line        int // in the file, from 1
	Principals  []Principal
	Key         ssh.PublicKey
	Comment     string
	Namespaces  string    // patterns of the namespaces the key may sign in; "" for all
	ValidAfter  time.Time // zero: no limit
	ValidBefore time.Time // zero: no limit

	patterns   []pattern // Principals as patterns
	namespaces []pattern
}

// Principal is a name with an environment, as in `alice@production`. The environment may be a pattern. A negated
// principal (`!bob@dev`) excludes what others of its line allow, and its name may be a pattern too.
type Principal struct {
	Name        string
	Environment string
	Not         bool
}

func (p Principal) String() string {
	if p.Not {
		return "!" + p.Name + "@" + p.Environment
	}
	return p.Name + "@" + p.Environment
}

// State is the validity of a key at some time.
type State string

// The states of a key.
const (
	Valid   State = "valid"
	NotYet  State = "not_yet"
	Expired State = "expired"
	Revoked State = "revoked"
)

// Fingerprint returns the key's fingerprint, as ssh-keygen -l prints it.
func (s Signer) Fingerprint() string { return ssh.FingerprintSHA256(s.Key) }

// Type returns the key's type as ssh-keygen prints it, like ssh-ed25519.
func (s Signer) Type() string { return s.Key.Type() }

// Names returns the distinct names of the line, in order.
func (s Signer) Names() []string {
	var names []string
	seen := map[string]bool{}
	for _, p := range s.Principals {
		if !p.Not && !seen[p.Name] {
			seen[p.Name] = true
			names = append(names, p.Name)
		}
	}
	return names
}

// Environments returns the environment patterns that a name may sign for, including negated ones.
func (s Signer) Environments(name string) []string {
	var all []string
	for _, p := range s.Principals {
		switch {
		case p.Not && matches(name, p.Name):
			all = append(all, "!"+p.Environment)
		case !p.Not && p.Name == name:
			all = append(all, p.Environment)
		}
	}
	return all
}

// validity returns the state of a key that is not revoked. As in OpenSSH, both limits are inclusive, and times are in
// seconds.
func (s Signer) validity(now time.Time) State {
	switch {
	case !s.ValidAfter.IsZero() && now.Unix() < s.ValidAfter.Unix():
		return NotYet
	case !s.ValidBefore.IsZero() && now.Unix() > s.ValidBefore.Unix():
		return Expired
	}
	return Valid
}

// in returns the name on the line that may sign for an environment, or "".
func (s Signer) in(environment string) string {
	for _, p := range s.Principals {
		if !p.Not && matches(environment, p.Environment) && matchesList(p.Name+"@"+environment, s.patterns) {
			return p.Name
		}
	}
	return ""
}

// everywhere lists the environments of all names, for the text of a refusal.
func (s Signer) everywhere() string {
	var all []string
	for _, p := range s.Principals {
		if p.Not {
			all = append(all, "not "+p.Environment)
		} else {
			all = append(all, p.Environment)
		}
	}
	return strings.Join(all, ", ")
}

// Signers are the allowed keys and the revoked keys. A revoked key is invalid even if it is allowed.
type Signers struct {
	all     []Signer
	byKey   map[string][]int // indexes in all, by the key's wire form
	revoked map[string]bool
}

// Digest returns the first 16 hex digits of a digest of both lists, and the number of allowed keys that are not
// revoked. Two lists that allow the same have the same digest: comments and the order of lines do not count.
func (s *Signers) Digest() (digest string, keys int) {
	var lines []string
	for _, l := range s.all {
		lines = append(lines, fmt.Sprintf("%q %q %d %d %s", l.Principals, l.Namespaces, l.ValidAfter.Unix(), l.ValidBefore.Unix(), l.Fingerprint()))
	}
	for key := range s.revoked {
		lines = append(lines, fmt.Sprintf("revoked %x", key))
	}
	slices.Sort(lines)
	for key := range s.byKey {
		if !s.revoked[key] {
			keys++
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, "\n"))))[:16], keys
}

// ParseSigners parses a list of allowed signers and a list of revoked keys, nil for none. Both have OpenSSH formats:
// see ssh-keygen(1), ALLOWED SIGNERS, and its -r with one public key per line. The error for an unreadable line
// contains its number.
func ParseSigners(allowed, revoked []byte) (*Signers, error) {
	s, err := parseAllowed(allowed)
	if err != nil {
		return nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	if err := s.revoke(revoked); err != nil {
		return nil, fmt.Errorf("cannot read the revoked keys: %w", err)
	}
	return s, nil
}

func parseAllowed(allowed []byte) (*Signers, error) {
	s := &Signers{byKey: map[string][]int{}, revoked: map[string]bool{}}
	err := eachLine(allowed, func(number int, text string) error {
		l, err := cutLine(text)
		if err != nil {
			return err
		}
		signer, err := l.signer()
		if err != nil {
			return err
		}
		signer.Line = number
		key := string(signer.Key.Marshal())
		s.byKey[key] = append(s.byKey[key], len(s.all))
		s.all = append(s.all, signer)
		return nil
	})
	return s, err
}

// revoke adds the keys of a list of revoked keys.
func (s *Signers) revoke(list []byte) error {
	if bytes.HasPrefix(list, []byte("SSHKRL\n")) {
		return errors.New("it is a binary list (KRL)\nwrite one public key per line instead")
	}
	return eachLine(list, func(_ int, text string) error {
		key, _, err := readKey(text)
		if err != nil {
			return err
		}
		s.revoked[string(key.Marshal())] = true
		return nil
	})
}

// All returns the allowed signers in the order of their file.
func (s *Signers) All() []Signer { return slices.Clone(s.all) }

// State returns the state of a signer's key at a time.
func (s *Signers) State(signer Signer, now time.Time) State {
	if s.revoked[string(signer.Key.Marshal())] {
		return Revoked
	}
	return signer.validity(now)
}

// Anybody reports whether any signer's signature is valid in an environment at a time.
func (s *Signers) Anybody(ns Namespace, environment string, now time.Time) bool {
	environment, _, _ = strings.Cut(environment, "@")
	return slices.ContainsFunc(s.all, func(signer Signer) bool {
		_, refused := signer.counts(ns, environment, now)
		return refused == nil && s.State(signer, now) == Valid
	})
}

// of returns the lines of a key.
func (s *Signers) of(key ssh.PublicKey) []Signer {
	var lines []Signer
	for _, i := range s.byKey[string(key.Marshal())] {
		lines = append(lines, s.all[i])
	}
	return lines
}

// eachLine calls do with every line that is not empty or a comment, trimmed.
func eachLine(file []byte, do func(number int, text string) error) error {
	if len(file) > maxListBytes {
		return fmt.Errorf("it has %d bytes; there may be %d", len(file), maxListBytes)
	}
	number := 0
	for line := range strings.Lines(string(file)) {
		number++
		text := strings.Trim(line, " \t\r\n")
		if text == "" || text[0] == '#' {
			continue
		}
		var err error
		switch {
		case len(text) > maxLineBytes:
			err = fmt.Errorf("it has %d bytes; there may be %d", len(text), maxLineBytes)
		case strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }):
			err = fmt.Errorf("it has a control character")
		default:
			err = do(number, text)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}
