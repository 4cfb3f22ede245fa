package trust

import (
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Each cause has its own code and sentence, with the remedy.
func TestRefusalNamesCause(t *testing.T) {
	alice, bob := softKey(t, 1), softKey(t, 2)
	a, b := text(alice.PublicKey()), text(bob.PublicKey())
	fingerprint := ssh.FingerprintSHA256(alice.PublicKey())
	good := string(sign(t, alice, Release, record))
	for _, c := range []struct {
		name, allowed, revoked, environment, signatures, why string
	}{
		{"good", "alice@production " + a, "", "production", good, ""},
		{"a stack of the environment", "alice@dev " + a, "", "dev@t42", good, ""},
		{"unsigned", "alice@* " + a, "", "dev", "", "the record is not signed"},
		{"no environment", "alice@* " + a, "", "", good, "no environment is named"},
		{"unknown key", "bob@* " + b, "", "dev", good, "the record is signed by " + fingerprint + ", which is not the key of an allowed signer"},
		{"no signer is allowed", "# empty\n", "", "dev", good, "the record is signed by " + fingerprint + ", which is not the key of an allowed signer"},
		{"other environment", "alice@dev,alice@staging " + a, "", "production", good,
			"the record is signed by alice (" + fingerprint + "), who may not sign for production, only for dev, staging"},
		{"all but one", "alice@*,!alice@production " + a, "", "production", good,
			"the record is signed by alice (" + fingerprint + "), who may not sign for production, only for *, not production"},
		{"expired", `alice@* valid-before="20260101Z" ` + a, "", "dev", good,
			"the record is signed by alice (" + fingerprint + "), whose key expired on 2026-01-01"},
		{"expired at an hour", `alice@* valid-before="202601011230Z" ` + a, "", "dev", good,
			"the record is signed by alice (" + fingerprint + "), whose key expired on 2026-01-01T12:30:00Z"},
		{"not yet", `alice@* valid-after="20270101Z" ` + a, "", "dev", good,
			"the record is signed by alice (" + fingerprint + "), whose key is not valid before 2027-01-01"},
		{"expired, on one line of two", "alice@dev " + a + "\n" + `alice@production valid-before="20260101Z" ` + a, "", "production", good,
			"the record is signed by alice (" + fingerprint + "), whose key expired on 2026-01-01"},
		{"revoked", "alice@* " + a, a, "dev", good, "the record is signed by alice (" + fingerprint + "), whose key is revoked"},
		{"revoked and unlisted", "", a, "dev", good, "the record is signed by " + fingerprint + ", whose key is revoked"},
		{"not for releases", `alice@* namespaces="pulley-data,pulley-rollback" ` + a, "", "dev", good,
			"the record is signed by alice (" + fingerprint + `), whose key may not sign as "pulley-release", only as pulley-data,pulley-rollback`},
		{"signed for something else", "alice@* " + a, "", "dev", string(sign(t, alice, Data, record)),
			`the record is signed as "pulley-data", not as "pulley-release"`},
		{"altered", "alice@* " + a, "", "dev", string(sign(t, alice, Release, record+" ")),
			"the record was altered after it was signed: the signature by alice (" + fingerprint + ") does not match"},
		{"one of two is good", "alice@* " + a, "", "dev", string(sign(t, bob, Release, record)) + good, ""},
		{"none of two is good", "alice@dev " + a, "", "production", string(sign(t, bob, Release, record)) + good,
			"the record has 2 signatures, and none is valid: it is signed by " + ssh.FingerprintSHA256(bob.PublicKey()) +
				", which is not the key of an allowed signer; it is signed by alice (" + fingerprint + "), who may not sign for production, only for dev"},
		{"too many", "alice@* " + a, "", "dev", strings.Repeat(good, 9), "the signature of the record cannot be read: there are more than 8"},
		{"too large", "alice@* " + a, "", "dev", strings.Repeat("x", 16<<10+1), "the signature of the record cannot be read: it has 16385 bytes; the limit is 16384"},
		{"cut off", "alice@* " + a, "", "dev", strings.TrimSuffix(good, endSignature+"\n"), "the signature of the record cannot be read: it is cut off"},
		{"something else", "alice@* " + a, "", "dev", "hello\n" + good, "the signature of the record cannot be read: bytes after the record are not an SSH signature"},
		{"something between", "alice@* " + a, "", "dev", good + "\n" + good, "the signature of the record cannot be read: bytes after the record are not an SSH signature"},
		{"without its end of line", "alice@* " + a, "", "dev", strings.TrimSuffix(good, "\n"), "the signature of the record cannot be read: it is cut off"},
		{"empty", "alice@* " + a, "", "dev", beginSignature + "\n" + endSignature + "\n", "the signature of the record cannot be read: ssh: parse error in message type 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			by, err := mustParse(t, c.allowed, c.revoked).Verify(Release, c.environment, []byte(record), []byte(c.signatures), now)
			if why := whyNot(t, err); why != c.why {
				t.Errorf("refused with\n%q\nnot\n%q", why, c.why)
			}
			if err == nil && by != "alice" {
				t.Errorf("it is by %q", by)
			}
		})
	}
}

