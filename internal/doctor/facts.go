package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/bounded"
	"pulley/internal/data"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/etcd/kinds"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/release"
	"pulley/internal/rollout/journal"
	"pulley/internal/specs"
)

// facts are what the checks judge.
type facts struct {
	now          time.Time
	prefix       string // of the names of etcd's users and roles
	cluster      etcdFacts
	access       access.AccessState
	want         map[string][]access.Grant // of the roles that operators and environments share
	environments []environment
	operators    map[string]access.OperatorIdentity
	unreadable   []kinds.Unreadable // of no environment
	unexamined   []error            // what could not be read: checks lack it
	operatorsErr error
	notices      []notify.Notice
	cleanups     []access.Cleanup
	locks        []etcd.LockHolder // of publishes and prunes
	names        names
}

// names spells etcd's roles.
type names interface {
	NodesRole(env string) string
	NodeRole(env, node string) string
	OperatorRole(access.OperatorRole) string
	NodeGrants(env, node string) []access.Grant
}

// cluster is etcd itself.
type etcdFacts struct {
	members   []member
	plain     []string // endpoints in plain text
	anonymous string   // endpoint that accepts clients without a certificate
	password  bool     // root can log in with one
	certs     []certificate
	alarms    []cluster.Alarm
	alarmsErr error
	disk      *cluster.Disk // of an embedded etcd, nearly full; nil: it has room, or is not known
}

type member struct {
	cluster.MemberState
	err error
}

// certificate is one that this program, or etcd, uses.
type certificate struct {
	kind        certKind
	name        string
	from, until time.Time
}

type certKind string

const (
	certEtcd certKind = "etcd"
	certOwn  certKind = "own"
	certCA   certKind = "ca"
)

// environment is what etcd has of one environment.
type environment struct {
	ref        model.Ref
	spec       *environments.Environment // nil: there is none, or it cannot be read
	hosts      map[string]model.Host
	exports    map[string]model.Export // with address_fact
	reported   map[string]int64        // keys that a node wrote
	identities map[string]access.Identity
	precreated map[string]access.Precreated
	boots      map[string]access.FirstBoot
	paused     *access.Revoked               // the provisioning of new machines; nil: it is not
	previews   map[string]model.PreviewOrder // in progress, by node
	floods     map[string]fleet.Flood
	records    map[string]machines.Record
	applying   *etcd.LockHolder // nil: no apply runs
	destroying bool             // a destruction has begun and is not finished
	damaged    []kinds.Unreadable
	lost       *journal.LostError // the rollout or job in progress that cannot be read
	unexamined []error            // what could not be read: checks lack it
	differs    []fleet.Contradiction
	stated     time.Time // of the statement of its targets, and its end; zero: none
	ends       time.Time
	unchecked  []string            // listed nodes that report that they check no signatures
	signers    map[string][]string // listed nodes that check them, by the digest of their signers
	wanted     map[string]bool     // nodes that the spec calls for
	nodes      []fleet.Node        // all that are known, by name
	lockedOut  []string            // nodes of the environment whose machines etcd refuses
	unknown    []string            // the same of names that the spec does not call for and that are not registered
	secrets    []data.Secret
	secretsErr error
	unrotated  map[string]int64 // removed nodes that decrypt later secrets, by the role of these
	presigned  map[string]access.Presigned
}

// read reads the facts. Access comes before the environments: records are written before users are made, and a user that no
// record names then has no owner.
func read(ctx context.Context, st *etcd.DB, c etcd.Config, now time.Time) (*facts, error) {
	f := &facts{now: now, prefix: st.Prefix(), names: access.In(st)}
	var err error
	if f.access, err = access.In(st).State(ctx); err != nil {
		return nil, err
	}
	f.cluster = readCluster(ctx, st, c)
	if err := f.readEnvironments(ctx, st); err != nil {
		return nil, err
	}
	f.want = map[string][]access.Grant{}
	for _, role := range []access.OperatorRole{access.RoleViewer, access.RoleOperator} {
		f.want[access.In(st).OperatorRole(role)] = access.In(st).OperatorGrants(role)
	}
	for _, e := range f.environments {
		if e.spec != nil {
			f.want[access.In(st).NodesRole(e.ref.String())] = access.In(st).NodesGrants(e.ref.String())
		}
	}
	f.operators, _, f.operatorsErr = access.IdentitiesIn(st).Operators(ctx) // f.unreadable has the others, as below
	if f.notices, _, err = notify.NoticesIn(st).List(ctx); err != nil {
		f.unexamined = append(f.unexamined, err)
	}
	if f.cleanups, _, err = access.JoinsIn(st).Cleanups(ctx); err != nil {
		f.unexamined = append(f.unexamined, err)
	}
	if f.cluster.disk, err = cluster.In(st).Disk(ctx); err != nil && !errors.As(err, new(*etcd.UnreadableError)) {
		f.unexamined = append(f.unexamined, err)
	}
	if f.locks, err = release.In(st).LockHolders(ctx); err != nil {
		f.unexamined = append(f.unexamined, err)
	}
	return f, nil
}

