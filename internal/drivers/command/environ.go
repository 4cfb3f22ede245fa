package command

import (
	"slices"
	"strings"
)

// What a command gets of this program's environment: how to find programs and files, the way out, and the settings of the
// command-line tools of clouds. Nothing of Pulley's own is among it, such as keys of etcd.
var (
	passed         = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
	passedAnyCase  = []string{"http_proxy", "https_proxy", "no_proxy"}
	passedPrefixes = []string{"OS_", "AWS_", "LIBVIRT_"}
)

// environ returns those variables that a command gets.
func environ(all []string) []string {
	kept := []string{}
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains(passed, name) || slices.Contains(passedAnyCase, strings.ToLower(name)) ||
			slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			kept = append(kept, v)
		}
	}
	return kept
}
