package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/cli"
	"pulley/internal/firstboot"
)

// An address that is dialled otherwise than it was meant looks like a network that is down.
func TestWhereToLook(t *testing.T) {
	for address, want := range map[string]string{
		"https://10.0.0.1:8443":  "10.0.0.1:8443",
		"https://serve.example":  "serve.example:443",
		"https://[fd00::1]:8443": "[fd00::1]:8443",
		"https://[fd00::1]":      "[fd00::1]:443",
		"10.0.0.1:2379":          "10.0.0.1:2379",
		"etcd1":                  "etcd1:443",
	} {
		if got := hostPort(address, "443"); got != want {
			t.Errorf("%s is looked for at %s, want %s", address, got, want)
		}
	}
}

// With a clock that lags no certificate is valid yet: the join would fail as if somebody stood in between.
func TestWaitsForTheTime(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	valid := server.Certificate().NotBefore
	now := valid.Add(-time.Hour)
	b := &bootstrap{
		bootstrapOptions: bootstrapOptions{options: &options{env: cli.Env{Now: func() time.Time { return now }}, root: t.TempDir()}},
		planned:          true, plan: firstboot.Plan{Servers: []string{server.URL}}, log: slog.New(slog.DiscardHandler),
	}
	look := func() string {
		t.Helper()
		left, err := b.networkLeft(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if left := look(); !strings.Contains(left, "wait for the time: the clock says ") || !strings.Contains(left, utcTime(valid)) {
		t.Errorf("an hour before the server's certificate was made: %q", left)
	}
	now = valid.Add(time.Second)
	if left := look(); left != "" {
		t.Errorf("a second after: %q", left)
	}

	timesync := filepath.Join(b.root, "run/systemd/timesync")
	if err := os.MkdirAll(timesync, 0o755); err != nil {
		t.Fatal(err)
	}
	if left := look(); !strings.Contains(left, "no time server has set the clock yet") {
		t.Errorf("before a time server answered: %q", left)
	}
	now = now.Add(2 * timesyncPatient)
	if left := look(); left != "" {
		t.Errorf("where no time server answers for long: %q", left)
	}
	b.waits = time.Time{}
	if err := os.WriteFile(filepath.Join(timesync, "synchronized"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if left := look(); left != "" {
		t.Errorf("after a time server answered: %q", left)
	}
	b.planned, now = false, valid.Add(-time.Hour)
	if left := look(); left != "" {
		t.Errorf("a person who sits at the machine waits: %q", left)
	}
}