// A change of any byte of the record must be a refusal.
func TestNoByteCanBeChanged(t *testing.T) {
	for name, key := range keysOfAllTypes(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustParse(t, "alice@dev "+text(key.PublicKey()), "")
			signatures := sign(t, key, Release, record)
			verify := func(record, signatures []byte) string {
				_, err := s.Verify(Release, "dev", record, signatures, now)
				return whyNot(t, err)
			}
			if why := verify([]byte(record), signatures); why != "" {
				t.Fatal(why)
			}
			// Every other value of each byte for the fast key, every flipped bit for the others. The slowest share their
			// code with ecdsa-256: one bit of each byte.
			changed := func(b []byte, check func([]byte) string) {
				for i := range b {
					for m := 1; m < 256; m++ {
						slow := name == "ecdsa-384" || name == "ecdsa-521"
						if name != "ed25519" && m&(m-1) != 0 || slow && m != 1<<(i%8) {
							continue
						}
						other := slices.Clone(b)
						other[i] ^= byte(m)
						if check(other) == "" {
							t.Errorf("byte %d can be %q for %q", i, other[i], b[i])
						}
					}
				}
			}
			changed([]byte(record), func(b []byte) string { return verify(b, signatures) })
			changed(signatures, func(b []byte) string { return verify([]byte(record), b) })
			for n := range signatures {
				if verify([]byte(record), signatures[:n]) == "" {
					t.Errorf("its first %d bytes are enough", n)
				}
			}
		})
	}
}

func keysOfAllTypes(t *testing.T) map[string]ssh.Signer {
	return map[string]ssh.Signer{
		"ed25519":    softKey(t, 1),
		"sk-ed25519": newSK(1),
		"ecdsa-256":  signerOf(t, ecdsaKey(t, elliptic.P256())),
		"ecdsa-384":  signerOf(t, ecdsaKey(t, elliptic.P384())),
		"ecdsa-521":  signerOf(t, ecdsaKey(t, elliptic.P521())),
		"rsa-2048":   signerOf(t, rsaKey(t, 2048)),
	}
}

// Pulley must refuse whatever OpenSSH refuses. Otherwise ssh-keygen -Y verify would prove nothing.
func TestWeakSignaturesAreRefused(t *testing.T) {
	alice, big := softKey(t, 1), rsaKey(t, 2048)
	wire := func(s *sshsig.Signature, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return s.Marshal()
	}
	ed := wire(sshsig.Sign(strings.NewReader(record+"\n"), alice, sshsig.HashSHA512, string(Release)))
	for name, c := range map[string]struct {
		block []byte
		key   ssh.PublicKey
		why   string
	}{
		"SHA-1 with RSA":    {rsaSHA1(t, big), signerOf(t, big).PublicKey(), `invalid signature format "ssh-rsa"`},
		"SHA-1 of content":  {[]byte(strings.Replace(string(ed), "sha512", "sha1\x00\x00", 1)), alice.PublicKey(), "unsupported hash algorithm"},
		"another version":   {[]byte(strings.Replace(string(ed), "SSHSIG\x00\x00\x00\x01", "SSHSIG\x00\x00\x00\x02", 1)), alice.PublicKey(), "unsupported signature version"},
		"version nought":    {[]byte(strings.Replace(string(ed), "SSHSIG\x00\x00\x00\x01", "SSHSIG\x00\x00\x00\x00", 1)), alice.PublicKey(), "unsupported signature version"},
		"a byte too many":   {append(slices.Clone(ed), 0), alice.PublicKey(), "parse error"},
		"one byte inside":   {insideLonger(t, alice), alice.PublicKey(), "1 bytes follow it"},
		"an untouched key":  {wire(sshsig.Sign(strings.NewReader(record+"\n"), newSK(0), sshsig.HashSHA512, string(Release))), newSK(0).PublicKey(), "without being touched"},
		"a certificate":     {wire(sshsig.Sign(strings.NewReader(record+"\n"), certified(t, alice), sshsig.HashSHA512, string(Release))), alice.PublicKey(), "certificates are not supported"},
		"a small RSA key":   {wire(sshsig.Sign(strings.NewReader(record+"\n"), signerOf(t, rsaKey(t, 1024)), sshsig.HashSHA512, string(Release))), alice.PublicKey(), "the RSA key has 1024 bits"},
		"no signature":      {[]byte("hello"), alice.PublicKey(), "short read"},
		"SHA-256 is enough": {wire(sshsig.Sign(strings.NewReader(record+"\n"), alice, sshsig.HashSHA256, string(Release))), alice.PublicKey(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mustParse(t, "alice@dev "+text(c.key), "").Verify(Release, "dev", []byte(record), armor(c.block), now)
			if why := whyNot(t, err); !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("refused with %q, not %q", why, c.why)
			}
		})
	}
}

