package puppet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pulley/internal/bounded"
	"pulley/internal/model"
	"pulley/internal/pattern"
)

// coreTypes are the types that Puppet's own packages contain, and that distributions split from Puppet. The module of
// each is named <type>_core.
var coreTypes = []string{"augeas", "cron", "host", "mailalias", "mount", "nagios", "selinux", "sshkeys", "yumrepo", "zfs", "zone"}

// Where the packages of Debian and Ubuntu, and those of Puppet and OpenVox, put the modules of the core types.
const (
	splitModules    = "/usr/share/puppet/modules"
	vendoredModules = "/opt/puppetlabs/puppet/vendor_modules"
)

// coreTypeNames matches the names of the types in coreTypes.
const coreTypeNames = `(augeas|cron|host|mailalias|mount|nagios_\w+|selboolean|selmodule|ssh_authorized_key|sshkey|yumrepo|zfs|zpool|zone)`

// missingCoreType matches Puppet's error about a missing type of one of coreTypes.
var missingCoreType = pattern.Lazy(`Unknown resource type: '` + coreTypeNames + `'`)

var coreTypeForm = pattern.Lazy(`^(` + coreTypeNames + `|scheduled_task)$`)

// IsCoreType reports whether a resource type is one of a module that Puppet's own packages contain, or that distributions split from Puppet.
func IsCoreType(name string) bool { return coreTypeForm().MatchString(name) }

// linkCoreTypes links the installed modules of the split core types into dir, and those that were fetched for a noop run.
// A run sees no other module of the machine. It reports whether it linked any.
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
		if err != nil && p.fetched != "" { // "" would be the folder in which the agent was started
			installed, err = filepath.EvalSymlinks(filepath.Join(p.fetched, name))
		}
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

// linkVendored links the modules that the packages of Puppet and OpenVox contain into dir.
func linkVendored(from, dir string) error {
	modules, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, m := range modules {
		if err := os.Symlink(filepath.Join(from, m.Name()), filepath.Join(dir, m.Name())); err != nil {
			return err
		}
	}
	return nil
}

// supplyTypes makes missing core types available that the release uses, and reports whether another run may succeed. For
// a noop run it fetches them into a folder of the agent, which the caller removes: the machine stays as it is.
func (p *Puppet) supplyTypes(ctx context.Context, job model.Job, problem model.Problem) bool {
	if problem.Code != model.CoreTypeMissing || p.Installer == nil {
		return false
	}
	names := usedCoreTypes(job.Tree)
	var err error
	if !job.Noop {
		err = p.Installer.InstallTypes(ctx, names)
	} else if p.fetched, err = os.MkdirTemp(filepath.Join(p.Dir, "puppet"), "types-"); err == nil {
		err = p.Installer.FetchTypes(ctx, names, p.fetched)
	}
	if err != nil {
		p.log().Warn("the packages of Puppet's core types that the release uses are not available", "error", err)
	}
	return err == nil
}

// declaration matches a declaration of a core type, or its name as a text, as in create_resources('cron', …).
var declaration = pattern.Lazy(`["'](?:::)?` + coreTypeNames + `["']|\b` + coreTypeNames + `\s*\{`)

// moduleOf returns which of coreTypes has a type.
func moduleOf(name string) string {
	switch {
	case strings.HasPrefix(name, "nagios_"):
		return "nagios"
	case strings.HasPrefix(name, "ssh"):
		return "sshkeys"
	case name == "selboolean" || name == "selmodule":
		return "selinux"
	case name == "zpool":
		return "zfs"
	}
	return name
}

// maxManifest limits a manifest that is searched for core types, in bytes.
const maxManifest = 4 << 20

// usedCoreTypes returns which of coreTypes the manifests of a release use. Comments count, too: a type too many harms
// nothing.
func usedCoreTypes(tree string) []string {
	used := map[string]bool{}
	_ = filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || filepath.Ext(path) != ".pp" {
			return nil // what cannot be read is not used
		}
		if text, err := bounded.ReadFile(path, maxManifest); err == nil {
			for _, m := range declaration().FindAllSubmatch(text, -1) {
				used[moduleOf(string(m[1])+string(m[2]))] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(used))
}

// coreTypesDeadline limits the installation of the core types.
const coreTypesDeadline = 5 * time.Minute

// InstallTypes installs the packages of core types where the distribution splits them from Puppet (Debian and Ubuntu).
// It returns an error if it installed none of them.
func (i *Installer) InstallTypes(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, coreTypesDeadline)
	defer cancel()
	packages, err := i.packagesOf(ctx, names)
	if err != nil {
		return err
	}
	_, err = i.run(ctx, "apt-get", aptGet(append([]string{"--no-install-recommends", "install"}, packages...)...)...)
	return err
}

// FetchTypes downloads the packages of core types, and unpacks their modules into dir. It installs nothing.
func (i *Installer) FetchTypes(ctx context.Context, names []string, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, coreTypesDeadline)
	defer cancel()
	packages, err := i.packagesOf(ctx, names)
	if err != nil {
		return err
	}
	script := `cd "$1" && shift && apt-get -q download "$@" && for p in *.deb; do dpkg-deb -x "$p" . || exit 1; done`
	if _, err := i.run(ctx, "sh", append([]string{"-c", script, "sh", dir}, packages...)...); err != nil {
		return err
	}
	for _, name := range names {
		unpacked := filepath.Join(dir, splitModules+".available", "puppetlabs-"+name+"-core")
		if _, err := os.Stat(unpacked); err == nil {
			err = os.Symlink(unpacked, filepath.Join(dir, name+"_core"))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// packagesOf returns the packages of the core types that are not installed. It returns an error without any.
func (i *Installer) packagesOf(ctx context.Context, names []string) ([]string, error) {
	m, err := i.manager()
	if err != nil {
		return nil, err
	}
	a, isAPT := m.(apt)
	if _, err := os.Stat(i.path(splitModules)); err != nil || !isAPT {
		return nil, errors.New("this machine's Puppet is no package of Debian or Ubuntu")
	}
	if _, err := os.Lstat(i.path(vendoredModules)); err == nil {
		return nil, errors.New("the package of this machine's Puppet has its core types itself")
	}
	var packages []string
	for _, name := range names {
		if _, err := os.Lstat(i.path(filepath.Join(splitModules, name+"_core"))); err != nil {
			packages = append(packages, "puppet-module-puppetlabs-"+name+"-core")
		}
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("the packages of %s are installed", strings.Join(names, ", "))
	}
	available := a.available(ctx, i, packages...)
	if len(available) == 0 { // the lists of a new machine are empty
		if _, err := i.run(ctx, "apt-get", aptGet("update")...); err != nil {
			return nil, err
		}
		available = a.available(ctx, i, packages...)
	}
	if len(available) == 0 {
		return nil, fmt.Errorf("no repository of this machine has the packages of %s", strings.Join(names, ", "))
	}
	return available, nil
}
