package controlrepo

import (
	"strings"
	"testing"
)

// A typo in a key of live data changes nothing, and nobody says so.
func TestKeyFlaw(t *testing.T) {
	t.Parallel()
	all := map[string][]byte{
		"site/profile/manifests/app.pp": []byte(`# a comment with $prot
class profile::app (
  Integer $port = 80,
  Optional[String] $name = undef,
  Array[String[1]] $peers = ["a${port}"],
  Stdlib::Port $other,
  $free,
) inherits profile::params {
  $inner = lookup('profile::app::extra')
}`),
		"site/profile/manifests/init.pp":   []byte(`class profile { }`),
		"modules/ntp/manifests/init.pp":    []byte(`class ntp(Boolean $on) { }`),
		"modules/ntp/manifests/broken.pp":  []byte(`class ntp::broken(`),
		"modules/ntp/templates/ntp.pp.erb": []byte(`class ntp::x() { }`),
	}
	for _, c := range []struct{ key, kind, want string }{
		{"profile::app::port", "Integer", ""},
		{"profile::app::port", "String", "class profile::app wants Integer, and the value is String"},
		{"profile::app::port", "", ""},
		{"profile::app::prot", "Integer", "class profile::app has no parameter prot; did you mean profile::app::port?"},
		{"profile::app::inner", "String", "class profile::app has no parameter inner"},
		{"profile::app::name", "Integer", ""},
		{"profile::app::peers", "Array", ""},
		{"profile::app::peers", "Hash", "class profile::app wants Array, and the value is Hash"},
		{"profile::app::other", "String", ""},
		{"profile::app::free", "Hash", ""},
		{"profile::app::extra", "Hash", ""},
		{"profile::app:port", "Integer", "class profile has no parameter app:port"},
		{"profile::web::port", "Integer", "no class and no lookup of module profile has it"},
		{"ntp::on", "Boolean", ""},
		{"ntp::on", "String", "class ntp wants Boolean, and the value is String"},
		{"other::key", "String", ""},
		{"port", "String", ""},
	} {
		files := map[string][]byte{}
		for name, text := range all {
			if WantClass(c.key)(name) {
				files[name] = text
			}
		}
		if got := KeyFlaw(files, c.key, c.kind); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.key, c.kind, got, c.want)
		}
	}
}

// A warning about a key that something uses teaches operators to ignore warnings.
func TestKeysThatAreLookedUpAreUsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"a.pp: $x = lookup('app::db::port', Integer)": true, `a.pp: $x = hiera("app::db::port")`: true, "a.pp: lookup('app::db::port.first')": true, "a.pp: lookup('::app::db::port')": true,
		"a.pp: lookup('app::db::ports')": false, "a.pp: # nothing": false, "a.epp: <%= lookup('app::db::port') %>": true, "a.rb: call_function('lookup', 'app::db::port')": true,
		`a.yaml: x: "%{lookup('app::db::port')}"`: true, `a.yaml: x: "%{alias('app::db::port')}"`: true, `a.yaml: x: '%{hiera("app::db::port")}'`: true,
		`a.json: {"x": "%{lookup(\"app::db::port\")}"}`: true, "a.yaml: app::db::port: 1": false, "a.yaml: 'app::db::port': 1": false, `a.yaml: x: "%{lookup('app::db::portal')}"`: false,
	} {
		file, content, _ := strings.Cut(text, ": ")
		if got := LooksUp(map[string][]byte{file: []byte(content)}, "app::db::port"); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	if !Converts(map[string][]byte{"data/common.yaml": []byte("lookup_options: {'^app::': {convert_to: Integer}}")}) || Converts(map[string][]byte{"a.pp": []byte("# convert_to")}) {
		t.Error("conversions are not found")
	}
}
