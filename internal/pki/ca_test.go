package pki

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A CA must be created once, and only its owner may read its key.
func TestCAIsCreatedOnceForOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "pki")
	var wait sync.WaitGroup
	pins := make([]string, 8)
	for i := range pins {
		wait.Go(func() {
			ca, err := OpenCA(dir, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			pins[i] = strings.Join(ca.Fingerprints(), " ")
		})
	}
	wait.Wait()
	for _, p := range pins {
		if p != pins[0] || strings.Count(p, "sha256:") != 2 {
			t.Errorf("pins differ: %q and %q", pins[0], p)
		}
	}
	before := files(t, dir)
	open(t, dir, Options{})
	for name, b := range files(t, dir) {
		if before[name] != b {
			t.Errorf("%s was written again", name)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if len(before) != 5 { // two certificates, two keys, the lock
		t.Errorf("the folder has %d files", len(before))
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", info.Mode(), err)
	}
}

// The limits of a CA certificate prevent a stolen leaf from signing.
func TestCACertificateIsLimited(t *testing.T) {
	for _, a := range open(t, t.TempDir(), Options{}).Authorities() {
		c := a.Certificate
		if !c.IsCA || c.MaxPathLen != 0 || !c.MaxPathLenZero || len(c.ExtKeyUsage) != 0 || !a.KeyAtHand {
			t.Errorf("%s: %+v", a.Part, c)
		}
		if life := c.NotAfter.Sub(c.NotBefore); life < 10*365*24*time.Hour || life > 11*365*24*time.Hour {
			t.Errorf("%s is valid for %s", a.Part, life)
		}
		if bits := c.SerialNumber.BitLen(); bits < 64 || bits > 128 {
			t.Errorf("%s has a serial number of %d bits", a.Part, bits)
		}
	}
}

// After a power loss during its creation, a CA must be completed, not created again.
func TestIncompleteCAIsCompleted(t *testing.T) {
	order := []string{currentKey, currentCert, nextKey, nextCert} // in the order of creation
	for made := range len(order) {
		dir := t.TempDir()
		open(t, dir, Options{})
		remove(t, dir, order[made:]...)
		before := files(t, dir)
		ca := open(t, dir, Options{})
		after := files(t, dir)
		for name, b := range before {
			if after[name] != b {
				t.Errorf("%d made: %s was overwritten", made, name)
			}
		}
		if len(after) != 5 || len(ca.Fingerprints()) != 2 {
			t.Errorf("%d made: there are %d files and %d pins", made, len(after), len(ca.Fingerprints()))
		}
		id := client(t, ca, time.Hour)
		if err := trusted(t, ca.Bundle(), id.Leaf(), time.Now()); err != nil {
			t.Errorf("%d made: %v", made, err)
		}
	}
}

// A CA with missing files must not be replaced automatically: all nodes of the fleet would lose access.
func TestCAWithMissingFilesIsNotReplaced(t *testing.T) {
	for _, c := range []struct {
		what, says string
		spoil      func(dir string)
	}{
		{"certificate and key lost", "ca.pem is missing", func(dir string) { remove(t, dir, currentCert, currentKey) }},
		{"key lost", "is not in", func(dir string) { remove(t, dir, currentKey) }},
		{"certificate emptied", "contains 0 PEM certificates", func(dir string) { write(t, filepath.Join(dir, currentCert), "") }},
		{"key damaged", "cannot be read", func(dir string) {
			write(t, filepath.Join(dir, currentKey), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
		}},
		{"a leaf in its place", "not a certificate of a CA", func(dir string) {
			id := client(t, open(t, dir, Options{}), time.Hour)
			write(t, filepath.Join(dir, currentCert), string(encodeCertificates(id.Leaf())))
			if err := SaveKey(filepath.Join(dir, currentKey), id.Key); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		dir := t.TempDir()
		open(t, dir, Options{})
		c.spoil(dir)
		before := files(t, dir)
		_, err := OpenCA(dir, Options{})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		for name, b := range files(t, dir) {
			if before[name] != b {
				t.Errorf("%s: %s was written", c.what, name)
			}
		}
	}
}

// A temporary read error must not interrupt clients that are already trusted.
func TestBundleOutlivesDamage(t *testing.T) {
	dir := t.TempDir()
	ca := open(t, dir, Options{})
	bundle := ca.Bundle()
	write(t, filepath.Join(dir, currentCert), "damaged")
	if !bytes.Equal(ca.Bundle(), bundle) {
		t.Error("the bundle is another one")
	}
	if _, err := ca.IssueClient(newKey(t).Public(), nodeName("compute1"), time.Hour); err == nil {
		t.Error("it signs with what it can't read")
	}
}
