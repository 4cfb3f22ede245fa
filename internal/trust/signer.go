package trust

import (
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Signer is one line of the list of allowed signers: a key, who holds it, where and when it counts.
type Signer struct {
	Line        int // in the file, from 1
	Principals  []Principal
	Key         ssh.PublicKey
	Comment     string
	Namespaces  string    // patterns of those that the key may sign in; "" for all
	ValidAfter  time.Time // zero: no limit
	ValidBefore time.Time // zero: no limit

	patterns   []pattern // Principals as patterns
	namespaces []pattern
}

// Principal is who signs where: `alice@production`, with patterns in the environment. One that is negated (`!bob@dev`)
// takes away what others of its line give, and may have patterns in the name too.
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

// State is whether a key counts at some time.
type State string

// The states of a key.
const (
	Valid   State = "valid"
	NotYet  State = "not_yet"
	Expired State = "expired"
	Revoked State = "revoked"
)

// Fingerprint is the key's, as ssh-keygen -l prints it.
func (s Signer) Fingerprint() string { return ssh.FingerprintSHA256(s.Key) }

// Type is the key's type as ssh-keygen knows it, like ssh-ed25519.
func (s Signer) Type() string { return s.Key.Type() }

// Names are the people of the line, each once, in its order.
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

// Environments are the patterns of the environments that a name may sign for, with those that take away.
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

// validity is the state of a key that is not revoked. Both ends count as valid, and time is counted in seconds, as OpenSSH
// has it.
func (s Signer) validity(now time.Time) State {
	switch {
	case !s.ValidAfter.IsZero() && now.Unix() < s.ValidAfter.Unix():
		return NotYet
	case !s.ValidBefore.IsZero() && now.Unix() > s.ValidBefore.Unix():
		return Expired
	}
	return Valid
}

// in returns who of the line may sign for an environment; "" for nobody.
func (s Signer) in(environment string) string {
	for _, p := range s.Principals {
		if !p.Not && matches(environment, p.Environment) && matchesList(p.Name+"@"+environment, s.patterns) {
			return p.Name
		}
	}
	return ""
}

// everywhere lists the environments of all its people, for the words of a refusal.
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
