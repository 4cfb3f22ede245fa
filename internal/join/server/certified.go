package server

import (
	"context"
	"fmt"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// certified is the current owner of a name, authenticated by its certificate.
type certified struct {
	name     pki.Name
	ref      model.Ref
	identity *access.Identity
	revision int64
}

// nameIn returns the name in a request's certificate, which the listener has verified against the CA.
func (d *Server) nameIn(c *caller) (pki.Name, error) {
	if c.TLS == nil || len(c.TLS.VerifiedChains) == 0 {
		return pki.Name{}, no(join.NoCertificate, join.Params{})
	}
	leaf := c.TLS.PeerCertificates[0]
	name, err := pki.ParseName(leaf.Subject.CommonName)
	if err != nil || name.Prefix != d.DB.Prefix() {
		return pki.Name{}, no(join.UntrustedCertificate, join.Params{})
	}
	c.about("user", name.String())
	if !d.issuer.trusts(leaf) {
		return pki.Name{}, no(join.UntrustedCertificate, join.Params{})
	}
	return name, nil
}

// node returns the node of a request. A certificate that is older than the node's last join or removal is refused.
func (d *Server) node(ctx context.Context, c *caller) (certified, error) {
	name, err := d.nameIn(c)
	if err != nil {
		return certified{}, err
	}
	if name.Kind != pki.KindNode {
		return certified{}, no(join.WrongKind, join.Params{Claimed: string(name.Kind)})
	}
	c.about("env", name.Environment, "node", name.Subject)
	ref, err := model.ParseRef(name.Environment)
	if err != nil {
		return certified{}, no(join.UntrustedCertificate, join.Params{})
	}
	i, revision, err := access.IdentitiesIn(d.DB).Get(ctx, ref, name.Subject)
	if err != nil {
		return certified{}, err
	}
	switch {
	case i != nil && i.Removed != nil:
		was := removed(name.Subject, *i.Removed)
		was.Environment = name.Environment
		return certified{}, no(join.WasRemoved, was)
	case !i.Live() || i.User != name.String():
		return certified{}, no(join.WrongCertificate, join.Params{Node: name.Subject, Environment: name.Environment})
	}
	return certified{name, ref, i, revision}, nil
}

// renew issues a certificate of the same name for a new key.
func (d *Server) renew(ctx context.Context, c *caller) (any, error) {
	var r join.Renewal
	if err := c.read(&r); err != nil {
		return nil, err
	}
	csr, refused := parseCSR(r.CSR)
	if refused != nil {
		return nil, refused
	}
	key, err := pki.KeyDigest(csr.PublicKey)
	if err != nil {
		return nil, err
	}
	name, err := d.nameIn(c)
	if err != nil {
		return nil, err
	}
	var answer join.Answer
	if name.Kind == pki.KindOperator {
		answer, err = d.renewOperator(ctx, name, r.CSR, key)
	} else {
		answer, err = d.renewNode(ctx, c, r, key)
	}
	if err != nil {
		return nil, err
	}
	d.metrics.renewals.Inc()
	d.Log.Info("certificate renewed", append(c.say, "from", c.from)...)
	return answer, nil
}

func (d *Server) renewNode(ctx context.Context, c *caller, r join.Renewal, key string) (answer join.Answer, err error) {
	machine, refused := tidy(r.Machine)
	err = retry(ctx, func(int) error {
		who, err := d.node(ctx, c)
		if err != nil {
			return err
		}
		if refused != nil {
			return refused
		}
		if err := d.sameMachine(ctx, c, who, machine); err != nil {
			return err
		}
		now := d.Now().UTC()
		who.identity.Key, who.identity.Issued, who.identity.Until, who.identity.CA = key, now, now.Add(d.NodeLifetime), d.issuer.pin()
		if err := access.IdentitiesIn(d.DB).Put(ctx, who.ref, *who.identity, who.revision); err != nil {
			return err
		}
		if answer, err = d.issuer.node(who.ref, r.CSR, *who.identity); err == nil {
			answer.Identities = d.identitiesFor(ctx, who.ref, who.identity.Role)
		}
		return err
	})
	return answer, err
}

func (d *Server) renewOperator(ctx context.Context, name pki.Name, csr, key string) (join.Answer, error) {
	o, revision, err := access.IdentitiesIn(d.DB).Operator(ctx, name.Subject)
	if err != nil {
		return join.Answer{}, err
	}
	if !o.Live() || o.User != name.String() {
		return join.Answer{}, no(join.WrongCertificate, join.Params{Operator: name.Subject})
	}
	now := d.Now().UTC()
	o.Key, o.Issued, o.Until, o.CA = key, now, now.Add(operatorLifetime), d.issuer.pin()
	if err := access.IdentitiesIn(d.DB).PutOperator(ctx, *o, revision); err != nil {
		return join.Answer{}, fmt.Errorf("cannot renew the certificate of operator %s: %w", o.Name, err)
	}
	return d.issuer.operator(csr, *o)
}

// sameMachine refuses and records a machine other than the one that joined under the name.
func (d *Server) sameMachine(ctx context.Context, c *caller, who certified, m join.Machine) error {
	if m.ID == who.identity.Machine {
		return nil
	}
	d.noteDuplicate(ctx, who.ref, who.identity.Node, m, c.from)
	return no(join.WrongMachine, join.Params{Node: who.identity.Node, Machine: begin(who.identity.Machine), Sender: m.ID})
}

// register writes the hostname and addresses of a node's machine into the host list. It refuses those of other nodes, after it has written
// the others: the entry shows operators what was refused.
func (d *Server) register(ctx context.Context, c *caller) (any, error) {
	var m join.Machine
	if err := c.read(&m); err != nil {
		return nil, err
	}
	who, err := d.node(ctx, c)
	if err != nil {
		return nil, err
	}
	m, refused := tidy(m)
	if refused != nil {
		return nil, refused
	}
	if err := d.sameMachine(ctx, c, who, m); err != nil {
		return nil, err
	}
	is, err := d.described(ctx, who.ref, who.identity.Node, who.identity.Role, m, c.from)
	if err != nil {
		return nil, err
	}
	if err := access.IdentitiesIn(d.DB).UpdateHost(ctx, who.ref, *who.identity, who.revision, is, d.Now().UTC()); err != nil {
		return nil, err
	}
	if len(is.Refused) > 0 {
		claim := is.Refused[0]
		return nil, no(join.ForeignClaim, join.Params{Node: claim.Of, Claimed: claim.Value, Environment: who.ref.String()})
	}
	return nil, nil
}

// leave removes a node from the fleet at its own request.
func (d *Server) leave(ctx context.Context, c *caller) (any, error) {
	who, err := d.node(ctx, c)
	if err != nil {
		return nil, err
	}
	d.Log.Info("node leaves", append(c.say, "from", c.from)...)
	return nil, access.JoinsIn(d.DB).RemoveNode(ctx, who.ref, who.identity.Node, access.Removal{At: d.Now().UTC(), By: who.identity.Node, Why: "it left by itself", Left: true}, d.Left)
}

// noteDuplicate records a duplicate machine under a taken name. A failure to record it must not change the answer.
func (d *Server) noteDuplicate(ctx context.Context, ref model.Ref, node string, m join.Machine, from string) {
	d.metrics.duplicates.Inc()
	m, refused := tidy(m)
	if refused != nil {
		return
	}
	noted := access.Duplicate{Machine: m.ID, Boot: m.Boot, Hostname: m.Hostname, Addresses: m.Addresses, From: from, At: d.Now().UTC()}
	noted, err := access.IdentitiesIn(d.DB).Credible(ctx, ref, node, noted)
	credible := err == nil
	if credible {
		err = access.IdentitiesIn(d.DB).NoteDuplicate(ctx, ref, node, noted)
	}
	if err != nil {
		d.Log.Warn("cannot record a duplicate machine", "env", ref.String(), "node", node, "machine", m.ID, "error", err)
	}
	if credible && d.OnDuplicate != nil {
		d.OnDuplicate(ref, node, noted)
	}
}