func readCluster(ctx context.Context, st *etcd.DB, c etcd.Config) etcdFacts {
	var k etcdFacts
	for _, e := range c.Endpoints {
		state, err := cluster.In(st).Member(ctx, e)
		k.members = append(k.members, member{state, err})
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "https" {
			k.plain = append(k.plain, e)
			continue
		}
		if acceptsAnybody(ctx, c, u.Host) {
			k.anonymous = e
		}
		if cert := shown(ctx, c, u.Host); cert != nil {
			k.certs = append(k.certs, certificate{certEtcd, u.Host, cert.NotBefore, cert.NotAfter})
		}
	}
	k.alarms, k.alarmsErr = cluster.In(st).Alarms(ctx)
	k.password = access.In(st).RootHasPassword(ctx)
	k.certs = append(k.certs, ownCertificates(c)...)
	return k
}

// readEnvironments reads every environment that any key names. What cannot be read of one hides nothing of others.
func (f *facts) readEnvironments(ctx context.Context, st *etcd.DB) error {
	unreadable, unread, err := Unreadable(ctx, st)
	if err != nil {
		return err
	}
	f.environments, f.unreadable = nil, unreadable[model.Ref{}]
	if err := unread[model.Ref{}]; err != nil {
		f.unexamined = append(f.unexamined, err)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(unreadable), func(a, b model.Ref) int { return strings.Compare(a.String(), b.String()) }) {
		if ref == (model.Ref{}) {
			continue
		}
		e := environment{ref: ref, damaged: unreadable[ref], wanted: map[string]bool{}}
		if err := unread[ref]; err != nil {
			e.unexamined = append(e.unexamined, err)
		}
		if err := e.read(ctx, st, f.now); err != nil {
			return err
		}
		f.environments = append(f.environments, e)
	}
	return nil
}

// read reads pre-created users before identities: a user moves from the one to the other, and must be in either. An error is only that etcd
// did not answer.
func (e *environment) read(ctx context.Context, st *etcd.DB, now time.Time) error {
	var err error
	for _, read := range []func(){
		func() { e.spec, _, err = specs.In(st).Spec(ctx, e.ref) },
		func() { e.hosts, _, err = fleet.In(st).HostList(ctx, e.ref) },
		func() {
			if e.spec != nil && e.spec.Hosts.AddressFact != "" {
				_, e.exports, err = fleet.In(st).Exports(ctx, e.ref)
			}
		},
		func() { e.presigned, _, err = access.IdentitiesIn(st).AllPresigned(ctx, e.ref) },
		func() { e.precreated, _, err = access.IdentitiesIn(st).Precreated(ctx, e.ref) },
		func() { e.identities, _, err = access.IdentitiesIn(st).List(ctx, e.ref) },
		func() { e.boots, _, err = access.FirstBootsIn(st).List(ctx, e.ref) },
		func() {
			var p access.Provisioning
			p, _, err = access.FirstBootsIn(st).Provisioning(ctx, e.ref)
			e.paused = p.Paused
		},
		func() { e.previews, _, err = fleet.In(st).PreviewOrders(ctx, e.ref) },
		func() { e.floods, _, err = fleet.In(st).Floods(ctx, e.ref) },
		func() { e.records, _, err = records.In(st).Records(ctx, e.ref) },
		func() { e.applying, err = records.In(st).ApplyHolder(ctx, e.ref) },
		func() { e.destroying, err = records.In(st).Destroying(ctx, e.ref) },
		func() { e.reported, err = fleet.In(st).ReportedKeys(ctx, e.ref) },
		func() {
			if _, _, err = journal.In(st).Open(ctx, e.ref, nil); errors.As(err, &e.lost) {
				err = nil
			}
		},
		func() { err = e.compare(ctx, st, now) },
	} {
		err = nil
		switch read(); {
		case errors.Is(err, model.ErrUnreachable) || ctx.Err() != nil:
			return err
		case err != nil && !errors.As(err, new(*etcd.UnreadableError)): // the checks would judge what they do not know
			*e = environment{ref: e.ref, damaged: e.damaged, unexamined: append(e.unexamined, err)}
			return nil
		case err != nil && !e.names(err):
			e.unexamined = append(e.unexamined, err)
		}
	}
	if e.spec != nil {
		for n := range e.spec.Nodes() {
			e.wanted[n.String()] = true
		}
	}
	readSecrets(ctx, st, e)
	return nil
}

