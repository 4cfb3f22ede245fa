package connect

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"testing"
)

// A server that refuses a client after the handshake is known by the type of the error. A text changes with any version of Go.
func TestAlertIsKnownByItsType(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server := httptest.NewUnstartedServer(nil)
		server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: version}
		server.Config.ErrorLog = nil
		server.StartTLS()
		conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1)) // with TLS 1.3, the alert follows the handshake
			_ = conn.Close()
		}
		if !Alerted(err) || !Alerted(fmt.Errorf("cannot connect: %w", err)) {
			t.Errorf("version %x: %v is no alert", version, err)
		}
		server.Close()
	}
	for _, err := range []error{nil, io.EOF, errors.New("remote error: tls: bad certificate"), &net.OpError{Op: "read", Err: io.EOF}} {
		if Alerted(err) {
			t.Errorf("%v is an alert", err)
		}
	}
}
