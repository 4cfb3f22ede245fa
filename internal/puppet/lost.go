package puppet

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"pulley/environments/settings"
	"pulley/internal/bounded"
)

// replaced are the settings by which a machine or a repository classifies nodes, or finds code and data, and that Pulley sets itself; with
// the value that changes nothing.
var replaced = map[string]string{
	"basemodulepath": "", "catalog_terminus": "", "code": "", "external_nodes": "none", "facts_terminus": "facter", "hiera_config": "$confdir/hiera.yaml", "libdir": "$vardir/lib", "manifest": "",
	"modulepath": "", "node_name": "cert", "node_name_fact": "", "node_name_value": "$certname", "node_terminus": "plain", "pluginfactdest": "$vardir/facts.d", "route_file": "$confdir/routes.yaml",
	"storeconfigs": "false", "use_cached_catalog": "false", "vendormoduledir": "", "versioned_environment_dirs": "false",
}

// LostSettings returns the settings of a puppet.conf that change catalogs, or how they are applied, and that a run with other settings does
// not have.
func LostSettings(own, run map[string]string) []string {
	var lost []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		value := own[name]
		usual, changes := settings.CatalogSettings[name]
		instead, ours := replaced[name]
		switch {
		case value == "", !changes && !ours, changes && value == usual, ours && value == instead, value == run[name] && !ours:
		case name == "hiera_config" && value == "$codedir/hiera.yaml":
		case name == "factpath" && hasFolders(run[name], value):
		default:
			lost = append(lost, name)
		}
	}
	return lost
}

// hasFolders reports whether a search path has all folders of another one, besides those where every puppet agent looks.
func hasFolders(path, wanted string) bool {
	all := strings.Split(path, ":")
	for _, folder := range strings.Split(wanted, ":") {
		switch strings.NewReplacer("{", "", "}", "").Replace(folder) {
		case "$vardir/lib/facter", "$vardir/facts", "$libdir/facter":
			continue
		}
		if !slices.Contains(all, folder) {
			return false
		}
	}
	return true
}

// RunSettings returns the settings in the puppet.conf of a run; none if the run did not get that far.
func (p *Puppet) RunSettings(id string) map[string]string {
	text, err := bounded.ReadFile(filepath.Join(p.RunDir(id), "conf", "puppet.conf"), maxConf)
	if err != nil {
		return nil
	}
	return ParseConf(string(text)).Values
}
