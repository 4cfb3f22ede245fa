package takeover

import (
	"path/filepath"
	"slices"
	"strings"
)

// packageUnits are those that packages of Puppet bring along.
var packageUnits = []string{"puppet.service", "pe-puppet.service"}

// unitFolder is where the machine's own units are.
const unitFolder = "etc/systemd/system"

// unitFolders are where units are that outlive a boot, the first one counting first: systemd.unit(5).
var unitFolders = []string{unitFolder, "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"}

// unitNames are the units that have puppet agent started: those of packages, each service that is told to, and where a timer
// starts that service, the timer in its place.
func (m *Machine) unitNames() []string {
	names, triggered := slices.Clone(packageUnits), map[string]bool{}
	services := m.unitFiles(".service")
	startsAgent := func(service string) bool {
		return slices.ContainsFunc(settings(services[service], "ExecStart"), agentCommand.MatchString)
	}
	for timer, text := range m.unitFiles(".timer") {
		of := strings.TrimSuffix(timer, ".timer") + ".service"
		if said := settings(text, "Unit"); len(said) > 0 {
			of = said[len(said)-1]
		}
		if startsAgent(of) {
			names, triggered[of] = append(names, timer), true
		}
	}
	for service := range services {
		if !triggered[service] && !slices.Contains(packageUnits, service) && startsAgent(service) {
			names = append(names, service)
		}
	}
	slices.Sort(names[len(packageUnits):])
	return names
}

// unitFiles are the units of a kind with their texts, drop-ins after them. Templates are left out, and other names of a unit; a
// masked one is empty.
func (m *Machine) unitFiles(kind string) map[string]string {
	texts := map[string]string{}
	each := func(pattern string, add func(path, target string)) {
		for _, folder := range unitFolders {
			paths, _ := filepath.Glob(m.path(filepath.Join(folder, pattern))) // only a pattern can be wrong
			for _, path := range paths {
				under, err := filepath.Rel(m.Root, path)
				if target, ok := m.follow(under); ok && err == nil {
					add(path, target)
				}
			}
		}
	}
	each("*"+kind, func(path, target string) {
		name := filepath.Base(path)
		if _, again := texts[name]; again || strings.Contains(name, "@") {
			return
		}
		b, err := readSome(m.path(target))
		if err == nil && filepath.Base(target) == name {
			texts[name] = string(b)
		} else {
			texts[name] = ""
		}
	})
	each("*"+kind+".d/*.conf", func(path, target string) {
		name := strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d")
		if b, err := readSome(m.path(target)); err == nil && texts[name] != "" {
			texts[name] += "\n" + string(b)
		}
	})
	return texts
}

// settings are the values that the text of a unit gives to a setting, systemd.syntax(7); an empty one takes back those before.
func settings(text, name string) (values []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.TrimSpace(key) != name {
			continue
		}
		if value = strings.TrimSpace(value); value == "" {
			values = nil
			continue
		}
		values = append(values, value)
	}
	return values
}
