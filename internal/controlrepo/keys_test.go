package controlrepo

import "testing"

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
