package puppetservertest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"testing"
)

// Server is one puppetserver in a folder of its own.
type Server struct {
	daemon
	Address string // without the port
}

// server writes the configuration of a server. The CA does not exist yet.
func (s *Site) server(name, address string) (*Server, error) {
	server := &Server{daemon: daemon{Name: name, dir: filepath.Join(s.Dir, name)}, Address: address}
	return server, server.configure(s.cadir(), name == FirstName)
}

// URL returns the server's address for clients.
func (s *Server) URL() string { return "https://" + net.JoinHostPort(s.Address, Port) }

// CRLFile is the server's copy of the revocation list.
func (s *Server) CRLFile() string { return filepath.Join(s.ssldir(), "crl.pem") }

// CodeDir is the folder with the server's environments.
func (s *Server) CodeDir() string { return filepath.Join(s.dir, "code") }

func (s *Server) confdir() string { return filepath.Join(s.dir, "conf") }
func (s *Server) ssldir() string  { return filepath.Join(s.dir, "ssl") }

// names are the names in the server's certificate besides its own: those that agents use by habit, and the address.
func (s *Server) names() string { return "puppet,puppetmaster,IP:" + s.Address }

// Debian's configuration of puppetserver, and what the tests change in it.
const (
	packaged = "/etc/puppet/puppetserver"
	settings = `[main]
certname = %[1]s
server = %[2]s
ssldir = %[3]s/ssl
cadir = %[4]s
keylength = 2048
autosign = %[4]s/autosign.conf
user = %[5]s
group = %[6]s
environment_timeout = 0
`
	jruby = `jruby-puppet: {
  ruby-load-path: [/usr/lib/puppetserver/ruby/vendor_ruby]
  gem-home: %[1]s/var/gems
  gem-path: [%[1]s/var/gems, /usr/lib/puppetserver/vendored-jruby-gems]
  server-conf-dir: %[1]s/conf
  server-code-dir: %[1]s/code
  server-var-dir: %[1]s/var
  server-run-dir: %[1]s/run
  server-log-dir: %[1]s/log
  max-active-instances: 1
}
`
	logging = `<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %-5p [%c{2}] %m%n</pattern></encoder></appender>
<root level="info"><appender-ref ref="OUT"/></root></configuration>
`
)

func (s *Server) configure(cadir string, hasCA bool) error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		return err
	}
	auth, err := os.ReadFile(packaged + "/conf.d/auth.conf")
	if err != nil {
		return fmt.Errorf("%w\nrun as root: only root reads the configuration of puppetserver", err)
	}
	routes, err := os.ReadFile(packaged + "/conf.d/web-routes.conf")
	if err != nil {
		return err
	}
	services, err := os.ReadFile(packaged + "/services.d/bootstrap.cfg")
	if err != nil {
		return err
	}
	ca := "puppetlabs.services.ca.certificate-authority-service/certificate-authority-service"
	web := fmt.Sprintf("client-auth: want\n  ssl-host: %s\n  ssl-port: %s", s.Address, Port)
	if !hasCA {
		ca = "puppetlabs.services.ca.certificate-authority-disabled-service/certificate-authority-disabled-service"
		web += fmt.Sprintf("\n  ssl-cert: %[1]s/certs/%[2]s.pem\n  ssl-key: %[1]s/private_keys/%[2]s.pem\n  ssl-ca-cert: %[1]s/certs/ca.pem\n  ssl-crl-path: %[1]s/crl.pem", s.ssldir(), s.Name)
	}
	for file, content := range map[string]string{
		"conf/puppet.conf":                   fmt.Sprintf(settings, s.Name, FirstName, s.dir, cadir, me.Username, group.Name),
		"conf.d/auth.conf":                   string(Allow(auth, Allowed)),
		"conf.d/web-routes.conf":             string(routes),
		"conf.d/global.conf":                 fmt.Sprintf("global: { logging-config: %s/logback.xml }\nproduct: { check-for-updates: false }\n", s.dir),
		"conf.d/ca.conf":                     "certificate-authority: {}\n",
		"conf.d/metrics.conf":                "metrics: { server-id: localhost }\n",
		"conf.d/puppetserver.conf":           fmt.Sprintf(jruby, s.dir),
		"conf.d/webserver.conf":              "webserver: {\n  " + web + "\n}\n",
		"services.d/bootstrap.cfg":           string(services),
		"services.d/ca.cfg":                  ca + "\npuppetlabs.trapperkeeper.services.watcher.filesystem-watch-service/filesystem-watch-service\n",
		"logback.xml":                        logging,
		"code/environments/production/.keep": "",
		"var/.keep":                          "",
		"run/.keep":                          "",
		"log/.keep":                          "",
	} {
		path := filepath.Join(s.dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

var onlyCLI = regexp.MustCompile(`allow: \{\s*extensions: \{\s*pp_cli_auth: "true"\s*\}\s*\}`)

// Allow adds a certificate's name to the rules of Puppet's auth.conf that give rights on the CA.
func Allow(auth []byte, name string) []byte {
	return onlyCLI.ReplaceAll(auth, []byte(`allow: [ "`+name+`", { extensions: { pp_cli_auth: "true" } } ]`))
}

// Put writes a file of an environment, by its path below the environment's folder.
func (s *Server) Put(t testing.TB, environment, path, content string) {
	t.Helper()
	file := filepath.Join(s.CodeDir(), "environments", environment, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Classifier makes a shell command the external node classifier of a server that is down. $1 is the node's certname.
func (s *Server) Classifier(t testing.TB, command string) {
	t.Helper()
	script := filepath.Join(s.dir, "classifier")
	err := os.WriteFile(script, []byte("#!/bin/sh\n"+command+"\n"), 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(s.confdir(), "puppet.conf"), os.O_APPEND|os.O_WRONLY, 0); err == nil {
			_, err = fmt.Fprintf(f, "\n[master]\nnode_terminus = exec\nexternal_nodes = %s\n", script)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Up starts the server unless it runs, and returns when it answers.
func (s *Server) Up(t testing.TB) *Server {
	t.Helper()
	if err := s.up(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Server) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running() {
		return nil
	}
	return s.start()
}

func (s *Server) start() error {
	compiled, err := classes()
	if err != nil {
		return err
	}
	return s.serve("-Djruby.logger.class=com.puppetlabs.jruby_utils.jruby.Slf4jLogger", "-Djruby.lib=/usr/share/jruby/lib", "-Djava.io.tmpdir="+filepath.Join(s.dir, "run"),
		"-cp", compiled+":"+jar, "puppetlabs.trapperkeeper.main", "--config", filepath.Join(s.dir, "conf.d"), "--bootstrap-config", filepath.Join(s.dir, "services.d"))
}
