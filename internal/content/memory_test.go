package content

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// folderSource is a source whose objects are files.
type folderSource string

func (f folderSource) Object(_ context.Context, hash string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), hash))
}

const memoryDir = "PULLEY_TEST_MEMORY_DIR"

// TestMemoryChild is what is measured: it installs the release of a folder and prints its own peak.
func TestMemoryChild(t *testing.T) {
	dir := os.Getenv(memoryDir)
	if dir == "" {
		return // the parent starts it
	}
	var r Record
	b, err := os.ReadFile(filepath.Join(dir, "record"))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustInstall(t, newStore(t, filepath.Join(dir, "state")), folderSource(dir), r)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s\n", status)
}

// A small node must be able to take a large release: 70 MiB in 2,000 files here, far more than the test allows itself.
func TestInstallNeedsLittleMemory(t *testing.T) {
	dir := t.TempDir()
	f := folder{}
	for i := range 2000 {
		f[fmt.Sprintf("modules/m%02d/files/f%04d", i%50, i)] = strings.Repeat(fmt.Sprintf("line %d\n", i), 300)
	}
	for i := range 2 {
		f[fmt.Sprintf("modules/large%d", i)] = noise(uint64(i), 1000) + strings.Repeat(fmt.Sprintf("line %d\n", i), 4<<20)
	}
	f["modules/dense"] = noise(9, 8<<20)
	f.write(t, filepath.Join(dir, "tree"))
	r, err := Build(filepath.Join(dir, "tree"), mustRead(t, filepath.Join(dir, "tree")), func(o Object, b []byte) error {
		return os.WriteFile(filepath.Join(dir, o.Hash), b, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "record"), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemoryChild$")
	cmd.Env = append(os.Environ(), memoryDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	peak := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(out)
	if peak == nil {
		t.Fatalf("no peak in %s", out)
	}
	kB, err := strconv.Atoi(string(peak[1]))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("peak memory of the whole process: %d MiB for a tree of %d MiB", kB>>10, r.Bytes>>20)
	if kB > 40<<10 {
		t.Errorf("peak memory of %d kB", kB)
	}
}
