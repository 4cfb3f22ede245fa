package content

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var golden = folder{
	"README.md":         "hello\n",
	"a-b":               "",
	"bin/run":           "#!/bin/sh\n",
	"empty/":            "",
	"link":              "-> bin/run",
	"modules/é/big.txt": strings.Repeat("0123456789", 30),
}

// Computed by an independent program from the definition of PUPTREE1.
const goldenTree = "68b969eabab92f52d33dd48a192d59e6483f827f3c87bdb544b75448bd40cd24"

// If the tree hash changed, every node would fetch and apply every release again, and all signatures would be invalid.
func TestTreeHashIsGolden(t *testing.T) {
	if got := mustRead(t, golden.make(t)).Tree(); got != goldenTree {
		t.Errorf("tree hash %s, want %s", got, goldenTree)
	}
}

// If the hash depended on the machine, publishing the same commit twice would look like tampering.
func TestTreeHashIsTheSameOnEveryMachine(t *testing.T) {
	change := func(f func(p string) error) func(t *testing.T, root string) {
		return func(t *testing.T, root string) {
			for name := range golden {
				if err := f(filepath.Join(root, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Run("umask", func(t *testing.T) {
		defer syscall.Umask(syscall.Umask(0o077))
		if got := mustRead(t, golden.make(t)).Tree(); got != goldenTree {
			t.Errorf("tree hash %s", got)
		}
	})
	for name, change := range map[string]func(t *testing.T, root string){
		"times": change(func(p string) error {
			if fi, err := os.Lstat(p); err != nil || !fi.Mode().IsRegular() {
				return err
			}
			return os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0))
		}),
		"owners": change(func(p string) error {
			if os.Getuid() != 0 {
				return nil
			}
			return os.Lchown(p, 12345, 54321)
		}),
		"other bits": change(func(p string) error {
			fi, err := os.Lstat(p)
			if err != nil || !fi.Mode().IsRegular() {
				return err
			}
			return os.Chmod(p, fi.Mode()&0o700|0o066|os.ModeSetuid|os.ModeSetgid|os.ModeSticky)
		}),
		"git": func(t *testing.T, root string) {
			folder{".git/config": "x", "modules/é/.git": "gitdir: elsewhere"}.write(t, root)
		},
		"order of creation": func(t *testing.T, root string) {
			for _, name := range []string{"bin/run", "README.md", "a-b"} {
				p := filepath.Join(root, name)
				if err := os.Remove(p); err != nil {
					t.Fatal(err)
				}
				folder{name: golden[name]}.write(t, root)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := golden.make(t)
			change(t, root)
			if got := mustRead(t, root).Tree(); got != goldenTree {
				t.Errorf("tree hash %s, want %s", got, goldenTree)
			}
		})
	}
}

// If two different trees had one hash, a node would miss the change.
func TestTreeHashSeesEveryDifference(t *testing.T) {
	for name, change := range map[string]func(root string) error{
		"content": func(root string) error {
			return os.WriteFile(filepath.Join(root, "README.md"), []byte("hellO\n"), 0o644)
		},
		"executable": func(root string) error { return os.Chmod(filepath.Join(root, "README.md"), 0o755) },
		"name":       func(root string) error { return os.Rename(filepath.Join(root, "a-b"), filepath.Join(root, "a-c")) },
		"empty dir":  func(root string) error { return os.Remove(filepath.Join(root, "empty")) },
		"target": func(root string) error {
			link := filepath.Join(root, "link")
			if err := os.Remove(link); err != nil {
				return err
			}
			return os.Symlink("README.md", link)
		},
	} {
		root := golden.make(t)
		if err := change(root); err != nil {
			t.Fatal(err)
		}
		if mustRead(t, root).Tree() == goldenTree {
			t.Errorf("%s: same tree hash", name)
		}
	}
}

func TestManifestRoundTrip(t *testing.T) {
	m := mustRead(t, golden.make(t))
	encoded := m.Encode()
	again, err := decodeManifest(string(encoded))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Encode(), encoded) || again.Tree() != goldenTree {
		t.Error("the manifest came back changed")
	}
	if again.Files() != 4 || again.Bytes() != 316 {
		t.Errorf("%d files, %d bytes", again.Files(), again.Bytes())
	}
}

// With two encodings of a manifest, or with ignored bytes, two readers could see different trees.
func TestDecodeManifestRefusesOtherSpellings(t *testing.T) {
	hash := strings.Repeat("\x01", 32)
	for name, encoded := range map[string]string{
		"nothing":             "",
		"other format":        "PUPMANIFEST2\n",
		"cut tag":             "PUPMANIF",
		"cut after type":      manifestTag + "d",
		"cut path":            manifestTag + "d\x05mod",
		"cut size":            manifestTag + "d\x01m",
		"cut hash":            manifestTag + "f\x01m\x01" + hash[:31],
		"cut target":          manifestTag + "l\x01m\x05abcd",
		"unknown type":        manifestTag + "p\x01m\x00",
		"folder with content": manifestTag + "d\x01m\x01",
		"long number":         manifestTag + "d\x81\x00m\x00",
		"endless number":      manifestTag + "d" + strings.Repeat("\x80", 20),
		"overflowing number":  manifestTag + "d" + strings.Repeat("\xff", 9) + "\x7f",
		"huge path":           manifestTag + "d\xff\xff\x7f",
		"trailing byte":       manifestTag + "d\x01m\x00" + "x",
		"empty with a hash":   manifestTag + "f\x01m\x00" + hash,
		"too large":           manifestTag + strings.Repeat("d\x01m\x00", maxManifestBytes/4),
	} {
		if _, err := decodeManifest(encoded); err == nil || !strings.HasPrefix(err.Error(), "cannot decode manifest: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
