package steps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pulley/environments"
	"pulley/internal/nodeconfig"
	"pulley/internal/pki"
)

// forgetKeys removes what makes this machine a node: its key and certificate, the key of a join, the identities of secrets, and the copies that
// Puppet code reads.
func forgetKeys(root string) error {
	c := nodeconfig.Under(root)
	for _, dir := range []string{filepath.Join(c.StateDir(), "puppet/ssl"), filepath.Dir(c.IdentityFile())} { // the identity last: it names the node
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("cannot remove the identity: %w", err)
		}
	}
	return nil
}

// ownSSLDirs are the ssldirs of the packages of Puppet, below the root.
var ownSSLDirs = []string{"etc/puppetlabs/puppet/ssl", "var/lib/puppet/ssl", "etc/puppet/ssl"}

// forgetServerKeys removes the keys and certificates of a copied disk's node for Puppet servers, in the ssldirs of the machine's own Puppet and in the
// ssldir of agent.yaml. Keys of other names stay.
func (b *boot) forgetServerKeys() error {
	var dirs []string
	for _, dir := range ownSSLDirs {
		dirs = append(dirs, b.path(dir))
	}
	names := map[string]bool{}
	if c, err := b.Load(b.Env); err == nil { // else the identity alone names the node
		names[c.Identity.Node] = true
		if c.Puppet.SSLDir != "" {
			dirs = append(dirs, c.Puppet.SSLDir)
			if found, _ := filepath.Glob(filepath.Join(c.Puppet.SSLDir, "private_keys", "*.pem")); len(found) == 1 { // Puppet code uses it under any name
				names[nameOf(found[0])] = true
			}
		}
	}
	if identity, err := pki.LoadIdentity(nodeconfig.Under(b.Root).IdentityFile()); err == nil {
		if name, err := identity.Name(); err == nil {
			names[name.Subject] = true
		}
	}
	for name := range names {
		for _, certname := range []string{name, environments.Certname(name)} {
			for _, dir := range dirs {
				for _, kind := range []string{"private_keys", "public_keys", "certificate_requests", "certs"} {
					if err := os.Remove(filepath.Join(dir, kind, certname+".pem")); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return fmt.Errorf("cannot remove another machine's identity: %w", err)
					}
				}
			}
		}
	}
	return nil
}

func nameOf(file string) string {
	base := filepath.Base(file)
	return base[:len(base)-len(filepath.Ext(base))]
}
