package puppetserver

import (
	"crypto/x509"
	"encoding/json"
	"slices"
	"testing"

	"pulley/internal/pki"
	"pulley/internal/puppetserver/requests"
)

// Each form of the CA's list that was seen, and what must not be taken for one.
func TestStatusForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"name":"web1","state":"requested","dns_alt_names":[],"subject_alt_names":[],"authorization_extensions":{},"fingerprint":"B1:1E"}`: "web1 requested  0001",
		`{"name":"web1","state":"signed","not_before":"2026-11-25T10:58:27UTC","not_after":"2041-11-22T10:58:29UTC","serial_number":7}`:     "web1 signed 7 2041",
		`{"name":"web1","state":"signed","serial_number":123456789012345678901234567890}`:                                                   "web1 signed 123456789012345678901234567890 0001",
		`{"name":"web1","state":"lost"}`:                           "",
		`{"state":"signed"}`:                                       "",
		`{"name":"web1","state":"signed","not_after":"yesterday"}`: "",
		`[]`:   "",
		`null`: "",
	} {
		var s Status
		err := json.Unmarshal([]byte(text), &s)
		if got := s.Name + " " + string(s.State) + " " + s.Serial + " " + s.Until.Format("2006"); err == nil && got != want || (err != nil) != (want == "") {
			if !(text == "null" && s.Name == "") { // package json skips it: callers compare the name
				t.Errorf("%s: %q, %v", text, got, err)
			}
		}
	}
}

// A name that is a path, an option, or the CA's own never reaches a URL.
func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"web1": true, "web1.example.com": true, "compute2_t42": true, "1a": true, "": false, "Web1": false, "ca": false, "a/b": false, "../x": false, "-x": false, "a b": false,
		"web1\n": false, "ä": false, "a%2fb": false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Authorization extensions give rights on Puppet's CA: no spelling of one is accepted.
func TestExtensionOID(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"pp_role": "1.3.6.1.4.1.34380.1.1.13", "1.3.6.1.4.1.34380.1.1.13": "1.3.6.1.4.1.34380.1.1.13", "1.3.6.1.4.1.34380.1.2.1.1": "1.3.6.1.4.1.34380.1.2.1.1",
		"pp_cli_auth": "", "pp_auth_role": "", "pp_authorization": "", "1.3.6.1.4.1.34380.1.3.39": "", "2.5.29.17": "", "subjectAltName": "", "": "",
		"1.3.6.1.4.1.34380.1.2.": "", "1.3.6.1.4.1.34380.1.2.01": "", "1.3.6.1.4.1.34380.1.2.-1": "", "1.3.6.1.4.1.34380.1.2.99999999999999999999": "",
	} {
		oid, err := requests.OID(name)
		if got := oid.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v", name, got, err)
		}
	}
}

func FuzzCheckCSR(f *testing.F) {
	key, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	want := map[string]string{"pp_role": "web"}
	csr, err := NewCSR(key, "web1", want)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Fuzz(func(t *testing.T, csr []byte) {
		r, err := CheckCSR(csr, "web1", want)
		if err == nil && (r.Subject.CommonName != "web1" || len(r.Extensions) != 1) {
			t.Errorf("accepted %s with %v", r.Subject, r.Extensions)
		}
	})
}

func FuzzParseAnswers(f *testing.F) {
	for _, text := range []string{
		`[{"name":"web1","state":"signed","not_before":"2026-11-25T10:58:27UTC","serial_number":1}]`,
		`{"environment":"production","version":1795690844,"code_id":null,"resources":[{"type":"Stage"}]}`, `{"ca":{"state":"running"},"server":{"service_version":"7.9.5","state":"starting"}}`,
		"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var all []Status
		if json.Unmarshal(b, &all) == nil {
			for _, s := range all {
				if s.Name != "" && s.State == "" {
					t.Errorf("%q has no state", s.Name)
				}
			}
		}
		if c, err := parseCatalog(b); err == nil && c.Environment == "" {
			t.Error("a catalog without environment")
		}
		var h Health
		_ = h.parse(b)
		if list, err := ParseCRL(b, []*x509.Certificate{{}}); err == nil {
			t.Errorf("unsigned list: %v", list)
		}
	})
}

// What the status service of puppetserver 7.9.5 reports, and a server that is starting.
func TestHealthForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Health{
		`{"ca":{"service_version":"7.9.5","state":"running"},"server":{"service_version":"7.9.5","state":"running"}}`: {Version: "7.9.5", HasCA: true},
		`{"server":{"service_version":"7.9.5","state":"starting"},"master":{"state":"unknown"}}`:                      {Version: "7.9.5", Stopped: []string{"master", "server"}},
		`{}`: {},
	} {
		var h Health
		if err := h.parse([]byte(text)); err != nil || h.Version != want.Version || h.HasCA != want.HasCA || !slices.Equal(h.Stopped, want.Stopped) {
			t.Errorf("%s: %+v, %v", text, h, err)
		}
	}
	if (&Health{}).parse([]byte("running")) == nil {
		t.Error("another answer is taken for the status")
	}
}
