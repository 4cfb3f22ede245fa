package trust

import (
	"strings"
	"testing"
	"time"
)

func publicKey(t *testing.T, number byte, comment string) PublicKey {
	t.Helper()
	k, err := parsePublicKey([]byte(text(softKey(t, number).PublicKey()) + " " + comment + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Operators keep lists in repositories and also edit them by hand. A verb must not change other lines.
func TestListsAreChangedInPlace(t *testing.T) {
	alice, bob := publicKey(t, 1, "alice@laptop"), publicKey(t, 2, "")
	list := []byte("# ours\n\n  carol@* " + text(softKey(t, 3).PublicKey()) + "  # not a comment, the key's own\r\n# end")
	list, err := allow(list, alice, Permission{Name: "alice", Environments: []string{"production", "dev"}, ValidAfter: now})
	if err != nil {
		t.Fatal(err)
	}
	if list, err = allow(list, bob, Permission{Name: "bob@example.com", Environments: []string{"*"}, ValidBefore: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	want := "# ours\n\n  carol@* " + text(softKey(t, 3).PublicKey()) + "  # not a comment, the key's own\r\n# end\n" +
		`alice@production,alice@dev valid-after="20260615120000Z" ` + text(softKey(t, 1).PublicKey()) + " alice@laptop\n" +
		`bob@example.com@* valid-before="20260615130000Z" ` + text(softKey(t, 2).PublicKey()) + "\n"
	if string(list) != want {
		t.Fatalf("got\n%swant\n%s", list, want)
	}

	list, carol, err := expire(list, "carol", now)
	if err != nil || !carol.ValidBefore.Equal(now) {
		t.Fatalf("%+v: %v", carol, err)
	}
	list, _, err = expire(list, ssh256(t, 2), now.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	want = strings.Replace(want, "  carol@* ", `carol@* valid-before="20260615120000Z" `, 1)
	want = strings.Replace(want, "20260615130000Z", "20260615110000Z", 1)
	if string(list) != want {
		t.Errorf("got\n%swant\n%s", list, want)
	}

	quoted := `"dave d@dev" namespaces="a\"b,pulley-*" ` + text(softKey(t, 4).PublicKey()) + "\n"
	got, _, err := expire([]byte(quoted), "dave d", now)
	if want := strings.Replace(quoted, `pulley-*"`, `pulley-*",valid-before="20260615120000Z"`, 1); err != nil || string(got) != want {
		t.Errorf("got\n%swant\n%s%v", got, want, err)
	}
}

func ssh256(t *testing.T, number byte) string {
	t.Helper()
	return Signer{Key: softKey(t, number).PublicKey()}.Fingerprint()
}

func TestChangesOfListsAreRefused(t *testing.T) {
	alice := publicKey(t, 1, "")
	list, err := allow(nil, alice, Permission{Name: "alice", Environments: []string{"dev"}, ValidAfter: now})
	if err != nil {
		t.Fatal(err)
	}
	two, err := allow(list, publicKey(t, 2, ""), Permission{Name: "alice", Environments: []string{"dev"}})
	if err != nil {
		t.Fatal(err)
	}
	expiring := func(list []byte, who string, at time.Time) error {
		_, _, err := expire(list, who, at)
		return err
	}
	allowing := func(list []byte, p Permission) error {
		_, err := allow(list, publicKey(t, 9, ""), p)
		return err
	}
	_, again := allow(list, alice, Permission{Name: "eve", Environments: []string{"*"}})
	for want, err := range map[string]error{
		"is listed already: line 1, for alice":                                            again,
		`cannot use the name "eve@dev,mallory"`:                                           allowing(list, Permission{Name: "eve@dev,mallory", Environments: []string{"dev"}}),
		`cannot use the name "#eve"`:                                                      allowing(list, Permission{Name: "#eve", Environments: []string{"dev"}}),
		`"dev@t42" is a stack, which counts as its environment: give dev`:                 allowing(list, Permission{Name: "eve", Environments: []string{"prod", "dev@t42"}}),
		`"" is not an environment: lower-case`:                                            allowing(list, Permission{Name: "eve", Environments: []string{""}}),
		`"Dev" is not an environment: lower-case letters, digits, _ and the patterns * ?`: allowing(list, Permission{Name: "eve", Environments: []string{"Dev"}}),
		"valid-before is not after valid-after":                                           expiring(list, "alice", now.Add(-time.Hour)),
		`no allowed signer has the name or fingerprint "eve"`:                             expiring(list, "eve", now),
		`"alice" has 2 lines: ` + ssh256(t, 1) + " (line 1)":                              expiring(two, "alice", now),
		"cannot read the allowed signers: line 1: ":                                       expiring([]byte("nonsense"), "alice", now),
		"cannot read the allowed signers: line 1: a line is":                              allowing([]byte("nonsense"), Permission{Name: "eve", Environments: []string{"dev"}}),
		"it is a private key; give its public key":                                        parseError("-----BEGIN OPENSSH PRIVATE KEY-----\n"),
		"it has 2 keys, not one":                                                          parseError(text(alice.PublicKey) + "\n" + text(alice.PublicKey) + "\n"),
		"it has 0 keys, not one":                                                          parseError("# none\n"),
		"line 1: there is no public key: a type, and the key in base64":                   parseError("hello\n"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

func parseError(file string) error {
	_, err := parsePublicKey([]byte(file))
	return err
}

// A revoked key must remain revoked, whatever else the file contains.
func TestRevoke(t *testing.T) {
	list, missing, err := revoke([]byte("# lost laptops"), publicKey(t, 1, "alice@laptop"))
	if err != nil || !missing {
		t.Fatal(missing, err)
	}
	if want := "# lost laptops\n" + text(softKey(t, 1).PublicKey()) + " alice@laptop\n"; string(list) != want {
		t.Errorf("got\n%swant\n%s", list, want)
	}
	again, missing, err := revoke(list, publicKey(t, 1, "another comment"))
	if err != nil || missing || string(again) != string(list) {
		t.Errorf("%t %q: %v", missing, again, err)
	}
	if _, _, err := revoke([]byte("nonsense"), publicKey(t, 1, "")); err == nil {
		t.Error("a damaged list was written on")
	}
}

// A wrong result would create a machine without a valid signer, or refuse a machine that has one.
func TestAnybodyWhoMaySign(t *testing.T) {
	line := func(principals, options string, key byte) string {
		return principals + " " + options + text(softKey(t, key).PublicKey()) + "\n"
	}
	list := line("alice@prod,alice@dev", "", 1) + line("bob@*", `valid-before="20260615110000Z" `, 2) +
		line("carol@*", `namespaces="pulley-data" `, 3) + line("dave@*,!dave@prod", "", 4) + line("eve@*", `valid-after="20260615130000Z" `, 5) +
		line("mallory@*", "", 6)
	for _, c := range []struct {
		without     string // keys to revoke
		ns          Namespace
		environment string
		want        bool
	}{
		{"", Release, "prod", true}, {"1", Release, "prod", false}, {"1", Release, "dev", true}, {"14", Release, "dev@t42", false},
		{"14", Data, "dev", true}, {"134", Data, "dev", false},
	} {
		gone := ""
		for _, number := range c.without {
			gone += text(softKey(t, byte(number-'0')).PublicKey()) + "\n"
		}
		s, err := ParseSigners([]byte(list), []byte(gone+text(softKey(t, 6).PublicKey())))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Anybody(c.ns, c.environment, now); got != c.want {
			t.Errorf("%s in %s without %q: %t, not %t", c.ns, c.environment, c.without, got, c.want)
		}
	}
}
