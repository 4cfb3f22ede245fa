package source

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Operators rely on the recorded commit to know what runs. A wrong commit, or one that hides a change, is worse than
// none.
func TestWorkTreeIsDescribed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"control/manifests/site.pp": "a", "control/.gitignore": "*.log\nbuild/\n", "control/.pulleyignore": "notes\n**/*.bak\n", "other/x": "x"})
	at := commit(t, dir, "Begin\n\nand more")
	control := filepath.Join(dir, "control")
	facts := open(t, control, Options{}).Facts
	if want := (Facts{Commit: at, First: at, CommitAuthor: "Ann Author <ann@example.com>", Subject: "Begin", CommittedAt: fixed}); facts != want {
		t.Errorf("%+v", facts)
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		dirty bool
	}{
		{"something else in the repository", map[string]string{"other/x": "y", "other/new": "y"}, false},
		{"what is left out", map[string]string{"control/notes": "y", "control/manifests/a.bak": "y", "control/site.pp~": "y"}, false},
		{"an empty folder", map[string]string{"control/empty/": ""}, false},
		{"an untracked file", map[string]string{"control/new.pp": "y"}, true},
		{"a file that git ignores and the release has", map[string]string{"control/a.log": "y"}, true},
		{"a folder that git ignores", map[string]string{"control/build/deep/x": "y"}, true},
		{"a changed file", map[string]string{"control/manifests/site.pp": "b"}, true},
	} {
		write(t, dir, c.files)
		f := open(t, control, Options{})
		if f.Facts.Dirty != c.dirty || f.Facts.Commit != at {
			t.Errorf("%s: %+v", c.name, f.Facts)
		}
		if _, ignored := c.files["control/build/deep/x"]; f.Ignored("build/deep") != ignored {
			t.Errorf("%s: git ignores build/deep: %v", c.name, !ignored)
		}
		for name := range c.files {
			if err := os.RemoveAll(filepath.Join(dir, strings.TrimSuffix(name, "/"))); err != nil {
				t.Fatal(err)
			}
		}
		if c.dirty {
			git(t, dir, "checkout", "-q", ".")
			git(t, dir, "clean", "-fdxq")
		}
	}
	git(t, dir, "checkout", "-q", ".")
	if open(t, control, Options{}).Facts.Dirty {
		t.Error("put back, it is still dirty")
	}
	git(t, dir, "update-index", "--assume-unchanged", "control/manifests/site.pp")
	if !open(t, control, Options{}).Facts.Dirty {
		t.Error("a file that git does not look at may be anything")
	}
}

// Publishing must not change the operator's index, not even git's own bookkeeping in it.
func TestReadingWritesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a", "b": "b"})
	commit(t, dir, "one")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "a"), later, later); err != nil { // git would record that it is unchanged
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"b": "changed", "c": "new"})
	before := snapshot(t, dir)
	open(t, dir, Options{})
	open(t, dir, Options{Ref: "HEAD"})
	same(t, "files", snapshot(t, dir), before...)
}

// snapshot returns every file with its size and time.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		all = append(all, p+" "+info.Mode().String()+" "+info.ModTime().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A folder that is no work tree, or that git can't read, is published without a commit. No commit may be invented.
func TestFoldersWithoutACommit(t *testing.T) {
	plain := t.TempDir()
	write(t, plain, map[string]string{"a": "a"})
	if f := open(t, plain, Options{}); f.Facts != (Facts{}) || len(f.Notes) > 0 {
		t.Errorf("plain: %+v", f)
	}
	refused(t, plain, Options{Ref: "main"}, `cannot publish ref "main" of `, "it is in no git repository")
	git(t, plain, "init", "-q")
	if f := open(t, plain, Options{}); f.Facts != (Facts{}) || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "there is none yet") {
		t.Errorf("unborn: %+v", f)
	}
	if err := os.WriteFile(filepath.Join(plain, ".git", "config"), []byte("[core\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := open(t, plain, Options{}); f.Facts != (Facts{}) || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "bad config") {
		t.Errorf("spoiled: %+v", f)
	}
	around := t.TempDir()
	write(t, around, map[string]string{".gitignore": "/build/\n/own/control/\n", "build/control/site.pp": "a", "own/control/site.pp": "a", "untracked/site.pp": "a"})
	git(t, around, "init", "-q", "-b", "main")
	git(t, around, "add", ".gitignore")
	git(t, around, "commit", "-q", "-m", "around")
	for _, folder := range []string{"build/control", "own/control", "untracked"} {
		if f := open(t, filepath.Join(around, folder), Options{}); f.Facts != (Facts{}) || f.branch != "" || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "git tracks no file of this folder") {
			t.Errorf("%s: %+v", folder, f)
		}
	}
	bare := filepath.Join(t.TempDir(), "x.git")
	git(t, "/", "init", "-q", "--bare", bare)
	refused(t, bare, Options{}, "it is a git repository without a work tree\ngive a branch, a tag or a commit, as in --git-ref")
	refused(t, filepath.Join(plain, "a"), Options{}, "is not a folder")
	refused(t, filepath.Join(plain, "none"), Options{}, "no such file")
	t.Setenv("PATH", t.TempDir())
	if f := open(t, plain, Options{}); f.Facts != (Facts{}) {
		t.Errorf("without git: %+v", f)
	}
	refused(t, plain, Options{Ref: "main"}, "git is not installed")
}

