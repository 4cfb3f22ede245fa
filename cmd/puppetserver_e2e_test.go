//go:build e2e

package cmd_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/testbed/puppetservertest"
	"pulley/internal/testbed/puppettest"
)

// What Pulley promises of an existing Puppet server must hold with Debian's puppetserver and its own agents.
func TestPuppetServerScenarios(t *testing.T) {
	puppet, err := exec.LookPath("puppet")
	if err != nil {
		t.Fatal("there is no Puppet here: apt-get install puppet-agent")
	}
	away := os.Getenv("PULLEY_TEST_AWAY") // how long the server stays away: "1h"
	site := realPuppetServer{t, puppetSites.Site(t)}
	play(t, "testdata/puppetserver", func(env *testscript.Env) error {
		if err := setup(env); err != nil {
			return err
		}
		*env.Values[puppetServerKey{}].(*puppetBackend) = site
		env.Setenv("ENFORCE", "1h")
		if away != "" {
			env.Setenv("AWAY", away)
			env.Setenv("ENFORCE", "2m")
		}
		program := filepath.Join(env.WorkDir, "fake", "puppet")
		return errors.Join(os.Remove(program), os.Symlink(puppet, program))
	})
}

// realPuppetServer is Debian's puppetserver.
type realPuppetServer struct {
	t    *testing.T
	site *puppetservertest.Site
}

func (s realPuppetServer) HostPort() string {
	return net.JoinHostPort(s.site.First.Address, puppetservertest.Port)
}

func (s realPuppetServer) Up() error {
	s.site.First.Up(s.t)
	return nil
}

func (s realPuppetServer) Down() error {
	s.site.First.Kill()
	return nil
}

func (s realPuppetServer) Put(environment, manifest string) error {
	s.site.First.Put(s.t, environment, "manifests/site.pp", manifest)
	return nil
}

func (s realPuppetServer) Issue(ssldir string, c puppettest.Certificate) error {
	files := s.site.Issue(s.t, puppetservertest.Client{Name: c.Name, Until: c.Until, Foreign: c.Other})
	var all error
	for to, from := range map[string]string{"certs/" + c.Name + ".pem": files.Cert, "private_keys/" + c.Name + ".pem": files.Key, "certs/ca.pem": files.CA} {
		text, err := os.ReadFile(from)
		path := filepath.Join(ssldir, to)
		all = errors.Join(all, err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600))
	}
	return all
}

func (realPuppetServer) Revoke(string, string) error {
	return errors.New("TestRealServed revokes certificates")
}
