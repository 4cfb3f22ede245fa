package controlrepo

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"

	"pulley/hieradata"
)

// checkEyaml warns of the keys that nodes need, and of encrypted values that nothing decrypts.
func (r *reading) checkEyaml() {
	used := false
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if path.Base(name) != "hiera.yaml" {
			continue
		}
		needs := hieradata.ReadEyaml(r.files[name])
		if used = used || needs.Used; needs.Used {
			r.add(finding(EyamlKeys, name, 0, 0, strings.Join(needs.Files(), ", ")))
		}
	}
	for name := range r.data {
		data := r.files[name]
		if at := bytes.Index(data, []byte("ENC[")); !used && at >= 0 && hieradata.IsEncrypted(string(data[at:])) {
			r.add(finding(EyamlUnread, name, bytes.Count(data[:at], []byte("\n"))+1, 0, ""))
		}
	}
}