// The empty folder of a submodule without a checkout would be an empty module on every node.
func TestSubmodules(t *testing.T) {
	module, dir := t.TempDir(), t.TempDir()
	write(t, module, map[string]string{"init.pp": "a"})
	commit(t, module, "module")
	write(t, dir, map[string]string{"control/site.pp": "a"})
	commit(t, dir, "begin")
	git(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", module, "control/modules/m")
	commit(t, dir, "with a module")
	control := filepath.Join(dir, "control")
	f := open(t, control, Options{})
	if f.Facts.Dirty {
		t.Errorf("%+v", f.Facts)
	}
	same(t, "checked out", published(t, f), "modules/", "modules/m/", "modules/m/init.pp", "site.pp")
	write(t, control, map[string]string{"modules/m/more.pp": "b"})
	if !open(t, control, Options{}).Facts.Dirty {
		t.Error("a new file in a submodule is in no commit")
	}
	refused(t, control, Options{Ref: "HEAD"}, "modules/m is a submodule", "git submodule update --init --recursive", ignoreFile)
	clone := filepath.Join(t.TempDir(), "clone")
	git(t, dir, "clone", "-q", dir, clone)
	unread := Options{Unread: func(root, folder string) bool {
		return root == filepath.Join(clone, "control") && folder == "modules/m"
	}}
	if f, err := Open(t.Context(), filepath.Join(clone, "control"), unread); err != nil || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "modules/m") {
		t.Errorf("a submodule that nodes do not need: %v %v", f, err)
	}
	refused(t, filepath.Join(clone, "control"), Options{}, "its submodule modules/m is not checked out\nrun: git -C ")
	write(t, control, map[string]string{ignoreFile: "modules/m\n"})
	git(t, dir, "add", "control/"+ignoreFile)
	git(t, dir, "commit", "-q", "-m", "without it")
	same(t, "left out", published(t, open(t, control, Options{Ref: "main"})), "site.pp")
}

// Without git's answers, nobody knows what is committed. CI in a container meets this: root reads the checkout of another user.
func TestRepositoryOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	commit(t, dir, "one")
	t.Setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
	refused(t, dir, Options{}, "git refuses a repository of another user", "git config --global --add safe.directory "+dir)
}

// git submodule update --init checks out only the first level.
func TestNestedSubmoduleIsCheckedOut(t *testing.T) {
	inner, outer, control := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, inner, map[string]string{"init.pp": "i"})
	commit(t, inner, "inner")
	write(t, outer, map[string]string{"o.pp": "o"})
	commit(t, outer, "outer")
	git(t, outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", inner, "deep")
	git(t, outer, "commit", "-q", "-m", "with deep")
	write(t, control, map[string]string{"site.pp": "s"})
	commit(t, control, "control")
	git(t, control, "-c", "protocol.file.allow=always", "submodule", "add", "-q", outer, "modules/m")
	git(t, control, "commit", "-q", "-m", "with m")
	refused(t, control, Options{}, "its submodule modules/m/deep is not checked out", "submodule update --init --recursive")
	git(t, control, "-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive")
	if got := published(t, open(t, control, Options{})); !slices.Contains(got, "modules/m/deep/init.pp") {
		t.Error(got)
	}
}

// Git waits for a pipe in the place of a file that it reads: for two minutes, without a cause.
func TestPipesOfARepositoryAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"control/site.pp": "s", "control/modules/m/init.pp": "i"})
	commit(t, dir, "one")
	tree := filepath.Join(t.TempDir(), "tree")
	git(t, dir, "worktree", "add", "-q", "--detach", tree)
	for _, name := range []string{"control/modules/m/.gitignore", ".gitignore", ".gitattributes", ".git/info/exclude", ".git/config", ".git/HEAD", ".git/refs/heads/x"} {
		file := filepath.Join(dir, name)
		before, _ := os.ReadFile(file)
		os.Remove(file)
		if err := syscall.Mkfifo(file, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{{}, {Ref: "HEAD"}} {
			refused(t, filepath.Join(dir, "control"), o, file+" is a named pipe, which git would wait for\nremove it: rm "+file)
		}
		if name == ".git/config" {
			refused(t, tree, Options{}, file+" is a named pipe")
			refused(t, filepath.Join(dir, ".git"), Options{Ref: "HEAD"}, file+" is a named pipe")
		}
		os.Remove(file)
		if before != nil {
			write(t, dir, map[string]string{name: string(before)})
		}
	}
	if f := open(t, filepath.Join(dir, "control"), Options{}); f.Facts.Commit == "" {
		t.Errorf("%+v", f)
	}
}

// The first commit tells the releases of two repositories apart. A shallow clone, as in CI, has another one, and must not claim it.
func TestFirstCommitOfTheHistory(t *testing.T) {
	dir, shallow := t.TempDir(), filepath.Join(t.TempDir(), "shallow")
	write(t, dir, map[string]string{"a": "1"})
	first := commit(t, dir, "one")
	commit(t, dir, "two")
	git(t, dir, "clone", "-q", "--depth", "1", "file://"+dir, shallow)
	for _, c := range []struct {
		dir, ref, want string
	}{{dir, "", first}, {dir, "main", first}, {shallow, "", ""}, {t.TempDir(), "", ""}} {
		if got := open(t, c.dir, Options{Ref: c.ref}).Facts.First; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
