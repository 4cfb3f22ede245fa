package bounded

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestReadFileRefusesOneByteTooMany(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for size, ok := range map[int]bool{0: true, 8: true, 9: false, 9000: false} {
		text := strings.Repeat("x", size)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := ReadFile(path, 8)
		var large *TooLargeError
		switch {
		case ok && (err != nil || string(b) != text):
			t.Errorf("%d bytes: %q, %v", size, b, err)
		case !ok && (!errors.As(err, &large) || b != nil || !strings.Contains(err.Error(), path)):
			t.Errorf("%d bytes: %q, %v", size, b, err)
		}
	}
}

func TestReadFileReportsMissingFile(t *testing.T) {
	t.Parallel()
	if _, err := ReadFile(filepath.Join(t.TempDir(), "file"), 8); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestTooLargeErrorNamesTheLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]string{100: "100 bytes", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 1<<20 + 1: "1048577 bytes"} {
		if got := (&TooLargeError{limit}).Error(); got != "it is larger than "+want {
			t.Error(got)
		}
	}
}

// `pulley publish` hung at a FIFO called Puppetfile, and only SIGKILL ended it.
func TestPipesAndDevicesAreNotOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Symlink("pipe", filepath.Join(dir, "link")), os.Symlink("/dev/zero", filepath.Join(dir, "device"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"pipe": "a named pipe", "link": "a named pipe", "socket": "a socket", "device": "a device"} {
		path := filepath.Join(dir, name)
		done := make(chan error, 1)
		go func() { _, err := ReadFile(path, 10); done <- err }()
		select {
		case err := <-done:
			if !errors.Is(err, ErrIrregular) || !strings.Contains(err.Error(), path+": it is "+want+", not a regular file\nreplace") {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is open", name)
		}
		if name == "device" {
			continue // the folder has no such file: the link leads out of it
		}
		if _, err := OpenIn(root, name); !errors.Is(err, ErrIrregular) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := ReadFile(os.DevNull, 10); len(b) > 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	given, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	if _, err := writer.WriteString("text"); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if b, err := ReadFile(fmt.Sprintf("/dev/fd/%d", given.Fd()), 10); string(b) != "text" || err != nil { // as of `<(printf text)`
		t.Errorf("%q, %v", b, err)
	}
}

// A mark of signatures, or a state, behind a link whose target is gone would count as one that never was.
func TestDanglingLinkIsNotMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("gone", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, outside := ReadFile(filepath.Join(dir, "link"), 10)
	_, inside := OpenIn(root, "link")
	for _, err := range []error{outside, inside} {
		if errors.Is(err, fs.ErrNotExist) || err == nil || !strings.Contains(err.Error(), "it is a link to a missing file") {
			t.Errorf("%v", err)
		}
	}
}
