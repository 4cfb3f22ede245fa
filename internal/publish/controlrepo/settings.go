package controlrepo

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"pulley/internal/puppet"
)

// checkPuppetSettings reports what needs a setting of Puppet that the runs of an environment do not have: reads of trusted.external, and
// settings in a puppet.conf of the repository.
func (r *reading) checkPuppetSettings() {
	suppliers := r.suppliers()
	without := func(needed func(settings map[string]string) bool) []string {
		var files []string
		for _, file := range slices.Sorted(maps.Keys(suppliers)) {
			settings := map[string]string{}
			for name, value := range suppliers[file].Puppet.Settings {
				settings[name] = value.Value
			}
			if len(suppliers[file].Puppet.Servers) == 0 && !needed(settings) {
				files = append(files, file)
			}
		}
		return files
	}
	external := without(func(settings map[string]string) bool { return settings["trusted_external_command"] != "" })
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		src := string(r.files[name])
		at := -1
		switch {
		case r.vendored(name):
		case path.Ext(name) == ".pp":
			at = readsExternal(r.lex(name))
		case r.data[name] != nil, path.Base(name) == "hiera.yaml":
			if m := interpolatedExternal.FindStringIndex(src); m != nil {
				at = m[0]
			}
		case path.Base(name) == "puppet.conf":
			conf := puppet.ParseConf(src)
			for _, values := range []map[string]string{conf.Values, conf.Apply} {
				for _, setting := range puppet.LostSettings(values, nil) {
					lacks := without(func(settings map[string]string) bool {
						return !slices.Contains(puppet.LostSettings(map[string]string{setting: values[setting]}, settings), setting)
					})
					if f := finding(PuppetSetting, name, 0, 0, setting+missing(lacks)); len(lacks) > 0 && !slices.Contains(r.findings, f) {
						r.add(f)
					}
				}
			}
		}
		if at >= 0 && (len(external) > 0 || len(suppliers) == 0) {
			r.add(findingAt(TrustedExternal, name, src, at, strings.TrimPrefix(missing(external), ", ")))
		}
	}
}

// missing names the environment files that lack something.
func missing(files []string) string {
	if len(files) == 0 {
		return ""
	}
	return ", missing in " + strings.Join(files[:min(len(files), 5)], ", ")
}

var interpolatedExternal = regexp.MustCompile(`%\{(?:::)?trusted\.external\b`)

// getvarExternal is the argument of getvar('trusted.external.site').
var getvarExternal = regexp.MustCompile(`^(?:::)?trusted\.external\b`)

// readsExternal returns the position of the first $trusted['external'] in code, or of the same with dig, get and getvar; -1 without one.
func readsExternal(tokens []token) int {
	for i, t := range tokens {
		if t.kind == text && t.whole && getvarExternal.MatchString(t.text) {
			return t.at
		}
		if !isVariable(tokens, i) || strings.TrimPrefix(t.text, "::") != "trusted" {
			continue
		}
		for _, key := range tokens[i+1 : min(len(tokens), i+1+maxAccess)] {
			if key.kind == text && key.whole {
				if name, _, _ := strings.Cut(key.text, "."); name == "external" {
					return t.at
				}
				break
			}
			if key.kind != symbol && key.text != "dig" && key.text != "get" {
				break
			}
		}
	}
	return -1
}
