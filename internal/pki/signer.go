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
	"os/exec"
	"strings"
	"syscall"
	"time"
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
	ctx, cancel := context.WithTimeout(context.Background(), signTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	var out, problem bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(digest), &out, &problem
	c.Env = append(os.Environ(), "PULLEY_SIGN_HASH="+opts.HashFunc().String(), "PULLEY_SIGN_CA="+Fingerprint(s.cert))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = signGrace // then it is killed
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no signature within %s", signTimeout)
		}
		if said := strings.TrimSpace(problem.String()); said != "" {
			err = fmt.Errorf("%w: %.500s", err, said)
		}
		return nil, fmt.Errorf("cannot sign by %q: %w", strings.Join(s.argv, " "), err)
	}
	if err := checkSignature(s.cert, opts.HashFunc(), digest, out.Bytes()); err != nil {
		return nil, fmt.Errorf("cannot sign by %q: %w", strings.Join(s.argv, " "), err)
	}
	return out.Bytes(), nil
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
