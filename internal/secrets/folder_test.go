package secrets_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/pki"
	"pulley/internal/secrets"
)

// A key that is there and cannot be used, or whose volume is not mounted, must neither count as lost nor be replaced: its secrets would be lost.
func TestOnlyMissingSecretsKeyIsMade(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		spoil func(dir, file string) error
		says  string // "": it is made
	}{
		"missing":          {func(string, string) error { return nil }, ""},
		"link to nothing":  {func(dir, file string) error { return os.Symlink(filepath.Join(dir, "volume/secrets.key"), file) }, "a link to a missing file"},
		"empty":            {func(_, file string) error { return os.WriteFile(file, nil, 0o600) }, "is empty or damaged"},
		"damaged":          {func(_, file string) error { return os.WriteFile(file, []byte("AGE-SECRET-KEY-1\n"), 0o600) }, "is empty or damaged"},
		"folder":           {func(_, file string) error { return os.Mkdir(file, 0o700) }, "is a directory"},
		"unmounted folder": {func(dir, _ string) error { return os.Remove(filepath.Join(dir, "ca.pem")) }, "volume of the folder may not be mounted"},
	} {
		dir := t.TempDir()
		ca, err := pki.OpenCA(dir, pki.Options{})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "secrets.key")
		if err := c.spoil(dir, file); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(file)
		_, err = secrets.Key(ca, false)
		key, made := secrets.Key(ca, true)
		if c.says == "" {
			again, read := secrets.Key(ca, true)
			if !errors.Is(err, fs.ErrNotExist) || made != nil || read != nil || again != key {
				t.Errorf("%s: %v, %v, %v", what, err, made, read)
			}
			continue
		}
		for _, err := range []error{err, made} {
			if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if now, _ := os.Lstat(file); (before == nil) != (now == nil) || before != nil && !os.SameFile(before, now) {
			t.Errorf("%s: the file was replaced", what)
		}
	}
}
