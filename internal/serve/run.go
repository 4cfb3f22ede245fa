// Package serve runs `pulley serve`: an embedded etcd or the connection to a cluster, the web listener for nodes, and
// the background tasks.
//
// It must never admit a node to a cluster that does not authenticate its users, and never serve nodes over plain HTTP.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/join/server"
	"pulley/internal/machines/records"
	"pulley/internal/notify"
	"pulley/internal/pki"
	"pulley/internal/puppetserver"
	"pulley/internal/release"
	"pulley/internal/release/mirror"
	"pulley/internal/rollout/gates"
	"pulley/internal/serve/member"
)

// healthInterval is the pause between two checks of a cluster that serve does not run.
const healthInterval = 30 * time.Second

// Bounds of the lifetime of a node's certificate. The lower one is for tests of renewals.
const (
	minNodeLifetime = 10 * time.Second
	maxNodeLifetime = 5 * 365 * 24 * time.Hour
)

// Config is the configuration of `pulley serve`.
type Config struct {
	DataDir string
	Member  member.EtcdConfig // of the embedded etcd; with the certificates of the command line
	Client  etcd.Config       // how serve reaches a cluster; also the prefix and the timeout of an embedded etcd

	Cluster bool // serve uses the cluster of Client and runs no etcd
	Joins   bool // with Cluster: machines join here
	Auth    bool // the embedded etcd authenticates its users

	ListenHTTPS         string // "" is none, or with Auth port 8443 of Listen's host
	HTTPSCert, HTTPSKey string

	Advertise    []string // names and addresses of this machine for nodes
	CA           pki.Options
	NodeLifetime time.Duration
	CAFlags      []string // given flags that need a CA, for messages
	Agents       []string // program files
	Notify       []string // URLs
	Gates        string   // file that defines the gates of rollouts; "": none
	Puppet       string   // folder with the credentials at the CA of Puppet servers; "": none

	Hostname string
	Version  string // of this program
	Now      func() time.Time
	Today    string // the date that an operator confirmed, where the clock contradicts etcd; "" for none
	Log      *slog.Logger

	Ready   func(Ready)                     // called once, when all parts serve
	Members func([]cluster.MemberState)     // called when a cluster answers again, or when another member of it is silent
	Warn    func(error)                     // called for errors that do not stop serve
	Watch   func(context.Context, Watching) // watches machines until its context ends; may be nil
}

// Ready describes a running serve.
type Ready struct {
	EndedHolds int                   // holds that ended while etcd was down
	Members    []cluster.MemberState // of a cluster

	HTTPS       string // address of the web listener; "" is none
	Joins       bool
	Certificate string // name in the certificate of the web listener
	Until       time.Time
	Agents      map[string]string // digests by path

	Etcd          *member.Etcd         // the embedded etcd; nil is none
	Health        *cluster.MemberState // of the embedded etcd; nil is unknown
	Endpoints     []string             // of etcd, for nodes
	Servers       []string             // URLs of joins, for nodes
	NewAdmin      string               // identity file of the first administrator, if this start created it
	Certificates  *fleetca.Certificates
	Authenticates bool // the embedded etcd authenticates its users
}

// Watching is the input of a watch of machines.
type Watching struct {
	DB        *etcd.DB
	Endpoints []string
	Pins      []string         // fingerprints of the CA
	Now       func() time.Time // a wrong clock would make all machines look dead
}

// authenticates reports whether the embedded etcd authenticates its users. It does on request, after an earlier start
// with authentication, and if other machines can reach its address.
func (c Config) authenticates() bool {
	return c.Auth || member.IsSecured(c.DataDir) ||
		!c.ownCertificates() && member.CheckListen(c.Member.Listen, false) != nil && member.CheckListen(c.Member.Listen, true) == nil
}

func (c Config) ownCertificates() bool {
	return c.Member.Cert != "" || c.Member.Key != "" || c.Member.CACert != ""
}

// hasCA reports whether this serve works with a CA of its own.
func (c Config) hasCA() bool { return c.Cluster && c.Joins || !c.Cluster && c.authenticates() }

