package fleetca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"pulley/internal/access"
	"pulley/internal/bounded"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/pki/connect"
	"pulley/internal/specs"
)

// Census counts the holders of certificates by CA. If etcd did not answer, only Problem is set.
type Census struct {
	Nodes, Operators map[string]int      // by the fingerprint of the CA that signed
	Holders          map[string][]string // their names, by the same fingerprint
	Late             []string            // with a certificate older than the next CA
	Distrusting      []string            // members of etcd that do not trust the next CA yet
	Problem          error
}

// Take reads the current certificates from etcd. adminFile is the administrator's identity: serve renews it while it
// is in the folder, and the file is newer than etcd's record. Expired certificates do not count.
func Take(ctx context.Context, config etcd.Config, ca *pki.CA, adminFile string, now time.Time) Census {
	s, err := etcd.Open(config)
	if err != nil {
		return Census{Problem: err}
	}
	n, err := count(ctx, s, ca, adminFile, now)
	if err = errors.Join(err, s.Close()); err != nil {
		return Census{Problem: err}
	}
	n.Distrusting, n.Problem = distrusting(ctx, config, ca)
	return n
}

func count(ctx context.Context, s *etcd.DB, ca *pki.CA, adminFile string, now time.Time) (Census, error) {
	n := Census{Nodes: map[string]int{}, Operators: map[string]int{}, Holders: map[string][]string{}}
	since, published := ca.NextSince()
	seen := func(who, pin string, issued time.Time) {
		n.Holders[pin] = append(n.Holders[pin], who)
		if published && issued.Before(since.Truncate(time.Second)) { // certificates have no fractions
			n.Late = append(n.Late, who)
		}
	}
	known, err := specs.In(s).List(ctx)
	if err != nil {
		return Census{}, err
	}
	var damaged []string
	for _, name := range known {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue // it can have no nodes
		}
		all, bad, err := access.IdentitiesIn(s).List(ctx, ref)
		if err != nil {
			return Census{}, err
		}
		damaged = append(damaged, bad...)
		for node, i := range all {
			if i.Live() && now.Before(i.Until) {
				n.Nodes[i.CA]++
				seen("node "+node+" of "+name, i.CA, i.Issued)
			}
		}
	}
	operators, bad, err := access.IdentitiesIn(s).Operators(ctx)
	if err != nil {
		return Census{}, err
	}
	for name, op := range operators {
		if id, err := pki.LoadIdentity(adminFile); err == nil && id.Leaf().Subject.CommonName == op.User {
			op.CA, op.Issued, op.Until = signerOf(ca, id.Leaf()), pki.Issued(id.Leaf()), id.Leaf().NotAfter
		}
		if op.Live() && now.Before(op.Until) {
			n.Operators[op.CA]++
			seen("operator "+name, op.CA, op.Issued)
		}
	}
	if damaged = append(damaged, bad...); len(damaged) > 0 {
		return Census{}, errors.New("cannot read all identities: " + damaged[0])
	}
	for _, who := range n.Holders {
		slices.Sort(who)
	}
	slices.Sort(n.Late)
	return n, nil
}

// signerOf returns the fingerprint of the trusted CA that signed a certificate; "" for none.
func signerOf(ca *pki.CA, leaf *x509.Certificate) string {
	for _, a := range ca.Authorities() {
		if leaf.CheckSignatureFrom(a.Certificate) == nil {
			return a.Fingerprint
		}
	}
	return ""
}

const probeTimeout = 5 * time.Second

// distrusting shows a certificate of the next CA to each member of etcd, and returns those that reject it.
func distrusting(ctx context.Context, config etcd.Config, ca *pki.CA) ([]string, error) {
	probe, err := ca.Probe()
	if err != nil {
		return nil, nil //nolint:nilerror // without a next CA there is nothing to trust; Blocker NoNextCA reports that
	}
	pem, err := bounded.ReadFile(config.CACert, 1<<20)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	var all []string
	for _, endpoint := range config.Endpoints {
		trusts, err := accepts(ctx, endpoint, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{probe}, NextProtos: []string{"h2"}})
		if err != nil {
			return nil, fmt.Errorf("cannot test whether etcd at %s trusts the next CA: %w", endpoint, err)
		}
		if !trusts {
			all = append(all, endpoint)
		}
	}
	return all, nil
}

