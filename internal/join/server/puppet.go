package server

import (
	"context"
	"crypto"
	"errors"
	"io/fs"
	"time"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
	"pulley/internal/puppetserver/requests"
	"pulley/internal/secrets"
	"pulley/internal/specs"
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
	spec, _, err := specs.In(d.DB).Spec(ctx, who.ref)
	if err != nil {
		return nil, err
	}
	if spec == nil || spec.Puppet.CA.URL == "" {
		return nil, no(join.NoPuppetCA, join.Params{Environment: who.ref.String()})
	}
	if d.Puppet == "" {
		return nil, &busyError{reason: join.NoPuppetCredentials, after: time.Minute}
	}
	p, err := d.puppetNode(who.ref, spec, who.identity.Node, who.identity.Role, c.say)
	if err != nil {
		return nil, no(join.PuppetCARefused, join.Params{Problem: model.Prose(err.Error())})
	}
	ctx, cancel := context.WithTimeout(ctx, d.caTime)
	defer cancel()
	answer, known, err := p.kept(ctx, r)
	if err != nil || known {
		return answer, puppetFailure(err)
	}
	err = retry(ctx, func(int) error {
		return access.JoinsIn(d.DB).AtPuppetCA(ctx, p.name, func(ctx context.Context) error {
			_, err := d.node(ctx, c) // again: nobody would clean the certificate of a node that was removed meanwhile
			if err == nil {
				answer, err = p.answer(ctx, r)
			}
			return err
		})
	})
	return answer, puppetFailure(err)
}

// caTime is the time of the CA for all requests of one answer: less than requestTime, so that the answer names the CA.
const caTime = 20 * time.Second

// puppetFailure turns a failure of Puppet's CA into a refusal. What an operator has to repair is final for the machine's request.
func puppetFailure(err error) error {
	var failed *puppetserver.Error
	hangs := errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, model.ErrUnreachable) // of etcd
	if !errors.As(err, &failed) && !hangs {
		return err
	}
	p := join.Params{Problem: model.Prose(clip.Text(err.Error(), maxSaid*2))}
	if hangs || failed.Code == puppetserver.Unreachable || failed.Code == puppetserver.ServerFailed {
		return &busyError{reason: join.PuppetCAFailed, params: p, after: 10 * time.Second}
	}
	return no(join.PuppetCARefused, p)
}

// puppetNode is a node whose certificate is requested.
type puppetNode struct {
	*Server
	ref        model.Ref
	node       string
	settings   *settings.PuppetSettings
	name       string // certname
	extensions map[string]string
	say        []any
}

func (d *Server) puppetNode(ref model.Ref, spec *environments.Environment, node, role string, say []any) (puppetNode, error) {
	p := puppetNode{d, ref, node, &spec.Puppet, model.Certname(node), spec.ExtensionsOf(node, role), say}
	for name := range p.extensions {
		if _, err := requests.OID(name); err != nil {
			return p, err
		}
	}
	return p, nil
}

// client returns a client of a CA. The credentials are read each time: they are renewed while serve runs.
func (p puppetNode) client(url string) (*puppetserver.Client, error) {
	own, err := puppetserver.LoadCredentials(p.Puppet)
	if err != nil {
		return nil, err
	}
	return puppetserver.OpenCA(p.settings, url, own, p.Now)
}

// kept answers with what was made for the node before, and reports whether there is an answer. It needs no CA.
func (p puppetNode) kept(ctx context.Context, r join.PuppetRequest) (a join.PuppetAnswer, known bool, err error) {
	a.Certname = p.name
	stored, err := access.IdentitiesIn(p.DB).Presigned(ctx, p.ref, p.node)
	if err != nil || stored == nil || stored.Certificate == "" {
		return a, false, err
	}
	if r.Certificate != "" {
		if a.Valid = sameCertificate([]byte(r.Certificate), []byte(stored.Certificate)); a.Valid {
			err = access.IdentitiesIn(p.DB).DropPresigned(ctx, p.ref, p.node) // the node has it
		}
		return a, a.Valid, err
	}
	if p.settings.CA.How != settings.CertificatesMade || stored.CRL == "" {
		return a, false, nil
	}
	ca, err := p.client(p.settings.CA.URL)
	if err != nil {
		return a, false, err
	}
	defer ca.Close()
	key, signer, err := p.open(ctx, *stored)
	if err != nil || ca.Verify([]byte(stored.Certificate), p.name, signer.Public(), p.extensions) != nil {
		return a, false, err
	}
	a.Certificate, a.Key, a.CA, a.CRL = stored.Certificate, key, stored.CA, stored.CRL
	return a, true, nil
}

