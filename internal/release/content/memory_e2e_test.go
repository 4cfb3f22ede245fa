//go:build e2e

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

// folderSource is a source that stores its values in files.
type folderSource string

func (f folderSource) Object(_ context.Context, hash string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), hash))
}

func (f folderSource) Deltas(_ context.Context, line string, from, to int64) ([][]byte, error) {
	var all [][]byte
	for seq := from; seq <= to; seq++ {
		b, err := os.ReadFile(filepath.Join(string(f), fmt.Sprintf("%s.%d", line, seq)))
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func (f folderSource) put(name string, b []byte) error {
	return os.WriteFile(filepath.Join(string(f), name), b, 0o644)
}

const memoryDir = "PULLEY_TEST_MEMORY_DIR"

// TestMemoryChild is the measured process: it installs the release of a folder and prints its peak memory.
func TestMemoryChild(t *testing.T) {
	dir := os.Getenv(memoryDir)
	if dir == "" {
		return // only the parent test starts it
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

// A small node must be able to install a large release, and to apply many large deltas. Here it is 100 MiB in 2,000
// files, far more than the memory limit of the test.
func TestInstallNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := folderSource(dir)
	tree := filepath.Join(dir, "tree")
	f := folder{}
	for i := range 2000 {
		f[fmt.Sprintf("modules/m%02d/files/f%04d", i%50, i)] = strings.Repeat(fmt.Sprintf("line %d\n", i), 300)
	}
	for i := range 3 {
		f[fmt.Sprintf("modules/large%d", i)] = noise(uint64(i), 1000) + strings.Repeat(fmt.Sprintf("line %d\n", i), 4<<20)
	}
	f["modules/dense"] = noise(9, 12<<20)
	f.write(t, tree)
	var parent Parent
	release := func() Record {
		r, delta, err := Build(t.Context(), tree, mustRead(t, tree), parent, "1.0.0", func(o Object, b []byte) error {
			return src.put(o.Hash, b)
		})
		if err == nil && delta != nil {
			err = src.put(fmt.Sprintf("%s.%d", r.Chain.Line, r.Chain.Seq), delta)
		}
		if err != nil {
			t.Fatal(err)
		}
		parent = Parent{View: mustOpen(t, src, r), Last: true}
		return r
	}
	r := release()
	if r.Bytes < 100<<20 {
		t.Fatalf("a tree of %d bytes", r.Bytes)
	}
	t.Logf("from nothing: %d MiB", peak(t, dir, r)>>10)

	line := []Record{r}
	for n := range 3 { // each nearly of the maximum weight
		change := folder{}
		for i := range 7 {
			change[fmt.Sprintf("changing/%d", i)] = strings.Repeat(fmt.Sprintf("%d in release %d\n", i, n), 45_000)
		}
		change.write(t, tree)
		line = append(line, release())
	}
	if r = line[3]; r.Base.Seq != 3 || r.Chain.Weight < 16<<20 || r.Chain.Weight > maxWeight {
		t.Fatalf("%+v", r)
	}
	t.Logf("by deltas of %d MiB: %d MiB", r.Chain.Weight>>20, peak(t, dir, r)>>10)
	if r = line[2]; r.Base.Seq != 0 || r.Chain.Weight < 10<<20 {
		t.Fatalf("%+v", r)
	}
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	t.Logf("from its base and deltas of %d MiB: %d MiB", r.Chain.Weight>>20, peak(t, dir, r)>>10)
}

// peak returns the memory in kB that an installation takes in a separate process.
func peak(t *testing.T, dir string, r Record) int {
	t.Helper()
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
	if kB > 40<<10 {
		t.Errorf("peak memory of %d kB", kB)
	}
	return kB
}
