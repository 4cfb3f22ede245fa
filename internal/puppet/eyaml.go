package puppet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pulley/hieradata"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// Messages of Puppet and hiera-eyaml (seen with Puppet 7.23 and hiera-eyaml 3.3). The second has the encrypted value, the
// key, its file and the cause.
const missingEyaml = "Lookup using eyaml lookup_key function is only supported when the hiera_eyaml library is present"

var notDecrypted = pattern.Lazy(`hiera-eyaml backend error decrypting .*? when looking up (\S+ in .*)$`)

// encryptedValue is a value in a message of hiera-eyaml.
var encryptedValue = pattern.Lazy(`ENC\[[A-Z0-9]+,[A-Za-z0-9+/=]+\]`)

// prepareEyaml installs hiera-eyaml if the job's release decrypts data, and reports keys that the node lacks. Neither
// ends the run: a node that reads no encrypted value needs none of it.
func (p *Puppet) prepareEyaml(ctx context.Context, job model.Job) {
	needs, err := readEyaml(job.Tree, job.PuppetEnvironment)
	if err != nil {
		p.log().Warn("not every hiera.yaml of the release could be read", "error", err)
	}
	if !needs.Used {
		return
	}
	if p.Installer != nil {
		if err := p.Installer.EnsureEyaml(ctx); err != nil {
			p.log().Warn("hiera-eyaml could not be installed: a catalog with encrypted data does not compile here", "error", err)
		}
	}
	for _, problem := range keyProblems(needs) {
		p.log().Warn("an eyaml key of the release is not usable", "problem", problem)
	}
}

func readEyaml(tree, environment string) (needs hieradata.Eyaml, err error) {
	texts, err := hieraConfigs(tree, environment)
	for _, text := range texts {
		needs = needs.And(hieradata.ReadEyaml([]byte(text)))
	}
	return needs, err
}

// keyProblems judges the keys with a plain absolute path. Others depend on facts of the node.
func keyProblems(needs hieradata.Eyaml) (problems []string) {
	private := len(needs.PrivateKeys)
	for i, path := range needs.Files() {
		if !filepath.IsAbs(path) || strings.Contains(path, "%{") {
			continue
		}
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, path+" does not exist")
		case err != nil:
			problems = append(problems, err.Error())
		case i < private && info.Mode().Perm()&0o077 != 0:
			problems = append(problems, fmt.Sprintf("%s can be read by other users than root (mode %#o): run chmod go= %s", path, info.Mode().Perm(), path))
		case i < private && owner(info) != 0 && os.Geteuid() == 0:
			problems = append(problems, fmt.Sprintf("%s belongs to the user with id %d: run chown root: %s", path, owner(info), path))
		}
	}
	return problems
}

func owner(info fs.FileInfo) uint32 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Uid
	}
	return 0
}

// eyamlDeadline limits the installation of hiera-eyaml.
const eyamlDeadline = 5 * time.Minute

// eyamlPlaces are where packages and gem put hiera-eyaml: those of Debian and Ubuntu, of Fedora, gem, and the packages of
// Puppet and OpenVox, which contain it.
var eyamlPlaces = []string{
	"/usr/share/rubygems-integration/*/gems/hiera-eyaml-*/lib", "/usr/share/gems/gems/hiera-eyaml-*/lib", "/usr/local/share/gems/gems/hiera-eyaml-*/lib",
	"/var/lib/gems/*/gems/hiera-eyaml-*/lib", "/usr/lib/ruby/vendor_ruby/hiera/backend/eyaml",
}

var eyamlPlacesAIO = []string{"/opt/puppetlabs/puppet/lib/ruby/*gems/*/gems/hiera-eyaml-*/lib", "/opt/puppetlabs/puppet/lib/ruby/vendor_gems/gems/hiera-eyaml-*/lib", "/opt/puppetlabs/puppet/lib/ruby/gems/*/gems/hiera-eyaml-*/lib"}

// EnsureEyaml installs hiera-eyaml for the machine's Puppet, if it is missing: from a package, or with the gem program of
// Puppet's own packages.
func (i *Installer) EnsureEyaml(ctx context.Context) error {
	aioGem := "/opt/puppetlabs/puppet/bin/gem"
	_, err := os.Lstat(i.path(aioGem))
	aio, places := err == nil, eyamlPlaces
	if aio {
		places = eyamlPlacesAIO
	}
	for _, place := range places {
		if found, err := filepath.Glob(i.path(place)); err == nil && len(found) > 0 {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, eyamlDeadline)
	defer cancel()
	if aio {
		_, err := i.run(ctx, aioGem, "install", "--no-document", "hiera-eyaml")
		return err
	}
	m, err := i.manager()
	if err != nil {
		return err
	}
	name := "hiera-eyaml"
	if _, isAPT := m.(apt); !isAPT {
		name = "rubygem-hiera-eyaml"
	}
	if !m.has(ctx, i, name) {
		if err := m.refresh(ctx, i); err != nil {
			return err
		}
	}
	plain := *i
	plain.Version = "" // that of Puppet
	return m.install(ctx, &plain, name)
}
