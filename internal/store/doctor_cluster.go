package store

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"pulley/internal/store/etcd"

	"github.com/hashicorp/go-version"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// repaired is the first release of each line of etcd in which users can't read or write past their roles
// (CVE-2026-33413, CVE-2026-44283, GHSA-xg4h-6gfc-h4m8). Lines that are not here have no such release.
var repaired = map[string]string{"3.5": "3.5.33", "3.6": "3.6.14", "3.7": "3.7.1"}

// Bounds of what doctor takes for well.
const (
	quotaTight = 60 // percent of the quota in use: a warning
	quotaFull  = 80 // a problem
	dialWithin = 5 * time.Second
	endsSoon   = 14 * 24 * time.Hour // of certificates that nothing renews by itself
)

// cluster is what doctor reads of etcd itself.
type cluster struct {
	members   []memberState
	auth      bool
	noSpace   bool
	corrupt   bool
	plain     []string // endpoints that are in plain text
	anonymous string   // endpoint that lets in who shows no certificate
	password  bool     // root can log in with one
	certs     []endingCert
	problem   string // what could not be asked
}

type memberState struct {
	endpoint, version   string
	stored, used, quota int64 // bytes; quota 0: etcd does not say
	problem             string
}

// endingCert is a certificate that this program, or etcd, shows.
type endingCert struct {
	what, advice string
	from, until  time.Time
}

func (s *Doctor) examineCluster(ctx context.Context, c etcd.Config) (cluster, error) {
	var k cluster
	var err error
	if k.auth, err = s.access.AuthEnabled(ctx); err != nil {
		return k, err
	}
	for _, e := range c.Endpoints {
		k.members = append(k.members, s.examineMember(ctx, e))
		u, err := url.Parse(e)
		switch {
		case err != nil || u.Scheme != "https":
			k.plain = append(k.plain, e)
			continue
		case anonymous(ctx, c, u.Host):
			k.anonymous = e
		}
		if cert := shown(ctx, c, u.Host); cert != nil {
			k.certs = append(k.certs, endingCert{"etcd's certificate at " + u.Host, "`pulley serve` renews its own; for another etcd, give it a new one", cert.NotBefore, cert.NotAfter})
		}
	}
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	alarms, err := s.db.Client.AlarmList(within)
	if err != nil {
		k.problem = "its alarms can't be read: " + etcd.PlainCause(err).Error()
	} else {
		for _, a := range alarms.Alarms {
			k.noSpace = k.noSpace || strings.Contains(a.Alarm.String(), "NOSPACE")
			k.corrupt = k.corrupt || strings.Contains(a.Alarm.String(), "CORRUPT")
		}
	}
	k.password = s.passwordOfRoot(within)
	k.certs = append(k.certs, ownCertificates(c)...)
	return k, nil
}

func (s *Doctor) examineMember(ctx context.Context, endpoint string) memberState {
	within, cancel := context.WithTimeout(ctx, s.db.Timeout)
	defer cancel()
	st, err := s.db.Client.Status(within, endpoint)
	if err != nil {
		return memberState{endpoint: endpoint, problem: etcd.PlainCause(err).Error()}
	}
	return memberState{endpoint: endpoint, version: st.Version, stored: st.DbSize, used: st.DbSizeInUse, quota: st.DbSizeQuota}
}

// anonymous reports whether a server talks HTTP/2 with a client that shows no certificate: then it asks for none, and a
// common name says nothing. In TLS 1.3 a refusal comes after the handshake, with what is read first.
func anonymous(ctx context.Context, c etcd.Config, address string) bool {
	c.Cert, c.Key = "", ""
	conn := dial(ctx, c, address)
	if conn == nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // and no settings
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return err == nil
}

// dial connects to a server by TLS, for a few seconds; nil when it can't.
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

// passwordOfRoot reports whether somebody could be root by a password. etcd says so of a user that has none before it
// compares anything.
func (s *Doctor) passwordOfRoot(ctx context.Context) bool {
	_, err := s.db.Client.Authenticate(ctx, rootUser, rand.Text())
	return errors.Is(err, rpctypes.ErrAuthFailed)
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

// ownCertificates are those of this program's own settings: its client certificate, and the CAs that it trusts.
func ownCertificates(c etcd.Config) (all []endingCert) {
	if pair, err := c.Certificate(); c.Cert != "" && err == nil && pair.Leaf != nil {
		all = append(all, endingCert{"your own certificate, " + pair.Leaf.Subject.CommonName + ",", "ask an admin for a token, and `pulley login` with it", pair.Leaf.NotBefore, pair.Leaf.NotAfter})
	}
	rest, err := os.ReadFile(c.CACert)
	if c.CACert == "" || err != nil {
		return all
	}
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, endingCert{"the CA " + cert.Subject.CommonName, "`pulley ca rotate`, long before it ends", cert.NotBefore, cert.NotAfter})
		}
	}
	return all
}

