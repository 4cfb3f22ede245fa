package nodeconfig

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// `pulley-agent run` hung at a named pipe in the place of the machine id.
func TestMachineIDIsNotReadFromAPipe(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), syscall.Mkfifo(filepath.Join(root, "etc/machine-id"), 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() { done <- MachineID(root) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}
