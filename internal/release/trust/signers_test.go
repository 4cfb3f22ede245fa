package trust

import (
	"crypto/elliptic"
	"fmt"
	"strings"
	"testing"

	"pulley/internal/model/refusal"
)

// A misread line could allow an excluded signer. A skipped line could exclude an allowed one.
func TestParseSigners(t *testing.T) {
	key := text(softKey(t, 1).PublicKey())
	file := "# who may sign\r\n\n" +
		"alice@production,alice@dev " + key + " alice at work\r\n" +
		"\t \"bob smith@*,!bob smith@production\"\tNameSpaces=\"pulley-release,pulley-r*\",valid-after=\"20260101Z\",VALID-BEFORE=\"202701011230utc\"  " + text(softKey(t, 2).PublicKey()) + "\n" +
		"carol@example.com@staging " + text(signerOf(t, ecdsaKey(t, elliptic.P256())).PublicKey()) + "\n" +
		"dave@dev_? " + text(newSK(1).PublicKey())
	all := mustParse(t, file, "# none\n").All()
	var got []string
	for _, s := range all {
		got = append(got, fmt.Sprintf("%d %s %v %v %s|%s %s-%s", s.Line, s.Type(), s.Names(), s.Environments(s.Names()[0]), s.Comment, s.Namespaces, refusal.Day(s.ValidAfter), refusal.Day(s.ValidBefore)))
	}
	want := []string{
		"3 ssh-ed25519 [alice] [production dev] alice at work| 0001-01-01-0001-01-01",
		"4 ssh-ed25519 [bob smith] [* !production] |pulley-release,pulley-r* 2026-01-01-2027-01-01T12:30:00Z",
		"5 ecdsa-sha2-nistp256 [carol@example.com] [staging] | 0001-01-01-0001-01-01",
		"6 sk-ssh-ed25519@openssh.com [dave] [dev_?] | 0001-01-01-0001-01-01",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseSignersRefuses(t *testing.T) {
	key := text(softKey(t, 1).PublicKey())
	for _, c := range []struct{ line, why string }{
		{"alice@dev", "a line is: name@environment[,…] [options] key"},
		{"alice " + key, `principal "alice" is not a name@environment, like alice@production or alice@*`},
		{"alice@ " + key, `"" is not an environment`},
		{"@dev " + key, `principal "@dev" is not a name@environment`},
		{"alice@example.com " + key, `"example.com" is not an environment; write it as in alice@example.com@production`},
		{"alice@Dev " + key, `"Dev" is not an environment`},
		{"alice@dev, " + key, `principal "" is not a name@environment`},
		{"*@dev " + key, "has a pattern for a name"},
		{"!alice@dev " + key, "it names no signer"},
		{"!!alice@dev " + key, "is not a name@environment"},
		{strings.Repeat("a", 300) + "@dev " + key, "is not a name@environment"},
		{`"alice@dev ` + key, "the quotes around its principals don't end"},
		{`"alice@dev"` + key, "the quotes around its principals don't end, or nothing follows them"},
		{`al"ice@dev" ` + key, "its principals contain a quote"},
		{"alice@dev cert-authority " + key, "certificate authorities are not supported; list the signers' own keys"},
		{`alice@dev cert-authority,namespaces="x" ` + key, "certificate authorities are not supported"},
		{"alice@dev no-touch-required " + key, `"no-touch-required" is neither a key's type nor an option`},
		{"alice@dev namespaces=pulley-release " + key, `option namespaces: its value belongs in quotes`},
		{`alice@dev namespaces="pulley-release ` + key, "its quotes don't end"},
		{`alice@dev namespaces="" ` + key, "option namespaces: a pattern of it is empty or too long"},
		{`alice@dev namespaces="a",namespaces="b" ` + key, "option namespaces is repeated"},
		{`alice@dev namespaces="a", ` + key, `"" is neither a key's type nor an option`},
		{`alice@dev namespaces="a"x ` + key, "option namespaces must be followed by a comma or a blank"},
		{`alice@dev namespaces="a"`, "no key follows the options"},
		{`alice@dev valid-before="soon" ` + key, "option valid-before: a time is YYYYMMDD"},
		{`alice@dev valid-before="20260231Z" ` + key, "a time is YYYYMMDD"},
		{`alice@dev valid-before="2026 1 1Z" ` + key, "a time is YYYYMMDD"},
		{`alice@dev valid-before="19700101Z" ` + key, "it is not after 1970-01-01"},
		{`alice@dev valid-before="20260616" ` + key, "the time has no Z: append it, and give the time in UTC"},
		{`alice@dev valid-after="20270101Z",valid-before="20260101Z" ` + key, "valid-before is not after valid-after"},
		{"alice@dev ssh-ed25519", "there is no public key"},
		{"alice@dev ssh-ed25519 !!!", "is not base64"},
		{"alice@dev ssh-ed25519 AAAA", "cannot be read"},
		{"alice@dev ssh-rsa " + strings.Fields(key)[1], `the line has type "ssh-rsa", and the key has type "ssh-ed25519"`},
		{"alice@dev " + text(signerOf(t, rsaKey(t, 1024)).PublicKey()), "the RSA key has 1024 bits; the least is 2048"},
		{"alice@dev " + text(certified(t, softKey(t, 1)).PublicKey()), "certificates are not supported; use the key itself"},
		{"alice@dev " + key + "\x00", "it has a control character"},
		{"alice@dev " + key + " " + strings.Repeat("x", 16<<10), "there may be 16384"},
	} {
		_, err := ParseSigners([]byte("# first\n"+c.line+"\n"), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot read the allowed signers: line 2: ") || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%.80q: %v, not %q", c.line, err, c.why)
		}
	}
	for _, c := range []struct{ revoked, why string }{
		{"SSHKRL\n\x00\x00\x00\x00", "it is a binary list (KRL)"},
		{"SHA256:abc", "line 1: there is no public key"},
		{"alice@dev " + key, "line 1: the key after \"alice@dev\" is not base64"},
		{strings.Repeat("#\n", 1<<20), "it has 2097152 bytes; there may be 1048576"},
	} {
		if _, err := ParseSigners(nil, []byte(c.revoked)); err == nil || !strings.Contains(err.Error(), "cannot read the revoked keys: "+c.why) {
			t.Errorf("%.40q: %v, not %q", c.revoked, err, c.why)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		s, pattern string
		want       bool
	}{
		{"", "", true}, {"", "*", true}, {"a", "", false}, {"dev", "dev", true}, {"dev", "de", false}, {"de", "dev", false},
		{"dev", "d*", true}, {"dev", "*v", true}, {"dev", "*", true}, {"dev", "d?v", true}, {"dev", "????", false}, {"dev", "**", true},
		{"abcabd", "*abd", true}, {"abcabc", "*abd", false}, {"a*b", "a*b", true}, {"*", "?", true}, {"mississippi", "m*iss*ppi", true},
		{"*ab", "*b", true}, {"*ab", "*a", false},
		{strings.Repeat("a", 200), strings.Repeat("*a", 60) + "b", false}, // no exponential search
	} {
		if got := matches(c.s, c.pattern); got != c.want {
			t.Errorf("%q fits %q: %t", c.s, c.pattern, got)
		}
	}
}
