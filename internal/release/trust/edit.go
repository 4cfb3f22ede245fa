package trust

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
)

// PublicKey is the key of a .pub file.
type PublicKey struct {
	ssh.PublicKey
	Comment string
}

// parsePublicKey parses a .pub file of ssh-keygen: one line.
func parsePublicKey(file []byte) (PublicKey, error) {
	if bytes.Contains(file, []byte("PRIVATE KEY-----")) {
		return PublicKey{}, errors.New("it is a private key; give its public key, the file that ends in .pub")
	}
	var keys []PublicKey
	err := eachLine(file, func(_ int, text string) error {
		key, comment, err := readKey(text)
		keys = append(keys, PublicKey{key, comment})
		return err
	})
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("it has %d keys, not one", len(keys))
	}
	if err != nil {
		return PublicKey{}, err
	}
	return keys[0], nil
}

// Fingerprint returns the key's fingerprint, as ssh-keygen -l prints it.
func (k PublicKey) Fingerprint() string { return ssh.FingerprintSHA256(k.PublicKey) }

// text returns the key as a line of a file.
func (k PublicKey) text() string {
	return strings.TrimSpace(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.PublicKey))) + " " + k.Comment)
}

// Permission holds the rights of a new line in the list of allowed signers.
type Permission struct {
	Name         string
	Environments []string // names or patterns
	ValidAfter   time.Time
	ValidBefore  time.Time
}

// plainName is stricter than the format of the list: a comma or a # would change the meaning of the line.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+@-]*$`)

// allow returns a list of allowed signers with an additional line. It refuses a key that the list contains already:
// later changes would have to edit both lines.
func allow(allowed []byte, key PublicKey, p Permission) ([]byte, error) {
	s, err := ParseSigners(allowed, nil)
	if err != nil {
		return nil, err
	}
	if !plainName.MatchString(p.Name) {
		return nil, fmt.Errorf("cannot use the name %q: it has letters, digits and . _ + - @, and begins with a letter or a digit", p.Name)
	}
	if there := s.of(key.PublicKey); len(there) > 0 {
		var more []string
		for _, e := range p.Environments {
			more = append(more, p.Name+"@"+e)
		}
		return nil, fmt.Errorf("key %s is listed already: line %d, for %s\nwrite %s into that line, or remove it first",
			key.Fingerprint(), there[0].Line, strings.Join(there[0].Names(), ", "), strings.Join(more, ","))
	}
	if err := checkKey(key.PublicKey); err != nil {
		return nil, err
	}
	l := line{key: key.text()}
	for _, e := range p.Environments {
		if err := checkEnvironment(e); err != nil {
			return nil, err
		}
		l.principals = append(l.principals, p.Name+"@"+e)
	}
	l.limit(optAfter, p.ValidAfter)
	l.limit(optBefore, p.ValidBefore)
	return withLine(allowed, l.String())
}

// checkEnvironment refuses an environment that changes the principal: alice@dev@t42 is split at the last @.
func checkEnvironment(text string) error {
	environment, stack, isStack := strings.Cut(text, "@")
	switch {
	case isStack && environmentPattern.MatchString(environment) && environmentPattern.MatchString(stack):
		return fmt.Errorf("%q is a stack, which counts as its environment: give %s", text, environment)
	case !environmentPattern.MatchString(text):
		return fmt.Errorf("%q is not an environment: lower-case letters, digits, _ and the patterns * ?", text)
	}
	return nil
}

// expire returns a list of allowed signers in which a key is valid until the given time, and the updated signer. The
// key is given by holder name or fingerprint. A name with several keys is refused.
func expire(allowed []byte, who string, at time.Time) ([]byte, Signer, error) {
	s, err := ParseSigners(allowed, nil)
	if err != nil {
		return nil, Signer{}, err
	}
	found, err := s.find(who)
	if err != nil {
		return nil, Signer{}, err
	}
	lines := strings.SplitAfter(string(allowed), "\n")
	old := lines[found.Line-1]
	l, err := cutLine(strings.Trim(old, " \t\r\n"))
	if err != nil {
		return nil, Signer{}, err
	}
	l.limit(optBefore, at)
	lines[found.Line-1] = l.String() + old[len(strings.TrimRight(old, "\r\n")):]
	changed := []byte(strings.Join(lines, ""))
	if s, err = ParseSigners(changed, nil); err != nil {
		return nil, Signer{}, err
	}
	for _, signer := range s.all {
		if signer.Line == found.Line {
			found = signer
		}
	}
	return changed, found, nil
}

// find returns the only signer with a name or fingerprint.
func (s *Signers) find(who string) (Signer, error) {
	var found []Signer
	var known, prints []string
	for _, signer := range s.all {
		known = append(known, signer.Names()...)
		is := who == signer.Fingerprint()
		for _, name := range signer.Names() {
			is = is || name == who
		}
		if is {
			found = append(found, signer)
			prints = append(prints, fmt.Sprintf("%s (line %d)", signer.Fingerprint(), signer.Line))
		}
	}
	switch len(found) {
	case 0:
		return Signer{}, fmt.Errorf("no allowed signer has the name or fingerprint %q\nthe names are %s", who, cmp.Or(strings.Join(known, ", "), "none"))
	case 1:
		return found[0], nil
	}
	return Signer{}, fmt.Errorf("%q has %d lines: %s\ngive a fingerprint; of a key with several lines change the file itself", who, len(found), strings.Join(prints, ", "))
}

