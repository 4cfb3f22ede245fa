package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

const record = `{"v":1,"version":"1.4.0","tree":"5f0c"}`

var now = time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)

// softKey returns the ed25519 key for a number, always the same.
func softKey(t testing.TB, number byte) ssh.Signer {
	t.Helper()
	return signerOf(t, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{number}, ed25519.SeedSize)))
}

func signerOf(t testing.TB, key crypto.Signer) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ecdsaKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// text returns a public key in the format of a file.
func text(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// sign makes an armored signature with a key in memory.
func sign(t testing.TB, key ssh.Signer, ns Namespace, record string) []byte {
	t.Helper()
	sig, err := sshsig.Sign(strings.NewReader(record+"\n"), key, sshsig.HashSHA512, string(ns))
	if err != nil {
		t.Fatal(err)
	}
	return sshsig.Armor(sig)
}

func mustParse(t testing.TB, allowed, revoked string) *Signers {
	t.Helper()
	s, err := ParseSigners([]byte(allowed), []byte(revoked))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// whyNot returns the sentence of a refusal, or "".
func whyNot(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var r *Refusal
	if !errors.As(err, &r) || r.Code == "" {
		t.Fatalf("the error is not a refusal with a code: %v", err)
	}
	return r.Error()
}

// skKey is a hardware key in software. It signs as PROTOCOL.u2f specifies for a token.
type skKey struct {
	private ed25519.PrivateKey
	flags   byte
}

const skApplication = "ssh:"

func (k skKey) PublicKey() ssh.PublicKey {
	wire := ssh.Marshal(struct {
		Name        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, k.private.Public().(ed25519.PublicKey), skApplication})
	key, err := ssh.ParsePublicKey(wire)
	if err != nil {
		panic(err)
	}
	return key
}

func (k skKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	application, message := sha256.Sum256([]byte(skApplication)), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{k.flags}, 7) // the token's signature counter
	blob := append(append(append([]byte{}, application[:]...), rest...), message[:]...)
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.private, blob), Rest: rest}, nil
}

func newSK(flags byte) skKey {
	return skKey{ed25519.NewKeyFromSeed(bytes.Repeat([]byte{99}, ed25519.SeedSize)), flags}
}