func armor(block []byte) []byte {
	return fmt.Appendf(nil, "%s\n%s\n%s\n", beginSignature, chunked(base64.StdEncoding.EncodeToString(block)), endSignature)
}

func chunked(s string) string {
	var lines []string
	for len(s) > 70 {
		lines, s = append(lines, s[:70]), s[70:]
	}
	return strings.Join(append(lines, s), "\n")
}

// signedData returns the signed bytes: PROTOCOL.sshsig, "Signed Data, of which the signature goes into the blob above".
func signedData(record string) []byte {
	hash := sha512.Sum512([]byte(record + "\n"))
	return append([]byte("SSHSIG"), ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{string(Release), "", "sha512", string(hash[:])})...)
}

func rsaSHA1(t *testing.T, key *rsa.PrivateKey) []byte {
	t.Helper()
	sum := sha1.Sum(signedData(record))
	blob, err := rsa.SignPKCS1v15(rand.Reader, key, 3 /* SHA-1 */, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return sshsig.Signature{Version: 1, PublicKey: signerOf(t, key).PublicKey(), Namespace: string(Release),
		HashAlgorithm: sshsig.HashSHA512, Signature: &ssh.Signature{Format: ssh.KeyAlgoRSA, Blob: blob}}.Marshal()
}

// insideLonger returns a valid signature with an additional byte, at a place where no signed field gives its length.
func insideLonger(t *testing.T, key ssh.Signer) []byte {
	t.Helper()
	sig, err := sshsig.Sign(strings.NewReader(record+"\n"), key, sshsig.HashSHA512, string(Release))
	if err != nil {
		t.Fatal(err)
	}
	sig.Signature.Rest = []byte{0}
	return sig.Marshal()
}

func certified(t *testing.T, authority ssh.Signer) ssh.Signer {
	t.Helper()
	key := softKey(t, 7)
	c := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"alice@dev"}, ValidBefore: ssh.CertTimeInfinity}
	if err := c.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(c, key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// Verify and Split must use the same record. Otherwise the displayed record could differ from the checked one.
func TestJoinAndSplit(t *testing.T) {
	signatures := sign(t, softKey(t, 1), Release, record)
	gotRecord, gotSignatures := Split(Join([]byte(record), signatures))
	if string(gotRecord) != record || string(gotSignatures) != string(signatures) {
		t.Errorf("%q %q", gotRecord, gotSignatures)
	}
	for _, unsigned := range []string{string(Join([]byte(record), nil)), record, record + "\n"} {
		if r, s := Split([]byte(unsigned)); string(r) != record || s != nil {
			t.Errorf("%q: %q %q", unsigned, r, s)
		}
	}
	s := mustParse(t, "alice@* "+text(softKey(t, 1).PublicKey()), "")
	for name, bad := range map[string]string{"two lines": record + "\n" + record, "empty": "", "zero byte": record + "\x00", "too large": strings.Repeat("x", 512<<10+1)} {
		if _, err := s.Verify(Release, "dev", []byte(bad), sign(t, softKey(t, 1), Release, bad), now); !strings.Contains(whyNot(t, err), "the record ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Both limits of a key's validity are inclusive, to the second, as in OpenSSH.
func TestValidityBounds(t *testing.T) {
	s := mustParse(t, `alice@dev valid-after="20260101Z",valid-before="20260201Z" `+text(softKey(t, 1).PublicKey()), "")
	signatures := sign(t, softKey(t, 1), Release, record)
	for at, want := range map[string]State{
		"2025-12-31T23:59:59Z": NotYet, "2026-01-01T00:00:00Z": Valid, "2026-02-01T00:00:00Z": Valid, "2026-02-01T00:00:00.9Z": Valid, "2026-02-01T00:00:01Z": Expired,
	} {
		then, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.State(s.All()[0], then); got != want {
			t.Errorf("at %s it is %s, not %s", at, got, want)
		}
		if _, err := s.Verify(Release, "dev", []byte(record), signatures, then); (err == nil) != (want == Valid) {
			t.Errorf("at %s: %v", at, err)
		}
	}
}
