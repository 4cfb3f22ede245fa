package folder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The log of an agent or the console of a guest must not fill the host's disk.
func TestTrimBoundsLogs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log")
	writer, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Truncate(maxLog); err != nil {
		t.Fatal(err)
	}
	if err := trim(file); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != maxLog {
		t.Errorf("a log within its bound was trimmed: %v", err)
	}
	if err := writer.Truncate(100 * maxLog); err != nil { // a hole: it needs no room
		t.Fatal(err)
	}
	fmt.Fprint(writer, "panic\n\n")
	if last := LastLine(file); strings.Trim(last, "\x00") != "panic" || len(last) > 4<<10 {
		t.Errorf("the last line has %d bytes: %.20q", len(last), last)
	}
	if err := trim(file); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(writer, "on")
	if text, err := os.ReadFile(file); err != nil || string(text) != "on" {
		t.Errorf("the log has %d bytes, %v", len(text), err)
	}
	if text, err := os.ReadFile(file + oldSuffix); err != nil || len(text) != keptLog || !strings.HasSuffix(string(text), "panic\n\n") {
		t.Errorf("the old log has %d bytes, %v", len(text), err)
	}
}
