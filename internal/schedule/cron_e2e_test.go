//go:build e2e

package schedule

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// cron itself has the last word on what it starts.
func TestCronAcceptsWhatCheckAccepts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crontab")
	for _, text := range accepted {
		if err := os.WriteFile(file, []byte(text+" true\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("crontab", "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", text, err, out)
		}
	}
}