// names reports whether a finding names the key that an error is about.
func (e *environment) names(err error) bool {
	var named *etcd.UnreadableError
	return errors.As(err, &named) && slices.ContainsFunc(e.damaged, func(u kinds.Unreadable) bool { return u.Key == named.Key })
}

// compare finds contradictions between targets, history and statuses. It needs no history for the nodes.
func (e *environment) compare(ctx context.Context, st *etcd.DB, now time.Time) error {
	if e.spec == nil {
		return nil
	}
	for try := 0; ; try++ {
		f, err := fleet.Find(ctx, st, e.ref, fleet.Selection{})
		if err != nil {
			return err
		}
		e.nodes = fleet.Look(f, e.ref, fleet.Selection{}, now).Nodes
		if st := f.Desires.Statement; st != nil && !st.Off {
			e.stated, e.ends = st.At, st.Until
		}
		e.lockedOut, e.unknown = nil, nil
		for node := range sorted(f.Lockouts) {
			_, listed := f.Hosts[node]
			_, called := e.spec.RoleOf(node)
			switch {
			case f.LockedOut(node) == nil:
			case listed || called:
				e.lockedOut = append(e.lockedOut, node)
			default:
				e.unknown = append(e.unknown, node)
			}
		}
		e.unchecked, e.signers = nil, map[string][]string{}
		for node, st := range sorted(f.Statuses) {
			_, listed := f.Hosts[node]
			switch s := st.Signatures; {
			case s == nil || !listed:
			case s.State == model.SignaturesNotChecked:
				e.unchecked = append(e.unchecked, node)
			case s.State == model.SignaturesChecked:
				e.signers[s.Signers] = append(e.signers[s.Signers], node)
			}
		}
		history, err := targets.In(st).HistoryOf(ctx, e.ref, f.Desires)
		switch {
		case errors.Is(err, etcd.ErrConflict) && try < 4: // a prune compacted it just now
		case err != nil:
			return err
		default:
			e.differs = fleet.Contradictions(f, history, now)
			return nil
		}
	}
}

const dialWithin = 5 * time.Second

// acceptsAnybody reports whether a server talks HTTP/2 with a client that shows no certificate: then it requires none, and a
// common name proves nothing. TLS 1.3 refuses after the handshake, in the first answer.
func acceptsAnybody(ctx context.Context, c etcd.Config, address string) bool {
	c.Cert, c.Key = "", ""
	conn := dial(ctx, c, address)
	if conn == nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // with empty settings
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return err == nil
}

// dial connects to a server by TLS; nil when it cannot.
func dial(ctx context.Context, c etcd.Config, address string) *tls.Conn {
	t, err := c.TLS()
	if err != nil || t == nil {
		return nil
	}
	t.NextProtos = []string{"h2"}
	within, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, "443")
	}
	conn, err := (&tls.Dialer{Config: t}).DialContext(within, "tcp", address)
	if err != nil {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(dialWithin))
	secure, _ := conn.(*tls.Conn)
	return secure
}

// shown is the certificate that a server shows.
func shown(ctx context.Context, c etcd.Config, address string) *x509.Certificate {
	conn := dial(ctx, c, address)
	if conn == nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		return certs[0]
	}
	return nil
}

// ownCertificates are those of this program's settings: its client certificate, and the CAs that it trusts.
func ownCertificates(c etcd.Config) (all []certificate) {
	if pair, err := c.Certificate(); c.Cert != "" && err == nil && pair.Leaf != nil {
		all = append(all, certificate{certOwn, pair.Leaf.Subject.CommonName, pair.Leaf.NotBefore, pair.Leaf.NotAfter})
	}
	rest, err := bounded.ReadFile(c.CACert, 1<<20)
	if c.CACert == "" || err != nil {
		return all
	}
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, certificate{certCA, cert.Subject.CommonName, cert.NotBefore, cert.NotAfter})
		}
	}
	return all
}
