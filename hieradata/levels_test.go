package hieradata

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An agent that waits for a named pipe in its folder holds its lock for ever.
func TestLevelsAreNoPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, LevelsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := ReadLevels(dir, "web", "web1")
		read <- err
	}()
	select {
	case err := <-read:
		if err == nil {
			t.Error("a named pipe was read")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a named pipe")
	}
}
