//go:build e2e

package puppetserver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/environments/settings"
	"pulley/internal/pki"
	"pulley/internal/pki/connect"
	"pulley/internal/puppetserver"
	"pulley/internal/testbed/puppetservertest"
)

var shared puppetservertest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Close(); err != nil {
		code = 1
	}
	os.Exit(code)
}

// credentials are those of a client of the site.
func credentials(t *testing.T, files puppetservertest.Credentials) puppetserver.Credentials {
	t.Helper()
	own, err := puppetserver.LoadCredentials(files.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// client is a client of a server as a certificate that is issued for it.
func client(t *testing.T, site *puppetservertest.Site, server *puppetservertest.Server, as puppetservertest.Client) *puppetserver.Client {
	t.Helper()
	return dial(t, server.URL(), credentials(t, site.Issue(t, as)))
}

func dial(t *testing.T, url string, own puppetserver.Credentials) *puppetserver.Client {
	t.Helper()
	c, err := puppetserver.New(url, own, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var pulley = puppetservertest.Client{Name: puppetservertest.Allowed}

func code(err error) puppetserver.Code {
	var e *puppetserver.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func want(t *testing.T, err error, code puppetserver.Code, parts ...string) {
	t.Helper()
	var e *puppetserver.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%v, want the code %s", err, code)
		return
	}
	for _, part := range parts {
		if !strings.Contains(e.Error()+"\n"+e.Hint(), part) {
			t.Errorf("%v\n%s\nlacks %q", e, e.Hint(), part)
		}
	}
}

// A machine whose certificate is of another key, name or CA never joins, and its operator looks at the wrong place.
func TestCertificateFromRequestToCleanup(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.First, pulley), t.Context()
	const name = "web1.test"
	if _, err := c.Status(ctx, name); code(err) != puppetserver.UnknownName {
		t.Fatal(err)
	}
	extensions := map[string]string{"pp_role": "wéb", "1.3.6.1.4.1.34380.1.2.7": "x"}
	p, err := c.Presign(ctx, name, extensions)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Status(ctx, name)
	if err != nil || s.State != puppetserver.Signed || s.Serial == "" || s.Until.Before(time.Now().Add(24*time.Hour)) || s.From.After(time.Now()) {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = c.Presign(ctx, name, nil)
	want(t, err, puppetserver.Taken, "signed", "pulley puppetserver clean")
	want(t, c.Sign(ctx, name), puppetserver.NoRequest)

	// Puppet takes the certificate for one of its nodes, with the extension.
	own, err := pki.NewIdentity(p.Key, p.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	node := dial(t, site.First.URL(), puppetserver.Credentials{Identity: own, CA: read(t, site.CAFile)})
	site.Put(t, "trusted", "manifests/site.pp", `notify { "${trusted['certname']} ${trusted['extensions']['pp_role']} ${facts['color']}": }`+"\n"+
		`if $trusted['extensions']['pp_role'] != 'wéb' or $facts['color'] != 'a +%&b' { fail("no: ${trusted} ${facts}") }`)
	catalog, err := node.Compile(ctx, "trusted", map[string]any{"color": "a +%&b"})
	if err != nil || catalog.Environment != "trusted" || catalog.Resources < 4 || catalog.Version == "" {
		t.Errorf("%+v, %v", catalog, err)
	}
	_, err = node.List(ctx)
	want(t, err, puppetserver.NoRight, "does not allow GET on /puppet-ca/v1/certificate_statuses to", name, "auth.conf")

	state, err := c.Clean(ctx, name)
	if err != nil || state != puppetserver.Signed {
		t.Errorf("%q, %v", state, err)
	}
	if state, err = c.Clean(ctx, name); err != nil || state != "" {
		t.Errorf("again: %q, %v", state, err)
	}
	_, err = c.Certificate(ctx, name)
	want(t, err, puppetserver.UnknownName)
	_, list, err := c.CRL(ctx)
	if err != nil || !revoked(list, own.Leaf()) {
		t.Errorf("the CRL %v lacks %s: %v", list.RevokedCertificateEntries, own.Leaf().SerialNumber, err)
	}

	// The CA's server refuses it at once, the other one once it has the list.
	eventually(t, "the CA's server refuses the certificate", func() bool {
		_, err := dial(t, site.First.URL(), puppetserver.Credentials{Identity: own, CA: read(t, site.CAFile)}).Compile(ctx, "trusted", nil)
		return refusedClient(err)
	})
	second := dial(t, site.Second.URL(), puppetserver.Credentials{Identity: own, CA: read(t, site.CAFile)})
	if _, err := second.Compile(ctx, "trusted", map[string]any{"color": "a +%&b"}); err != nil {
		t.Errorf("the second server, before it has the list: %v", err)
	}
	site.CopyCRL(t)
	eventually(t, "the second server refuses the certificate", func() bool {
		_, err := dial(t, site.Second.URL(), puppetserver.Credentials{Identity: own, CA: read(t, site.CAFile)}).Compile(ctx, "trusted", nil)
		return refusedClient(err)
	})
}

func revoked(list *x509.RevocationList, cert *x509.Certificate) bool {
	for _, e := range list.RevokedCertificateEntries {
		if e.SerialNumber.Cmp(cert.SerialNumber) == 0 {
			return true
		}
	}
	return false
}

// refusedClient reports whether a server refused the client's certificate.
func refusedClient(err error) bool {
	var f *connect.Failure
	return errors.As(err, &f) && f.Code == connect.OwnRefused
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !done(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 90 s: %s", what)
		}
	}
}

// csr makes a request with a subject and extensions of its own, and returns its key.
func csr(t *testing.T, subject pkix.Name, extensions ...pkix.Extension) []byte {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, ExtraExtensions: extensions}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// An interrupted join is repeated: with the same key it ends in the same certificate, with another one it is refused until
// the name is cleaned.
func TestIssueIsRepeated(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.First, pulley), t.Context()
	const name = "web2.test"
	ours, other := csr(t, pkix.Name{CommonName: name}), csr(t, pkix.Name{CommonName: name})
	if err := c.Request(ctx, name, ours); err != nil { // killed before it was signed
		t.Fatal(err)
	}
	err := c.Request(ctx, name, ours)
	want(t, err, puppetserver.Taken, "has a request of")
	_, err = c.Issue(ctx, name, other, nil)
	want(t, err, puppetserver.Taken, "has a request of", "clean")
	want(t, c.Revoke(ctx, name), puppetserver.NotSigned)
	first, err := c.Issue(ctx, name, ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Issue(ctx, name, ours, nil)
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("again: %v", err)
	}
	_, err = c.Issue(ctx, name, other, nil)
	want(t, err, puppetserver.Taken, "has a certificate of")
	for range 2 { // a repeated revocation is no error
		if err := c.Revoke(ctx, name); err != nil {
			t.Error(err)
		}
	}
	_, err = c.Issue(ctx, name, ours, nil)
	want(t, err, puppetserver.Taken, "revoked")
	if state, err := c.Clean(ctx, name); err != nil || state != puppetserver.Revoked {
		t.Errorf("%q, %v", state, err)
	}
	if err := c.Request(ctx, name, other); err != nil {
		t.Fatal(err)
	}
	all, err := c.List(ctx)
	if err != nil || !has(all, name, puppetserver.Requested) || !has(all, puppetservertest.SecondName, puppetserver.Signed) {
		t.Errorf("%+v, %v", all, err)
	}
	if state, err := c.Clean(ctx, name); err != nil || state != puppetserver.Requested {
		t.Errorf("%q, %v", state, err)
	}
	if _, err := c.Status(ctx, name); code(err) != puppetserver.UnknownName {
		t.Errorf("after the clean: %v", err)
	}
	want(t, c.Sign(ctx, name), puppetserver.UnknownName, "puppetserver list")
	want(t, c.Revoke(ctx, name), puppetserver.UnknownName)
}

func has(all []puppetserver.Status, name string, state puppetserver.State) bool {
	for _, s := range all {
		if s.Name == name && s.State == state {
			return true
		}
	}
	return false
}

// A CA that signs requests by itself must not fail each first attempt of a machine.
func TestIssueAtACAThatSignsByItself(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.First, pulley), t.Context()
	const name = "auto1.test"
	if err := os.WriteFile(filepath.Join(site.Dir, "ca", "autosign.conf"), []byte(name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ours := csr(t, pkix.Name{CommonName: name})
	first, err := c.Issue(ctx, name, ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Issue(ctx, name, ours, nil); err != nil || !bytes.Equal(first, again) {
		t.Errorf("again: %v", err)
	}
}

// A node that takes the name of a Puppet server must not have the server's certificate revoked.
func TestInfrastructureIsNotCleaned(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.First, pulley), t.Context()
	const compiler = "us2.test" // a server without rights at the CA, as most are
	files := site.Issue(t, puppetservertest.Client{Name: compiler, Names: []string{compiler, "puppet"}})
	text, err := os.ReadFile(files.Cert)
	if err == nil {
		err = os.WriteFile(filepath.Join(site.Dir, "ca", "signed", compiler+".pem"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{puppetservertest.FirstName, puppetservertest.SecondName, compiler} {
		_, err := c.Clean(ctx, name)
		want(t, err, puppetserver.Infrastructure, "puppetserver ca")
		want(t, c.Revoke(ctx, name), puppetserver.Infrastructure)
		if s, err := c.Status(ctx, name); err != nil || s.State != puppetserver.Signed {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// A node must not get the rights or the name of another one by its request.
func TestRequestsThatAreNotSigned(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.First, pulley), t.Context()
	admin, err := asn1.MarshalWithParams("true", "utf8")
	if err != nil {
		t.Fatal(err)
	}
	cliAuth := pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34380, 1, 3, 39}, Value: admin}
	const name = "web3.test"
	for _, bad := range []struct {
		what  string
		csr   []byte
		parts []string
	}{
		{"other name", csr(t, pkix.Name{CommonName: "web4.test"}), []string{`its subject is "CN=web4.test"`}},
		{"mixed case", csr(t, pkix.Name{CommonName: "Web3.test"}), []string{`its subject is "CN=Web3.test"`}},
		{"authorization extension", csr(t, pkix.Name{CommonName: name}, cliAuth), []string{"its extension", "1.3.6.1.4.1.34380.1.3.39"}},
	} {
		_, err := c.Issue(ctx, name, bad.csr, nil)
		if code(err) != puppetserver.BadRequest {
			t.Errorf("%s: %v", bad.what, err)
		}
		// Also the CA: by itself it signs none of them.
		err = c.Request(ctx, name, bad.csr)
		if err == nil {
			err = c.Sign(ctx, name)
		}
		want(t, err, puppetserver.Refused)
		if _, err := c.Clean(ctx, name); err != nil {
			t.Error(err)
		}
	}
	_, err = c.Presign(ctx, "Web3.test", nil)
	want(t, err, puppetserver.InvalidName, "lower case")
	err = c.Request(ctx, name, []byte("junk"))
	want(t, err, puppetserver.ServerFailed)
}

// An operator whose connection fails must read the cause and the remedy.
func TestConnectionsThatFail(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	ctx := t.Context()
	other := foreignCA(t)
	for _, c := range []struct {
		what   string
		client *puppetserver.Client
		code   connect.Code
		parts  []string
	}{
		{"wrong CA", dial(t, site.First.URL(), puppetserver.Credentials{Identity: credentials(t, site.Issue(t, pulley)).Identity, CA: other}), connect.CADiffers, []string{"Puppet CA: puppet1.test", "another Puppet CA"}},
		{"expired certificate", client(t, site, site.First, puppetservertest.Client{Name: puppetservertest.Allowed, Until: time.Now().Add(-time.Hour)}), connect.OwnTime, []string{"this machine's certificate ended at", "new certificate"}},
		{"certificate of another CA", client(t, site, site.First, puppetservertest.Client{Name: puppetservertest.Allowed, Foreign: true}), connect.OwnRefused, []string{"revoked, or of another CA"}},
		{"no server", dial(t, "https://127.0.0.1:1", credentials(t, site.Issue(t, pulley))), connect.PortClosed, []string{"start puppetserver there"}},
	} {
		_, err := c.client.List(ctx)
		want(t, err, puppetserver.Unreachable, c.parts...)
		var f *connect.Failure
		if !errors.As(err, &f) || f.Code != c.code {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	own := credentials(t, site.Issue(t, pulley))
	named, err := puppetserver.NewNamed(site.First.URL(), puppetservertest.SecondName, own, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	_, err = named.List(ctx)
	want(t, err, puppetserver.Unreachable, "the server's certificate is for", "not for puppet2.test")
	if named, err = puppetserver.NewNamed(site.First.URL(), "puppetmaster", own, time.Now); err == nil {
		_, err = named.List(ctx)
	}
	if err != nil {
		t.Error(err)
	}
	second := client(t, site, site.Second, pulley)
	_, err = second.List(ctx)
	want(t, err, puppetserver.NoService, "has no CA", "the Puppet server with the CA")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := second.List(ended); !errors.Is(err, context.Canceled) || code(err) != "" {
		t.Error(err)
	}
}

// foreignCA is the certificate of a CA that has nothing to do with Puppet.
func foreignCA(t *testing.T) []byte {
	t.Helper()
	ca, err := pki.OpenCA(t.TempDir(), pki.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return ca.Bundle()
}

// A server without the environment compiles production and answers 200: an operator would release to nodes that take another environment.
func TestCompileNamesTheCause(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	c, ctx := client(t, site, site.Second, pulley), t.Context()
	site.Put(t, "broken", "manifests/site.pp", "class {\n")
	site.Put(t, "fails", "manifests/site.pp", "fail('on purpose')\n")
	for environment, want := range map[string]struct {
		code puppetserver.Code
		text string
	}{
		"nowhere": {puppetserver.EnvironmentMissing, `compiled environment "production"`},
		"No-Way":  {puppetserver.EnvironmentMissing, "lower-case letters"},
		"broken":  {puppetserver.CompileFailed, "Syntax error"},
		"fails":   {puppetserver.CompileFailed, "on purpose"},
	} {
		_, err := c.Compile(ctx, environment, nil)
		if code(err) != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", environment, err)
		}
	}
}

// An operator relies on check before the first join: it must find each fault, and report none on servers without one.
func TestCheckFindsFaults(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	ctx := t.Context()
	settings := &settings.PuppetSettings{CA: settings.PuppetCA{URL: site.First.URL()}, Servers: map[string]settings.PuppetServer{
		"eu1": {Address: site.First.Address}, "us1": {Address: site.Second.Address, Name: puppetservertest.SecondName},
	}}
	site.Put(t, "checked", "manifests/site.pp", "notify { $facts['color']: }\n")
	check := func(own puppetserver.Credentials, now time.Time, plan puppetserver.Plan) map[puppetserver.FindingCode][]puppetserver.Finding {
		t.Helper()
		var err error
		if plan.Site, err = puppetserver.Open(settings, own, func() time.Time { return now }); err != nil {
			t.Fatal(err)
		}
		defer plan.Site.Close()
		found, err := puppetserver.Check(ctx, plan, now)
		if err != nil {
			t.Fatal(err)
		}
		by := map[puppetserver.FindingCode][]puppetserver.Finding{}
		for _, f := range found {
			if f.Sentence() == "" || (f.Remedy() == "") != (f.Severity == puppetserver.Fine) && f.Code != puppetserver.EnvironmentBroken {
				t.Errorf("%s (%s): %q, remedy %q", f.Code, f.Severity, f.Sentence(), f.Remedy())
			}
			by[f.Code] = append(by[f.Code], f)
		}
		return by
	}
	all := credentials(t, site.Issue(t, puppetservertest.Client{Name: puppetservertest.Allowed, Until: time.Now().Add(60 * 24 * time.Hour)}))
	ca := dial(t, site.First.URL(), all)

	// A list without the newest revocation.
	site.CopyCRL(t)
	revoked, err := ca.Revocation(ctx)
	if err != nil {
		t.Fatal(err)
	}
	plan := puppetserver.Plan{Environments: []string{"checked", "nowhere"}, Facts: map[string]any{"color": "green"}, Revoked: &revoked}
	by := check(all, time.Now(), plan)
	for code, servers := range map[puppetserver.FindingCode]string{
		puppetserver.ServerAnswers: "ca eu1 us1", puppetserver.ClockFine: "ca eu1 us1", puppetserver.OwnFine: "ca", puppetserver.CAFine: "ca", puppetserver.RightsFine: "ca",
		puppetserver.CRLFine: "ca", puppetserver.CRLArrived: "eu1", puppetserver.CRLOld: "us1", puppetserver.EnvironmentFine: "eu1 us1", puppetserver.EnvironmentBroken: "eu1 us1",
	} {
		var names []string
		for _, f := range by[code] {
			names = append(names, f.Server)
		}
		if got := strings.Join(names, " "); got != servers {
			t.Errorf("%s is found at %q, want %q", code, got, servers)
		}
		delete(by, code)
	}
	if len(by) > 0 {
		t.Errorf("more than expected: %+v", by)
	}
	site.CopyCRL(t)
	second := dial(t, site.Second.URL(), all)
	eventually(t, "the second server has the list", func() bool { known, err := second.Refuses(ctx, revoked); return err == nil && known })
	if by = check(all, time.Now(), plan); len(by[puppetserver.CRLArrived]) != 2 || len(by[puppetserver.CRLOld]) != 0 {
		t.Errorf("after the copy: %+v", by)
	}
	if by = check(all, time.Now(), puppetserver.Plan{}); len(by[puppetserver.CRLUnknown]) != 2 {
		t.Errorf("without a revoked certificate: %+v", by)
	}

	// Rights, clocks and ends.
	if by = check(credentials(t, site.Issue(t, puppetservertest.Client{Name: "plain.test"})), time.Now(), puppetserver.Plan{}); len(by[puppetserver.RightsMissing]) != 4 || len(by[puppetserver.OwnEnds]) != 1 {
		t.Errorf("without rights: %+v", by)
	}
	if by = check(all, time.Now().Add(2*time.Minute), plan); len(by[puppetserver.ClockOff]) != 3 || by[puppetserver.ClockOff][0].Severity != puppetserver.Warning {
		t.Errorf("two minutes off: %+v", by[puppetserver.ClockOff])
	}
	if by = check(all, time.Now().Add(-40*time.Hour), plan); len(by[puppetserver.ClockOff])+len(by[puppetserver.ServerFails]) != 3 {
		t.Errorf("40 hours off: %+v", by)
	}
	if by = check(all, time.Now().Add(3*time.Hour), plan); by[puppetserver.ClockOff][0].Severity != puppetserver.Problem || by[puppetserver.ClockOff][0].Seconds > -3*3600+60 {
		t.Errorf("three hours off: %+v", by[puppetserver.ClockOff])
	}
	const year = 366 * 24 * time.Hour
	if by = check(all, time.Now().Add(year), puppetserver.Plan{}); len(by[puppetserver.ClockOff]) != 3 || by[puppetserver.ClockOff][0].Severity != puppetserver.Problem {
		t.Errorf("a year ahead: %+v", by)
	}
	if by = check(all, time.Now().Add(-year), puppetserver.Plan{}); len(by[puppetserver.ServerFails]) != 3 || by[puppetserver.ServerFails][0].Kind != string(connect.ServerTime) ||
		!strings.Contains(by[puppetserver.ServerFails][0].Remedy(), "check this machine's clock") {
		t.Errorf("a year behind: %+v", by)
	}
	other := all
	other.CA = append(other.CA[:0:0], foreignCA(t)...)
	other.CA = append(other.CA, all.CA...)
	if by = check(other, time.Now(), puppetserver.Plan{}); len(by[puppetserver.CAChanged]) != 1 {
		t.Errorf("ca.pem of another CA: %+v", by)
	}
	settings.CA.URL = site.Second.URL()
	if by = check(all, time.Now(), puppetserver.Plan{}); len(by[puppetserver.ServerFails]) != 1 || !strings.Contains(by[puppetserver.ServerFails][0].Sentence(), "has no CA") {
		t.Errorf("a server without CA in its place: %+v", by)
	}
}

// With the CA down, runs continue, and joins name the cause. The test stops the CA's server.
func TestZCADown(t *testing.T) {
	site := shared.Site(t)
	site.Up(t)
	own := credentials(t, site.Issue(t, pulley))
	site.First.Kill()
	_, err := dial(t, site.First.URL(), own).Presign(t.Context(), "web9.test", nil)
	want(t, err, puppetserver.Unreachable, "the port is closed", "start puppetserver there")
	site.Put(t, "production", "manifests/site.pp", "")
	if _, err := dial(t, site.Second.URL(), own).Compile(t.Context(), "production", nil); err != nil {
		t.Error(err)
	}
	process := site.Second.Process()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := dial(t, site.Second.URL(), own).Health(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
