package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"pulley/internal/cli"
	"pulley/internal/pki"
)

// Whoever may set SUDO_USER could otherwise write changes in another operator's name.
func TestAuthorIsTheHolderOfTheCertificate(t *testing.T) {
	t.Parallel()
	ca, err := pki.OpenCA(filepath.Join(t.TempDir(), "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	issue := func(n pki.Name) string {
		t.Helper()
		n.Prefix, n.Incarnation = "pulley", pki.NewIncarnation()
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		cert, err := ca.IssueClient(key.Public(), n, 1e12)
		if err != nil {
			t.Fatal(err)
		}
		id, err := pki.NewIdentity(key, cert)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "id.pem")
		if err := id.Save(file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	bob := issue(pki.Name{Kind: pki.KindOperator, Subject: "bob"})
	damaged := filepath.Join(t.TempDir(), "damaged.pem")
	if err := os.WriteFile(damaged, []byte("-----BEGIN X-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const secure = "https://10.0.0.1:2379"
	for _, c := range []struct{ endpoint, flag, variable, want string }{
		{secure, bob, "", "bob"}, {secure, "", bob, "bob"}, {secure, "", "", "ann"}, {secure, damaged, bob, "ann"}, {secure, "/nowhere", "", "ann"},
		{"http://10.0.0.1:2379", bob, "", "ann"}, {"http://10.0.0.1:2379", "", bob, "ann"},
	} {
		env := cli.Env{User: "ann", Getenv: func(name string) string {
			if name == "PULLEY_CERT" {
				return c.variable
			}
			return ""
		}}
		connection := cli.Connection{Endpoints: []string{c.endpoint}, Cert: c.flag}
		connection.Fill(env)
		if got := connection.Author(env); got != c.want {
			t.Errorf("--endpoints %q, --cert %q, PULLEY_CERT %q: %q, want %q", c.endpoint, c.flag, c.variable, got, c.want)
		}
	}
}