// http2Preface begins an HTTP/2 connection. The server answers with its settings once it has accepted the certificate.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// accepts reports whether a server accepts the client's certificate. In TLS 1.3 it answers only after the handshake.
func accepts(ctx context.Context, endpoint string, config *tls.Config) (bool, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" {
		return false, errors.New("it is not an https URL")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		if err = conn.SetDeadline(deadline); err == nil {
			_, _ = io.WriteString(conn, http2Preface) // the read returns the error
			_, err = conn.Read(make([]byte, 1))
		}
	}
	if connect.Alerted(err) {
		return false, nil
	}
	return err == nil, err
}

// BlockerCode is the code of a Blocker.
type BlockerCode string

// The codes of blockers.
const (
	CensusFailed    BlockerCode = "census_failed"    // etcd did not answer
	PreviousTrusted BlockerCode = "previous_trusted" // the last rotation is not completed
	NoNextCA        BlockerCode = "no_next_ca"
	OldCertificates BlockerCode = "certificates_older_than_next_ca"
	EtcdDistrusts   BlockerCode = "etcd_distrusts_next_ca"
	StillHeld       BlockerCode = "certificates_of_previous_ca"
)

// Blocker is a reason not to rotate or retire a CA yet.
type Blocker struct {
	Code    BlockerCode `json:"code"`
	Names   []string    `json:"names,omitempty"` // nodes and operators, or members of etcd
	Problem string      `json:"problem,omitempty"`
}

// BeforeRotating returns the reasons not to rotate yet.
func (n Census) BeforeRotating(ca *pki.CA) []Blocker {
	all := []Blocker{}
	if n.Problem != nil {
		return append(all, Blocker{Code: CensusFailed, Problem: n.Problem.Error()})
	}
	if Part(ca, pki.PartPrevious) != nil {
		all = append(all, Blocker{Code: PreviousTrusted})
	}
	if _, ok := ca.NextSince(); !ok {
		all = append(all, Blocker{Code: NoNextCA})
	}
	if len(n.Late) > 0 {
		all = append(all, Blocker{Code: OldCertificates, Names: n.Late})
	}
	if len(n.Distrusting) > 0 {
		all = append(all, Blocker{Code: EtcdDistrusts, Names: n.Distrusting})
	}
	return all
}

// BeforeRetiring returns the reasons to trust the previous CA longer.
func (n Census) BeforeRetiring(ca *pki.CA) []Blocker {
	all := []Blocker{}
	previous := Part(ca, pki.PartPrevious)
	switch {
	case previous == nil:
	case n.Problem != nil:
		all = append(all, Blocker{Code: CensusFailed, Problem: n.Problem.Error()})
	case len(n.Holders[previous.Fingerprint]) > 0:
		all = append(all, Blocker{Code: StillHeld, Names: n.Holders[previous.Fingerprint]})
	}
	return all
}

// Sentence renders a blocker.
func (b Blocker) Sentence() string {
	const renewals = "nodes renew by themselves; operators run `pulley login --renew`"
	switch b.Code {
	case CensusFailed:
		return "cannot determine who would lose access: " + b.Problem
	case PreviousTrusted:
		return "the previous CA is still trusted: run `pulley ca retire` first"
	case NoNextCA:
		return "there is no next CA"
	case OldCertificates:
		return fmt.Sprintf("%s older than the next CA: %s; %s", certificates(len(b.Names)), some(b.Names), renewals)
	case EtcdDistrusts:
		return "etcd does not trust the next CA yet: " + some(b.Names) + "; restart `pulley serve`, or give your cluster the new CA file"
	case StillHeld:
		return fmt.Sprintf("%s of the previous CA: %s; %s", certificates(len(b.Names)), some(b.Names), renewals)
	}
	return string(b.Code)
}

func certificates(n int) string {
	if n == 1 {
		return "1 certificate is"
	}
	return fmt.Sprintf("%d certificates are", n)
}

// some joins the first few names.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Part returns one of the CAs, or nil if it does not exist.
func Part(ca *pki.CA, p pki.Part) *pki.Authority {
	for _, a := range ca.Authorities() {
		if a.Part == p {
			return &a
		}
	}
	return nil
}

// ReplaceStolen makes the next CA sign and removes the trust in the stolen one. It returns the stolen CA's
// fingerprint. The caller keeps serve out of the folder meanwhile. A running etcd accepts certificates of the stolen
// key, and while both CAs are trusted, such a certificate could be renewed.
func ReplaceStolen(ca *pki.CA) (stolen string, err error) {
	stolen = ca.Fingerprints()[0]
	if err := ca.Rotate(true); err != nil {
		return stolen, err
	}
	return stolen, ca.Retire()
}
