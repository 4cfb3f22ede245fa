package source

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/release/content"
)

// A tool that waits for a hidden password prompt or for a server must not block a pipeline, nor outlive it. As
// r10k does, the tool starts its child in a session of its own.
func TestToolThatHangsIsEnded(t *testing.T) {
	dir, pid := t.TempDir(), filepath.Join(t.TempDir(), "pid")
	write(t, dir, map[string]string{"Puppetfile": "mod 'a/ntp'\n"})
	fakeR10k(t, `{"title": "a/ntp", "folder": "modules"}`, "echo asking the forge\nsetsid sleep 1000 & echo $! >"+pid+"\nwait\n")
	refused(t, dir, Options{Deadline: 300 * time.Millisecond}, "cannot resolve the Puppetfile with r10k: it took longer than 300ms: asking the forge\n", "--puppetfile-timeout")
	ended(t, pid)
	if err := os.Remove(pid); err != nil { // another process may get the id
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	_, err := Open(ctx, dir, Options{CacheDir: t.TempDir(), Progress: func(line string) {
		if line == "r10k: asking the forge" {
			cancel()
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("interrupted: %v", err)
	}
	ended(t, pid)
}

// ended waits until the process with the id in a file has ended.
func ended(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil || len(b) == 0 {
		return // it ended before it started a child or wrote the id
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		// A zombie remains until init reaps it. Some containers have no init.
		if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

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

// A module that nobody else has is missed at the first run of a node. The tools install the modules of the Puppetfile only.
func TestOwnModulesAreKeptOrNamed(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	fakeR10k(t, `{"title": "alpha", "folder": "modules"}, {"title": "loop", "folder": "modules"}, {"title": "local", "folder": "modules", "local": true}, {"title": "quiet", "folder": "modules", "local": true}`,
		"mkdir -p modules/alpha modules/loop\necho new >modules/alpha/a.pp\necho new >modules/loop/a.pp\n")
	write(t, elsewhere, map[string]string{"tree.pp": "x"})
	commit(t, elsewhere, "one")
	write(t, dir, map[string]string{
		"Puppetfile":          "mod 'alpha', git: 'x'\n%w[loop].each { |m| mod m, git: 'x' }\nmod 'local', local: true\nmod 'quiet', :local => true\n",
		".gitignore":          "/modules/ignored\n*.gz\n/modules/quiet\n",
		"modules/kept/own.pp": "x", "modules/kept/.latest_commit": "0123",
		"modules/tracked/own.pp": "x", "site/linked/own.pp": "x",
	})
	if err := os.Symlink("../site/linked", filepath.Join(dir, "modules/linked")); err != nil {
		t.Fatal(err)
	}
	commit(t, dir, "begin")
	write(t, dir, map[string]string{
		"modules/clone/own.pp": "x", "modules/local/own.pp": "x", "modules/quiet/own.pp": "x", "modules/alpha/a.pp": "old", "modules/alpha/gone.pp": "old", "modules/loop/a.pp": "old",
		"modules/ignored/own.pp": "x", "modules/tracked/files/built.gz": "x", "modules/left/.latest_commit": "0123", "modules/left/a.pp": "old",
	})
	for _, clone := range []string{"clone", "alpha", "loop", "local"} {
		commit(t, filepath.Join(dir, "modules", clone), "one")
	}
	git(t, elsewhere, "worktree", "add", "-q", "--detach", filepath.Join(dir, "modules/tree"))
	before := snapshot(t, dir)
	f := open(t, dir, Options{Modules: R10k})
	same(t, "published", published(t, f), ".gitignore", "Puppetfile", "modules/", "modules/alpha/", "modules/alpha/a.pp", "modules/clone/", "modules/clone/own.pp",
		"modules/kept/", "modules/kept/own.pp", "modules/linked → ../site/linked", "modules/local/", "modules/local/own.pp", "modules/loop/", "modules/loop/a.pp",
		"modules/quiet/", "modules/quiet/own.pp", "modules/tracked/", "modules/tracked/files/", "modules/tracked/files/built.gz",
		"modules/tracked/own.pp", "modules/tree/", "modules/tree/tree.pp", "site/", "site/linked/", "site/linked/own.pp")
	same(t, "notes", f.Notes,
		"modules that the Puppetfile does not name are published as they are in the folder, because they are clones of git: modules/clone, modules/tree",
		"modules that the Puppetfile does not name are left out, because g10k installed them: modules/left",
		"modules that the Puppetfile does not name are left out, because git ignores them: modules/ignored")
	if !f.Facts.Dirty {
		t.Error("git has not what is published, and the release names its commit alone")
	}
	same(t, "the operator's folder", snapshot(t, dir), before...)
}

// A module of the team with the name of one in the Puppetfile is not published. r10k does the same, and removes it.
func TestReplacedModulesAreNamed(t *testing.T) {
	dir := t.TempDir()
	fakeR10k(t, `{"title": "alpha", "folder": "modules"}, {"title": "linked", "folder": "modules"}, {"title": "fresh", "folder": "modules"}, {"title": "me/beta", "folder": "ext"}, {"title": "data", "folder": "."}`,
		"for m in modules/alpha modules/linked modules/fresh ext/beta data; do mkdir -p $m; echo new >$m/a.pp; done\n")
	write(t, dir, map[string]string{
		"Puppetfile":           "mod 'alpha', '1.0.0'\nmod 'beta', git: 'x', install_path: 'ext'\nmod 'data', git: 'x', install_path: '.'\n",
		"modules/alpha/own.pp": "x", "modules/own/own.pp": "x", "ext/beta/a.pp": "x", "site/linked/own.pp": "x", "data/a.pp": "x",
	})
	if err := os.Symlink("../site/linked", filepath.Join(dir, "modules/linked")); err != nil {
		t.Fatal(err)
	}
	commit(t, dir, "begin")
	const note = "modules of the folder are left out, because the Puppetfile has others with their names: modules/alpha, modules/linked, ext/beta, data"
	if f := open(t, dir, Options{Modules: Unresolved}); f.Replaced() != strings.Replace(note, " modules/linked,", "", 1) { // its name is no plain string
		t.Errorf("validation says %q", f.Replaced())
	}
	for _, ref := range []string{"", "main"} {
		f := open(t, dir, Options{Modules: R10k, Ref: ref})
		same(t, "notes", f.Notes, note)
		same(t, "published", published(t, f), "Puppetfile", "data/", "data/a.pp", "ext/", "ext/beta/", "ext/beta/a.pp", "modules/", "modules/alpha/", "modules/alpha/a.pp",
			"modules/fresh/", "modules/fresh/a.pp", "modules/linked/", "modules/linked/a.pp", "modules/own/", "modules/own/own.pp", "site/", "site/linked/", "site/linked/own.pp")
	}
	fakeR10k(t, `{"title": "fresh", "folder": "modules"}`, "mkdir -p modules/fresh; echo new >modules/fresh/a.pp\n")
	again := t.TempDir() // where git ignores the folder of modules
	write(t, again, map[string]string{"Puppetfile": "mod 'fresh', '1.0.0'\n", ".gitignore": "/modules/\n", "modules/fresh/a.pp": "old"})
	commit(t, again, "begin")
	if f := open(t, again, Options{Modules: R10k}); slices.ContainsFunc(f.Notes, func(n string) bool { return strings.Contains(n, "modules/fresh") }) {
		t.Errorf("modules of an earlier run are called replaced: %q", f.Notes)
	}
}