func judgeCluster(d *Diagnosis, k cluster) {
	for _, m := range k.members {
		if m.problem != "" {
			d.add("answers", Problem, fmt.Sprintf("etcd does not answer at %s: %s", m.endpoint, m.problem), "start it, or take it out of --endpoints")
			continue
		}
		d.add("answers", Fine, "etcd answers at "+m.endpoint, "")
		if need, ok := outdated(m.version); ok {
			d.add("version", Problem, fmt.Sprintf("etcd %s at %s lets users read or write past their roles", m.version, m.endpoint), "upgrade it to "+need+" or later")
		} else {
			d.add("version", Fine, "etcd "+m.version+" at "+m.endpoint, "")
		}
		judgeRoom(d, m)
	}
	if k.problem != "" {
		d.add("alarms", Warning, k.problem, "")
	}
	switch {
	case k.noSpace:
		d.add("alarms", Problem, "etcd is full: it takes nothing but deletions",
			"find out who fills it (see flood); `pulley nodes remove NODE --forget` makes room as it cleans up; else raise the quota, or `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`")
	case k.corrupt:
		d.add("alarms", Problem, "etcd says that its members' data differ", "replace the member that differs: https://etcd.io/docs/latest/op-guide/data_corruption/")
	case k.problem == "":
		d.add("alarms", Fine, "etcd has raised no alarm", "")
	}
	for _, e := range k.plain {
		u, err := url.Parse(e)
		if err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()) {
			d.add("tls", Warning, e+" is in plain text, for this machine alone: every local user can write everything", "`pulley serve --auth` on the same data folder")
			continue
		}
		d.add("tls", Problem, e+" is in plain text: whoever reaches it can run code on every node", "give etcd --cert-file, --key-file, --trusted-ca-file and --client-cert-auth")
	}
	switch {
	case k.anonymous != "":
		d.add("tls", Problem, k.anonymous+" talks to clients without a certificate", "start etcd with --client-cert-auth and --trusted-ca-file")
	case len(k.plain) == 0:
		d.add("tls", Fine, "etcd talks to nobody without a certificate of its CA", "")
	}
	switch {
	case !k.auth && len(k.plain) == 0:
		d.add("auth", Problem, "etcd does not check its users: whoever has any certificate of its CA may write everything", "`pulley auth setup`, or `pulley serve --auth` for the embedded etcd")
	case !k.auth:
		d.add("auth", Warning, "etcd does not check its users: nodes have no identities of their own", "`pulley serve --auth` on the same data folder, or `pulley auth setup` for another etcd")
	default:
		d.add("auth", Fine, "etcd checks its users", "")
	}
	switch {
	case k.auth && k.password:
		d.add("root", Problem, "etcd's user root has a password: whoever has it may do everything", "`etcdctl user delete root` is not allowed while auth is on; give it a random one that nobody keeps: `etcdctl user passwd root`")
	case k.auth:
		d.add("root", Fine, "nobody can be etcd's user root by a password", "")
	}
}

// outdated reports whether a version of etcd lacks repairs, and which has them.
func outdated(v string) (need string, yes bool) {
	is, err := version.NewVersion(v)
	if err != nil {
		return "3.7.1", true
	}
	segments := is.Segments()
	line := fmt.Sprintf("%d.%d", segments[0], segments[1])
	need, known := repaired[line]
	switch {
	case known:
		return need, is.Core().LessThan(version.Must(version.NewVersion(need)))
	case is.Core().LessThan(version.Must(version.NewVersion("3.5.0"))):
		return "3.5.33", true
	}
	return "", false // newer than all of them
}

func judgeRoom(d *Diagnosis, m memberState) {
	if m.quota <= 0 {
		d.add("quota", Warning, fmt.Sprintf("%s does not say its quota; %d MiB are in use", m.endpoint, m.used>>20), "etcd before 3.6 does not tell; look at --quota-backend-bytes yourself")
		return
	}
	text := fmt.Sprintf("%d of %d MiB of the quota of %s are in use, %d are stored", m.used>>20, m.quota>>20, m.endpoint, m.stored>>20)
	advice := "`pulley releases prune`, and see flood; or raise the quota (`pulley serve --quota`)"
	switch percent := m.used * 100 / m.quota; {
	case percent >= quotaFull:
		d.add("quota", Problem, text, advice)
	case percent >= quotaTight:
		d.add("quota", Warning, text, advice)
	case m.stored*100/m.quota >= quotaFull:
		d.add("quota", Warning, text, "what is stored counts until it is defragmented: `etcdctl defrag`, which stops a member for a moment")
	default:
		d.add("quota", Fine, text, "")
	}
}

func judgeCertificates(d *Diagnosis, k cluster, now time.Time) {
	slices.SortStableFunc(k.certs, func(a, b endingCert) int { return a.until.Compare(b.until) })
	for _, c := range k.certs {
		day := c.until.UTC().Format(time.DateOnly)
		switch left := c.until.Sub(now); {
		case left <= 0:
			d.add("certificate", Problem, c.what+" ended on "+day, c.advice)
		case left < min(endsSoon, c.until.Sub(c.from)/4):
			d.add("certificate", Warning, c.what+" ends on "+day, c.advice)
		default:
			d.add("certificate", Fine, c.what+" ends on "+day, "")
		}
	}
}
