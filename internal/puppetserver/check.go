package puppetserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"pulley/internal/pki"
	"pulley/internal/pki/connect"
)

// Severity is how bad a finding is.
type Severity string

// The severities. A problem fails joins or runs now; a warning will.
const (
	Fine    Severity = "ok"
	Warning Severity = "warning"
	Problem Severity = "problem"
)

// FindingCode names a kind of finding.
type FindingCode string

// The codes, by check. URL and Server are always set.
const (
	ServerAnswers     FindingCode = "server_answers"  // Version
	ServerFails       FindingCode = "server_fails"    // Kind, Text, Advice
	ServerStopped     FindingCode = "server_stopped"  // Services
	VersionsDiffer    FindingCode = "versions_differ" // Version, Other
	ClockFine         FindingCode = "clock_fine"
	ClockOff          FindingCode = "clock_off"            // Seconds
	OwnFine           FindingCode = "own_certificate_fine" // Name, At
	OwnEnds           FindingCode = "own_certificate_ends" // Name, At
	RightsFine        FindingCode = "rights_fine"          // Name
	RightsMissing     FindingCode = "rights_missing"       // Kind, Text, Advice
	CAFine            FindingCode = "ca_fine"              // At: its end
	CAChanged         FindingCode = "ca_changed"           // the CA serves other certificates than ca.pem
	CAEnds            FindingCode = "ca_ends"              // At
	CAMissing         FindingCode = "ca_missing"           // the environment file names none
	CRLFine           FindingCode = "crl_fine"             // At: when it was made; Until
	CRLEnded          FindingCode = "crl_ended"            // Until
	CRLFails          FindingCode = "crl_fails"            // Kind, Text, Advice
	CRLArrived        FindingCode = "crl_arrived"          // At: of the revocation that the server knows
	CRLOld            FindingCode = "crl_old"              // At: of a revocation that the server does not know
	CRLUnknown        FindingCode = "crl_unknown"          // nothing was revoked with which a server can be tested
	EnvironmentFine   FindingCode = "environment_compiles" // Environment, Resources
	EnvironmentBroken FindingCode = "environment_fails"    // Environment, Kind, Text, Advice
)

// Finding is one result of Check. Sentence and Remedy render it.
type Finding struct {
	Severity    Severity    `json:"severity"`
	Check       string      `json:"check"`
	Code        FindingCode `json:"code"`
	Server      string      `json:"server"` // name in the environment file, or "ca"
	URL         string      `json:"url"`
	Version     string      `json:"version,omitempty"`
	Other       string      `json:"other_version,omitempty"` // version of another server
	Services    []string    `json:"services,omitempty"`
	Seconds     int64       `json:"seconds,omitempty"`
	Name        string      `json:"name,omitempty"` // of the client's certificate
	At          time.Time   `json:"at,omitzero"`
	Until       time.Time   `json:"until,omitzero"`
	Environment string      `json:"environment,omitempty"`
	Resources   int         `json:"resources,omitempty"`
	Kind        string      `json:"kind,omitempty"`  // code of an error, or of a failed connection
	Text        string      `json:"error,omitempty"` // for people
	Advice      string      `json:"hint,omitempty"`  // that came with the error
}

// The limits of what is fine. Puppet's CA dates certificates back by a day.
const (
	clockTolerance = time.Minute
	clockProblem   = time.Hour
	endsSoon       = 30 * 24 * time.Hour
	crlDelay       = 2 * time.Hour // after which a revocation should be everywhere
)

// Plan is what Check examines.
type Plan struct {
	Site         Site
	Environments []string       // to compile on each server
	Facts        map[string]any // for these catalogs
	Revoked      *pki.Identity  // a revoked certificate, from Revocation; nil for none
}

// Check examines the CAs and the servers, and changes nothing. An error is only the end of the context.
func Check(ctx context.Context, p Plan, now time.Time) ([]Finding, error) {
	c := &checker{plan: p, now: now}
	for _, ca := range p.Site.CAs() {
		c.authority(ctx, ca)
	}
	if p.Site.CA == nil {
		c.add(Finding{Severity: Warning, Check: "ca", Code: CAMissing, Server: "ca"})
	}
	for _, s := range p.Site.Servers {
		c.server(ctx, s)
	}
	return c.found, ctx.Err()
}

type checker struct {
	plan    Plan
	now     time.Time
	found   []Finding
	revoked time.Time // when the CA revoked plan.Revoked; zero for unknown
	newest  time.Time // last revocation of the CA
	version Finding   // of the first server that answered
}

func (c *checker) add(f Finding) { c.found = append(c.found, f) }

