package publish

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/publish/controlrepo"
	"pulley/internal/puppet"
	"pulley/internal/release/content"
)

// Reference is an environment of an existing Puppet server. A reference release names it and has no code.
type Reference struct {
	Environment string
	Server      string // HOST or HOST:PORT of all nodes; "": the environment files name the servers
}

// Check returns an error unless the names are valid.
func (r Reference) Check() error {
	if _, err := puppet.ParseReleaseSettings(Reference{Environment: r.Environment}.settings()); err != nil {
		return fmt.Errorf("cannot name environment %q of a Puppet server: its names have lower-case letters, digits and _ only", r.Environment)
	}
	if r.Server == "" {
		return nil
	}
	if _, err := settings.ParsePuppetServer(r.Server); err != nil {
		return fmt.Errorf("cannot name a Puppet server: %w", err)
	}
	return nil
}

// settings returns the file pulley.yaml of the release.
func (r Reference) settings() []byte {
	text, err := yaml.Marshal(struct {
		Environment string `yaml:"puppet_environment"`
		Server      string `yaml:"puppet_server,omitempty"`
	}{r.Environment, r.Server})
	if err != nil {
		return nil // impossible: they are texts
	}
	return text
}

// hookFolders are the folders of a control repository whose programs run on nodes.
var hookFolders = []string{"validate.d", "retire.d", "hosts.d"}

// refer reduces the folder to what nodes read beside the Puppet server: the environment files and the hooks. It adds the
// release's pulley.yaml.
func (f *Folder) refer(r Reference, validate bool) error {
	f.Manifest.Entries = slices.DeleteFunc(f.Manifest.Entries, func(e content.Entry) bool {
		top, _, _ := strings.Cut(e.Path, "/")
		if e.Kind == content.KindDirectory && e.Path == "environments" {
			return false
		}
		return !controlrepo.IsEnvironment(e.Path) && !slices.Contains(hookFolders, top)
	})
	f.Reference, f.Added = &r, map[string][]byte{settingsFile: r.settings()}
	if err := f.Manifest.Add(settingsFile, f.Added[settingsFile]); err != nil {
		return err
	}
	all, report, err := controlrepo.Environments(f.Root)
	switch {
	case err != nil:
		return err
	case validate && report.Errors() > 0:
		return &InvalidError{f.Dir, report}
	case r.Server == "" && !slices.ContainsFunc(all, func(e *environments.Environment) bool { return len(e.Puppet.Servers) > 0 }):
		return fmt.Errorf("cannot publish %s: no environment file in %s names a Puppet server\n"+
			"write puppet.servers into %s, or give --server HOST", r.Environment, f.Dir, path.Join("environments", "ENVIRONMENT.yaml"))
	}
	return nil
}

// settingsFile is the file with the settings of a release.
const settingsFile = "pulley.yaml"
