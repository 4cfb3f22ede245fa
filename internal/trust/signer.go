package trust

import (
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
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