// answer answers with the CA.
func (p puppetNode) answer(ctx context.Context, r join.PuppetRequest) (join.PuppetAnswer, error) {
	a := join.PuppetAnswer{Certname: p.name}
	ca, err := p.client(p.settings.CA.URL)
	if err != nil {
		return a, err
	}
	defer ca.Close()
	if r.Certificate == "" && p.settings.CA.How == settings.CertificatesMade {
		stored, key, err := p.presigned(ctx, ca, p.issue)
		if err == nil {
			a.Certificate, a.Key, a.CA, a.CRL = stored.Certificate, key, stored.CA, stored.CRL
		}
		return a, err
	}
	current, err := currentCertificate(ctx, ca, p.name)
	if err != nil {
		return a, err
	}
	switch {
	case r.Certificate != "":
		if a.Valid = current != nil && sameCertificate([]byte(r.Certificate), current); a.Valid {
			err = access.IdentitiesIn(p.DB).DropPresigned(ctx, p.ref, p.node) // the node has it
		}
		return a, err
	case r.CSR == "":
		a.Extensions = p.extensions
		return a, nil
	}
	cert, err := p.sign(ctx, ca, current, []byte(r.CSR))
	if err != nil {
		return a, err
	}
	a.Certificate = string(cert)
	a.CA, a.CRL, err = authority(ctx, ca)
	return a, err
}

