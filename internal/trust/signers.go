package trust

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxListBytes bounds a file of allowed or revoked keys, maxLineBytes one of its lines.
const (
	maxListBytes = 1 << 20
	maxLineBytes = 16 << 10
)

// Signers are the keys that count, and those that count no more whatever the first list says.
type Signers struct {
	all     []Signer
	byKey   map[string][]int // place in all, by the key's wire form
	revoked map[string]bool
}

// ParseSigners reads a list of allowed signers, and one of revoked keys; nil for none. Both are OpenSSH's: see
// ssh-keygen(1), ALLOWED SIGNERS, and its -r with one public key a line. A line that can't be read is an error with its
// number. Times without a Z are those of this machine's zone.
func ParseSigners(allowed, revoked []byte) (*Signers, error) {
	return parseSigners(allowed, revoked, time.Local)
}

func parseSigners(allowed, revoked []byte, loc *time.Location) (*Signers, error) {
	s, err := parseAllowed(allowed, loc)
	if err != nil {
		return nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	if err := s.revoke(revoked); err != nil {
		return nil, fmt.Errorf("cannot read the revoked keys: %w", err)
	}
	return s, nil
}

func parseAllowed(allowed []byte, loc *time.Location) (*Signers, error) {
	s := &Signers{byKey: map[string][]int{}, revoked: map[string]bool{}}
	err := eachLine(allowed, func(number int, text string) error {
		l, err := cutLine(text)
		if err != nil {
			return err
		}
		signer, err := l.signer(loc)
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

// All are the allowed signers in the order of their file.
func (s *Signers) All() []Signer { return append([]Signer(nil), s.all...) }

// State says whether a signer's key counts at a time.
func (s *Signers) State(signer Signer, now time.Time) State {
	if s.revoked[string(signer.Key.Marshal())] {
		return Revoked
	}
	return signer.validity(now)
}

// Anybody says whether somebody's signature would count in an environment at a time.
func (s *Signers) Anybody(ns Namespace, environment string, now time.Time) bool {
	environment, _, _ = strings.Cut(environment, "@")
	return slices.ContainsFunc(s.all, func(signer Signer) bool {
		_, refused := signer.counts(ns, environment, now)
		return refused == nil && s.State(signer, now) == Valid
	})
}

// of are the lines of a key.
func (s *Signers) of(key ssh.PublicKey) []Signer {
	var lines []Signer
	for _, i := range s.byKey[string(key.Marshal())] {
		lines = append(lines, s.all[i])
	}
	return lines
}

// eachLine calls do with every line that says something, without white space around it.
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
