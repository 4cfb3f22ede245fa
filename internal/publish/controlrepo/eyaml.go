package controlrepo

import (
	"bytes"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"pulley/hieradata"
)

// checkEyaml warns of the keys that nodes need, and of encrypted values that nothing decrypts.
func (r *reading) checkEyaml() {
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if path.Base(name) != "hiera.yaml" {
			continue
		}
		if keys, needed := hieradata.ReadEyaml(r.files[name]).OnNodes(); needed {
			r.add(finding(EyamlKeys, name, 0, 0, strings.Join(keys, ", ")))
		}
	}
	for name, functions := range r.data {
		if slices.ContainsFunc(functions, func(f string) bool { return f != "yaml_data" && f != "json_data" }) {
			continue // another function may decrypt, too
		}
		data := r.files[name]
		for _, at := range encryptedStart.FindAllIndex(data, -1) {
			if hieradata.IsEncrypted(string(data[at[0]:])) {
				r.add(finding(EyamlUnread, name, bytes.Count(data[:at[0]], []byte("\n"))+1, 0, ""))
				break
			}
		}
	}
}

var encryptedStart = regexp.MustCompile(`(?m)^[^#\n]*?ENC\[`)
