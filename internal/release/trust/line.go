package trust

import (
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// line is a parsed line of the list of allowed signers: principals, options, and the key with its comment.
type line struct {
	principals []string // without quotes around the list
	quoted     bool
	options    []option
	key        string // type, base64, comment
}

type option struct{ name, value string }

// The names of options in ssh-keygen(1).
const (
	optAuthority  = "cert-authority"
	optNamespaces = "namespaces"
	optAfter      = "valid-after"
	optBefore     = "valid-before"
)

const blanks = " \t"

// keyTypes returns the allowed key types. OpenSSH removed DSA. A certificate would need trust in its authority.
func keyTypes() []string {
	return []string{
		ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519,
		ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256,
		ssh.KeyAlgoRSA,
	}
}

// leastRSABits is more than the minimum of OpenSSH (1024). Smaller keys are insecure, and signed content runs as root.
const leastRSABits = 2048

// checkKey returns the reason why a key may not sign.
func checkKey(key ssh.PublicKey) error {
	if !slices.Contains(keyTypes(), key.Type()) {
		if _, certificate := key.(*ssh.Certificate); certificate {
			return errors.New("certificates are not supported; use the key itself")
		}
		return fmt.Errorf("keys of type %q are not accepted; there are %s", key.Type(), strings.Join(keyTypes(), ", "))
	}
	if k, ok := key.(ssh.CryptoPublicKey); ok {
		if public, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && public.N.BitLen() < leastRSABits {
			return fmt.Errorf("the RSA key has %d bits; the least is %d", public.N.BitLen(), leastRSABits)
		}
	}
	return nil
}

// cutLine splits a line. It validates the parts only as far as needed to find their ends.
func cutLine(text string) (line, error) {
	var l line
	var principals, rest string
	if after, quoted := strings.CutPrefix(text, `"`); quoted {
		var ended bool
		if principals, rest, ended = strings.Cut(after, `"`); !ended || rest == "" || !strings.ContainsAny(rest[:1], blanks) {
			return l, errors.New(`the quotes around its principals don't end, or nothing follows them`)
		}
		l.quoted = true
	} else {
		at := strings.IndexAny(text, blanks)
		if at < 0 {
			return l, errors.New("a line is: name@environment[,…] [options] key")
		}
		principals, rest = text[:at], text[at:]
		if strings.Contains(principals, `"`) {
			return l, errors.New("its principals contain a quote")
		}
	}
	l.principals = strings.Split(principals, ",")
	rest = strings.TrimLeft(rest, blanks)
	if word, _, _ := strings.Cut(strings.ReplaceAll(rest, "\t", " "), " "); !looksLikeType(word) {
		var err error
		if l.options, rest, err = cutOptions(rest); err != nil {
			return l, err
		}
	}
	l.key = strings.TrimLeft(rest, blanks)
	return l, nil
}

func looksLikeType(word string) bool {
	return slices.Contains(keyTypes(), word) || word == "ssh-dss" || strings.Contains(word, "-cert-v01@")
}

// cutOptions cuts the comma-separated options off the start of a text. They are flags, or names with a quoted value, in
// which \" is a quote.
func cutOptions(text string) (all []option, rest string, err error) {
	seen := map[string]bool{}
	for {
		end := strings.IndexAny(text, "=, \t")
		if end < 0 {
			end = len(text)
		}
		o := option{name: strings.ToLower(text[:end])}
		if !slices.Contains([]string{optAuthority, optNamespaces, optAfter, optBefore}, o.name) {
			return nil, "", fmt.Errorf("%q is neither a key's type nor an option", text[:end])
		}
		text = text[end:]
		if seen[o.name] {
			return nil, "", fmt.Errorf("option %s is repeated", o.name)
		}
		seen[o.name] = true
		if o.name != optAuthority {
			if o.value, text, err = cutValue(text); err != nil {
				return nil, "", fmt.Errorf("option %s: %w", o.name, err)
			}
		}
		all = append(all, o)
		switch {
		case strings.HasPrefix(text, ","):
			text = text[1:]
		case text != "" && strings.ContainsAny(text[:1], blanks):
			return all, text, nil
		case text == "":
			return nil, "", errors.New("no key follows the options")
		default:
			return nil, "", fmt.Errorf("option %s must be followed by a comma or a blank", o.name)
		}
	}
}

func cutValue(text string) (value, rest string, err error) {
	text, begun := strings.CutPrefix(text, `="`)
	if !begun {
		return "", "", errors.New(`its value belongs in quotes, as in ="…"`)
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '"':
			i++
			b.WriteByte('"')
		case text[i] == '"':
			return b.String(), text[i+1:], nil
		default:
			b.WriteByte(text[i])
		}
	}
	return "", "", errors.New("its quotes don't end")
}

// readKey parses a public key in OpenSSH format: type, base64, comment.
func readKey(text string) (key ssh.PublicKey, comment string, err error) {
	fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(blanks, r) })
	if len(fields) < 2 {
		return nil, "", errors.New("there is no public key: a type, and the key in base64")
	}
	wire, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return nil, "", fmt.Errorf("the key after %q is not base64", fields[0])
	}
	if key, err = ssh.ParsePublicKey(wire); err != nil {
		return nil, "", fmt.Errorf("the key after %q cannot be read: %w", fields[0], err)
	}
	if key.Type() != fields[0] {
		return nil, "", fmt.Errorf("the line has type %q, and the key has type %q", fields[0], key.Type())
	}
	return key, strings.Join(fields[2:], " "), nil
}