// revoke adds a key to a list of revoked keys. It reports whether the list lacked the key.
func revoke(revoked []byte, key PublicKey) ([]byte, bool, error) {
	s, err := ParseSigners(nil, revoked)
	if err != nil || s.revoked[string(key.Marshal())] {
		return revoked, false, err
	}
	if len(revoked) > 0 && revoked[len(revoked)-1] != '\n' {
		revoked = append(bytes.Clone(revoked), '\n')
	}
	changed := append(bytes.Clone(revoked), key.text()+"\n"...)
	_, err = ParseSigners(nil, changed)
	return changed, true, err
}

// limit sets a time option, or omits it if the time is zero.
func (l *line) limit(name string, t time.Time) {
	if t.IsZero() {
		return
	}
	for i := range l.options {
		if l.options[i].name == name {
			l.options[i].value = formatTime(t)
			return
		}
	}
	l.options = append(l.options, option{name, formatTime(t)})
}

// String returns the line as text for the file.
func (l line) String() string {
	principals := strings.Join(l.principals, ",")
	if l.quoted || strings.ContainsAny(principals, blanks) {
		principals = `"` + principals + `"`
	}
	var options []string
	for _, o := range l.options {
		options = append(options, o.name+`="`+strings.ReplaceAll(o.value, `"`, `\"`)+`"`)
	}
	if len(options) == 0 {
		return principals + " " + l.key
	}
	return principals + " " + strings.Join(options, ",") + " " + l.key
}

// withLine appends a line and parses the complete list. A name with a comma or a quote must not change the meaning.
func withLine(allowed []byte, text string) ([]byte, error) {
	if len(allowed) > 0 && allowed[len(allowed)-1] != '\n' {
		allowed = append(bytes.Clone(allowed), '\n')
	}
	changed := append(bytes.Clone(allowed), text+"\n"...)
	_, err := ParseSigners(changed, nil)
	return changed, err
}

// ReadLists reads a list of allowed signers and a list of revoked keys. A path "" stands for an empty file. It also
// returns the bytes of the first list.
func ReadLists(allowed, revoked string) (*Signers, []byte, error) {
	a, err := bounded.ReadFile(allowed, maxListBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the allowed signers: %w", err)
	}
	var r []byte
	if revoked != "" {
		if r, err = bounded.ReadFile(revoked, maxListBytes); err != nil {
			return nil, nil, fmt.Errorf("cannot read the revoked keys: %w", err)
		}
	}
	signers, err := ParseSigners(a, r)
	return signers, a, err
}

// ReadPublicKey reads a .pub file of ssh-keygen.
func ReadPublicKey(file string) (PublicKey, error) {
	b, err := bounded.ReadFile(file, maxListBytes)
	if err != nil {
		return PublicKey{}, fmt.Errorf("cannot read the public key: %w", err)
	}
	key, err := parsePublicKey(b)
	if err != nil {
		return PublicKey{}, fmt.Errorf("cannot read the public key in %s: %w", file, err)
	}
	return key, nil
}

// FindPublicKey reads a public key from a file. If key begins with SHA256:, it searches a list of allowed signers for
// this fingerprint.
func FindPublicKey(key, allowed string) (PublicKey, error) {
	if !strings.HasPrefix(key, "SHA256:") {
		return ReadPublicKey(key)
	}
	signers, _, err := ReadLists(allowed, "")
	if err != nil {
		return PublicKey{}, err
	}
	for _, s := range signers.all {
		if s.Fingerprint() == key {
			return PublicKey{PublicKey: s.Key, Comment: s.Comment}, nil
		}
	}
	return PublicKey{}, fmt.Errorf("cannot find key %s in %s\nrun `pulley key list --signers %s` to list its keys, or give the file of the public key", key, allowed, allowed)
}

// AllowInFile adds a key to a file of allowed signers, and creates the file if it is missing.
func AllowInFile(file string, key PublicKey, p Permission) error {
	err := changeFile(file, true, func(list []byte) ([]byte, error) { return allow(list, key, p) })
	if err != nil {
		return fmt.Errorf("cannot allow %s to sign: %w", p.Name, err)
	}
	return nil
}

// ExpireInFile sets the expiry of a key in a file of allowed signers. The key is given by holder name or fingerprint.
func ExpireInFile(file, who string, at time.Time) (signer Signer, err error) {
	err = changeFile(file, false, func(list []byte) (changed []byte, err error) {
		changed, signer, err = expire(list, who, at)
		return changed, err
	})
	if err != nil {
		return Signer{}, fmt.Errorf("cannot set the expiry of the key: %w", err)
	}
	return signer, nil
}

// RevokeInFile adds a key to a file of revoked keys, and creates the file if it is missing. Added is false if the file
// contains the key already.
func RevokeInFile(file string, key PublicKey) (added bool, err error) {
	err = changeFile(file, true, func(list []byte) (changed []byte, err error) {
		changed, added, err = revoke(list, key)
		return changed, err
	})
	if err != nil {
		return false, fmt.Errorf("cannot revoke the key: %w", err)
	}
	return added, nil
}

// changeFile replaces the content of a list. An optional file may be missing.
func changeFile(file string, optional bool, change func([]byte) ([]byte, error)) error {
	list, err := bounded.ReadFile(file, maxListBytes)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !(missing && optional) {
		return err
	}
	changed, err := change(list)
	if err != nil || !missing && bytes.Equal(changed, list) {
		return err
	}
	return atomicfile.Replace(file, changed, 0o644)
}

// ReadRecord reads a record and its signatures from one file, or from FILE and FILE.sig. It verifies nothing.
func ReadRecord(file string) (record, signatures []byte, err error) {
	value, err := bounded.ReadFile(file, maxRecordBytes+maxSignaturesBytes)
	if err == nil {
		if record, signatures = Split(value); signatures == nil {
			if signatures, err = bounded.ReadFile(file+".sig", maxSignaturesBytes); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the record: %w", err)
	}
	return record, signatures, nil
}
