package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// --git-ref publishes a reviewed commit, independent of the work tree: its bytes, modes and links after the filters of
// a checkout, and nothing else.
func TestRefIsPublishedAsACheckoutWouldBe(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		".gitattributes": "*.txt eol=crlf\n*.up filter=upper\ncontrol/no.txt -text\n", "control/a.txt": "one\ntwo\n", "control/no.txt": "one\n", "control/b.up": "quiet\n",
		"control/name with space/ünï.pp": "x", "control/run.sh": "#!/bin/sh\n", "control/.pulleyignore": "*.md\n", "control/R.md": "x", "other/x": "x",
	})
	if err := os.Chmod(filepath.Join(dir, "control/run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("run.sh", filepath.Join(dir, "control/link")); err != nil {
		t.Fatal(err)
	}
	first := commit(t, dir, "first")
	git(t, dir, "tag", "-a", "-m", "tagged", "v1")
	write(t, dir, map[string]string{"control/new.pp": "x"})
	second := commit(t, dir, "second")
	git(t, dir, "config", "filter.upper.smudge", "tr a-z A-Z")
	git(t, dir, "config", "filter.upper.required", "true")
	write(t, dir, map[string]string{"control/dirty.pp": "x", "control/a.txt": "changed"})
	bare := filepath.Join(t.TempDir(), "bare.git")
	git(t, dir, "clone", "-q", "--bare", dir, bare)
	linked := filepath.Join(t.TempDir(), "linked")
	git(t, dir, "worktree", "add", "-q", "--detach", linked)
	for _, name := range []string{"filter.upper.smudge", "filter.upper.required"} {
		git(t, bare, "config", name, git(t, dir, "config", name))
	}

	control := filepath.Join(dir, "control")
	tree := []string{"a.txt", "b.up", "link → run.sh", "name with space/", "name with space/ünï.pp", "no.txt", "run.sh*"}
	for _, ref := range []string{"v1", first, first[:10], "HEAD~1", "main^"} {
		f := open(t, control, Options{Ref: ref})
		same(t, ref, published(t, f), tree...)
		if want := (Facts{Commit: first, First: first, Ref: ref, CommitAuthor: "Ann Author <ann@example.com>", Subject: "first", CommittedAt: fixed}); f.Facts != want {
			t.Errorf("%s: %+v", ref, f.Facts)
		}
		for name, want := range map[string]string{"a.txt": "one\r\ntwo\r\n", "no.txt": "one\n", "b.up": "QUIET\n"} {
			if got, err := os.ReadFile(filepath.Join(f.Root, name)); err != nil || string(got) != want {
				t.Errorf("%s of %s: %q %v, want %q", name, ref, got, err, want)
			}
		}
	}
	f := open(t, filepath.Join(linked, "control"), Options{Ref: "HEAD"})
	if f.Facts.Commit != second || len(published(t, f)) != len(tree)+1 {
		t.Errorf("linked work tree: %+v %v", f.Facts, published(t, f))
	}
	f = open(t, bare, Options{Ref: "main"})
	if got, err := os.ReadFile(filepath.Join(f.Root, "control", "a.txt")); err != nil || string(got) != "one\r\ntwo\r\n" || f.Facts.Commit != second {
		t.Errorf("bare: %q %v %+v", got, err, f.Facts)
	}
	// In a hook, variables of git select another repository.
	t.Setenv("GIT_DIR", t.TempDir())
	t.Setenv("GIT_INDEX_FILE", "/nowhere")
	if f := open(t, control, Options{Ref: "v1"}); f.Facts.Commit != first {
		t.Errorf("in a hook: %+v", f.Facts)
	}
}

// A name that git parses as an option could write files or run programs. An unknown name must be reported.
func TestInvalidRefsAreRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"control/a": "a"})
	commit(t, dir, "first")
	git(t, dir, "rm", "-q", "-r", "control")
	write(t, dir, map[string]string{"b": "b"})
	commit(t, dir, "second")
	control := filepath.Join(dir, "control")
	write(t, dir, map[string]string{"control/untracked": "x"})
	stolen := filepath.Join(t.TempDir(), "stolen")
	for ref, want := range map[string]string{
		"nope": "git knows no such commit\n", "HEAD~9": "git knows no such commit\n", "HEAD:b": "git knows no such commit\n", "main..main": "git knows no such commit\n",
		"--output=" + stolen: "that is not the name of a commit", "-": "that is not the name of a commit", "--all": "that is not the name of a commit", "a\nb": "that is not the name of a commit",
		"HEAD": `it has no folder "control"`,
	} {
		refused(t, control, Options{Ref: ref}, want)
	}
	if _, err := os.Stat(stolen); err == nil {
		t.Error("a ref was taken for an option")
	}
	same(t, "first", published(t, open(t, control, Options{Ref: "HEAD~1"})), "a")
}

// A failed filter omits a file or half of it. This must never be published.
func TestFilterThatFails(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{".gitattributes": "*.bin filter=gone\n", "a.bin": "x", "b": "x"})
	commit(t, dir, "first")
	git(t, dir, "config", "filter.gone.smudge", "sh -c 'echo no such server >&2; exit 3'")
	git(t, dir, "config", "filter.gone.required", "true")
	refused(t, dir, Options{Ref: "HEAD"}, "cannot check out ref \"HEAD\" of ", "a.bin")
}

// The copy of a killed process is removed after some time. A copy in use is not.
func TestLeftWorkIsSweptOnceItIsOld(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"a": "a"})
	commit(t, dir, "first")
	write(t, cache, map[string]string{"work/publish-old/tree/x": "x", "work/publish-new/tree/x": "x"})
	if err := os.Chtimes(filepath.Join(cache, "work/publish-old"), fixed, fixed); err != nil {
		t.Fatal(err)
	}
	if f := open(t, dir, Options{Ref: "HEAD", CacheDir: cache}); !strings.HasPrefix(f.Root, cache) {
		t.Errorf("it is made in %s", f.Root)
	}
	left, err := filepath.Glob(filepath.Join(cache, "work", "publish-[on]*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "publish-new" {
		t.Errorf("%v %v", left, err)
	}
	if f := open(t, dir, Options{Ref: "HEAD", CacheDir: "/proc/none"}); len(published(t, f)) != 1 {
		t.Error("without a cache")
	}
}