// signer interprets the parts of the line.
func (l line) signer() (Signer, error) {
	var s Signer
	if slices.ContainsFunc(l.options, func(o option) bool { return o.name == optAuthority }) { // often patterns
		return s, errors.New("certificate authorities are not supported; list the signers' own keys")
	}
	for _, text := range l.principals {
		p, err := parsePrincipal(text)
		if err != nil {
			return s, err
		}
		s.Principals = append(s.Principals, p)
		s.patterns = append(s.patterns, pattern{p.Name + "@" + p.Environment, p.Not})
	}
	if len(s.Names()) == 0 {
		return s, errors.New("it names no signer: every principal is negated")
	}
	for _, o := range l.options {
		var err error
		switch o.name {
		case optNamespaces:
			s.Namespaces = o.value
			s.namespaces, err = patternList(o.value)
		case optAfter:
			s.ValidAfter, err = parseTime(o.value)
		case optBefore:
			s.ValidBefore, err = parseTime(o.value)
		}
		if err != nil {
			return s, fmt.Errorf("option %s: %w", o.name, err)
		}
	}
	if !s.ValidAfter.IsZero() && !s.ValidBefore.IsZero() && !s.ValidAfter.Before(s.ValidBefore) {
		return s, errors.New("valid-before is not after valid-after")
	}
	var err error
	if s.Key, s.Comment, err = readKey(l.key); err != nil {
		return s, err
	}
	return s, checkKey(s.Key)
}

func patternList(text string) ([]pattern, error) {
	var list []pattern
	for p := range strings.SplitSeq(text, ",") {
		p, not := strings.CutPrefix(p, "!")
		if p == "" || len(p) > maxPatternBytes {
			return nil, errors.New("a pattern of it is empty or too long")
		}
		list = append(list, pattern{p, not})
	}
	return list, nil
}

// environmentPattern matches the name of an environment, or a pattern of such names.
var environmentPattern = regexp.MustCompile(`^[a-z0-9_*?]+$`)

// maxPatternBytes is well below the limit of OpenSSH's pattern matching.
const maxPatternBytes = 255

// parsePrincipal parses name@environment. It splits at the last @, because a name may be an address.
func parsePrincipal(text string) (Principal, error) {
	p := Principal{}
	rest, not := strings.CutPrefix(text, "!")
	at := strings.LastIndex(rest, "@")
	if len(rest) > maxPatternBytes || at < 1 || strings.HasPrefix(rest, "!") {
		return p, fmt.Errorf("principal %q is not a name@environment, like alice@production or alice@*", text)
	}
	p.Name, p.Environment, p.Not = rest[:at], rest[at+1:], not
	switch {
	case !environmentPattern.MatchString(p.Environment):
		return p, fmt.Errorf("principal %q: %q is not an environment; write it as in %s@production", text, p.Environment, rest)
	case !not && strings.ContainsAny(p.Name, "*?"):
		return p, fmt.Errorf("principal %q has a pattern for a name: a refusal could not name the signer", text)
	}
	return p, nil
}

// parseTime parses the times of OpenSSH's valid-after and valid-before: YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, and Z
// or UTC. A time without either is refused: each machine would read it in its own time zone.
func parseTime(s string) (time.Time, error) {
	digits, utc := s, false
	for _, suffix := range []string{"Z", "UTC"} {
		if n := len(s) - len(suffix); n > 0 && strings.EqualFold(s[n:], suffix) {
			digits, utc = s[:n], true
			break
		}
	}
	layout := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	t, err := time.Parse(layout, digits)
	switch {
	case layout == "" || err != nil:
		return time.Time{}, errors.New("a time is YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, followed by Z")
	case !utc:
		return time.Time{}, errors.New("the time has no Z: append it, and give the time in UTC")
	case t.Unix() <= 0: // OpenSSH reads 0 as no time
		return time.Time{}, errors.New("it is not after 1970-01-01 00:00 UTC")
	}
	return t, nil
}

// formatTime formats a time with the same meaning on every machine.
func formatTime(t time.Time) string { return t.UTC().Format("20060102150405") + "Z" }

// ParseDate parses a time of a command line: 2027-01-31 (0:00 UTC), RFC 3339, "now", or the OpenSSH format.
func ParseDate(s string, now time.Time) (time.Time, error) {
	if s == "now" {
		return now.UTC().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC().Truncate(time.Second), nil
		}
	}
	t, err := parseTime(s)
	if err != nil {
		return t, errors.New("a time is 2027-01-31, 2027-01-31T12:00:00Z or now")
	}
	return t, nil
}

// matches reports whether s matches an OpenSSH pattern (ssh_config(5), PATTERNS): * matches any number of characters,
// including none; ? matches one.
func matches(s, pattern string) bool {
	expression := strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern))
	ok, err := regexp.MatchString(`(?s)^(?:`+expression+`)$`, s)
	return err == nil && ok
}

// pattern is one element of a list. A match of a negated pattern excludes the string, at any place in the list.
type pattern struct {
	text string
	not  bool
}

// matchesList reports whether a string matches at least one pattern of a list and no negated one.
func matchesList(s string, list []pattern) bool {
	found := false
	for _, p := range list {
		if matches(s, p.text) {
			if p.not {
				return false
			}
			found = true
		}
	}
	return found
}
