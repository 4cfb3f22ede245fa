// Package secrets encrypts values of live data to the nodes of an environment or a role, with age. It owns the form of
// ciphertexts and of recipients.
//
// It must never write a plaintext or an identity anywhere: its callers decide where they go.
package secrets

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"pulley/hieradata"
)

// MaxBytes bounds the plaintext of a secret.
const MaxBytes = 32 << 10

// ErrNoIdentity means that none of the identities decrypts a secret.
var ErrNoIdentity = errors.New("no identity on this machine decrypts it")

// NewIdentity returns a new identity, and the recipient that its owner decrypts for.
func NewIdentity() (identity, recipient string, err error) {
	i, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("cannot make an identity for secrets: %w", err)
	}
	return i.String(), i.Recipient().String(), nil
}

// ID returns the short name of a recipient in ciphertexts.
func ID(recipient string) string {
	sum := sha256.Sum256([]byte(recipient))
	return hex.EncodeToString(sum[:8])
}

// RecipientOf returns the recipient of an identity.
func RecipientOf(identity string) (string, error) {
	i, err := age.ParseX25519Identity(strings.TrimSpace(identity))
	if err != nil {
		return "", errors.New("cannot read an identity for secrets: it is not an age identity") // age's message may quote it
	}
	return i.Recipient().String(), nil
}

// Wrap encrypts an identity to a recipient.
func Wrap(recipient, identity string) ([]byte, error) { return encrypt(recipient, []byte(identity)) }

// Unwrap decrypts the result of Wrap with the identity key. It refuses an identity of another recipient.
func Unwrap(key string, wrapped []byte, recipient string) (identity string, err error) {
	b, err := decrypt([]string{key}, wrapped)
	if err != nil {
		return "", err
	}
	if public, err := RecipientOf(string(b)); err != nil || public != recipient {
		return "", errors.New("it is the identity of another recipient")
	}
	return string(b), nil
}

// header is the first line of a plaintext; the value follows. Place and name are part of it: who writes etcd cannot move a
// secret to a key that a catalog shows.
type header struct {
	Environment string `json:"environment"`
	Layer       string `json:"layer"`
	Key         string `json:"key"`
}

// Place is where a secret may be used.
type Place struct {
	Environment string
	Layer       hieradata.Layer
	Key         string
}

// Seal encrypts a value for one place. The result is a value of live data.
func Seal(recipient string, at Place, value string) (string, error) {
	plain, err := json.Marshal(header{at.Environment, string(at.Layer), at.Key})
	if err != nil {
		return "", err
	}
	b, err := encrypt(recipient, append(append(plain, '\n'), value...))
	if err != nil {
		return "", fmt.Errorf("cannot encrypt %s: %w", at.Key, err)
	}
	return hieradata.SecretText(ID(recipient), base64.StdEncoding.EncodeToString(b)), nil
}

// Open decrypts the result of Seal. It refuses a secret of another place. Without a fitting identity it returns
// ErrNoIdentity.
func Open(identities []string, at Place, text string) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("cannot decrypt %s of layer %s: %w", at.Key, at.Layer, err)
	}
	_, ciphertext, ok := hieradata.ParseSecret(text)
	if !ok {
		return fail(errors.New("it is not a secret"))
	}
	b, err := base64.StdEncoding.DecodeString(ciphertext)
	if err != nil {
		return fail(errors.New("it is damaged"))
	}
	plain, err := decrypt(identities, b)
	if err != nil {
		return fail(err)
	}
	first, value, found := bytes.Cut(plain, []byte("\n"))
	var p header
	if !found || json.Unmarshal(first, &p) != nil {
		return fail(errors.New("it is damaged"))
	}
	if p.Environment != at.Environment || p.Layer != string(at.Layer) || p.Key != at.Key {
		return fail(fmt.Errorf("it was set as %s of layer %s in %s\nset it here: `pulley secret set %s -e %s`", p.Key, p.Layer, p.Environment, at.Key, at.Environment))
	}
	return string(value), nil
}

// dumpless ends core dumps of this process and of those that it starts: a dump would contain plaintexts. With limit 1,
// the kernel also starts no program that takes a dump (core(5)).
func dumpless() {
	var now unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &now) == nil {
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: min(1, now.Max), Max: now.Max}) // lowering never fails
	}
}

func encrypt(recipient string, plain []byte) ([]byte, error) {
	dumpless()
	r, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, r)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(plain); err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

func decrypt(identities []string, b []byte) ([]byte, error) {
	dumpless()
	var all []age.Identity
	for _, text := range identities {
		i, err := age.ParseX25519Identity(strings.TrimSpace(text))
		if err != nil {
			return nil, errors.New("an identity is not readable") // age's message may quote it
		}
		all = append(all, i)
	}
	if len(all) == 0 {
		return nil, ErrNoIdentity
	}
	r, err := age.Decrypt(bytes.NewReader(b), all...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return nil, ErrNoIdentity
	}
	if err != nil {
		return nil, errors.New("it is damaged")
	}
	plain, err := io.ReadAll(io.LimitReader(r, 2*MaxBytes))
	if err != nil {
		return nil, errors.New("it is damaged")
	}
	return plain, nil
}

// Folder is the CA folder of serve.
type Folder interface {
	Kept(file string, valid func(string) error, create func() (string, error)) (string, error)
}

// Key returns the identity in the folder's file secrets.key, which decrypts the identities of nodes in etcd; with create it makes a missing
// one. Only a file that is really missing is fs.ErrNotExist.
func Key(f Folder, create bool) (string, error) {
	var fresh func() (string, error)
	if create {
		fresh = func() (string, error) {
			key, _, err := NewIdentity()
			return key, err
		}
	}
	return f.Kept("secrets.key", func(line string) error {
		_, err := RecipientOf(line)
		return err
	}, fresh)
}
