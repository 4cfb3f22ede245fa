package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"pulley/userdata"
)

// A seed that is not read back as it was written is a machine that never hears of its fleet.
func TestISOHoldsTheSeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seed.iso")
	files := []userdata.SeedFile{
		{Name: "user-data", Text: []byte("#cloud-config\n# zoë\n")},
		{Name: "meta-data", Text: []byte("instance-id: one\n")},
		{Name: "network-config", Text: make([]byte, 3*isoBlock+1)},
	}
	for range 2 { // the second one replaces the first
		if err := writeISO(path, files); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	volume, err := iso9660.Read(file.New(f, true), 0, 0, isoBlock)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimRight(volume.Label(), "\x00 ") != seedLabel {
		t.Errorf("cloud-init looks for %s, and the volume is called %q", seedLabel, volume.Label())
	}
	for _, want := range files {
		got, err := volume.ReadFile(want.Name)
		if err != nil || string(got) != string(want.Text) {
			t.Errorf("%s holds %d bytes, should hold %d: %v", want.Name, len(got), len(want.Text), err)
		}
	}
}
