package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/content"
)

// A core dump in a module would fill the disk unnoticed, and an error with eight digits does not show the limit.
func TestCopyIsBounded(t *testing.T) {
	from := t.TempDir()
	write(t, from, map[string]string{"core": ""})
	if err := os.Truncate(filepath.Join(from, "core"), content.MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	err := copyTree(t.Context(), from, t.TempDir(), func(string, bool) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "core has more than 64 MiB\nleave it out") {
		t.Errorf("%v", err)
	}
}
