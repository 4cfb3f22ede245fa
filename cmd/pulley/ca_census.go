package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// census is who has certificates of which CA.
type census struct {
	nodes, operators map[string]int // by the pin of the CA that signed
	holders          map[string][]string
	late             []string // who got the CAs' certificates before the next one was among them
	distrusting      []string // members of etcd that don't trust the next CA yet
	problem          error    // why this is not known
}

// count reads all identities. Serve renews the administrator's while its file lies in the folder: that says more than etcd.
// One whose certificate has ended is shut out already.
func count(ctx context.Context, s *store.Store, ca *pki.CA, admin string, now time.Time) (census, error) {
	n := census{nodes: map[string]int{}, operators: map[string]int{}, holders: map[string][]string{}}
	since, published := ca.NextSince()
	seen := func(who, pin string, issued time.Time) {
		n.holders[pin] = append(n.holders[pin], who)
		if published && issued.Before(since.Truncate(time.Second)) { // certificates have no fractions
			n.late = append(n.late, who)
		}
	}
	known, err := s.Environments(ctx)
	if err != nil {
		return census{}, err
	}
	var damaged []string
	for _, name := range known {
		ref, err := environments.ParseRef(name)
		if err != nil {
			return census{}, err
		}
		all, bad, err := s.Identities(ctx, ref)
		if err != nil {
			return census{}, err
		}
		damaged = append(damaged, bad...)
		for node, i := range all {
			if i.Live() && now.Before(i.Until) {
				n.nodes[i.CA]++
				seen("node "+node+" of "+name, i.CA, i.Issued)
			}
		}
	}
	operators, bad, err := s.Operators(ctx)
	if err != nil {
		return census{}, err
	}
	for name, op := range operators {
		if id, err := pki.LoadIdentity(admin); err == nil && id.Leaf().Subject.CommonName == op.User {
			op.CA, op.Issued, op.Until = signerOf(ca, id.Leaf()), pki.Issued(id.Leaf()), id.Leaf().NotAfter
		}
		if op.Live() && now.Before(op.Until) {
			n.operators[op.CA]++
			seen("operator "+name, op.CA, op.Issued)
		}
	}
	if damaged = append(damaged, bad...); len(damaged) > 0 {
		return census{}, errors.New("there are identities that can't be read: " + damaged[0])
	}
	for _, who := range n.holders {
		slices.Sort(who)
	}
	slices.Sort(n.late)
	return n, nil
}

// signerOf is the pin of the CA that signed a certificate; "" when it is none of those that are trusted.
func signerOf(ca *pki.CA, leaf *x509.Certificate) string {
	for _, a := range ca.Authorities() {
		if leaf.CheckSignatureFrom(a.Certificate) == nil {
			return a.Fingerprint
		}
	}
	return ""
}

const probeTimeout = 5 * time.Second

// distrusting asks each member of etcd, by showing it a certificate of the next CA.
func distrusting(ctx context.Context, config store.Config, ca *pki.CA) ([]string, error) {
	probe, err := ca.Probe()
	if err != nil {
		return nil, nil //nolint:nilerror // without a next CA there is nobody to trust; rotating says so
	}
	pem, err := os.ReadFile(config.CACert)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	var all []string
	for _, endpoint := range config.Endpoints {
		trusts, err := takes(ctx, endpoint, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{probe}, NextProtos: []string{"h2"}})
		if err != nil {
			return nil, fmt.Errorf("cannot find out whether etcd at %s trusts the next CA: %w", endpoint, err)
		}
		if !trusts {
			all = append(all, endpoint)
		}
	}
	return all, nil
}

// http2Preface is how an HTTP/2 client begins; the server answers with its settings once it has taken the certificate.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// takes reports whether a server accepts the client's certificate. In TLS 1.3 it says so only after the handshake.
func takes(ctx context.Context, endpoint string, config *tls.Config) (bool, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" {
		return false, errors.New("it is no https URL")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", u.Host)
	if err == nil {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		if err = conn.SetDeadline(deadline); err == nil {
			_, _ = io.WriteString(conn, http2Preface) // why it fails, reading tells
			_, err = conn.Read(make([]byte, 1))
		}
	}
	var alert tls.AlertError
	if errors.As(err, &alert) || err != nil && strings.Contains(err.Error(), "remote error: tls: ") {
		return false, nil
	}
	return err == nil, err
}

// beforeRotating are the reasons not to rotate yet, as sentences.
func (n census) beforeRotating(ca *pki.CA) []string {
	if n.problem != nil {
		return []string{"it can't be known who would be shut out: " + n.problem.Error()}
	}
	var all []string
	if previous := part(ca, pki.PartPrevious); previous != nil {
		all = append(all, "the CA before is still trusted: `pulley ca retire` first")
	}
	if _, ok := ca.NextSince(); !ok {
		all = append(all, "there is no next CA")
	}
	if len(n.late) > 0 {
		all = append(all, fmt.Sprintf("%s a certificate from before the next CA was made, and can't know that one: %s; nodes renew by themselves, operators with `pulley login --renew`", identitiesHave(len(n.late)), some(n.late)))
	}
	if len(n.distrusting) > 0 {
		all = append(all, "etcd does not trust the next CA yet: "+some(n.distrusting)+"; restart `pulley serve`, or give your cluster the new CA file")
	}
	return all
}

// beforeRetiring are the reasons not to end the trust in the previous CA yet.
func (n census) beforeRetiring(ca *pki.CA) []string {
	previous := part(ca, pki.PartPrevious)
	switch {
	case previous == nil:
		return nil
	case n.problem != nil:
		return []string{"it can't be known who would be shut out: " + n.problem.Error()}
	}
	if who := n.holders[previous.Fingerprint]; len(who) > 0 {
		return []string{fmt.Sprintf("%s a certificate of it: %s; nodes renew by themselves, operators with `pulley login --renew`", identitiesHave(len(who)), some(who))}
	}
	return nil
}

func identitiesHave(n int) string {
	if n == 1 {
		return "1 identity has"
	}
	return fmt.Sprintf("%d identities have", n)
}

// some names the first few.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// part is one of the CAs; nil when there is none.
func part(ca *pki.CA, p pki.Part) *pki.Authority {
	for _, a := range ca.Authorities() {
		if a.Part == p {
			return &a
		}
	}
	return nil
}
