package steps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"pulley/agent/node"
	"pulley/agent/nodeconfig"
	"pulley/internal/firstboot"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// forgetKeys removes what makes this machine a node: its key and certificate, the key of a join, the identities of secrets, what a killed run
// decrypted, and the copies that Puppet code reads.
func forgetKeys(root string) error {
	c := nodeconfig.Under(root)
	if err := node.ForgetSecrets(c); err != nil {
		return fmt.Errorf("cannot remove decrypted secrets: %w", err)
	}
	for _, dir := range []string{filepath.Join(c.StateDir(), "puppet/ssl"), c.IdentityFile(), filepath.Dir(c.IdentityFile())} { // without its identity, a machine has left
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
	names, dirs := map[string]bool{}, sslDirs(nodeconfig.Under(b.Root))
	if c, err := b.Load(b.Env); err == nil { // else the identity alone names the node
		names[c.Identity.Node], dirs = true, sslDirs(c)
		if c.Puppet.SSLDir != "" {
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
		if err := removeAll(keyFiles(dirs, name, model.Certname(name))); err != nil {
			return fmt.Errorf("cannot remove another machine's identity: %w", err)
		}
	}
	return nil
}

// forgetCertname removes the key and the certificate for Puppet servers of a node that leaves, if its first boot got them, or made the key and did
// not finish: then the key is as young as the first boot. Any others are not
// Pulley's: another Puppet server may serve this machine.
func forgetCertname(c nodeconfig.Config) error {
	files, err := certnameFiles(c)
	if err == nil {
		err = removeAll(files)
	}
	if err != nil {
		return fmt.Errorf("cannot remove the certificate for Puppet servers: %w", err)
	}
	return nil
}

// certnameFiles returns the files that forgetCertname removes.
func certnameFiles(c nodeconfig.Config) ([]string, error) {
	first, err := firstboot.Disk{Dir: c.StateDir()}.Load()
	got := first.Steps[firstboot.Certificate]
	if err != nil || got.State == "" || got.Replaced != "" || c.Identity.Node == "" {
		return nil, err
	}
	certname := model.Certname(c.Identity.Node)
	return keyFiles(slices.DeleteFunc(sslDirs(c), func(dir string) bool {
		info, err := os.Lstat(sslFiles{dir, certname}.key())
		return got.State != firstboot.Done && (err != nil || info.ModTime().Before(first.Started))
	}), certname), nil
}

// sslDirs returns the ssldirs of the packages of Puppet, and that of agent.yaml.
func sslDirs(c nodeconfig.Config) (all []string) {
	for _, dir := range ownSSLDirs {
		all = append(all, filepath.Join(c.Root, dir))
	}
	if c.Puppet.SSLDir != "" {
		all = append(all, c.Puppet.SSLDir)
	}
	return all
}

// keyFiles returns the files of certnames in ssldirs, the keys last.
func keyFiles(dirs []string, certnames ...string) (all []string) {
	for _, certname := range certnames {
		for _, dir := range dirs {
			for _, kind := range []string{"certs", "certificate_requests", "public_keys", "private_keys"} {
				path := filepath.Join(dir, kind, certname+".pem")
				if _, err := os.Lstat(path); err == nil {
					all = append(all, path)
				}
			}
		}
	}
	return all
}

func removeAll(files []string) error {
	for _, path := range files {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func nameOf(file string) string {
	base := filepath.Base(file)
	return base[:len(base)-len(filepath.Ext(base))]
}
