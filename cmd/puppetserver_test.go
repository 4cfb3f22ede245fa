package cmd_test

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"pulley/internal/testbed/puppettest"
)

type puppetServerKey struct{}

// puppetBackend is a Puppet server of scenarios: puppettest.Server, or Debian's.
type puppetBackend interface {
	HostPort() string
	Up() error
	Down() error
	Put(environment, manifest string) error
	Issue(ssldir string, c puppettest.Certificate) error
	Revoke(ssldir, name string) error
}

// puppetserver up|down starts or stops the scenario's Puppet server, whose address is $PUPPET. puppetserver put ENVIRONMENT FILE
// writes an environment, and puppetserver fill FILE TO a file with $PUPPET_HOST and $PUPPET_PORT replaced. puppetserver cert NODE … gives nodes a certificate, and puppetserver revoke NODE revokes it.
func puppetServer(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg || len(args) == 0, "puppetserver up|down|put ENVIRONMENT FILE|cert NODE ...|revoke NODE")
	s, ok := ts.Value(puppetServerKey{}).(*puppetBackend)
	if !ok {
		ts.Fatalf("the scenario has no Puppet server")
	}
	if *s == nil {
		server, err := puppettest.NewServer(ts.MkAbs("puppetserver"))
		ts.Check(err)
		*s = server
		ts.Defer(func() { _ = server.Down() })
	}
	address := (*s).HostPort()
	port := address[strings.LastIndexByte(address, ':')+1:]
	ts.Setenv("PUPPET", address)
	ssldir := func(node string) string { return filepath.Join(ts.MkAbs(node), "var/lib/puppet/ssl") }
	switch args[0] {
	case "up":
		ts.Check((*s).Up())
	case "down":
		ts.Check((*s).Down())
	case "put":
		usage(ts, len(args) != 3, "puppetserver put ENVIRONMENT FILE")
		ts.Check((*s).Put(args[1], strings.ReplaceAll(ts.ReadFile(args[2]), "$WORK", ts.Getenv("WORK"))))
	case "fill":
		usage(ts, len(args) != 3, "puppetserver fill FILE TO")
		text := strings.NewReplacer("$PUPPET_PORT", port, "$PUPPET_HOST", strings.TrimSuffix(address, ":"+port), "$WORK", ts.Getenv("WORK")).Replace(ts.ReadFile(args[1]))
		ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(text), 0o644))
	case "cert":
		for _, node := range args[1:] {
			ts.Check((*s).Issue(ssldir(node), puppettest.Certificate{Name: node}))
		}
	case "revoke":
		usage(ts, len(args) != 2, "puppetserver revoke NODE")
		ts.Check((*s).Revoke(ssldir(args[1]), args[1]))
	default:
		usage(ts, true, "puppetserver up|down|put|cert|revoke")
	}
}
