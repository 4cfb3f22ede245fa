//go:build e2e

package puppettest

import (
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pulley/internal/puppetserver"
	"pulley/internal/testbed/puppetservertest"
)

// The agent judges runs by the documented behaviour of puppet agent and puppetserver. With other behaviour, it would commit a
// target that was never applied. The variants run where PULLEY_TEST_CONTRACT is "all".
func TestRealServed(t *testing.T) {
	program, err := exec.LookPath("puppet")
	if err != nil {
		t.Fatal("there is no Puppet here: apt-get install puppet-agent")
	}
	without := servedVariants
	if os.Getenv("PULLEY_TEST_CONTRACT") == "all" {
		without = nil
	}
	// The program of the packages of Puppet and OpenVox is a script that drops the variables of Ruby.
	wrapper := filepath.Join(t.TempDir(), "puppet")
	write(t, wrapper, "#!/bin/sh\nunset GEM_HOME GEM_PATH RUBYLIB RUBYOPT RUBYPATH RUBYSHELL\nexec "+program+" \"$@\"\n")
	must(t, os.Chmod(wrapper, 0o755))
	site := puppetservertest.New(t)
	site.First.Classifier(t, "echo '---'; cat "+filepath.Join(site.Dir, "classified")+" 2>/dev/null || echo '{}'")
	servedSuite(t, &realServer{Site: site}, func(t *testing.T) machine {
		m := machine{Program: wrapper, Vardir: filepath.Join(t.TempDir(), "var"), Grace: 20 * time.Second}
		write(t, filepath.Join(m.Vardir, "state", "keep"), "")
		return m
	}, without)
}

// servedVariants are cases in which Puppet behaves as in another case of the same kind, or does not run.
var servedVariants = []string{
	"a part", "a preview", "a server that does not answer", "an attribute chooses the server", "no certificate", "the certificate of another machine",
	"an expired certificate", "a failed resource", "a cached catalog is never applied", "its deadline ends a run",
}

// realServer is Debian's puppetserver.
type realServer struct {
	*puppetservertest.Site
	client *puppetserver.Client
}

func (s *realServer) address(*testing.T) string {
	return net.JoinHostPort(s.First.Address, puppetservertest.Port)
}

func (s *realServer) put(t *testing.T, environment, path, content string) {
	s.First.Put(t, environment, path, content)
}

func (s *realServer) issue(t *testing.T, ssldir string, c Certificate) {
	files := s.Issue(t, puppetservertest.Client{Name: c.Name, Until: c.Until, Foreign: c.Other})
	for to, from := range map[string]string{"certs/" + c.Name + ".pem": files.Cert, "private_keys/" + c.Name + ".pem": files.Key, "certs/ca.pem": files.CA} {
		text, err := os.ReadFile(from)
		must(t, err)
		write(t, filepath.Join(ssldir, to), string(text))
	}
}

// revoke replaces the certificate of a name by one that the CA issued and revoked.
func (s *realServer) revoke(t *testing.T, ssldir, name string) {
	if s.client == nil {
		own, err := puppetserver.LoadCredentials(s.Issue(t, puppetservertest.Client{Name: puppetservertest.Allowed}).Dir)
		must(t, err)
		s.client, err = puppetserver.New(s.First.URL(), own, time.Now)
		must(t, err)
	}
	p, err := s.client.Presign(t.Context(), name, nil)
	must(t, err)
	write(t, filepath.Join(ssldir, "certs", name+".pem"), string(p.Certificate))
	key, err := x509.MarshalPKCS8PrivateKey(p.Key)
	must(t, err)
	write(t, filepath.Join(ssldir, "private_keys", name+".pem"), string(pemOf("PRIVATE KEY", key)))
	_, err = s.client.Clean(t.Context(), name)
	must(t, err)
	// The server reads its list again within a second.
	until := time.Now().Add(time.Minute)
	for !s.refuses(t, ssldir, name) {
		if time.Now().After(until) {
			t.Fatal("the server still accepts the certificate")
		}
		<-time.After(100 * time.Millisecond)
	}
}

func (s *realServer) refuses(t *testing.T, ssldir, name string) bool {
	dir := t.TempDir()
	for to, from := range map[string]string{puppetserver.CertFile: "certs/" + name + ".pem", puppetserver.KeyFile: "private_keys/" + name + ".pem", puppetserver.CAFile: "certs/ca.pem"} {
		text, err := os.ReadFile(filepath.Join(ssldir, from))
		must(t, err)
		write(t, filepath.Join(dir, to), string(text))
	}
	own, err := puppetserver.LoadCredentials(dir)
	must(t, err)
	c, err := puppetserver.New(s.First.URL(), own, time.Now)
	must(t, err)
	defer c.Close()
	_, err = c.Certificate(t.Context(), name)
	return err != nil
}

func (s *realServer) classify(t *testing.T, environment string) {
	file := filepath.Join(s.Dir, "classified")
	if environment == "" {
		must(t, os.Remove(file))
		return
	}
	write(t, file, "environment: "+environment+"\n")
}

func (s *realServer) up(t *testing.T) { s.First.Up(t) }

func (s *realServer) kill(*testing.T) { s.First.Kill() }
