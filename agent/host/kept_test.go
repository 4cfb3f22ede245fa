package host

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/release/trust"
)

const (
	alice = "alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb\n"
	bob   = "bob@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl\n"
)

// listed creates a machine's lists; "" creates no file.
func listed(t *testing.T, allowed, revoked string) trust.Files {
	t.Helper()
	dir := t.TempDir()
	f := trust.Files{Allowed: filepath.Join(dir, "allowed_signers"), Revoked: filepath.Join(dir, "revoked_signers"), Mark: filepath.Join(dir, "trust.json")}
	for path, text := range map[string]string{f.Allowed: allowed, f.Revoked: revoked} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func keeps(f trust.Files) keptSigners {
	return keptSigners{files: f, environment: "dev@t42", now: func() time.Time { return time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC) }}
}

// A list without any valid signer would make its release the last one that the node takes.
func TestReleaseThatDamagesSignersFails(t *testing.T) {
	for name, c := range map[string]struct {
		before, after [2]string // allowed, revoked
		bad           string
	}{
		"all keys are revoked":           {[2]string{alice, ""}, [2]string{alice, strings.TrimPrefix(alice, "alice@* ")}, "no key that can sign for dev@t42 now"},
		"all keys are expired":           {[2]string{alice, ""}, [2]string{strings.Replace(alice, " ", ` valid-before="20260101Z" `, 1), ""}, "no key that can sign"},
		"none counts yet":                {[2]string{alice, ""}, [2]string{strings.Replace(alice, " ", ` valid-after="20270101Z" `, 1), ""}, "no key that can sign"},
		"they sign for another one":      {[2]string{bob, ""}, [2]string{strings.Replace(bob, "@dev", "@production", 1), ""}, "no key that can sign"},
		"they sign no releases":          {[2]string{bob, ""}, [2]string{strings.Replace(bob, " ", ` namespaces="pulley-data" `, 1), ""}, "no key that can sign"},
		"a first list without this node": {[2]string{"", ""}, [2]string{strings.Replace(bob, "@dev", "@production", 1), ""}, "no key that can sign"},
		"no signer before":               {[2]string{strings.Replace(bob, "@dev", "@production", 1), ""}, [2]string{"bob\n", ""}, ""},
		"nothing changes":                {[2]string{alice, ""}, [2]string{alice, ""}, ""},
		"there is none":                  {[2]string{"", ""}, [2]string{"", ""}, ""},
		"a list comes":                   {[2]string{"", ""}, [2]string{alice, ""}, ""},
		"a signer more, and one revoked": {[2]string{alice, ""}, [2]string{alice + bob, strings.TrimPrefix(alice, "alice@* ")}, ""},
		"damage is restored":             {[2]string{"alice\n", ""}, [2]string{alice, ""}, ""},
		"damage before the run":          {[2]string{"alice\n", ""}, [2]string{"alice\n", ""}, ""},
		"the list goes":                  {[2]string{alice, ""}, [2]string{"", ""}, "is missing"},
		"a line that can't be read":      {[2]string{alice, ""}, [2]string{alice + "bob\n", ""}, "line 2"},
		"no signer after":                {[2]string{alice, ""}, [2]string{"# nobody\n", ""}, "no key that can sign"},
		"a first list that is none":      {[2]string{"", ""}, [2]string{"alice\n", ""}, "line 1"},
		"revoked keys that are none":     {[2]string{alice, ""}, [2]string{alice, "alice\n"}, "revoked keys: line 1"},
	} {
		f := listed(t, c.before[0], c.before[1])
		k := keeps(f)
		before := k.remember()
		for i, path := range []string{f.Allowed, f.Revoked} {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if c.after[i] != "" {
				if err := os.WriteFile(path, []byte(c.after[i]), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, err := k.restoreDamaged(before)
		if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%s: %v; want %q", name, err, c.bad)
		}
		want := c.after
		if c.bad != "" {
			want = c.before
		}
		for i, path := range []string{f.Allowed, f.Revoked} {
			if b, _ := os.ReadFile(path); string(b) != want[i] {
				t.Errorf("%s: %s holds %q, should hold %q", name, path, b, want[i])
			}
		}
	}
}

const everyFive = "*/5 * * * * root pulley-agent run\n"

// guarded returns a machine with a list of signers and a schedule. Each call of start is a new agent.
func guarded(t *testing.T) (start func() *Machine, f trust.Files) {
	t.Helper()
	f = listed(t, alice, "")
	dir := t.TempDir()
	cron := filepath.Join(dir, "cron.d", "pulley")
	damage(t, cron, everyFive)
	return func() *Machine {
		return &Machine{schedule: cron, signers: keeps(f), kept: filepath.Join(dir, keptFile), log: slog.New(slog.DiscardHandler)}
	}, f
}

// damage writes a file; "" removes it.
func damage(t *testing.T, path, text string) {
	t.Helper()
	err := os.RemoveAll(path)
	if text != "" {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%s holds %q, should hold %q: %v", path, b, want, err)
	}
}

// A run that is killed after it damaged the list or the schedule must not be the node's last one.
func TestDamageOfInterruptedRunIsRestored(t *testing.T) {
	start, f := guarded(t)
	m := start()
	if err := m.Remember(); err != nil {
		t.Fatal(err)
	}
	damage(t, f.Allowed, "alice\n")
	damage(t, m.schedule, "")
	err := start().Restore()
	if err == nil || !strings.Contains(err.Error(), "line 1") || !strings.Contains(err.Error(), "removed the agent's schedule") {
		t.Errorf("it says %v", err)
	}
	holds(t, f.Allowed, alice)
	holds(t, m.schedule, everyFive)
	if err := start().Restore(); err != nil {
		t.Errorf("once it is put back: %v", err)
	}
}

// If an operator revokes every key by hand, the next run must not restore them.
func TestChangesByPeopleStay(t *testing.T) {
	start, f := guarded(t)
	m := start()
	if err := errors.Join(m.Remember(), m.Restore()); err != nil {
		t.Fatal(err)
	}
	stolen := strings.TrimPrefix(alice, "alice@* ")
	damage(t, f.Revoked, stolen)
	damage(t, m.schedule, "# by hand, for now\n")
	for range 2 {
		m := start()
		if err := errors.Join(m.Restore(), m.Remember(), m.Restore()); err != nil {
			t.Error(err)
		}
	}
	holds(t, f.Revoked, stolen)
	holds(t, m.schedule, "# by hand, for now\n")
}

// A failed restore must be retried later. The damaged files must not replace the copies.
func TestFailedRestoreIsRetried(t *testing.T) {
	start, f := guarded(t)
	m := start()
	if err := m.Remember(); err != nil {
		t.Fatal(err)
	}
	damage(t, f.Allowed, "")
	damage(t, m.schedule, "")
	damage(t, filepath.Join(f.Allowed, "in the way"), "a folder, where the list was") // a rename cannot replace it
	damage(t, filepath.Join(m.schedule, "in the way"), "a folder, where the schedule was")
	for range 2 {
		m := start()
		if err := m.Restore(); err == nil || strings.Count(err.Error(), "cannot be restored") != 2 {
			t.Errorf("it says %v", err)
		}
		if err := m.Remember(); err == nil {
			t.Error("a schedule that can't be read is taken for none")
		}
	}
	damage(t, m.schedule, "")
	damage(t, f.Allowed, "alice\n")
	m = start()
	if err := m.Remember(); err != nil {
		t.Fatal(err)
	}
	if err := start().Restore(); err == nil {
		t.Error("the damaged files were copied")
	}
	holds(t, f.Allowed, alice)
	holds(t, m.schedule, everyFive)
}

// A damaged file of copies must neither stop the node forever nor stay unnoticed.
func TestDamagedCopiesAreReplaced(t *testing.T) {
	start, f := guarded(t)
	m := start()
	damage(t, m.kept, "{")
	if err := m.Restore(); err == nil {
		t.Error("no warning in the log")
	}
	if err := m.Remember(); err != nil {
		t.Fatal(err)
	}
	damage(t, f.Allowed, "")
	if err := m.Restore(); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("it says %v", err)
	}
	holds(t, f.Allowed, alice)
}
