package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"pulley/internal/access"
	"pulley/internal/clip"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// join answers a machine, or a person, with a token.
func (d *Server) join(ctx context.Context, c *caller) (any, error) {
	begun := d.Now()
	a, err := readRequest(c)
	if err != nil {
		return nil, err
	}
	leave, err := d.gate.joins.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.metrics.atWork.Inc()
	defer d.metrics.atWork.Dec()
	t, err := access.TokensIn(d.DB).Find(ctx, a.id)
	if err != nil {
		return nil, err
	}
	if refused := judgeToken(t, a.secret, d.Now()); refused != nil {
		return nil, refused
	}
	var kind string
	var answer join.Answer
	if t.Operator != "" {
		answer, kind, err = d.joinOperator(ctx, c, a, *t)
	} else {
		answer, kind, err = d.joinNode(ctx, c, a, *t)
		var refused *join.RefusedError
		if errors.As(err, &refused) { // for the remedy; the holder of the token may know its environment
			refused.Params.Environment = cmp.Or(refused.Params.Environment, t.Environment)
		}
	}
	if err != nil {
		return nil, err
	}
	took := d.Now().Sub(begun)
	d.metrics.joins.WithLabelValues(kind).Inc()
	d.metrics.seconds.Observe(took.Seconds())
	d.Log.Info("joined", append(c.say, "kind", kind, "from", c.from, "took", took)...)
	return answer, nil
}

