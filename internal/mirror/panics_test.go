package mirror

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A panic of a handler is a bug and must be logged. A port scan must not be logged.
func TestPanicsAreLoggedAndPortScansAreNot(t *testing.T) {
	var b bytes.Buffer
	s := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("out of luck") }), nil)
	s.ErrorLog = slog.NewLogLogger(onlyPanics{slog.NewTextHandler(&b, nil)}, slog.LevelError)
	s.ErrorLog.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
	if b.Len() > 0 {
		t.Errorf("the log has %q", b.String())
	}
	server := httptest.NewUnstartedServer(s.Handler)
	server.Config.ErrorLog = s.ErrorLog
	server.Start()
	if resp, err := http.Get(server.URL); err == nil { //nolint:noctx // of this process
		resp.Body.Close()
		t.Error("it answered")
	}
	server.Close()
	if !strings.Contains(b.String(), "out of luck") || !strings.Contains(b.String(), "panics_test.go") {
		t.Errorf("the log has %q", b.String())
	}
}
