package puppet

import (
	"path/filepath"
	"slices"
	"strings"

	"pulley/internal/bounded"
)

// maxClasses limits the list of a catalog's classes, in bytes.
const maxClasses = 4 << 20

// maxResourceList limits the list of a catalog's resources, in bytes.
const maxResourceList = 64 << 20

// Manages reports whether the catalog of a run has one of the resources, in the format of Puppet's resourcefile:
// service[puppet].
func (p *Puppet) Manages(run string, resources ...string) bool {
	text, err := bounded.ReadFile(filepath.Join(p.RunDir(run), "resources.txt"), maxResourceList)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if slices.Contains(resources, strings.ToLower(strings.TrimSpace(line))) {
			return true
		}
	}
	return false
}

// classifiesNothing reports whether the file at path, in the format of Puppet's classfile, has no class besides those of
// every catalog. A node declaration also has a line there: "default", "__node_regexp__" and the pattern, or the name of
// the node. A missing file proves nothing: this Puppet writes none, or another setting moved it.
func classifiesNothing(path, certname string) bool {
	f, err := bounded.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := bounded.Read(f, maxClasses)
	if err != nil {
		return false
	}
	for class := range strings.Lines(string(text)) {
		class = strings.TrimSpace(class)
		ofNode := class == "default" || strings.HasPrefix(class, "__node_regexp__") || class == certname || strings.HasPrefix(certname, class+".")
		if class != "" && class != "settings" && class != "main" && !ofNode {
			return false
		}
	}
	return true
}
