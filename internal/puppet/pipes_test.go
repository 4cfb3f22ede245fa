package puppet

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A named pipe in the agent's folder must not stop its runs.
func TestPipesDoNotBlockARun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	identity, pipe, cert := filepath.Join(dir, "identity.pem"), filepath.Join(dir, "puppet.log"), filepath.Join(dir, "certs", "node1.pem")
	text := "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	if err := errors.Join(os.WriteFile(identity, []byte(text), 0o600), os.Mkdir(filepath.Dir(cert), 0o700), syscall.Mkfifo(pipe, 0o600), syscall.Mkfifo(cert, 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		if c := readConsole(pipe); c.read {
			t.Error("the pipe was read")
		}
		p := &Puppet{Certificate: Certificate{Identity: identity, CAs: identity}}
		done <- p.placeCertificate(dir, "node1")
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("the pipe was replaced")
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}
