package source

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulley/internal/release/content"
)

// write creates files below dir, by path. An empty text for a path with a trailing slash creates a folder.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(file, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// git runs git in dir, without the settings of the user.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ann Author", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=Carl", "GIT_COMMITTER_EMAIL=carl@example.com",
		"GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit creates a repository in dir, or adds to it, and returns the commit.
func commit(t *testing.T, dir, message string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		git(t, dir, "init", "-q", "-b", "main")
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", message)
	return git(t, dir, "rev-parse", "HEAD")
}

// fakeR10k puts an r10k into the PATH that lists modules (JSON objects as of planned) and then runs a shell script.
func fakeR10k(t *testing.T, modules, script string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	write(t, bin, map[string]string{"r10k": "#!/bin/sh\nif [ $2 = check ]; then cat >\"$PULLEY_PLAN\" <<'END'\n[" + modules + "]\nEND\nexit; fi\n" + script})
	if err := os.Chmod(filepath.Join(bin, "r10k"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return bin
}

// open opens dir and closes it when the test ends.
func open(t *testing.T, dir string, o Options) *Folder {
	t.Helper()
	if o.CacheDir == "" {
		o.CacheDir = t.TempDir()
	}
	f, err := Open(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if f.work != "" {
			if _, err := os.Stat(f.work); err == nil {
				t.Errorf("%s is left", f.work)
			}
		}
	})
	return f
}

// refused opens dir and expects an error with every one of these texts.
func refused(t *testing.T, dir string, o Options, texts ...string) {
	t.Helper()
	if o.CacheDir == "" {
		o.CacheDir = t.TempDir()
	}
	f, err := Open(context.Background(), dir, o)
	if err == nil {
		f.Close()
		t.Fatalf("%s was opened", dir)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in: %v", text, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.CacheDir, "work", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// published returns the content of a release of the folder: one line per file, folder (/), link (→) or executable (*).
func published(t *testing.T, f *Folder) []string {
	t.Helper()
	m, err := content.ReadTree(f.Root, f.Ignore)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range m.Entries {
		switch e.Kind {
		case content.KindDirectory:
			all = append(all, e.Path+"/")
		case content.KindLink:
			all = append(all, e.Path+" → "+e.Target)
		case content.KindExecutable:
			all = append(all, e.Path+"*")
		default:
			all = append(all, e.Path)
		}
	}
	return all
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
