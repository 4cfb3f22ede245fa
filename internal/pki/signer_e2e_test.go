//go:build e2e

package pki

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The command of docs/certificates.md must work.
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

// A hanging command must not delay a join or a renewal beyond the client's deadline.
func TestHangingCommandIsEnded(t *testing.T) {
	if limit := signTimeout + signGrace; limit >= 15*time.Second {
		t.Errorf("a signature may take %s: a renewal waits for 15s", limit)
	}
	dir, _, _ := kept(t)
	ca := open(t, dir, Options{SignCommand: []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"}})
	began := time.Now()
	_, err := ca.IssueClient(newKey(t).Public(), nodeName("compute1"), time.Hour)
	if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "no signature within 10s") || took > signTimeout+signGrace+3*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}