// Check reports the first mistake in a configuration.
func (c Config) Check() error {
	if err := errors.Join(notify.Check(c.Notify), c.checkCA()); err != nil {
		return err
	}
	if c.Gates != "" {
		if _, err := gates.Load(c.Gates); err != nil {
			return err
		}
	}
	if c.Puppet != "" {
		if !c.hasCA() {
			return errors.New("--puppet-credentials is for a serve where machines join: with --auth, or with --data-dir beside --endpoints")
		}
		if _, err := puppetserver.LoadCredentials(c.Puppet); err != nil {
			return err
		}
	}
	if !c.Cluster {
		if err := c.Member.Limits(); err != nil {
			return err
		}
	}
	own := c.HTTPSCert != "" || c.HTTPSKey != ""
	cert, key := c.httpsFiles()
	switch {
	case own && c.hasCA():
		return errors.New("leave out --https-cert and --https-key: machines that join verify serve by the fingerprint of its CA")
	case c.ListenHTTPS == "" && own:
		return errors.New("--https-cert and --https-key need --listen-https")
	case c.ListenHTTPS != "" && !c.hasCA() && (cert == "" || key == ""):
		return errors.New("cannot serve HTTPS without a certificate and its key: a mirror is never served in plain text\ngive --https-cert and --https-key")
	}
	return nil
}

func (c Config) checkCA() error {
	switch {
	case c.Cluster && c.Auth:
		return errors.New("--auth is for the embedded etcd; run `pulley auth setup` for your own cluster")
	case c.Cluster && c.Joins && c.ListenHTTPS == "":
		return errors.New("nodes join over HTTPS: give --listen-https beside --data-dir")
	case !c.Cluster && c.authenticates() && c.ownCertificates():
		return errors.New("etcd authenticates its users here with a CA of its own: leave out --cert, --key and --cacert")
	case !c.hasCA() && len(c.CAFlags) > 0:
		return fmt.Errorf("%s: only for a serve with a CA: with --auth, or with --data-dir beside --endpoints", strings.Join(c.CAFlags, ", "))
	case c.NodeLifetime < minNodeLifetime || c.NodeLifetime > maxNodeLifetime:
		return fmt.Errorf("cannot issue certificates for %s: give --node-lifetime at least %s and at most %s", c.NodeLifetime, minNodeLifetime, maxNodeLifetime)
	}
	for _, h := range c.Advertise {
		if h == "" || strings.ContainsAny(h, "/ ") || strings.Contains(h, ":") && net.ParseIP(h) == nil {
			return fmt.Errorf("cannot advertise %q: give --advertise a name or an address, without a port", h)
		}
	}
	return nil
}

// httpsFiles returns the files of a certificate that is not of serve's CA.
func (c Config) httpsFiles() (cert, key string) {
	if c.HTTPSCert != "" || c.HTTPSKey != "" {
		return c.HTTPSCert, c.HTTPSKey
	}
	return c.Member.Cert, c.Member.Key
}

// hosts returns the names and addresses of a listener for other machines.
func (c Config) hosts(listen string) []string {
	if len(c.Advertise) > 0 {
		return c.Advertise
	}
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fleetca.Hosts(c.Hostname)
	}
	return []string{host}
}

// servers returns the URLs for joins, of a listener at this address.
func (c Config) servers(address string) (urls []string) {
	_, port, _ := net.SplitHostPort(address)
	for _, host := range c.hosts(c.ListenHTTPS) {
		urls = append(urls, "https://"+net.JoinHostPort(host, port))
	}
	return urls
}

