package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// preface begins HTTP/2, with empty settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// frameHeader is the length of the header of an HTTP/2 frame; its fourth byte is the type, and settings are type 4.
const (
	frameHeader  = 9
	typeAt       = 3
	typeSettings = 4
)

// ServerName is the value of the header Server in answers of pulley serve. It distinguishes the port of joins from etcd's.
const ServerName = "pulley-serve"

// identifyWithin bounds each extra connection that tells similar causes apart.
const identifyWithin = time.Second

// Probe connects to an endpoint of etcd until it speaks HTTP/2, and returns why it does not; nil if it does. ctx bounds it.
func (t Target) Probe(ctx context.Context) *Failure {
	u, err := url.Parse(t.URL)
	if err == nil && u.Host == "" {
		err = errors.New("no host")
	}
	if err == nil {
		_, _, err = net.SplitHostPort(u.Host)
	}
	if err != nil {
		return &Failure{Code: AddressInvalid, Server: t.Server, URL: t.URL, Text: err.Error()}
	}
	conn, err := dial(ctx, u.Host)
	if err != nil {
		return t.failure(err, ConnectTimeout)
	}
	defer func() { _ = conn.Close() }()
	if t.TLS != nil {
		secure := tls.Client(conn, named(t.TLS, u.Hostname(), "h2"))
		if err := secure.HandshakeContext(ctx); err != nil {
			f := t.failure(err, TLSTimeout)
			switch {
			case f.Code == ConnectionClosed && speaksPlain(u.Host):
				f.Code = ServerPlain
			case f.Code == OtherServer && t.servesJoins(u):
				f.Code = JoinsPort
			}
			return f
		}
		conn = secure
	}
	header, err := exchange(conn, preface)
	if err == nil && header[typeAt] == typeSettings {
		return nil
	}
	late := err != nil && t.failure(err, AnswerTimeout).Code == AnswerTimeout
	switch {
	case t.TLS == nil && !late && speaksTLS(u.Host):
		return &Failure{Code: ServerTLS, Server: t.Server, URL: t.URL}
	case err == nil:
		return t.identify(u)
	}
	return t.failure(err, AnswerTimeout)
}

// IsEtcd reports whether etcd answers at the address of pulley serve, with TLS or without.
func (t Target) IsEtcd() bool {
	u, err := url.Parse(t.URL)
	if err != nil {
		return false
	}
	if speaksPlain(u.Host) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), identifyWithin)
	defer cancel()
	conn, err := dial(ctx, u.Host)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	// etcd refuses a client without a certificate, after the handshake; pulley serve requires none.
	_, err = exchange(tls.Client(conn, unverified(u.Hostname(), "h2")), preface)
	return Alerted(err)
}

// Alerted reports whether a TLS server refused the client: crypto/tls returns an alert as an error of this operation.
func Alerted(err error) bool {
	var remote *net.OpError
	return errors.As(err, &remote) && remote.Op == "remote error"
}

// Identify names the server that answered gRPC in the place of etcd.
func (t Target) Identify() *Failure {
	u, err := url.Parse(t.URL)
	if err != nil {
		return &Failure{Code: AddressInvalid, Server: t.Server, URL: t.URL, Text: err.Error()}
	}
	return t.identify(u)
}

func (t Target) identify(u *url.URL) *Failure {
	f := &Failure{Code: OtherServer, Server: t.Server, URL: t.URL}
	if t.servesJoins(u) {
		f.Code = JoinsPort
	}
	return f
}

// failure explains an error; late is the code of one that only says that time passed.
func (t Target) failure(err error, late Code) *Failure {
	f := t.Explain(err, time.Now())
	if f.Code == AnswerTimeout || f.Code == ConnectTimeout {
		f.Code = late
	}
	return f
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	return conn, nil
}

// named returns the configuration of a connection to a host that speaks a protocol.
func named(config *tls.Config, host, protocol string) *tls.Config {
	c := config.Clone()
	c.ServerName, c.NextProtos = host, []string{protocol}
	return c
}

// unverified returns the configuration of a connection that carries nothing: its only question is how the server answers.
func unverified(host, protocol string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, ServerName: host, NextProtos: []string{protocol}} //nolint:gosec // see above
}

// exchange sends the first bytes and returns the first bytes of the answer.
func exchange(conn net.Conn, first string) ([]byte, error) {
	header := make([]byte, frameHeader)
	if _, err := io.WriteString(conn, first); err != nil {
		return header, err
	}
	_, err := io.ReadFull(conn, header)
	return header, err
}

// speaksPlain reports whether a server answers HTTP/2 without TLS.
func speaksPlain(address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), identifyWithin)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	header, err := exchange(conn, preface)
	return err == nil && header[typeAt] == typeSettings
}

// speaksTLS reports whether a server answers the first message of TLS, whatever it thinks of the client.
func speaksTLS(address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), identifyWithin)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	host, _, _ := net.SplitHostPort(address)
	err = tls.Client(conn, unverified(host, "h2")).HandshakeContext(ctx)
	return err == nil || Alerted(err)
}

// servesJoins reports whether pulley serve answers HTTP at the address. The certificate of the server must be valid.
func (t Target) servesJoins(u *url.URL) bool {
	ctx, cancel := context.WithTimeout(context.Background(), identifyWithin)
	defer cancel()
	conn, err := dial(ctx, u.Host)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if t.TLS != nil {
		conn = tls.Client(conn, named(t.TLS, u.Hostname(), "http/1.1"))
	}
	if _, err := io.WriteString(conn, "HEAD / HTTP/1.1\r\nHost: "+u.Host+"\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 64<<10)), nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.Header.Get("Server") == ServerName
}