// failed adds a finding about an error.
func (c *checker) failed(f Finding, severity Severity, err error) {
	f.Severity, f.Text = severity, err.Error()
	var of *Error
	var connection *connect.Failure
	switch {
	case errors.As(err, &connection):
		f.Kind = string(connection.Code)
	case errors.As(err, &of):
		f.Kind = string(of.Code)
	}
	var hinting interface{ Hint() string }
	if errors.As(err, &hinting) {
		f.Advice = hinting.Hint()
	}
	c.add(f)
}

// health adds the findings about a server that answers or not, and reports whether it does.
func (c *checker) health(ctx context.Context, name string, client *Client) bool {
	of := Finding{Check: "answers", Server: name, URL: client.URL}
	h, err := client.Health(ctx)
	if e := (*Error)(nil); errors.As(err, &e) && e.Code == NoRight { // auth.conf may hide the status: the other checks tell more
		err = nil
	}
	if err != nil {
		of.Code = ServerFails
		c.failed(of, Problem, err)
		return false
	}
	of.Version = h.Version
	if len(h.Stopped) > 0 {
		of.Severity, of.Code, of.Services = Warning, ServerStopped, h.Stopped
	} else {
		of.Severity, of.Code = Fine, ServerAnswers
	}
	c.add(of)
	if first := c.version; first.Version == "" {
		c.version = of
	} else if of.Version != "" && of.Version != first.Version {
		c.add(Finding{Severity: Warning, Check: "version", Code: VersionsDiffer, Server: name, URL: client.URL, Version: of.Version, Other: first.Version})
	}
	clock := Finding{Severity: Fine, Check: "clock", Code: ClockFine, Server: name, URL: client.URL, Seconds: int64(h.Skew / time.Second)}
	if h.Skew.Abs() > clockTolerance {
		clock.Severity, clock.Code = Warning, ClockOff
	}
	if h.Skew.Abs() > clockProblem {
		clock.Severity = Problem
	}
	c.add(clock)
	return true
}

// authority examines one CA: rights, certificates and revocation list.
func (c *checker) authority(ctx context.Context, ca *Client) {
	if !c.health(ctx, authority, ca) {
		return
	}
	own := ca.own.Identity.Leaf()
	f := Finding{Severity: Fine, Check: "certificate", Code: OwnFine, Server: authority, URL: ca.URL, Name: ca.own.Name(), At: own.NotAfter.UTC()}
	if own.NotAfter.Sub(c.now) < endsSoon {
		f.Severity, f.Code = Warning, OwnEnds
	}
	c.add(f)
	f = Finding{Check: "ca", Server: authority, URL: ca.URL}
	switch same, err := ca.sameCA(ctx); {
	case err != nil:
		f.Code = ServerFails
		c.failed(f, Problem, err)
		return // each further check would repeat it
	case !same:
		f.Severity, f.Code = Problem, CAChanged
		c.add(f)
		return
	default:
		f.Severity, f.Code, f.At = Fine, CAFine, ca.caFile[0].NotAfter.UTC()
		if f.At.Sub(c.now) < endsSoon {
			f.Severity, f.Code = Warning, CAEnds
		}
		c.add(f)
	}
	f = Finding{Check: "rights", Server: authority, URL: ca.URL, Name: ca.own.Name()}
	missing := false
	for _, try := range ca.rights() {
		if err := try(ctx); err != nil {
			missing, f.Code = true, RightsMissing
			c.failed(f, Problem, err)
		}
	}
	if !missing {
		f.Severity, f.Code = Fine, RightsFine
		c.add(f)
	}
	c.authorityCRL(ctx, ca)
}

// sameCA reports whether the CA serves the issuing certificate of ca.pem.
func (c *Client) sameCA(ctx context.Context) (bool, error) {
	b, err := c.CA(ctx)
	if err != nil {
		return false, err
	}
	certs, err := pki.ParseCertificates(b)
	return err == nil && certs[0].Equal(c.caFile[0]), err
}

// rights returns requests that need each right and change nothing: they are about a name that nobody has.
func (c *Client) rights() []func(context.Context) error {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	name := "pulley-check-" + hex.EncodeToString(id)
	unknown := func(err error) error {
		var e *Error
		if errors.As(err, &e) && e.Code == UnknownName {
			return nil
		}
		return err
	}
	return []func(context.Context) error{
		func(ctx context.Context) error { _, err := c.List(ctx); return err },
		func(ctx context.Context) error { _, err := c.Status(ctx, name); return unknown(err) },
		func(ctx context.Context) error { return unknown(c.Sign(ctx, name)) },
		func(ctx context.Context) error { return c.delete(ctx, "clean "+name, name) },
	}
}

