package steps

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent/nodeconfig"
	"pulley/agent/upgrade"
	"pulley/internal/cli"
	"pulley/internal/firstboot"
)

// A wrong address looks like a network that is down.
func TestAddressToDial(t *testing.T) {
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

// If the clock is behind, no certificate is valid yet: the join would fail as if it were attacked.
func TestWaitsForTheTime(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	valid := server.Certificate().NotBefore
	now := valid.Add(-time.Hour)
	b := &network{boot: &boot{
		Options: Options{
			Flags: nodeconfig.Flags{Root: t.TempDir()}, Env: cli.Env{Now: func() time.Time { return now }}, Log: slog.New(slog.DiscardHandler),
		},
		planned: true, plan: firstboot.Plan{Settings: firstboot.Settings{Servers: []string{server.URL}}},
	}}
	look := func() string {
		t.Helper()
		left, err := b.networkLeft(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if left := look(); !strings.Contains(left, "wait for the time: the clock shows ") || !strings.Contains(left, utcTime(valid)) {
		t.Errorf("an hour before the server's certificate was made: %q", left)
	}
	now = valid.Add(time.Second)
	if left := look(); left != "" {
		t.Errorf("a second after: %q", left)
	}

	timesync := filepath.Join(b.Root, "run/systemd/timesync")
	if err := os.MkdirAll(timesync, 0o755); err != nil {
		t.Fatal(err)
	}
	if left := look(); !strings.Contains(left, "no time server has set the clock yet") {
		t.Errorf("before a time server answered: %q", left)
	}
	now = now.Add(2 * timesyncPatience)
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

// Repeating the last step of a first boot must not replace an upgraded agent with an old one.
func TestUpgradedAgentStays(t *testing.T) {
	b := &program{&boot{Options: Options{Flags: nodeconfig.Flags{Root: t.TempDir()}, Log: slog.New(slog.DiscardHandler)}}}
	target := b.path(nodeconfig.AgentPath)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		t.Fatal(err)
	}
	place := func() string {
		t.Helper()
		if err := b.placeAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := b.agentLeft(t.Context()); err != nil || left != "" {
			t.Fatalf("left is %q (%v)", left, err)
		}
		text, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := os.WriteFile(target, []byte("upgraded"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := b.ownFolder()
	if err := f.Save(upgrade.State{}.Found(upgrade.Program{Version: "2.0.0", Digest: strings.Repeat("ab", 32)}, 0, f.File())); err != nil {
		t.Fatal(err)
	}
	if got := place(); got != "upgraded" {
		t.Errorf("the upgraded agent was replaced by %d bytes", len(got))
	}
	lock, err := f.Lock()
	if err != nil {
		t.Fatal(err)
	}
	var passing *firstboot.PassingError
	if err := b.placeAgent(t.Context()); !errors.As(err, &passing) {
		t.Errorf("beside an upgrade at work: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, []byte("foreign"), 0o755); err != nil { // not the file that the upgrade recorded
		t.Fatal(err)
	}
	if got := place(); got == "foreign" {
		t.Error("an agent that is not the fleet's stays in place")
	}
}
