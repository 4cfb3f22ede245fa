package steps

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pulley/agent/nodeconfig"
	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/failpoint"
	"pulley/internal/firstboot"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/puppetserver/requests"
)

// sslFiles are the files of one certname in the ssldir of the machine's own Puppet.
type sslFiles struct{ dir, certname string }

func (f sslFiles) cert() string { return filepath.Join(f.dir, "certs", f.certname+".pem") }
func (f sslFiles) key() string  { return filepath.Join(f.dir, "private_keys", f.certname+".pem") }
func (f sslFiles) ca() string   { return filepath.Join(f.dir, "certs", "ca.pem") }
func (f sslFiles) crl() string  { return filepath.Join(f.dir, "crl.pem") }

// good returns the certificate, as PEM, if the machine has it with its key and its CA, and it is valid now. Otherwise it returns nil.
func (f sslFiles) good(b *boot) []byte {
	text, err := bounded.ReadFile(f.cert(), nodeconfig.MaxFileBytes)
	if err != nil {
		return nil
	}
	key, err := pki.LoadKey(f.key())
	if err != nil {
		return nil
	}
	bundle, err := bounded.ReadFile(f.ca(), nodeconfig.MaxFileBytes)
	if err != nil {
		return nil
	}
	identity, err := pki.NewIdentity(key, text)
	if err != nil || identity.Leaf().Subject.CommonName != f.certname {
		return nil
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(bundle)
	if _, err := identity.Leaf().Verify(x509.VerifyOptions{Roots: cas, CurrentTime: b.Env.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil
	}
	return text
}

// ownKey returns the key of the machine, and makes it first: an answer that is lost must not leave a certificate without its key.
func (f sslFiles) ownKey() (crypto.Signer, error) {
	key, err := pki.LoadKey(f.key())
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, err
	}
	text, err := pki.EncodeKey(key)
	if err == nil {
		err = f.write(f.key(), string(text), 0o600)
	}
	return key, err
}

// write writes a file at once, if it differs. The folder of the keys is for root only.
func (f sslFiles) write(path, text string, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, []byte(text)) {
		return nil
	}
	folder := fs.FileMode(0o755)
	if mode == 0o600 {
		folder = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(text), mode)
}

// save writes an answer. The certificate is last: with it, the rest is complete.
func (f sslFiles) save(a join.PuppetAnswer) error {
	if a.Key != "" {
		if err := f.write(f.key(), a.Key, 0o600); err != nil {
			return err
		}
	}
	for _, one := range []struct{ path, text string }{{f.ca(), a.CA}, {f.crl(), a.CRL}, {f.cert(), a.Certificate}} {
		if one.text == "" {
			return fmt.Errorf("the answer of pulley serve has no content for %s", one.path)
		}
		if err := f.write(one.path, one.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// certificateLeft keeps a certificate that is valid here and at the CA. While serve or the CA is away, its validity here is enough.
func (b *server) certificateLeft(ctx context.Context) (string, error) {
	if err := b.find(ctx); err != nil || !b.on {
		return "", err
	}
	files := b.ssl()
	if own := files.good(b.boot); own != nil {
		valid, err := b.confirm(ctx, own)
		var unreachable *join.UnreachableError
		switch {
		case errors.Is(err, errNotJoined), errors.As(err, &unreachable):
			b.Log.Warn("the certificate of Puppet's CA is valid here; pulley serve did not confirm it", "certname", files.certname, "err", err)
			return "", nil
		case err != nil || valid:
			return "", err
		}
	}
	return "get a certificate of Puppet's CA for " + files.certname, nil
}

var errNotJoined = errors.New("this machine did not join at a pulley serve, which signs the certificates of Puppet's CA")

// serve returns a client with the identity of the join.
func (b *server) serve() (*join.Client, error) {
	c, err := b.known()
	if err != nil {
		return nil, err
	}
	if !c.Joined() || len(c.Servers) == 0 {
		return nil, errNotJoined
	}
	return c.ServeClient(c.Servers)
}

// confirm reports whether the CA has this certificate. Serve then forgets the key that it made for it.
func (b *server) confirm(ctx context.Context, certificate []byte) (bool, error) {
	client, err := b.serve()
	if err != nil {
		return false, err
	}
	a, err := client.Puppet(ctx, join.PuppetRequest{Machine: b.machine(), Certificate: string(certificate)})
	return a.Valid, err
}

// getCertificate gets the certificate of this node. The answer of serve says whether the node makes the key.
func (b *server) getCertificate(ctx context.Context) error {
	client, err := b.serve()
	if errors.Is(err, errNotJoined) {
		return fmt.Errorf("%w\nput one into %s, or leave the step out: --steps %s=off", err, b.ssl().dir, firstboot.Certificate)
	}
	if err != nil {
		return err
	}
	answer, err := client.Puppet(ctx, join.PuppetRequest{Machine: b.machine()})
	if err != nil {
		return passingJoin(err)
	}
	files := b.ssl()
	if answer.Certname != files.certname {
		return fmt.Errorf("pulley serve calls this node %q, and the node is %q", answer.Certname, files.certname)
	}
	if answer.Certificate == "" {
		key, err := files.ownKey()
		if err != nil {
			return err
		}
		csr, err := requests.New(key, files.certname, answer.Extensions)
		if err != nil {
			return err
		}
		if answer, err = client.Puppet(ctx, join.PuppetRequest{Machine: b.machine(), CSR: string(csr)}); err != nil {
			return passingJoin(err)
		}
	}
	failpoint.Here(firstboot.CertificateAnswered)
	if err := files.save(answer); err != nil {
		return err
	}
	failpoint.Here(firstboot.CertificateWritten)
	own := files.good(b.boot)
	if own == nil {
		return fmt.Errorf("the certificate in %s is not valid here: check the clock, and the CA of the credentials of pulley serve", files.cert())
	}
	valid, err := b.confirm(ctx, own)
	if err == nil && !valid {
		err = firstboot.Passing(errors.New("the CA has another certificate of this name meanwhile"))
	}
	failpoint.Here(firstboot.CertificateConfirmed)
	return passingJoin(err)
}
