//go:build e2e

package puppet_test

import (
	"path/filepath"
	"strings"
	"testing"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// A custom fact with the name of Pulley's would choose the role, and the data, of a node.
func TestFactOfPulleyIsItsOwn(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "role")
	write(t, filepath.Join(dir, "tree/manifests/site.pp"), `file { '`+out+`': content => "${facts['pulley']['role']} ${facts['pulley']['release']}" }`)
	write(t, filepath.Join(dir, "tree/modules/m/lib/facter/pulley.rb"), "Facter.add('pulley') { has_weight 20000; setcode { { 'role' => 'db' } } }\n")
	p, job := fixture(dir)
	p.Program, p.Installer = "", &puppet.Installer{}
	r, err := p.Apply(t.Context(), job)
	if err != nil || r.Outcome != model.Changed || read(out) != "web 1.0.0" {
		t.Errorf("%v, %+v: %q", err, r, read(out))
	}
	if text := read(filepath.Join(p.RunDir(job.ID), "puppet.log")); !strings.Contains(text, "Warning: Facter has another fact 'pulley'") {
		t.Errorf("no warning: %s", text)
	}
}
