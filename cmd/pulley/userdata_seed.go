package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"pulley/internal/atomicfile"
	"pulley/userdata"
)

// seedLabel is the name of a volume by which cloud-init knows a NoCloud seed.
const seedLabel = "cidata"

// isoBlock is the size of an ISO's blocks in bytes (ECMA-119, 6.1).
const isoBlock = 2048

func (u *userdataOptions) seed() ([]userdata.SeedFile, error) {
	var network []byte
	if u.networkYML != "" {
		var err error
		if network, err = os.ReadFile(u.networkYML); err != nil {
			return nil, fmt.Errorf("cannot read the network configuration: %w", err)
		}
	}
	return userdata.Seed(u.told, network)
}

// writeSeed writes a NoCloud seed, which only its owner can read: it may hold a token.
func (u *userdataOptions) writeSeed(files []userdata.SeedFile) error {
	write, to := writeSeedFolder, u.to
	if u.iso != "" {
		write, to = writeISO, u.iso
	}
	if err := write(to, files); err != nil {
		return fmt.Errorf("cannot write the seed to %s: %w", to, err)
	}
	return nil
}

func writeSeedFolder(dir string, files []userdata.SeedFile) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := writePrivate(filepath.Join(dir, f.Name), f.Text); err != nil {
			return err
		}
	}
	return nil
}

// writeISO writes the files to a volume that cloud-init finds by its label. Rock Ridge keeps names like meta-data whole.
func writeISO(path string, files []userdata.SeedFile) error {
	work, err := os.MkdirTemp(filepath.Dir(path), ".pulley-seed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	if err := writeSeedFolder(tree, files); err != nil {
		return err
	}
	made := filepath.Join(work, "iso")
	f, err := os.OpenFile(made, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	volume, err := iso9660.Create(file.New(f, false), 0, 0, isoBlock, tree)
	if err == nil {
		err = volume.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: seedLabel})
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(made, path)
}

// writePrivate writes a file of mode 0600 that appears whole or not at all.
func writePrivate(path string, text []byte) error {
	return atomicfile.Write(path, text, 0o600)
}
