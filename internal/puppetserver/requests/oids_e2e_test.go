//go:build e2e

package requests

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// An extension with the number of another one gives a node another role.
func TestExtensionsArePuppets(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("/usr/lib/ruby/vendor_ruby/puppet/ssl/oids.rb")
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]int{}
	for _, m := range regexp.MustCompile(`\["1\.3\.6\.1\.4\.1\.34380\.1\.1\.(\d+)", '(\w+)'`).FindAllStringSubmatch(string(source), -1) {
		if theirs[m[2]], err = strconv.Atoi(m[1]); err != nil {
			t.Fatal(err)
		}
	}
	if len(theirs) < 20 {
		t.Fatalf("only %d extensions were found", len(theirs))
	}
	for name, n := range theirs {
		if registered[name] != n {
			t.Errorf("%s is %d, Puppet has %d", name, registered[name], n)
		}
	}
	for name := range registered {
		if _, known := theirs[name]; !known {
			t.Errorf("Puppet does not know %s", name)
		}
	}
}
