//go:build e2e

package pki

import (
	"os/exec"
	"testing"
	"time"
)

// The command of docs/certificates.md has to be one that works.
func TestOpenSSLSigns(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Fatal("openssl is missing; install the package openssl")
	}
	dir, key, _ := kept(t)
	ca := open(t, dir, Options{SignCommand: []string{"openssl", "pkeyutl", "-sign", "-inkey", key, "-pkeyopt", "digest:sha256"}})
	if err := trusted(t, ca.Bundle(), client(t, ca, time.Hour).Leaf(), time.Now()); err != nil {
		t.Error(err)
	}
}
