package secrets

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"pulley/hieradata"
)

// Every text of the permitted size must arrive as it was set, and its ciphertext must fit into a request to serve.
func TestSecretKeepsAnyText(t *testing.T) {
	t.Parallel()
	identity, recipient, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	at := Place{"dev", hieradata.ForRole("web"), "k"}
	for _, unit := range []string{"a", "<", "\x01", "\n", `"`, "ä", "\U0001f511"} {
		value := strings.Repeat(unit, MaxBytes/len(unit))
		text, err := Seal(recipient, at, value)
		if err != nil || len(text) > 48<<10 {
			t.Errorf("%q: %d bytes, %v", unit, len(text), err)
		}
		if got, err := Open([]string{identity}, at, text); got != value || err != nil {
			t.Errorf("%q: %d bytes, %v", unit, len(got), err)
		}
	}
}

// A process that handled a secret must leave no core dump, and neither must Puppet, which it starts.
func TestSecretEndsCoreDumps(t *testing.T) {
	_, _ = decrypt(nil, nil)
	limit, err := exec.Command("sh", "-c", "ulimit -c").Output()
	if text := strings.TrimSpace(string(limit)); err != nil || text != "0" && text != "1" {
		t.Errorf("a child process may dump %s blocks (%v)", text, err)
	}
}

// A secret must be readable with its identity at its place, and nowhere else.
func TestSecretOpensAtItsPlaceOnly(t *testing.T) {
	t.Parallel()
	identity, recipient, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	at := Place{"dev", hieradata.ForRole("web"), "db::password"}
	text, err := Seal(recipient, at, "s3cret\n%{x}")
	if err != nil || strings.Contains(text, "s3cret") {
		t.Fatal(text, err)
	}
	if id, _, ok := hieradata.ParseSecret(text); !ok || id != ID(recipient) {
		t.Errorf("%q is no secret", text)
	}
	if v, err := Open([]string{other, identity}, at, text); v != "s3cret\n%{x}" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, identities := range [][]string{nil, {other}} {
		if _, err := Open(identities, at, text); !errors.Is(err, ErrNoIdentity) {
			t.Errorf("%d identities: %v", len(identities), err)
		}
	}
	for _, elsewhere := range []Place{{"prod", at.Layer, at.Key}, {"dev", hieradata.ForNode("web1"), at.Key}, {"dev", at.Layer, "motd::content"}} {
		if v, err := Open([]string{identity}, elsewhere, text); err == nil || v != "" {
			t.Errorf("%v: %q", elsewhere, v)
		}
	}
	for _, damaged := range []string{"", "x", text[:len(text)-9] + "AAAAAAAA]", strings.Replace(text, ",", ",AAAA", 1)} {
		if v, err := Open([]string{identity}, at, damaged); err == nil || v != "" {
			t.Errorf("%q is accepted", damaged)
		}
	}
	if _, err := Open([]string{"AGE-SECRET-KEY-1BROKEN"}, at, text); err == nil || strings.Contains(err.Error(), "BROKEN") {
		t.Errorf("an unreadable identity: %v", err)
	}
}