// readRequest reads a request. It refuses a request without a proof for this connection by the holder of the key.
func readRequest(c *caller) (joining, error) {
	var e join.Envelope
	if err := c.read(&e); err != nil {
		return joining{}, err
	}
	var a joining
	if err := json.Unmarshal(e.Request, &a.Request); err != nil {
		return joining{}, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	id, secret, err := access.ParseToken(a.Token)
	if err != nil {
		return joining{}, no(join.MalformedToken, join.Params{})
	}
	a.id, a.secret, a.from = id, secret, c.from
	c.about("token", id)
	csr, refused := parseCSR(a.CSR)
	if refused != nil {
		return joining{}, refused
	}
	statement, err := join.Statement(c.TLS, e.Request)
	if err == nil {
		err = join.CheckProof(csr.PublicKey, statement, e.Proof)
	}
	if err != nil {
		return joining{}, no(join.NotThisTransport, join.Params{})
	}
	if a.key, err = pki.KeyDigest(csr.PublicKey); err != nil {
		return joining{}, no(join.BadCSR, join.Params{Problem: model.Prose(clip.Text(err.Error(), maxSaid))})
	}
	return a, nil
}

// machineID matches a machine ID or boot ID.
var machineID = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// maxAddresses bounds the stored addresses of a machine.
const maxAddresses = 16

// tidy refuses a machine without a valid ID, and drops other invalid values.
func tidy(m join.Machine) (join.Machine, *join.RefusedError) {
	if !machineID.MatchString(m.ID) {
		return m, no(join.BadRequest, join.Params{Field: join.FieldMachine})
	}
	if !machineID.MatchString(m.Boot) {
		m.Boot = ""
	}
	if !machineID.MatchString(m.FirstBoot) {
		m.FirstBoot = ""
	}
	if len(m.Hostname) > 253 {
		m.Hostname = ""
	}
	var addresses []string
	for _, text := range m.Addresses {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err == nil && a.Zone() == "" && a.IsGlobalUnicast() && !slices.Contains(addresses, a.String()) && len(addresses) < maxAddresses {
			addresses = append(addresses, a.String())
		}
	}
	m.Addresses = addresses
	return m, nil
}

// joinNode turns a machine into a node. It decides, writes the identity in one transaction, and only then creates the
// etcd user and the certificate. A request that loses a conflict has created no user. After a crash the identity is
// stored, and the machine's next request resumes.
func (d *Server) joinNode(ctx context.Context, c *caller, a joining, t access.Token) (join.Answer, string, error) {
	var refused *join.RefusedError
	if a.Machine, refused = tidy(a.Machine); refused == nil {
		refused = judgeScope(t, a.Request)
	}
	c.about("env", t.Environment, "machine", a.Machine.ID)
	if refused != nil {
		return join.Answer{}, "", refused
	}
	ref, err := model.ParseRef(t.Environment)
	if err != nil {
		return join.Answer{}, "", err
	}
	node, role, refused := naming(t, a.Request)
	if refused != nil {
		return join.Answer{}, "", refused
	}
	if a.node = node; node == "" {
		if a.node, err = d.before(ctx, ref, a); err != nil {
			return join.Answer{}, "", err
		}
	}
	if a.claimed = a.node == ""; a.claimed {
		c.about("role", role)
	} else {
		c.about("node", a.node)
	}
	p, err := d.place(ctx, c, ref, role, a)
	if err != nil {
		return join.Answer{}, "", err
	}
	answer, err := d.certify(ctx, ref, a, p)
	if err == nil {
		answer.Identities = d.identitiesFor(ctx, ref, p.Role)
	}
	if len(answer.Identities) > 0 {
		c.about("secrets", len(answer.Identities))
		if d.OnSecrets != nil {
			d.OnSecrets(ref, p.Identity, c.from)
		}
	}
	return answer, p.kind, err
}

// placed is a machine's stored identity.
type placed struct {
	access.Identity
	kind  string // new, again or rejoin
	ready bool   // its user in etcd was pre-created
}

// place decides the machine's node and stores it, even under many concurrent requests.
func (d *Server) place(ctx context.Context, c *caller, ref model.Ref, role string, a joining) (p placed, err error) {
	before := ""
	err = retry(ctx, func(attempt int) error {
		claim := claimed{node: a.node, free: func(bool) {}}
		var err error
		if a.claimed {
			if claim, err = d.claims.claim(ctx, ref, role, attempt, before); err != nil {
				return err
			}
			before = claim.node
		}
		p, err = d.try(ctx, ref, a, claim)
		switch {
		case errors.Is(err, etcd.ErrConflict):
			d.metrics.conflicts.Inc()
		case a.claimed:
			c.about("node", claim.node)
		}
		return err
	})
	return p, err
}

// try settles a claim, and always releases it. Another serve may have taken the number meanwhile. That is a conflict and
// no reason to refuse: there may be a next number.
func (d *Server) try(ctx context.Context, ref model.Ref, a joining, claim claimed) (p placed, err error) {
	taken := false
	defer func() { claim.free(taken) }()
	a.node = claim.node
	p, err = d.settle(ctx, ref, a)
	var refused *join.RefusedError
	if a.claimed && errors.As(err, &refused) && nameIsTaken(refused.Reason) {
		taken, err = true, etcd.ErrConflict
	}
	taken = taken || err == nil
	return p, err
}

func nameIsTaken(r join.Reason) bool {
	return r == join.HeldByAnother || r == join.NameTaken || r == join.LockedByAnother
}

// before returns the node that this machine already has with this key, from the record of its first boot. Then an
// earlier request claimed a number and its answer was lost. It returns "" for none.
func (d *Server) before(ctx context.Context, ref model.Ref, a joining) (string, error) {
	boot, _, err := access.FirstBootsIn(d.DB).Get(ctx, ref, access.BootKey(a.Machine.ID, a.Machine.FirstBoot))
	if err != nil || boot == nil || boot.Node == "" || !boot.Joined {
		return "", err
	}
	i, _, err := access.IdentitiesIn(d.DB).Get(ctx, ref, boot.Node)
	if err != nil || !i.Live() || i.Key != a.key || i.Machine != a.Machine.ID {
		return "", err
	}
	return boot.Node, nil
}

// settle decides on a request for a named node, and stores the join. After a conflict it repeats with a fresh read.
func (d *Server) settle(ctx context.Context, ref model.Ref, a joining) (placed, error) {
	unlock, err := d.tokens.lock(ctx, a.id)
	if err != nil {
		return placed{}, busy(3 * time.Second)
	}
	defer unlock()
	f, err := access.JoinsIn(d.DB).Facts(ctx, a.id, ref, a.node, a.Machine.ID, a.Machine.FirstBoot)
	if err != nil {
		return placed{}, err
	}
	now := d.Now().UTC()
	a.env = ref.String()
	v := judge(a, f, now)
	if v.duplicate && !a.claimed {
		d.noteDuplicate(ctx, ref, a.node, a.Machine, a.from)
	}
	if v.refused != nil {
		return placed{}, v.refused
	}
	name := ref.String() + " " + a.node
	if v.again { // a used token of a stolen key gets certificates no faster either
		return placed{*f.Identity, "again", false}, d.gate.within("joined " + name)
	}
	if wait := d.gate.joined.blocked(name, now); wait > 0 {
		return placed{}, &busyError{reason: join.TooOften, after: wait}
	}
	host, err := d.described(ctx, ref, a.node, v.role, a.Machine, a.from)
	if err != nil {
		return placed{}, err
	}
	host.At, host.By = now, "join"
	i, kind := d.newIdentity(ref, a, f, v.role, now)
	t := *f.Token
	t.Used++
	err = access.JoinsIn(d.DB).Commit(ctx, ref, f, access.Join{Token: t, Identity: i, Machine: bootOf(a, f, v.role, now), Host: host})
	if err == nil {
		d.gate.joined.spend(name, now)
	}
	return placed{i, kind, f.Reserve != nil && f.Reserve.Ready}, err
}

// newIdentity returns the machine's new identity, with the incarnation of the pre-created user, if any.
func (d *Server) newIdentity(ref model.Ref, a joining, f access.JoinFacts, role string, now time.Time) (access.Identity, string) {
	name := pki.Name{Prefix: d.DB.Prefix(), Kind: pki.KindNode, Environment: ref.String(), Subject: a.node, Incarnation: pki.NewIncarnation()}
	if f.Reserve != nil {
		name.Incarnation = f.Reserve.Incarnation
	}
	i := access.Identity{
		Node: a.node, Role: role, User: name.String(), Incarnation: name.Incarnation, Machine: a.Machine.ID, Boot: a.Machine.Boot, FirstBoot: a.Machine.FirstBoot,
		Key: a.key, Joined: now, Revision: f.Revision, Issued: now, Until: now.Add(d.NodeLifetime), CA: d.issuer.pin(),
		Token: a.id, By: f.Token.By,
	}
	if !f.Identity.Live() {
		return i, "new"
	}
	i.Replaces = f.Identity.User
	return i, "rejoin"
}
