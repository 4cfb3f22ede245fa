//go:build e2e

package nspawn

import (
	"fmt"
	"path/filepath"
)

const seedDir = "/var/lib/cloud/seed/nocloud" // where cloud-init's NoCloud looks for a folder

// NetworkConfig is what a cloud or a person gives a machine of the bridge: its address.
func (m *Machine) NetworkConfig() string {
	return fmt.Sprintf("version: 2\nethernets:\n  host0:\n    addresses: [%s/%d]\n", m.Address, networkBits)
}

// Seed puts a NoCloud seed into the machine: file names and contents. Without a network-config it gets the machine's own.
func (m *Machine) Seed(files map[string]string) {
	m.t.Helper()
	if _, ok := files["network-config"]; !ok {
		m.Write(seedDir+"/network-config", m.NetworkConfig())
	}
	if _, ok := files["meta-data"]; !ok {
		m.Write(seedDir+"/meta-data", fmt.Sprintf("instance-id: %s\nlocal-hostname: debian\n", m.Name))
	}
	for name, text := range files {
		m.Write(seedDir+"/"+name, text)
	}
}

// seedPath is the seed's folder as the tests see it.
func (m *Machine) seedPath() string { return filepath.Join(m.root(), seedDir) }
