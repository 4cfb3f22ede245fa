//go:build e2e

package puppet_test

import (
	"os"
	"path/filepath"
	"testing"

	"pulley/internal/model"
	"pulley/internal/puppet"
)

// What noop in the code keeps from the machine must be counted as Puppet counts it, by whatever way a resource got it. Puppet ignores noop of a class.
func TestNoopOfCodeIsPending(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "tree/manifests/site.pp"),
		"class four { File { noop => true } file { 'default': path => '"+dir+"/default', ensure => file } }\n"+
			"class app { noop() file { 'one': path => '"+dir+"/one', ensure => file } file { 'two': path => '"+dir+"/two', ensure => file } }\n"+
			"class loud { file { 'loud': path => '"+dir+"/loud', ensure => file } }\n"+
			"define def() { file { $name: path => '"+dir+"/def', ensure => file } }\n"+
			"include four, app\nclass { 'loud': noop => true }\ndef { 'def': noop => true }\nfile { 'meta': path => '"+dir+"/meta', ensure => file, noop => true }\n")
	write(t, filepath.Join(dir, "tree/modules/noop/lib/puppet/functions/noop.rb"), `# As trlinkin-noop: all resources of the scope are noop.
Puppet::Functions.create_function(:noop, Puppet::Functions::InternalFunction) do
  dispatch(:noop) { scope_param }
  def noop(scope)
    scope.define_singleton_method(:lookupdefaults) do |type|
      super(type).merge(noop: Puppet::Parser::Resource::Param.new(name: :noop, value: true, source: source))
    end
  end
end
`)
	p, job := fixture(dir)
	p.Program, p.Installer = "", &puppet.Installer{}
	r, err := p.Apply(t.Context(), job)
	if err != nil || r.Kind != model.Success || r.Outcome != model.Changed || r.Counts.Pending != 5 || r.Counts.Changed != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	for _, name := range []string{"default", "one", "two", "def", "meta"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s exists", name)
		}
	}
}