// authorityCRL examines the CA's list, and finds when the certificate of the plan was revoked.
func (c *checker) authorityCRL(ctx context.Context, ca *Client) {
	f := Finding{Check: "crl", Server: authority, URL: ca.URL}
	_, list, err := ca.CRL(ctx)
	if err != nil {
		f.Code = CRLFails
		c.failed(f, Problem, err)
		return
	}
	f.Severity, f.Code, f.At, f.Until = Fine, CRLFine, list.ThisUpdate.UTC(), list.NextUpdate.UTC()
	if c.now.After(list.NextUpdate) {
		f.Severity, f.Code = Problem, CRLEnded
	}
	c.add(f)
	for _, e := range list.RevokedCertificateEntries {
		if e.RevocationTime.After(c.newest) {
			c.newest = e.RevocationTime.UTC()
		}
		if c.plan.Revoked != nil && e.SerialNumber.Cmp(c.plan.Revoked.Leaf().SerialNumber) == 0 {
			c.revoked = e.RevocationTime.UTC()
		}
	}
}

// server examines one server: its copy of the revocation list, and the environments.
func (c *checker) server(ctx context.Context, s Server) {
	if !c.health(ctx, s.Name, s.Client) {
		return
	}
	if len(c.plan.Site.CAs()) > 0 {
		c.serverCRL(ctx, s)
	}
	for _, environment := range c.plan.Environments {
		f := Finding{Severity: Fine, Check: "environment", Code: EnvironmentFine, Server: s.Name, URL: s.Client.URL, Environment: environment}
		catalog, err := s.Client.Compile(ctx, environment, c.plan.Facts)
		if err != nil {
			f.Code = EnvironmentBroken
			c.failed(f, Problem, err)
			continue
		}
		f.Resources, f.Version = catalog.Resources, catalog.Version
		c.add(f)
	}
}

// serverCRL shows the server a certificate that the CA revoked. A server without a CA does not publish its copy of the list.
func (c *checker) serverCRL(ctx context.Context, s Server) {
	f := Finding{Severity: Warning, Check: "crl", Code: CRLUnknown, Server: s.Name, URL: s.Client.URL, At: c.revoked}
	if c.revoked.IsZero() {
		if !c.newest.IsZero() { // without any revocation, there is nothing that a copy could lack
			c.add(f)
		}
		return
	}
	switch known, err := s.Client.Refuses(ctx, *c.plan.Revoked); {
	case err != nil:
		f.Code = ServerFails
		c.failed(f, Problem, err)
	case known:
		f.Severity, f.Code = Fine, CRLArrived
		if c.newest.After(c.revoked) {
			f.Until = c.newest // later revocations are not tested
		}
		c.add(f)
	default:
		f.Code = CRLOld
		if c.now.Sub(c.revoked) > crlDelay {
			f.Severity = Problem
		}
		c.add(f)
	}
}

// Revocation makes a certificate and revokes it, for Check: each server must refuse it. It returns when the CA's own server
// does.
func (c *Client) Revocation(ctx context.Context) (pki.Identity, error) {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	name := "pulley-crl-" + hex.EncodeToString(id)
	p, err := c.Presign(ctx, name, nil)
	if err != nil {
		return pki.Identity{}, err
	}
	if _, err := c.Clean(ctx, name); err != nil {
		return pki.Identity{}, err
	}
	revoked, err := pki.NewIdentity(p.Key, p.Certificate)
	if err != nil {
		return pki.Identity{}, err
	}
	wait, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		if known, err := c.Refuses(wait, revoked); known || err != nil {
			return revoked, err
		}
		select {
		case <-wait.Done():
			return revoked, ctx.Err() // Check reports that the server still accepts it
		case <-tick.C:
		}
	}
}

// Refuses reports whether the server refuses the certificate of another client.
func (c *Client) Refuses(ctx context.Context, of pki.Identity) (bool, error) {
	other := c.as(of)
	defer other.Close()
	_, err := other.do(ctx, request{doing: "test the revocation list of the server", method: http.MethodGet, path: "/status/v1/simple"})
	var f *connect.Failure
	if errors.As(err, &f) && (f.Code == connect.OwnRefused || f.Code == connect.OwnRejected) {
		return true, nil
	}
	return false, err
}

// Worst returns the worst severity of findings.
func Worst(found []Finding) Severity {
	worst := Fine
	for _, f := range found {
		if f.Severity == Problem || f.Severity == Warning && worst == Fine {
			worst = f.Severity
		}
	}
	return worst
}
