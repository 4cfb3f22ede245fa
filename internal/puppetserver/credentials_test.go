package puppetserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/testbed/etcdtest"
)

// A further CA refuses a certificate of the first one, and is not of its CA: old certificates there would never be cleaned.
func TestCredentialsOfAFurtherCA(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), map[string]etcdtest.PKI{"": etcdtest.NewPKI(t), "old-ca.example.com": etcdtest.NewPKI(t)}
	for folder, of := range files {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, from := range map[string]string{CertFile: of.ClientCert, KeyFile: of.ClientKey, CAFile: of.CA} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, folder, name), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	own, err := LoadCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	for address, folder := range map[string]string{"https://ca.example.com": "", "https://old-ca.example.com:8141": "old-ca.example.com"} {
		c, err := New(address, own, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		want, err := LoadCredentials(filepath.Join(dir, folder))
		if err != nil || !c.own.Identity.Leaf().Equal(want.Identity.Leaf()) || want.Identity.Leaf().CheckSignatureFrom(c.caFile[0]) != nil {
			t.Errorf("%s has other credentials than those of %q: %v", address, folder, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "old-ca.example.com", KeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCredentials(dir); err == nil {
		t.Error("a folder without its key is taken for that of the first CA")
	}
}
