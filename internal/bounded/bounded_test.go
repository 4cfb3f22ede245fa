package bounded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
