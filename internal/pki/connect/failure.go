// Package connect names why a connection to etcd, to pulley serve, to a Puppet server or to PuppetDB failed. Explain finds the cause in an error, Probe tries an
// endpoint of etcd itself. A Failure is a code with parameters; words.go makes its sentence and its remedy, the same for
// both programs, for first boots and for doctor.
//
// It must never send more than a TLS handshake and the first bytes of HTTP, and never decide what a failure means for a caller.
package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"time"

	"pulley/internal/pki"

	"pulley/internal/pattern"
)

// Code names the cause of a failed connection.
type Code string

// The causes.
const (
	AddressInvalid   Code = "address_invalid"            // Text
	HostUnknown      Code = "host_unknown"               // Host
	NameServerSilent Code = "name_server_silent"         // Host
	HostUnreachable  Code = "host_unreachable"           //
	PortClosed       Code = "port_closed"                //
	ConnectTimeout   Code = "connect_timeout"            // Within
	TLSTimeout       Code = "tls_timeout"                // Within
	AnswerTimeout    Code = "answer_timeout"             // Within
	ConnectionClosed Code = "connection_closed"          //
	NoLeader         Code = "no_leader"                  //
	ServerPlain      Code = "server_without_tls"         // https:// where plain text is spoken
	ServerTLS        Code = "server_with_tls"            // http:// where TLS is spoken
	JoinsPort        Code = "port_of_joins"              // of pulley serve, in the place of etcd's
	EtcdsPort        Code = "port_of_etcd"               // in the place of pulley serve's
	OtherServer      Code = "other_server"               //
	Busy             Code = "busy"                       // Text
	OtherName        Code = "certificate_of_other_name"  // Host, Names
	CAMissing        Code = "ca_missing"                 // Issuer
	CADiffers        Code = "ca_differs"                 // Issuer, CA
	PinDiffers       Code = "ca_not_pinned"              //
	OwnMissing       Code = "client_certificate_missing" //
	OwnRejected      Code = "client_certificate_foreign" // Client
	OwnRefused       Code = "client_certificate_refused" // Client; a Puppet server gives no reason
	OwnTime          Code = "clock_own_certificate"      // Now, From, Until
	ServerTime       Code = "clock_server_certificate"   // Now, From, Until
	Other            Code = "other"                      // Text
)

// Server is what should answer.
type Server string

// The servers.
const (
	Etcd     Server = "etcd"
	Serve    Server = "pulley serve"
	Puppet   Server = "the Puppet server"
	PuppetDB Server = "PuppetDB"
)

// Target is one server and how it is dialled.
type Target struct {
	Server  Server
	URL     string
	TLS     *tls.Config       // nil for plain text
	CA      string            // file of the CA certificates that verify the server; "": those of this machine
	Own     *x509.Certificate // the certificate that this machine shows; nil for none
	Timeout time.Duration     // of a connection, for the sentence
}

// Failure is why a server cannot be reached. Each code has few of the parameters.
type Failure struct {
	Code   Code
	Server Server
	URL    string

	Host             string        // dialled name
	Names            []string      // of the server's certificate
	Issuer           string        // of the server's certificate
	CA               string        // file
	Client           string        // name of this machine's certificate
	Within           time.Duration // time that passed
	Now, From, Until time.Time     // by this machine's clock; the validity of a certificate, where it is known
	Text             string        // of a library
	Err              error         // may be nil
}

func (f *Failure) Unwrap() error { return f.Err }

// Clock reports whether a clock contradicts a certificate: the machine's clock, the server's clock or the certificate is wrong.
func (f *Failure) Clock() bool { return f.Code == OwnTime || f.Code == ServerTime }

// Patterns of the texts of crypto/tls, crypto/x509 and net. gRPC and net/http keep only the text of an error.
var (
	validity  = pattern.Lazy(`x509: certificate has expired or is not yet valid: current time (\S+) is (after|before) ([^\s"]+)`)
	otherName = pattern.Lazy(`x509: (?:certificate is (?:not )?valid for ([^"]*), not |cannot validate certificate for )(\S+)`)
	noHost    = pattern.Lazy(`lookup (\S+?)(?: on \S+)?: (.*)`)
)

