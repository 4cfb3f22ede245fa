package server

import (
	"context"
	"crypto"
	"errors"
	"io/fs"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/hieradata"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
	"pulley/internal/secrets"
)

// puppet gives a node its certificate at the CA of its Puppet servers. A repeated request gets the same certificate: by its key,
// where the node made it, else by the record of what was made for it.
func (d *Server) puppet(ctx context.Context, c *caller) (any, error) {
	var r join.PuppetRequest
	if err := c.read(&r); err != nil {
		return nil, err
	}
	who, err := d.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := d.sameMachine(ctx, c, who, r.Machine); err != nil {
		return nil, err
	}
	spec, _, err := d.Store.Environments.Spec(ctx, who.ref)
	if err != nil {
		return nil, err
	}
	if spec == nil || spec.Puppet.CA.URL == "" {
		return nil, no(join.NoPuppetCA, join.Params{Environment: who.ref.String()})
	}
	if d.Puppet == nil {
		return nil, &busyError{reason: join.NoPuppetCredentials, after: time.Minute}
	}
	extensions := spec.ExtensionsOf(who.identity.Node, who.identity.Role)
	for name := range extensions {
		if _, err := puppetserver.ExtensionOID(name); err != nil {
			return nil, no(join.PuppetCARefused, join.Params{Problem: agent.Prose(err.Error())})
		}
	}
	p := puppetNode{Server: d, who: who, settings: spec.Puppet.CA, name: environments.Certname(who.identity.Node), extensions: extensions, say: c.say}
	var answer join.PuppetAnswer
	err = retry(ctx, func(int) error {
		return d.Store.Joins.AtPuppetCA(ctx, who.ref, who.identity.Node, func(ctx context.Context) error {
			_, err := d.node(ctx, c) // again: nobody would clean the certificate of a node that was removed meanwhile
			if err == nil {
				answer, err = p.answer(ctx, r)
			}
			return err
		})
	})
	return answer, puppetFailure(err)
}

// puppetFailure turns a failure of Puppet's CA into a refusal. What an operator has to repair is final for the machine's request.
func puppetFailure(err error) error {
	var failed *puppetserver.Error
	if !errors.As(err, &failed) {
		return err
	}
	p := join.Params{Problem: agent.Prose(clip.Text(err.Error(), maxSaid*2))}
	if failed.Code == puppetserver.Unreachable || failed.Code == puppetserver.ServerFailed {
		return &busyError{reason: join.PuppetCAFailed, params: p, after: 10 * time.Second}
	}
	return no(join.PuppetCARefused, p)
}

// puppetNode is a node whose certificate is requested.
type puppetNode struct {
	*Server
	who        certified
	settings   environments.PuppetCA
	name       string // certname
	extensions map[string]string
	say        []any
}

func (p puppetNode) client(url string) (*puppetserver.Client, error) {
	return puppetserver.New(url, *p.Puppet, p.Now)
}

func (p puppetNode) answer(ctx context.Context, r join.PuppetRequest) (join.PuppetAnswer, error) {
	a := join.PuppetAnswer{Certname: p.name}
	ca, err := p.client(p.settings.URL)
	if err != nil {
		return a, err
	}
	current, err := currentCertificate(ctx, ca, p.name)
	if err != nil {
		return a, err
	}
	made := p.settings.How == environments.CertificatesMade
	switch {
	case r.Certificate != "":
		if a.Valid = current != nil && sameCertificate([]byte(r.Certificate), current); a.Valid {
			err = p.Store.Identities.DropPresigned(ctx, p.who.ref, p.who.identity.Node) // the node has it
		}
		return a, err
	case made:
		a.Certificate, a.Key, err = p.presigned(ctx, ca, current)
	case r.CSR == "":
		a.Extensions = p.extensions
		return a, nil
	default:
		a.Certificate, err = p.sign(ctx, ca, current, []byte(r.CSR))
	}
	if err != nil {
		return a, err
	}
	bundle, err := ca.CA(ctx)
	if err != nil {
		return a, err
	}
	crl, _, err := ca.CRL(ctx)
	a.CA, a.CRL = string(bundle), string(crl)
	return a, err
}

// currentCertificate returns the certificate of a name that the CA signed and did not revoke, as PEM; nil for none.
func currentCertificate(ctx context.Context, ca *puppetserver.Client, name string) ([]byte, error) {
	s, err := ca.Status(ctx, name)
	var failed *puppetserver.Error
	if errors.As(err, &failed) && failed.Code == puppetserver.UnknownName {
		return nil, nil
	}
	if err != nil || s.State != puppetserver.Signed {
		return nil, err
	}
	return ca.Certificate(ctx, name)
}

// hasKey reports whether a certificate is of a key.
func hasKey(certificate []byte, public crypto.PublicKey) bool {
	certs, err := pki.ParseCertificates(certificate)
	if err != nil {
		return false
	}
	has, err := pki.KeyDigest(certs[0].PublicKey)
	want, other := pki.KeyDigest(public)
	return err == nil && other == nil && has == want
}

