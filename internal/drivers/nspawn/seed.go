package nspawn

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"pulley/internal/machines"
)

const seedDir = "var/lib/cloud/seed/nocloud" // where cloud-init's NoCloud looks for a folder

// file is one that a machine's disk gets before it boots.
type file struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Text []byte      `json:"text"`
}

// files are those that make an image this machine: cloud-init's seed, and no identity but its own. Of the formats see
// https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html and …/network-config-format-v2.html.
func files(o machines.Order, id string, n network) []file {
	var resolv strings.Builder
	for _, s := range n.Servers {
		fmt.Fprintf(&resolv, "nameserver %s\n", s)
	}
	return []file{
		{"etc/machine-id", 0o444, nil}, // systemd makes one
		{"etc/resolv.conf", 0o644, []byte(resolv.String())},
		{path.Join(seedDir, "user-data"), 0o600, o.Userdata},
		// cloud-init runs the userdata once for each instance-id.
		{path.Join(seedDir, "meta-data"), 0o600, fmt.Appendf(nil, "instance-id: %s\nlocal-hostname: %s\n", id, o.Name)},
		{path.Join(seedDir, "network-config"), 0o600, []byte(n.config())},
	}
}

// config is the network in cloud-init's words. host0 is what systemd-nspawn calls a machine's interface.
func (n network) config() string {
	text := fmt.Sprintf("version: 2\nethernets:\n  host0:\n    addresses: [%s]\n", n.Address)
	if n.Gateway.IsValid() {
		text += fmt.Sprintf("    routes:\n      - to: 0.0.0.0/0\n        via: %s\n", n.Gateway)
	}
	return text
}

// put writes a file onto a machine's disk. What is in its way is replaced, also a link; a folder on the way that leads out of
// the disk is refused.
func (f file) put(disk *os.Root) error {
	if err := disk.MkdirAll(path.Dir(f.Name), 0o755); err != nil {
		return err
	}
	if err := disk.RemoveAll(f.Name); err != nil {
		return err
	}
	out, err := disk.OpenFile(f.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.Mode)
	if err != nil {
		return err
	}
	if _, err := out.Write(f.Text); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