// codesOf maps texts of errors to the codes that need no parameter beyond the target's. The first match counts.
var codesOf = []struct {
	text string
	code Code
}{
	{"connection refused", PortClosed},
	{"no route to host", HostUnreachable},
	{"network is unreachable", HostUnreachable},
	{"host is down", HostUnreachable},
	{"x509: certificate signed by unknown authority", CADiffers},
	{"first record does not look like a TLS handshake", ServerPlain},
	{"server gave HTTP response to HTTPS client", ServerPlain},
	{"remote error: tls: certificate required", OwnMissing},
	{"remote error: tls: unknown certificate authority", OwnRejected},
	{"remote error: tls: bad certificate", OwnRejected},    // with TLS 1.2 also a missing one
	{"remote error: tls: unknown certificate", OwnRefused}, // of Java: revoked, ended, or of another CA
	{"remote error: tls: expired certificate", OwnTime},
	{"remote error: tls: no application protocol", OtherServer},
	{"missing selected ALPN property", OtherServer},
	{"is not of pulley serve", OtherServer},
	{"unexpected HTTP status code", OtherServer},
	{"unexpected content-type", OtherServer},
	{"missing port in address", AddressInvalid},
	{"too many colons in address", AddressInvalid},
	{"invalid port", AddressInvalid},
	{"unknown port", AddressInvalid},
	{"no leader", NoLeader},
	{"TLS handshake timeout", TLSTimeout},
	{"connection reset by peer", ConnectionClosed},
	{"broken pipe", ConnectionClosed},
	{"EOF", ConnectionClosed},
	{"transport is closing", ConnectionClosed},
	{"i/o timeout", AnswerTimeout},
	{"deadline exceeded", AnswerTimeout},
	{"request timed out", NoLeader}, // etcd found no majority
}

// dialling is part of the error of a connection that never was.
const dialling = "dial tcp"

// Explain returns the cause of a failed connection. now is this machine's clock.
func (t Target) Explain(err error, now time.Time) *Failure {
	var known *Failure
	if errors.As(err, &known) {
		return known
	}
	text := err.Error()
	f := &Failure{Code: Other, Server: t.Server, URL: t.URL, CA: t.CA, Within: t.Timeout, Now: now, Text: plain(text), Err: err}
	if t.Own != nil {
		f.Client = t.Own.Subject.CommonName
	}
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
		leaf := unverified.UnverifiedCertificates[0]
		f.Issuer, f.Names = leaf.Issuer.CommonName, slices.Clone(leaf.DNSNames)
		for _, ip := range leaf.IPAddresses {
			f.Names = append(f.Names, ip.String())
		}
	}
	if errors.Is(err, pki.ErrPin) {
		f.Code = PinDiffers
		return f
	}
	if m := validity().FindStringSubmatch(text); m != nil {
		f.Code = ServerTime
		if at, err := time.Parse(time.RFC3339, m[1]); err == nil {
			f.Now = at
		}
		limit, _ := time.Parse(time.RFC3339, m[3]) // a time that is not readable is left out
		if m[2] == "after" {
			f.Until = limit
		} else {
			f.From = limit
		}
		return f
	}
	if m := otherName().FindStringSubmatch(text); m != nil {
		f.Code, f.Host = OtherName, strings.Trim(m[2], `":`)
		if len(f.Names) == 0 && m[1] != "" {
			f.Names = strings.Split(m[1], ", ")
		}
		return f
	}
	if m := noHost().FindStringSubmatch(text); m != nil {
		f.Code, f.Host = NameServerSilent, m[1]
		if strings.HasPrefix(m[2], "no such host") {
			f.Code = HostUnknown
		}
		return f
	}
	for _, c := range codesOf {
		if strings.Contains(text, c.text) {
			f.Code = c.code
			break
		}
	}
	switch {
	case f.Code == CADiffers && t.CA == "" && t.Server == Etcd:
		f.Code = CAMissing
	case f.Code == AnswerTimeout && strings.Contains(text, dialling):
		f.Code = ConnectTimeout
	case f.Code == OwnRejected && t.Own == nil:
		f.Code = OwnMissing
	case f.Code == OwnRefused && t.Own != nil && (now.After(t.Own.NotAfter) || now.Before(t.Own.NotBefore)):
		f.Code, f.From, f.Until = OwnTime, t.Own.NotBefore, t.Own.NotAfter
	case f.Code == OwnTime && t.Own != nil:
		f.From, f.Until = t.Own.NotBefore, t.Own.NotAfter
	}
	if t.Server == Serve && (f.Code == OwnMissing || f.Code == OtherServer && strings.Contains(text, "no application protocol")) {
		f.Code = EtcdsPort // the port of joins requires neither
	}
	return f
}

// plain removes gRPC's wording around a cause.
func plain(text string) string {
	if _, cause, ok := strings.Cut(text, "transport: "); ok {
		text = strings.TrimSuffix(cause, `"`)
	}
	return text
}