func sameCertificate(a, b []byte) bool {
	one, err := pki.ParseCertificates(a)
	two, other := pki.ParseCertificates(b)
	return err == nil && other == nil && one[0].Equal(two[0])
}

// sign gets a certificate for the node's own key. The node is authenticated, and the request must name it and nothing else.
func (p puppetNode) sign(ctx context.Context, ca *puppetserver.Client, current, csr []byte) (string, error) {
	r, err := puppetserver.CheckCSR(csr, p.name, p.extensions)
	if err != nil {
		return "", err
	}
	if current != nil && hasKey(current, r.PublicKey) { // an earlier answer was lost
		return string(current), nil
	}
	return p.issue(ctx, ca, csr)
}

// unclaimed refuses a name that a node of another environment uses at the same CA.
func (p puppetNode) unclaimed(ctx context.Context) error {
	refs, err := p.Store.Environments.Named(ctx)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if ref == p.who.ref {
			continue
		}
		i, _, err := p.Store.Identities.Get(ctx, ref, p.who.identity.Node)
		if err != nil {
			return err
		}
		if !i.Live() {
			continue
		}
		spec, _, err := p.Store.Environments.Spec(ctx, ref)
		if err != nil {
			return err
		}
		if spec != nil && spec.Puppet.CA.URL == p.settings.URL {
			return no(join.CertnameTaken, join.Params{Node: p.who.identity.Node, Claimed: ref.String()})
		}
	}
	return nil
}

// issue gets a certificate from the CA, and frees the name first: a former machine may have had it.
func (p puppetNode) issue(ctx context.Context, ca *puppetserver.Client, csr []byte) (string, error) {
	for _, url := range p.settings.Also {
		if err := p.clean(ctx, url); err != nil {
			return "", err
		}
	}
	cert, err := ca.Issue(ctx, p.name, csr, p.extensions)
	var failed *puppetserver.Error
	if errors.As(err, &failed) && failed.Code == puppetserver.Taken {
		if err = p.unclaimed(ctx); err == nil {
			err = p.clean(ctx, p.settings.URL)
		}
		if err == nil {
			cert, err = ca.Issue(ctx, p.name, csr, p.extensions)
		}
	}
	if err == nil {
		p.Log.Info("signed a certificate of Puppet's CA", append(p.say, "certname", p.name, "ca", ca.URL)...)
	}
	return string(cert), err
}

// clean revokes and deletes what a CA has under the node's name.
func (p puppetNode) clean(ctx context.Context, url string) error {
	ca, err := p.client(url)
	if err != nil {
		return err
	}
	was, err := ca.Clean(ctx, p.name)
	if err == nil && was != "" {
		p.Log.Info("cleaned a former certificate of Puppet's CA", append(p.say, "certname", p.name, "ca", ca.URL, "was", string(was))...)
	}
	return err
}

// presigned returns the certificate that was made for the node, with its key, and makes them first if there are none. The key is
// stored before the CA signs: after a crash the same key gets the same certificate.
func (p puppetNode) presigned(ctx context.Context, ca *puppetserver.Client, current []byte) (cert, key string, err error) {
	ref, node := p.who.ref, p.who.identity.Node
	at := secrets.Place{Environment: ref.String(), Layer: hieradata.Layer("puppet"), Key: node}
	master, err := p.masterKey(ctx, ref)
	if err != nil {
		return "", "", err
	}
	sealed, err := p.Store.Identities.Presigned(ctx, ref, node, func() (string, error) { return sealKey(master, at) })
	if err != nil {
		return "", "", err
	}
	if key, err = secrets.Open([]string{master}, at, sealed); err != nil {
		return "", "", err
	}
	signer, err := pki.ParseKey([]byte(key))
	if err != nil {
		return "", "", err
	}
	if current != nil && hasKey(current, signer.Public()) {
		return string(current), key, nil
	}
	csr, err := puppetserver.NewCSR(signer, p.name, p.extensions)
	if err != nil {
		return "", "", err
	}
	cert, err = p.issue(ctx, ca, csr)
	return cert, key, err
}

// sealKey returns a new key, encrypted to the CA folder's key for one node.
func sealKey(master string, at secrets.Place) (string, error) {
	recipient, err := secrets.RecipientOf(master)
	if err != nil {
		return "", err
	}
	key, err := pki.NewKey()
	if err != nil {
		return "", err
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return "", err
	}
	return secrets.Seal(recipient, at, string(text))
}

// masterKey returns the key of the CA folder that encrypts what only serve may read in etcd.
func (p puppetNode) masterKey(ctx context.Context, ref environments.Ref) (string, error) {
	key, err := p.CA.SecretsKey(nil)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := p.keyIsKept(ctx, ref, ""); err != nil {
		return "", err
	}
	return p.CA.SecretsKey(func() (string, error) {
		identity, _, err := secrets.NewIdentity()
		return identity, err
	})
}
