package puppet

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// coreTypes are the types that Puppet's own packages contain, and that distributions split from Puppet. The module of
// each is named <type>_core.
var coreTypes = []string{"augeas", "cron", "host", "mailalias", "mount", "nagios", "selinux", "sshkeys", "yumrepo", "zfs", "zone"}

// Where the packages of Debian and Ubuntu, and those of Puppet and OpenVox, put the modules of the core types.
const (
	splitModules    = "/usr/share/puppet/modules"
	vendoredModules = "/opt/puppetlabs/puppet/vendor_modules"
)

// missingCoreType matches Puppet's error about a missing type of one of coreTypes.
var missingCoreType = regexp.MustCompile(`Unknown resource type: '(augeas|cron|host|mailalias|mount|nagios_\w+|selboolean|selmodule|ssh_authorized_key|sshkey|yumrepo|zfs|zpool|zone)'`)

// linkCoreTypes links the installed modules of the split core types into dir. A run sees no other module of the machine.
// It reports whether it linked any.
func (p *Puppet) linkCoreTypes(dir string) (linked bool, err error) {
	from := p.CoreModules
	if from == "" {
		from = splitModules
		if _, err := os.Stat(vendoredModules); err == nil {
			return false, nil // this Puppet finds its own
		}
	}
	for _, name := range coreTypes {
		name += "_core"
		installed, err := filepath.EvalSymlinks(filepath.Join(from, name))
		if err != nil {
			continue
		}
		if err := os.Symlink(installed, filepath.Join(dir, name)); err != nil {
			return linked, err
		}
		linked = true
	}
	return linked, nil
}

// coreTypesDeadline limits the installation of the core types.
const coreTypesDeadline = 5 * time.Minute

// EnsureCoreTypes installs the packages of the core types where the distribution splits them from Puppet (Debian and
// Ubuntu) and its repositories have them. A failure is a warning: only some releases use these types. It does nothing
// if Puppet's own package has them.
func (i *Installer) EnsureCoreTypes(ctx context.Context) {
	m, err := i.manager()
	manager, isAPT := m.(apt)
	if err != nil || !isAPT {
		return
	}
	if _, err := os.Stat(i.path(splitModules)); err != nil {
		return
	}
	if _, err := os.Lstat(i.path(vendoredModules)); err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, coreTypesDeadline)
	defer cancel()
	var packages []string
	for _, name := range coreTypes {
		if _, err := os.Lstat(i.path(filepath.Join(splitModules, name+"_core"))); err == nil {
			continue
		}
		packages = append(packages, "puppet-module-puppetlabs-"+name+"-core")
	}
	if len(packages) == 0 {
		return
	}
	if packages = manager.available(ctx, i, packages...); len(packages) == 0 {
		return
	}
	if _, err := i.run(ctx, "apt-get", aptGet(append([]string{"--no-install-recommends", "install"}, packages...)...)...); err != nil {
		i.log().Warn("the packages of Puppet's core types could not be installed: a release that uses them does not compile here",
			"packages", strings.Join(packages, " "), "error", err)
	}
}
