package node

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pulley/agent/nodeconfig"
)

// Decrypted data must never reach a disk, and what a killed agent left must be gone before the next run.
func TestDecryptedDataStaysInMemory(t *testing.T) {
	n := &Node{Setup: Setup{Config: nodeconfig.Under(t.TempDir()), Log: slog.New(slog.DiscardHandler)}}
	files := []layerFile{{name: "role.yaml", text: []byte("k: s3cret\n")}}
	dir, err := n.inMemory(files)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info, err)
	}
	if err := ForgetSecrets(n.Config); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}

	disk, kept := t.TempDir(), memoryFolders
	memoryFolders = []string{"/proc/self", filepath.Join(disk, "absent")}
	defer func() { memoryFolders = kept }()
	if dir, err := n.inMemory(files); err == nil || !strings.Contains(err.Error(), "is a tmpfs") || !strings.Contains(err.Error(), "mount -t tmpfs") {
		t.Errorf("without a tmpfs: %q, %v", dir, err)
	}
}
