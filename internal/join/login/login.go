// Package login gets the identity of an operator with a token, and renews it. It must never send a token to a server that is not the
// pinned one, or replace the identity of another operator.
package login

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/join"
	"pulley/internal/pki"
)

// Identity is an operator's identity, stored by LogIn or Renew.
type Identity struct {
	Operator  string
	As        string // role
	Until     time.Time
	File      string // key and certificate
	Bundle    string // the fleet's CA certificates
	Endpoints []string
	Prefix    string // "" is the default
}

// LogIn creates a key, gets a certificate for it with an operator's token, and stores both in file. After a lost
// answer, the same call continues with the same key.
func LogIn(ctx context.Context, servers, pins []string, token, file string) (Identity, error) {
	trust, err := pki.Pinned(pins)
	if err != nil {
		return Identity{}, err
	}
	client, err := join.NewClient(servers, trust, 0)
	if err != nil {
		return Identity{}, err
	}
	old, err := pki.LoadIdentity(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("cannot write to %s: it contains no identity: %w\ngive another FILE", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return Identity{}, fmt.Errorf("cannot make the folder of %s: %w", file, err)
	}
	key, err := keyOf(file + ".key")
	if err != nil {
		return Identity{}, err
	}
	answer, err := client.Join(ctx, key, join.Request{Token: token})
	if err != nil {
		return Identity{}, fmt.Errorf("cannot log in: %w", err)
	}
	if answer.Operator == "" {
		return Identity{}, errors.New("cannot log in: the token is for nodes\nask an administrator for another: pulley token create --operator NAME")
	}
	if old.Key != nil {
		if name, err := old.Name(); err == nil && name.Subject != answer.Operator {
			return Identity{}, fmt.Errorf("cannot write to %s: it contains the identity of %s, and the token is for %s\nmove the file, and run this again with the same token", file, name.Subject, answer.Operator)
		}
	}
	l, err := keep(key, answer, file)
	if err != nil {
		return Identity{}, err
	}
	return l, os.Remove(file + ".key")
}

// ReachPinned connects to the first server that answers with a certificate of a pinned CA, and returns its URL.
func ReachPinned(ctx context.Context, servers, pins []string) (string, error) {
	trust, err := pki.Pinned(pins)
	if err != nil {
		return "", err
	}
	client, err := join.NewClient(servers, trust, 0)
	if err != nil {
		return "", err
	}
	return client.Reach(ctx)
}

// Renew gets a new certificate with the one in file, which must be valid.
func Renew(ctx context.Context, servers []string, file string) (Identity, error) {
	client, _, err := renewing(servers, file)
	if err != nil {
		return Identity{}, err
	}
	key, err := pki.NewKey()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot make a key: %w", err)
	}
	answer, err := client.Renew(ctx, key, join.Machine{})
	if err != nil {
		return Identity{}, fmt.Errorf("cannot renew the certificate: %w", err)
	}
	return keep(key, answer, file)
}

// ReachToRenew connects to the first server that answers, with the certificate that Renew would use.
func ReachToRenew(ctx context.Context, servers []string, file string) (url string, own pki.Identity, err error) {
	client, own, err := renewing(servers, file)
	if err != nil {
		return "", own, err
	}
	if url, err = client.Reach(ctx); err != nil {
		err = fmt.Errorf("cannot renew the certificate: %w", err)
	}
	return url, own, err
}

// renewing returns a client with the certificate in file.
func renewing(servers []string, file string) (*join.Client, pki.Identity, error) {
	old, err := pki.LoadIdentity(file)
	if err != nil {
		return nil, old, fmt.Errorf("%w\nlog in with a token first: pulley login --token-file FILE", err)
	}
	bundle, err := bounded.ReadFile(BundleOf(file), 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, old, fmt.Errorf("cannot renew %s: pulley login did not make it: there is no %s beside it\n`pulley serve` renews the identity of its administrator in its data folder", file, filepath.Base(BundleOf(file)))
	}
	if err != nil {
		return nil, old, fmt.Errorf("cannot read the fleet's CA certificates: %w", err)
	}
	trust, err := old.TLS(bundle)
	if err != nil {
		return nil, old, err
	}
	client, err := join.NewClient(servers, trust, 0)
	return client, old, err
}

// BundleOf returns the file of the CA certificates beside an identity. Its name follows the identity's, because another
// fleet's file may be in the same folder.
func BundleOf(file string) string { return strings.TrimSuffix(file, ".pem") + "-ca.pem" }

// keyOf returns the key of an interrupted login, or a new one, which it stores before the request.
func keyOf(file string) (crypto.Signer, error) {
	key, err := pki.LoadKey(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	return key, pki.SaveKey(file, key)
}

// keep stores an answer. It stores the bundle first: the old certificate works with it, too.
func keep(key crypto.Signer, answer join.Answer, file string) (Identity, error) {
	identity, err := pki.NewIdentity(key, []byte(answer.Certificate))
	if err != nil {
		return Identity{}, err
	}
	_, err = pki.ParseCertificates([]byte(answer.CA))
	if err == nil {
		err = atomicfile.WriteNamed(BundleOf(file), []byte(answer.CA), 0o600)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("cannot store the fleet's CA certificates: %w", err)
	}
	if err := identity.Save(file); err != nil {
		return Identity{}, err
	}
	l := Identity{
		Operator: answer.Operator, As: answer.As, Until: identity.Leaf().NotAfter, File: file, Bundle: BundleOf(file), Endpoints: answer.Endpoints,
	}
	if answer.Prefix != "/pulley" {
		l.Prefix = answer.Prefix
	}
	return l, nil
}