// Run serves until ctx ends, which is no error, or until a part fails.
func Run(ctx context.Context, c Config) error {
	o, err := newOverloads(c.Log)
	if err != nil {
		return err
	}
	c.Member.Connections, c.Member.Refused, c.Member.LockedOut = o.etcd, o.callRefused, o.lockedOut
	c, clock := c.withClock()
	run := c.plain
	switch {
	case c.Cluster:
		run = c.cluster
	case c.authenticates():
		if c.ListenHTTPS == "" {
			c.ListenHTTPS = httpsBeside(c.Member.Listen)
		}
		run = c.secured
	}
	err = run(ctx, o, clock)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

// httpsBeside is the default address of the web listener.
func httpsBeside(listen string) string {
	host, port, _ := net.SplitHostPort(listen)
	if port != "0" {
		port = "8443"
	}
	return net.JoinHostPort(host, port)
}

// service is a serve with a reachable etcd.
type service struct {
	ready  Ready
	db     *etcd.DB
	clock  *clock
	https  *httpsServer
	failed <-chan error          // of the embedded etcd
	look   func(context.Context) // periodic check of a cluster; nil for an embedded etcd

	overloads *overloads
}

// plain runs the embedded etcd without authentication, on loopback or with certificates of the operator.
func (c Config) plain(ctx context.Context, o *overloads, clock *clock) error {
	cert, key := c.httpsFiles()
	https, err := openHTTPS(c, o, cert, key)
	if err != nil {
		return err
	}
	defer https.close()
	embedded, err := member.StartEtcd(ctx, c.Member)
	if err != nil {
		return err
	}
	defer embedded.Close()
	st := embedded.DB(c.Client.Prefix, c.Client.Timeout)
	if on, err := access.In(st).AuthEnabled(ctx); err == nil && on {
		return fmt.Errorf("cannot serve %s without --auth: etcd authentication is on\nstart serve with --auth, and without --cert, --key and --cacert", c.DataDir)
	}
	if err := clock.start(ctx, st); err != nil {
		return err
	}
	return c.serve(ctx, service{
		ready: Ready{Etcd: embedded, Endpoints: []string{embedded.Endpoint()}}, db: st, clock: clock, https: https, failed: embedded.Failed(), overloads: o,
	})
}

// secured runs the embedded etcd with authentication.
func (c Config) secured(ctx context.Context, o *overloads, clock *clock) error {
	https, err := openHTTPS(c, o, "", "")
	if err != nil {
		return err
	}
	defer https.close()
	embedded, err := member.StartSecure(ctx, member.SecureConfig{
		EtcdConfig: c.Member, Hosts: c.hosts(c.Member.Listen), Hostname: c.Hostname, Prefix: c.Client.Prefix, Timeout: c.Client.Timeout, CA: c.CA,
		Check: clock.start,
	})
	if err != nil {
		return err
	}
	defer embedded.Close()
	st, err := etcd.Open(embedded.Connection)
	if err != nil {
		return err
	}
	defer st.Close()
	return c.serve(ctx, service{
		ready: Ready{
			Etcd: embedded.Etcd, Endpoints: embedded.Endpoints(), NewAdmin: embedded.Admin, Certificates: embedded.Certificates, Authenticates: true,
		},
		db: st, clock: clock, https: https, failed: embedded.Failed(), overloads: o,
	})
}

// cluster watches a cluster that serve does not run. With a data folder, machines join here.
func (c Config) cluster(ctx context.Context, o *overloads, clock *clock) error {
	st, err := etcd.Open(c.Client)
	if err != nil {
		return err
	}
	defer st.Close()
	health, err := cluster.In(st).Health(ctx)
	if err != nil {
		return err
	}
	if err := clock.start(ctx, st); err != nil {
		return err
	}
	var certs *fleetca.Certificates
	cert, key := c.httpsFiles()
	if c.Joins {
		err := member.Restored(c.DataDir)
		if err == nil {
			certs, err = fleetca.Open(c.DataDir, c.Client.Prefix, c.Hostname, false, c.CA)
		}
		if err == nil {
			err = certs.Refresh(c.hosts(c.ListenHTTPS))
		}
		if err != nil {
			return err
		}
		cert, key = certs.Server(), certs.Server()
	}
	https, err := openHTTPS(c, o, cert, key)
	if err != nil {
		return err
	}
	defer https.close()
	if certs != nil {
		if err := certs.MayJoin(ctx, st, c.Client); err != nil {
			return fmt.Errorf("cannot let nodes join: %w\nrun `pulley doctor` for all checks; without --data-dir serve only mirrors and watches", err)
		}
	}
	return c.serve(ctx, service{
		ready: Ready{Members: health, Endpoints: c.Client.Endpoints, Certificates: certs}, db: st, clock: clock, https: https, look: c.lookAt(st, health), overloads: o,
	})
}

// lookAt checks the cluster, and reports when it, or one of its members, stops or starts to answer.
func (c Config) lookAt(st *etcd.DB, health []cluster.MemberState) func(context.Context) {
	before := silent(health, nil)
	return func(ctx context.Context) {
		health, err := cluster.In(st).Health(ctx)
		now := silent(health, err)
		switch {
		case ctx.Err() != nil || slices.Equal(now, before):
			return
		case err != nil:
			c.Warn(err)
		default:
			c.Members(health)
		}
		before = now
	}
}

// silent lists the endpoints that do not answer, and * if no quorum answers.
func silent(all []cluster.MemberState, err error) (endpoints []string) {
	if err != nil {
		return []string{"*"}
	}
	for _, m := range all {
		if m.Silent != nil {
			endpoints = append(endpoints, m.Endpoint)
		}
	}
	return endpoints
}

// serve starts the web listener and the background tasks, and waits for the end.
func (c Config) serve(ctx context.Context, v service) error {
	v.db.Now = c.Now
	if v.ready.Etcd != nil {
		c.endHolds(ctx, &v)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	programs, cleanUp, err := c.programs(v.db)
	if err != nil {
		return err
	}
	defer cleanUp()
	web := Web{
		Agents: programs, Mirror: mirror.Handler(release.In(v.db), etcd.ErrNotFound),
		Metrics: exposed(metrics), EtcdMetrics: exposed(prometheus.DefaultGatherer),
	}
	certs := v.ready.Certificates
	etcdDir := ""
	if v.ready.Etcd != nil {
		etcdDir = c.Member.Dir
	}
	tasks, err := NewTasks(TasksConfig{DB: v.db, Certificates: certs, Now: c.Now, Log: c.Log, Metrics: metrics, Notify: c.Notify, Gates: c.Gates, Puppet: c.Puppet, EtcdDir: etcdDir, Hostname: c.Hostname, Version: c.Version, Past: c.past(), Clock: v.clock.check})
	if err != nil {
		return err
	}
	v.overloads.connect(tasks, metrics)
	if err := tasks.lookBack(ctx); err != nil && ctx.Err() == nil { // before the first task acts on what etcd has
		c.Warn(err)
	}
	watching := Watching{DB: v.db, Endpoints: v.ready.Endpoints, Now: c.Now}
	if certs != nil {
		watching.Pins, v.ready.Joins = certs.CA.Fingerprints(), true
		joins := server.New(server.Config{
			DB: v.db, CA: certs.CA, Left: records.Left, Now: c.Now, Log: c.Log, Metrics: metrics, Endpoints: v.ready.Endpoints, NodeLifetime: c.NodeLifetime, Puppet: c.Puppet,
			OnFirstBoot: tasks.Notifier.FirstBoot, OnDuplicate: tasks.duplicateRefused, OnSecrets: tasks.Notifier.SecretsGiven,
		})
		web.Join = joins.Handler()
		if c.Puppet != "" {
			tasks.presigning = &presigning{Tasks: tasks, server: joins, failed: pauses{}}
		}
	}
	if err := v.https.serve(web, &v.ready); err != nil {
		return err
	}
	if v.ready.Joins {
		v.ready.Servers = c.servers(v.ready.HTTPS)
	}
	v.ready.Agents = programs.digests()
	c.Ready(v.ready)

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { tasks.Run(ctx) })
	if c.Watch != nil {
		running.Go(func() { c.Watch(ctx, watching) })
	}
	defer running.Wait() // before etcd, which the tasks use, is closed
	defer cancel()
	defer v.https.close()
	return v.wait(ctx)
}

// exposed shows metrics, readable without authentication.
func exposed(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// endHolds ends the holds that expired while etcd was down. A restart of etcd renews its leases.
func (c Config) endHolds(ctx context.Context, v *service) {
	var err error
	if v.ready.EndedHolds, err = fleet.In(v.db).EndHolds(ctx, c.Now()); err != nil && ctx.Err() == nil {
		c.Warn(fmt.Errorf("warning: some holds may last longer than they should: %w", err))
	}
	if health, err := cluster.In(v.db).Health(ctx); err == nil && len(health) > 0 && health[0].Silent == nil {
		v.ready.Health = &health[0]
	}
}

// wait returns when ctx ends or a part fails.
func (v service) wait(ctx context.Context) error {
	ticker, clock := time.NewTicker(healthInterval), time.NewTicker(clockInterval)
	defer ticker.Stop()
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-v.failed:
			return fmt.Errorf("etcd stopped: %w", err)
		case err := <-v.https.ended():
			return err
		case <-clock.C:
			if err := v.clock.check(ctx); err != nil {
				return err
			}
		case <-ticker.C:
			if v.look != nil {
				v.look(ctx)
			}
		}
	}
}

// programs serves the agent's programs. cleanUp removes its temporary files.
func (c Config) programs(st *etcd.DB) (programs *Agents, cleanUp func(), err error) {
	dir, cleanUp := filepath.Join(c.DataDir, "agents"), func() {}
	if _, err := os.Stat(c.DataDir); errors.Is(err, os.ErrNotExist) { // a cluster, and no CA
		if dir, err = os.MkdirTemp("", "pulley-agents-"); err != nil {
			return nil, nil, fmt.Errorf("cannot make a folder for agents: %w", err)
		}
		cleanUp = func() { _ = os.RemoveAll(dir) }
	}
	if programs, err = newAgents(release.In(st), dir, c.Agents); err != nil {
		cleanUp()
		return nil, nil, err
	}
	return programs, cleanUp, nil
}
