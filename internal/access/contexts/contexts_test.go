package contexts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pulley/internal/access/contexts"
	"pulley/internal/pki"
)

// Two logins at the same moment would otherwise lose one fleet.
func TestChangesAtTheSameTimeKeepEachOther(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config", "config.yaml")
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			err := contexts.Change(path, func(f *contexts.File) error {
				f.Connect(fmt.Sprintf("fleet%d", i), contexts.Context{Endpoints: []string{"https://etcd:2379"}}, false)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	f, err := contexts.Read(path)
	if err != nil || len(f.Names()) != 8 || !slices.Contains(f.Names(), f.Current) {
		t.Errorf("%v, current %q: %v", f.Names(), f.Current, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// A new login would otherwise remove the operator's own defaults, or turn the current fleet into another one.
func TestConnectKeepsDefaultsAndOtherFleets(t *testing.T) {
	t.Parallel()
	f := contexts.File{Contexts: map[string]contexts.Context{"a": {Endpoints: []string{"x"}, Cert: "old", Environment: "dev", SignKey: "/k"}}, Current: "a"}
	f.Connect("a", contexts.Context{Endpoints: []string{"y"}}, false)
	if got := f.Contexts["a"]; got.Environment != "dev" || got.SignKey != "/k" || got.Cert != "" || got.Endpoints[0] != "y" {
		t.Errorf("%+v", got)
	}
	f.Connect("b", contexts.Context{}, false)
	if f.Current != "a" {
		t.Errorf("current is %q", f.Current)
	}
	f.Connect("b", contexts.Context{}, true)
	delete(f.Contexts, "b")
	f.Connect("c", contexts.Context{}, false)
	if f.Current != "c" {
		t.Errorf("a deleted context is still the current one: %q", f.Current)
	}
}

// The fingerprint decides which fleet a context has: addresses and names are used again.
func TestFleetIsKnownByItsCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := pki.OpenCA(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, ca.Bundle(), 0o600); err != nil {
		t.Fatal(err)
	}
	other := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		file string
		pins []string
		want bool
	}{
		{file, ca.Fingerprints()[1:], true}, {file, []string{other}, false}, {file, nil, false}, {"", ca.Fingerprints(), false},
		{filepath.Join(dir, "nowhere"), ca.Fingerprints(), false},
	} {
		if got := (contexts.Context{CACert: c.file}).OfFleet(c.pins); got != c.want {
			t.Errorf("%q %v: %t", c.file, c.pins, got)
		}
	}
}

func TestNameFor(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://127.0.0.1:2379": "local", "https://localhost:1": "local", "https://[::1]:2379": "local", "https://etcd.example:2379": "etcd.example",
		"https://10.0.0.1:8443": "10.0.0.1", "https://[fd00::1]:1": "fd00--1", "": "local", "https://-:1": "local", "https://a_b:1": "a-b",
	} {
		got := contexts.NameFor(address)
		if got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
		if err := contexts.CheckName(got); err != nil {
			t.Error(err)
		}
	}
}

func TestFreeNameSkipsOtherFleets(t *testing.T) {
	t.Parallel()
	f := contexts.File{Contexts: map[string]contexts.Context{"a": {}, "a-2": {Cert: "mine"}}}
	mine := func(_ string, c contexts.Context, exists bool) bool { return !exists || c.Cert == "mine" }
	if name, err := f.FreeName("a", mine); name != "a-2" || err != nil {
		t.Errorf("%q %v", name, err)
	}
	if _, err := f.FreeName("a", func(string, contexts.Context, bool) bool { return false }); err == nil {
		t.Error("a name that is not free was returned")
	}
}
