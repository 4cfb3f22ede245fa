package controlrepo

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Pulley must accept the repository that its own first command creates.
func TestInitWritesValidRepository(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "repo")
	files, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".gitignore", "README.md", "environment.conf", "clouds/cloud.schema.json", "clouds/openstack.yaml", "environments/dev.yaml",
		"environments/environment.schema.json", "environments/production.yaml", "hiera.yaml",
		"hieradata/common.yaml", "hieradata/nodes/controller1.yaml", "hieradata/roles/controller.yaml", "manifests/site.pp",
		"modules/pulley/manifests/init.pp", "pulley.yaml", "validate.d/10-motd",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("%s is missing in %v", want, files)
		}
	}
	if !slices.IsSorted(files) {
		t.Errorf("not sorted: %v", files)
	}
	found := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found++
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o644)
		if strings.Contains(path, "validate.d") {
			want = 0o755
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || found != len(files) {
		t.Errorf("%d files on disk, %d named, %v", found, len(files), err)
	}
	report, err := Validate(t.Context(), dir, Options{})
	if err != nil || len(report.Findings) != 0 || report.Files < 10 {
		t.Errorf("the new repository has problems: %v, %v", report, err)
	}
}

// `pulley init` in the wrong folder must not mix its files with existing ones.
func TestInitRefusesExistingFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"notes", "a", "b", "c", "d", "e", "f"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Init(dir)
	var notEmpty *notEmptyError
	if !errors.As(err, &notEmpty) || !strings.Contains(err.Error(), "a, b, c, d, e and 2 more") || notEmpty.Hint() == "" {
		t.Errorf("got %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 7 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
	if _, err := Init(filepath.Join(dir, "notes")); err == nil {
		t.Error("a file was taken for a folder")
	}
}

// `git init` before `pulley init` must work.
func TestInitKeepsGit(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".pulley") && e.Name() != ".pulleyignore" {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}
