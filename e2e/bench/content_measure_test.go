//go:build bench

package bench

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/clip"
)

// figures are measurements of one quantity. The printing code names the unit. No measurement is ever dropped.
type figures []float64

// spread formats "median [least–most]", with this number of decimals.
func (f figures) spread(digits int) string {
	return fmt.Sprintf("%.*f [%.*f–%.*f]", digits, f.percentile(50), digits, slices.Min(f), digits, slices.Max(f))
}

func (f figures) median() float64 { return f.percentile(50) }

func (f figures) times(by float64) figures {
	scaled := make(figures, len(f))
	for i := range f {
		scaled[i] = by * f[i]
	}
	return scaled
}

func (f figures) percentile(p int) float64 { return percentile(slices.Clone(f), p) }

// job is one way to put a tree into a folder.
type job struct {
	name    string
	failed  error                  // of a peer, before the first run
	flushes bool                   // Pulley's: durable when it returns. After those of peers, a timed syncfs follows
	prepare func(round int) error  // creates the initial state; not timed
	run     func(round int) error  // timed
	tree    func(round int) string // path of the resulting tree
}

// timing is the result of one job for each run, in seconds.
type timing struct {
	job  string
	wall figures // until the tree is complete and durable
	walk figures // of the independent walk over it: the cost of a verification for programs without one

	failed error // of a peer, which has no figures
}

// inTurn runs the jobs in the order A B C A B C, to spread the effect of a disturbance. After each run it compares the
// tree with want(round) by treeHash. It flushes earlier writes before each run. A peer that fails has no further run.
func inTurn(t *testing.T, rounds int, want func(round int) string, jobs []job) []timing {
	t.Helper()
	all := make([]timing, len(jobs))
	for i, j := range jobs {
		all[i].job, all[i].failed = j.name, j.failed
	}
	for round := range rounds {
		for i, j := range jobs {
			if all[i].failed != nil {
				continue
			}
			wall, walk, err := j.measure(round, want(round))
			if err != nil && j.flushes {
				t.Fatalf("cannot measure %s, round %d: %v", j.name, round, err)
			}
			all[i].failed = err
			all[i].wall = append(all[i].wall, wall.Seconds())
			all[i].walk = append(all[i].walk, walk.Seconds())
		}
	}
	return all
}

// measure runs a job once, and walks its tree, which is to be the one that was wanted.
func (j job) measure(round int, want string) (wall, walk time.Duration, err error) {
	if j.prepare != nil {
		if err := j.prepare(round); err != nil {
			return 0, 0, err
		}
	}
	unix.Sync()
	start := time.Now()
	err = j.run(round)
	if err == nil && !j.flushes {
		err = syncfs(j.tree(round))
	}
	wall = time.Since(start)
	if err != nil {
		return 0, 0, err
	}
	start = time.Now()
	got, err := treeHash(j.tree(round))
	if err == nil && got != want {
		err = fmt.Errorf("the tree is not the one that was wanted: %.12s, not %.12s", got, want)
	}
	return wall, time.Since(start), err
}

// failure is the cell of a peer that failed: what it said, in one line.
func failure(err error) string {
	said := strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "|", "/")
	return "failed: " + clip.Text(said, 300)
}

// seconds returns the duration of do.
func seconds(t *testing.T, do func() error) float64 {
	t.Helper()
	start := time.Now()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	return time.Since(start).Seconds()
}

func syncfs(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// markers are the files that other programs add to a tree.
var markers = map[string]bool{".git": true, ".g10k-deploy.json": true, ".r10k-deploy.json": true}

// treeHash walks a tree independently of the checked code. It hashes the type, the path, the execute bit and the
// content of everything below dir. It follows a folder that is a link, as Puppet follows `current`.
func treeHash(dir string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	var lines []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if markers[name] {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		line, err := describe(path, name, d)
		lines = append(lines, line)
		return err
	})
	if err != nil {
		return "", err
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:]), nil
}

func describe(path, name string, d fs.DirEntry) (string, error) {
	switch {
	case d.IsDir():
		return fmt.Sprintf("%q folder", name), nil
	case d.Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		return fmt.Sprintf("%q link %q", name, target), err
	case !d.Type().IsRegular():
		return "", fmt.Errorf("%s is neither a file nor a folder nor a link", path)
	}
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%q file %t %x", name, info.Mode()&0o100 != 0, sha256.Sum256(b)), nil
}

// printTimings prints a table of jobs, fastest first, each relative to the first.
func printTimings(all []timing) {
	ours := all[0].wall.median()
	all = slices.Clone(all)
	failed := slices.Clone(all)
	all = slices.DeleteFunc(all, func(a timing) bool { return a.failed != nil })
	failed = slices.DeleteFunc(failed, func(a timing) bool { return a.failed == nil })
	slices.SortStableFunc(all, func(a, b timing) int { return cmp.Compare(a.wall.median(), b.wall.median()) })
	fmt.Println("| | seconds, median [least–most] | of Pulley's | with the walk that checks it |")
	fmt.Println("|---|---|---|---|")
	for _, a := range all {
		checked := make(figures, len(a.wall))
		for i := range a.wall {
			checked[i] = a.wall[i] + a.walk[i]
		}
		fmt.Printf("| %s | %s | %.2f | %s |\n", a.job, a.wall.spread(3), a.wall.median()/ours, checked.spread(3))
	}
	for _, a := range failed {
		fmt.Printf("| %s | %s | | |\n", a.job, failure(a.failed))
	}
	fmt.Println()
}

// command runs a program until it exits. An error contains its output.
func command(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

// output returns a program's output. Git receives a name, and none of the machine's settings.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_AUTHOR_NAME=bench", "GIT_AUTHOR_EMAIL=bench@example.org",
		"GIT_COMMITTER_NAME=bench", "GIT_COMMITTER_EMAIL=bench@example.org", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z", "LC_ALL=C.UTF-8")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
