package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"pulley/internal/child"
	"pulley/internal/clip"
)

// signTimeout bounds one signature of a command, and signGrace its end after the signal. Their sum is less than every
// client's deadline: a node renews within 15 s, serve answers within 25 s.
const (
	signTimeout = 10 * time.Second
	signGrace   = 2 * time.Second
)

// commandSigner is a key outside Pulley: a command signs with it.
type commandSigner struct {
	argv []string
	cert *x509.Certificate // of the CA whose key must sign
}

func (s commandSigner) Public() crypto.PublicKey { return s.cert.PublicKey }

// Sign passes the digest to the command on standard input, the name of the hash as PULLEY_SIGN_HASH (SHA-256) and the
// pin of the CA as PULLEY_SIGN_CA. It reads the signature from standard output: ASN.1 for ECDSA, PKCS #1 v1.5 for RSA.
func (s commandSigner) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), signTimeout, fmt.Errorf("no signature within %s", signTimeout))
	defer cancel()
	problem := &clip.Tail{Limit: 500}
	out, err := child.Command{
		Path: s.argv[0], Args: s.argv[1:], Stdin: bytes.NewReader(digest), Stderr: problem, Grace: signGrace, Left: child.KeepServices,
		Env: append(child.WithoutOwn(os.Environ()), "PULLEY_SIGN_HASH="+opts.HashFunc().String(), "PULLEY_SIGN_CA="+Fingerprint(s.cert)),
	}.Output(ctx, maxFileBytes)
	if err != nil {
		if said := problem.String(); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("cannot sign by %q: %w", strings.Join(s.argv, " "), err)
	}
	if err := checkSignature(s.cert, opts.HashFunc(), digest, out); err != nil {
		return nil, fmt.Errorf("cannot sign by %q: %w", strings.Join(s.argv, " "), err)
	}
	return out, nil
}

// checkSignature returns an error if a command signed with another key, or signed other data.
func checkSignature(cert *x509.Certificate, hash crypto.Hash, digest, signature []byte) error {
	ok := false
	switch public := cert.PublicKey.(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(public, digest, signature)
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(public, hash, digest, signature) == nil
	default:
		return errors.New("a command can sign with ECDSA and RSA keys only")
	}
	if !ok {
		return fmt.Errorf("its output (%d bytes) is not a signature of the given digest by the CA %s", len(signature), Fingerprint(cert))
	}
	return nil
}
