package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"pulley/internal/fleetca"
	"pulley/internal/serve/member"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pulley/internal/cli"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// secureFlags are those of a serve that has a CA.
type secureFlags struct {
	auth         bool
	advertise    []string
	caKey        string
	caSign       string
	nodeLifetime time.Duration

	changed []string // flags that were given
}

// defaultNodeLifetime is how long a node's certificate is good for; nodes renew theirs when a third is left.
const defaultNodeLifetime = 90 * 24 * time.Hour

// Bounds of a node's certificate. The least is for tests of a renewal: one must fit into it.
const (
	minNodeLifetime = 10 * time.Second
	maxNodeLifetime = 5 * 365 * 24 * time.Hour
)

func (f *secureFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.auth, "auth", false, "have etcd check its users, with a CA in the data folder; implied for --listen off loopback without --cert, and for a folder that was served so before")
	flags.StringArrayVar(&f.advertise, "advertise", nil, "name or address by which nodes reach this machine; may be repeated (default: that of --listen, or all that the machine has)")
	f.addCA(flags)
	flags.DurationVar(&f.nodeLifetime, "node-lifetime", defaultNodeLifetime, "how long a node's certificate is good for")
}

// addCA adds the flags of a CA whose key is not in the data folder.
func (f *secureFlags) addCA(flags *pflag.FlagSet) {
	flags.StringVar(&f.caKey, "ca-key", "", "PEM file of the CA's keys, if they are not in the data folder")
	flags.StringVar(&f.caSign, "ca-sign", "", "command that signs with the CA's key: digest on standard input, signature on standard output")
}

func (f *secureFlags) checkCA() error {
	if f.caKey != "" && f.caSign != "" {
		return cli.Usagef("--ca-key and --ca-sign exclude each other")
	}
	return nil
}

// given remembers which of the flags were given.
func (f *secureFlags) given(flags *pflag.FlagSet) {
	for _, name := range []string{"advertise", "ca-key", "ca-sign", "node-lifetime"} {
		if flags.Changed(name) {
			f.changed = append(f.changed, "--"+name)
		}
	}
}

// none refuses flags that are for a CA where there is none.
func (f *secureFlags) none() error {
	if len(f.changed) > 0 {
		return cli.Usagef("%s: only where serve has a CA: with --auth, or with --data-dir beside --endpoints", strings.Join(f.changed, ", "))
	}
	return nil
}

func (f *secureFlags) check() error {
	if err := f.checkCA(); err != nil {
		return err
	}
	switch {
	case f.nodeLifetime < minNodeLifetime || f.nodeLifetime > maxNodeLifetime:
		return cli.Usagef("cannot issue certificates for %s: give --node-lifetime at least %s and at most %s", f.nodeLifetime, minNodeLifetime, maxNodeLifetime)
	}
	for _, h := range f.advertise {
		if h == "" || strings.ContainsAny(h, "/ ") || strings.Contains(h, ":") && net.ParseIP(h) == nil {
			return cli.Usagef("cannot be reached at %s: give --advertise a name or an address, without a port", quoted(h))
		}
	}
	return nil
}

func (f *secureFlags) ca(now func() time.Time) pki.Options {
	o := pki.Options{KeyFile: f.caKey, Now: now}
	if f.caSign != "" {
		o.SignCommand = []string{"/bin/sh", "-c", f.caSign}
	}
	return o
}

// checksUsers reports whether the embedded etcd is to check its users.
func (s serveOptions) checksUsers() bool {
	own := s.connection.Cert != "" || s.connection.Key != "" || s.connection.CACert != ""
	return s.secure.auth || member.IsSecured(s.dataDir) || !own && member.CheckListen(s.listen, false) != nil && member.CheckListen(s.listen, true) == nil
}

// hosts are the names and addresses by which others reach a listener of this machine.
func (s serveOptions) hosts(listen string) []string {
	if len(s.secure.advertise) > 0 {
		return s.secure.advertise
	}
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fleetca.Hosts(hostname())
	}
	return []string{host}
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// secured runs the embedded etcd with users of its own.
func (s serveOptions) secured(ctx context.Context) error {
	if s.connection.Cert != "" || s.connection.Key != "" || s.connection.CACert != "" {
		return cli.Usagef("etcd checks its users here, with a CA of its own: leave out --cert, --key and --cacert")
	}
	if err := s.secure.check(); err != nil {
		return err
	}
	config, err := s.embeddedConfig()
	if err != nil {
		return err
	}
	if s.listenHTTPS == "" {
		s.listenHTTPS = httpsBeside(s.listen)
	}
	https, err := s.openHTTPS("", "", true)
	if err != nil {
		return err
	}
	defer https.close()
	filled := s.connection
	filled.Fill(s.env)
	etcd, err := member.StartSecure(ctx, member.SecureConfig{
		EtcdConfig: config, Hosts: s.hosts(s.listen), Hostname: hostname(), Prefix: filled.Prefix, Timeout: filled.Timeout, CA: s.secure.ca(s.env.Now),
	})
	if err != nil && ctx.Err() != nil {
		return s.endedBySignal()
	}
	if err != nil {
		return err
	}
	defer etcd.Close()
	st, err := store.Open(etcd.Connection)
	if err != nil {
		return err
	}
	defer st.Close()
	s.endHolds(ctx, st)
	return s.watchOver(ctx, service{st: st, certs: etcd.Certificates, endpoints: etcd.Endpoints(), https: https, failed: etcd.Failed(), ready: func() {
		s.tellEtcd(ctx, etcd.Etcd, st)
		s.tellIdentity(etcd, etcd.Endpoints())
	}})
}

// httpsBeside is where to serve HTTPS if nothing is said of it.
func httpsBeside(listen string) string {
	host, port, _ := net.SplitHostPort(listen)
	if port == "0" {
		return net.JoinHostPort(host, "0")
	}
	return net.JoinHostPort(host, "8443")
}

// tellIdentity says how the first administrator reaches etcd.
func (s serveOptions) tellIdentity(etcd *member.Secured, endpoints []string) {
	if etcd.Admin != "" {
		fmt.Fprintf(s.env.Stdout, "the identity of administrator \"admin\" was made: %s; keep it, it is made only once\n", etcd.Admin)
	}
	fmt.Fprintf(s.env.Stdout, "etcd checks its users; the CA's fingerprints are %s\n", strings.Join(etcd.Certificates.CA.Fingerprints(), " and "))
	lines := [][2]string{{"CACERT", etcd.Certificates.Bundle()}}
	if admin := etcd.Certificates.Admin(); admin != "" {
		lines = append(lines, [2]string{"CERT", admin}, [2]string{"KEY", admin})
	}
	for _, l := range lines {
		path, err := filepath.Abs(l[1])
		if err != nil {
			path = l[1]
		}
		fmt.Fprintf(s.env.Stdout, "export PULLEY_%s=%s\n", l[0], path)
	}
	fmt.Fprintf(s.env.Stdout, "export PULLEY_ENDPOINTS=%s\n", strings.Join(endpoints, ","))
}