// authority returns the certificates and the revocation list of a CA.
func authority(ctx context.Context, ca *puppetserver.Client) (bundle, crl string, err error) {
	b, err := ca.CA(ctx)
	if err != nil {
		return "", "", err
	}
	list, _, err := ca.CRL(ctx)
	return string(b), string(list), err
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

func sameCertificate(a, b []byte) bool {
	one, err := pki.ParseCertificates(a)
	two, other := pki.ParseCertificates(b)
	return err == nil && other == nil && one[0].Equal(two[0])
}

// sign gets a certificate for the node's own key. The node is authenticated, and the request must name it and nothing else.
func (p puppetNode) sign(ctx context.Context, ca *puppetserver.Client, current, csr []byte) ([]byte, error) {
	r, err := puppetserver.CheckCSR(csr, p.name, p.extensions)
	if err != nil {
		return nil, err
	}
	if current != nil && ca.Verify(current, p.name, r.PublicKey, p.extensions) == nil { // an earlier answer was lost
		return current, nil
	}
	return p.issue(ctx, ca, csr)
}

// issue gets a certificate from the CA, and frees the name first: a former machine may have had it.
func (p puppetNode) issue(ctx context.Context, ca *puppetserver.Client, csr []byte) ([]byte, error) {
	for _, url := range p.settings.CA.Also {
		if err := p.clean(ctx, url); err != nil {
			return nil, err
		}
	}
	cert, err := ca.Issue(ctx, p.name, csr, p.extensions)
	var failed *puppetserver.Error
	if errors.As(err, &failed) && (failed.Code == puppetserver.Taken || failed.Code == puppetserver.OtherCertificate) { // also an expired one of this key
		if err = p.clean(ctx, p.settings.CA.URL); err == nil {
			cert, err = ca.Issue(ctx, p.name, csr, p.extensions)
		}
	}
	if err == nil {
		p.Log.Info("signed a certificate of Puppet's CA", append(p.say, "certname", p.name, "ca", ca.URL)...)
	}
	return cert, err
}

// issueFree gets a certificate from the CA for a name that no CA knows. What has the name may be a machine in use: only the join of
// its successor frees it.
func (p puppetNode) issueFree(ctx context.Context, ca *puppetserver.Client, csr []byte) ([]byte, error) {
	for _, url := range p.settings.CA.Also {
		other, err := p.client(url)
		if err != nil {
			return nil, err
		}
		s, err := other.Status(ctx, p.name)
		other.Close()
		var failed *puppetserver.Error
		switch {
		case err == nil:
			return nil, &puppetserver.Error{Code: puppetserver.Taken, Doing: "request a certificate for " + p.name, URL: other.URL, Name: p.name, State: s.State}
		case !errors.As(err, &failed) || failed.Code != puppetserver.UnknownName:
			return nil, err
		}
	}
	return ca.Issue(ctx, p.name, csr, p.extensions)
}

// clean revokes and deletes what a CA has under the node's name. It refuses a name that a node of another environment has there.
func (p puppetNode) clean(ctx context.Context, url string) error {
	other, err := access.JoinsIn(p.DB).NamesakeAt(ctx, p.ref, p.node, url)
	if err != nil {
		return err
	}
	if other != nil {
		return no(join.CertnameTaken, join.Params{Node: p.node, Claimed: other.String()})
	}
	ca, err := p.client(url)
	if err != nil {
		return err
	}
	defer ca.Close()
	was, err := ca.Clean(ctx, p.name)
	if err == nil && was != "" {
		p.Log.Info("cleaned a former certificate of Puppet's CA", append(p.say, "certname", p.name, "ca", ca.URL, "was", string(was))...)
	}
	return err
}

// maxKeptCRL is the size of a revocation list that is kept beside the key of a machine that did not join yet: some 3,000 certificates.
const maxKeptCRL = 128 << 10

// presigned returns what was made for the node, with its key, and makes it first. The key is stored before the CA signs: after a crash
// the same key gets the same certificate.
func (p puppetNode) presigned(
	ctx context.Context, ca *puppetserver.Client, issue func(context.Context, *puppetserver.Client, []byte) ([]byte, error),
) (made access.Presigned, key string, err error) {
	for replaced := false; ; replaced = true {
		made, err = access.IdentitiesIn(p.DB).EnsurePresigned(ctx, p.ref, p.node, func() (string, error) { return p.sealKey(ctx) })
		if err != nil {
			return made, "", err
		}
		var signer crypto.Signer
		if key, signer, err = p.open(ctx, made); err != nil {
			return made, "", err
		}
		cert := []byte(made.Certificate)
		if made.Certificate == "" {
			var csr []byte
			if csr, err = puppetserver.NewCSR(signer, p.name, p.extensions); err == nil {
				cert, err = issue(ctx, ca, csr)
			}
		} else {
			err = ca.Verify(cert, p.name, signer.Public(), p.extensions)
		}
		var failed *puppetserver.Error
		if errors.As(err, &failed) && failed.Code == puppetserver.OtherCertificate && !replaced { // of a former CA, or with former extensions
			if err = access.IdentitiesIn(p.DB).DropPresigned(ctx, p.ref, p.node); err == nil {
				continue
			}
		}
		if err != nil {
			return made, "", err
		}
		made.Certificate, made.Problem = string(cert), ""
		break
	}
	if made.CA, made.CRL, err = authority(ctx, ca); err != nil {
		return made, "", err
	}
	kept := made
	if len(kept.CRL) > maxKeptCRL {
		kept.CRL = ""
	}
	return made, key, access.IdentitiesIn(p.DB).PutPresigned(ctx, p.ref, p.node, kept)
}

// Presign gets the certificate of a node before its machine joins. It does nothing if a machine has the name, or if a former one left
// its certificate. It returns ErrConflict while another serve works on the name.
func (d *Server) Presign(ctx context.Context, ref model.Ref, spec *environments.Environment, node, role string) error {
	p, err := d.puppetNode(ref, spec, node, role, []any{"env", ref.String(), "node", node})
	if err != nil {
		return err
	}
	ca, err := p.client(p.settings.CA.URL)
	if err != nil {
		return err
	}
	defer ca.Close()
	return access.JoinsIn(d.DB).AtPuppetCA(ctx, p.name, func(ctx context.Context) error {
		holder, err := access.JoinsIn(d.DB).Holder(ctx, ref, node)
		if err != nil || !holder.Awaited() {
			return err
		}
		made, _, err := p.presigned(ctx, ca, p.issueFree)
		if err == nil {
			d.Log.Info("signed a certificate of Puppet's CA before its machine boots", append(p.say, "certname", p.name, "ca", ca.URL)...)
			return nil
		}
		if made.Problem = model.Prose(clip.Text(err.Error(), maxSaid*2)); made.Key != "" {
			err = errors.Join(err, access.IdentitiesIn(d.DB).PutPresigned(ctx, ref, node, made))
		}
		return err
	})
}

// sealed is the place of a node's key among the secrets.
func (p puppetNode) sealed() secrets.Place {
	return secrets.Place{Environment: p.ref.String(), Layer: hieradata.Layer("puppet"), Key: p.node}
}

// open decrypts the key that was made for the node.
func (p puppetNode) open(ctx context.Context, made access.Presigned) (text string, key crypto.Signer, err error) {
	master, err := p.masterKey(ctx, p.ref)
	if err == nil {
		text, err = secrets.Open([]string{master}, p.sealed(), made.Key)
	}
	if err == nil {
		key, err = pki.ParseKey([]byte(text))
	}
	return text, key, err
}

// sealKey returns a new key, encrypted to the CA folder's key for the node.
func (p puppetNode) sealKey(ctx context.Context) (string, error) {
	master, err := p.masterKey(ctx, p.ref)
	if err != nil {
		return "", err
	}
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
	return secrets.Seal(recipient, p.sealed(), string(text))
}

// masterKey returns the key of the CA folder that encrypts what only serve may read in etcd.
func (p puppetNode) masterKey(ctx context.Context, ref model.Ref) (string, error) {
	key, err := p.secretsKey(false)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := p.keyIsKept(ctx, ref, ""); err != nil {
		return "", err
	}
	return p.secretsKey(true)
}
