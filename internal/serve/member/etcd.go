// Package member runs the embedded etcd of `pulley serve`: a single member, its limits, and its start with
// authentication.
//
// It must never listen in plain text off loopback, or accept a certificate without a user. It must never offer etcd's
// HTTP/JSON gateway: a web page in an operator's browser could write through it.
package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pulley/internal/atomicfile"
	"pulley/internal/bounded"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/serve/limits"
)

// Defaults of the embedded member.
const (
	DefaultListen    = "127.0.0.1:2379"
	DefaultQuota     = 2 << 30 // bytes; etcd's own default, made visible
	DefaultRetention = 30 * time.Minute
	startTimeout     = 60 * time.Second
)

// Bounds of the settings of the embedded member.
const (
	minQuota     = 16 << 20
	MaxQuota     = 8 << 30 // the largest that etcd recommends (MaxQuotaBytes of its server/storage/quota.go)
	minRetention = time.Minute
	maxRetention = 30 * time.Minute // the changes of an environment must not fill the quota with unused revisions
)

// EtcdConfig configures the embedded member.
type EtcdConfig struct {
	Dir           string   // its data
	Listen        string   // host:port for clients; port 0 picks one
	Advertise     []string // URLs for its clients; none: its listen address
	CACert        string   // files: the CA of accepted client certificates,
	Cert, Key     string   // and the member's own; they may be one file
	QuotaBytes    int64
	Retention     time.Duration // lifetime of old revisions
	Log           slog.Handler  // nil: text on standard error
	UnsafeNoFsync bool          // for tests, which never survive a power loss

	Connections  *limits.Connections       // bounds those of clients with TLS; nil: none
	Refused      func(user, call string)   // called for each call that bounds refuse; never blocks; may be nil
	LockedOut    func(pki.Name, time.Time) // called for each refused call of a node without a user, with the issue of its certificate; as Refused
	OperatorRole string                    // etcd's role of operators; "" without users
	snapshots    bool                      // write raft snapshots at once: the log does not contain the data
}

// Etcd is a running embedded member.
type Etcd struct {
	server  *embed.Etcd
	release func() error // frees the data folder
	bounds  *bounds      // nil in plain text
	secure  bool
	level   zap.AtomicLevel // of the member's log
	once    sync.Once
}

// Limits rejects an unreasonable quota or retention. Etcd itself accepts any value, and divides by some.
func (c EtcdConfig) Limits() error {
	switch {
	case c.QuotaBytes < minQuota || c.QuotaBytes > MaxQuota:
		return fmt.Errorf("cannot use a quota of %d bytes: give at least %d (16 MiB) and at most %d (8 GiB, the most that etcd suggests)", c.QuotaBytes, minQuota, int64(MaxQuota))
	case c.Retention < minRetention || c.Retention > maxRetention:
		return fmt.Errorf("cannot keep old revisions for %s: give at least %s and at most %s", c.Retention, minRetention, maxRetention)
	}
	return nil
}

// dataName is the folder of etcd's data in a data folder.
const dataName = "etcd"

// CheckListen refuses a plain-text listener that other machines could reach.
func CheckListen(listen string, secure bool) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("cannot listen on %q: %w\ngive host:port, as in 127.0.0.1:2379", listen, err)
	}
	ip := net.ParseIP(host)
	if secure || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("cannot listen on %s in plain text: anybody who reaches that address could run code as root on every node\n"+
		"give --cert, --key and --cacert, or listen on 127.0.0.1", listen)
}

// StartEtcd starts a single member and waits until it serves. Its data in Dir survives restarts.
func StartEtcd(ctx context.Context, c EtcdConfig) (*Etcd, error) {
	secure := c.Cert != "" || c.Key != "" || c.CACert != ""
	if secure && (c.Cert == "" || c.Key == "" || c.CACert == "") {
		return nil, errors.New("cannot serve TLS: --cert, --key and --cacert go together\nwithout --cacert, etcd would accept any client")
	}
	if err := CheckListen(c.Listen, secure); err != nil {
		return nil, err
	}
	if err := c.Limits(); err != nil {
		return nil, err
	}
	if IsSecured(c.Dir) {
		return nil, errSecured(c.Dir)
	}
	release, err := lockFolder(c.Dir)
	if err != nil {
		return nil, err
	}
	e, err := c.start(ctx, c.embedded(c.clientURL(secure), peersOnLoopback()), release)
	if err == nil && !secure && e.server.Server.AuthStore().IsAuthEnabled() {
		e.Close()
		return nil, errSecured(c.Dir)
	}
	return e, err
}

// start runs a member and waits until it serves. In every case it calls release once the folder is free again.
func (c EtcdConfig) start(ctx context.Context, cfg *embed.Config, release func() error) (*Etcd, error) {
	e := &Etcd{release: release, secure: strings.HasSuffix(cfg.ListenClientUrls[0].Scheme, "s"), level: c.log(cfg)}
	cfg.UserHandlers = map[string]http.Handler{"/debug/": http.NotFoundHandler()} // they show the command line of serve
	if e.secure {
		for _, file := range []string{cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile, cfg.ClientTLSInfo.TrustedCAFile} {
			f, err := bounded.Open(file) // etcd would wait for ever for a named pipe
			if err != nil {
				return nil, errors.Join(fmt.Errorf("cannot start etcd: %w", err), release())
			}
			_ = f.Close()
		}
		var err error
		if e.bounds, err = c.bound(cfg); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot start etcd: %w", err), release())
		}
		e.release = func() error { return errors.Join(e.bounds.remove(), release()) }
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// In a goroutine: etcd waits forever for a data folder that another program has open.
	started := make(chan error, 1)
	go func() {
		var err error
		e.server, err = embed.StartEtcd(cfg)
		started <- err
	}()
	select {
	case err := <-started:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot start etcd: %w", c.explain(err)), e.release())
		}
		e.bounds.guard(e.server.Server.AuthStore(), e.server.Server.KV())
	case <-ctx.Done():
		go func() { // in case it still starts
			if err := <-started; err == nil {
				e.Close()
			}
		}()
		return nil, c.notReady(ctx)
	}
	select {
	case <-e.server.Server.ReadyNotify():
		return e, nil
	case err := <-e.server.Err():
		e.Close()
		return nil, fmt.Errorf("cannot start etcd: %w", err)
	case <-ctx.Done():
		e.Close()
		return nil, c.notReady(ctx)
	}
}

func (c EtcdConfig) notReady(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("cannot start etcd: %w", ctx.Err())
	}
	return fmt.Errorf("cannot start etcd: it was not ready within %s\ncheck whether another program uses %s", startTimeout, c.Dir)
}

// KeepOut excludes every `pulley serve` from a data folder until release is called. It fails while one serves the
// folder's etcd. It does not notice a serve for another etcd.
func KeepOut(dir string) (release func() error, err error) {
	f, err := atomicfile.OpenLock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("another pulley serve uses %s", dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error { // a process that is being started has a copy of the open file, which would keep the lock
		return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
	}, nil
}

// lockFolder creates the data folder and locks it. It refuses one whose restore has not finished.
func lockFolder(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the data folder: %w", err)
	}
	if release, err = KeepOut(dir); err != nil {
		return nil, fmt.Errorf("cannot start etcd: %w\nstop it first, or give this one a folder of its own with --data-dir", err)
	}
	if err := Restored(dir); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// peersOnLoopback returns the peer address of a member without peers: port 0 avoids conflicts, and loopback hides it.
func peersOnLoopback() url.URL { return url.URL{Scheme: "http", Host: "127.0.0.1:0"} }

func (c EtcdConfig) clientURL(secure bool) url.URL {
	if secure {
		return url.URL{Scheme: "https", Host: c.Listen}
	}
	return url.URL{Scheme: "http", Host: c.Listen}
}

// logEntries is how many entries of the raft log a start reads again, at up to 1.5 MiB each, and about how many stay in memory. etcd's
// own 10,000 are for other members that are behind: a few publications of a large repository filled the memory of the machine.
const logEntries = 100

// embedded returns the member's configuration: one URL for clients, with TLS if its scheme requires it, and another
// one for peers.
func (c EtcdConfig) embedded(clients, peers url.URL) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "pulley"
	cfg.Dir = filepath.Join(c.Dir, dataName)
	if strings.HasSuffix(clients.Scheme, "s") {
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CACert, ClientCertAuth: true}
	}
	cfg.ListenClientUrls = []url.URL{clients}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	for i, a := range c.Advertise {
		if u, err := url.Parse(a); err == nil {
			cfg.AdvertiseClientUrls = append(cfg.AdvertiseClientUrls[:i:i], *u)
		}
	}
	cfg.ListenPeerUrls = []url.URL{peers}
	cfg.AdvertisePeerUrls = []url.URL{peersOnLoopback()} // part of the membership: it must never change
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	cfg.QuotaBackendBytes = c.QuotaBytes
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = c.Retention.String()
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = logEntries, logEntries/10
	if c.snapshots {
		cfg.SnapshotCount = 1
	}
	return cfg
}

// log sends the member's log to c.Log, and returns its level.
func (c EtcdConfig) log(cfg *embed.Config) zap.AtomicLevel {
	if c.Log == nil {
		c.Log = slog.NewTextHandler(os.Stderr, nil)
	}
	level := zap.NewAtomicLevelAt(zapcore.ErrorLevel)
	core := &slogCore{LevelEnabler: level, handler: c.Log, written: &repeats{at: map[string]time.Time{}}}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(core))
	return level
}

// explain adds the remedy to the two common errors.
func (c EtcdConfig) explain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "listen" {
		return fmt.Errorf("%w\nstop the other etcd or `pulley serve`, or give --listen 127.0.0.1:0, which picks a free port", err)
	}
	return err
}

// Endpoint returns the URL for clients, with the chosen port.
func (e *Etcd) Endpoint() string {
	scheme := "http"
	if e.secure {
		scheme = "https"
	}
	return scheme + "://" + e.address().String()
}

// address returns the address for clients. With TLS, etcd's HTTP paths have a socket of their own.
func (e *Etcd) address() net.Addr {
	for _, l := range e.server.Clients {
		if l.Addr().Network() != "unix" {
			return l.Addr()
		}
	}
	return e.server.Clients[0].Addr()
}

// Size returns the bytes of the data on disk, and the bytes in use.
func (e *Etcd) Size() (stored, inUse int64) {
	backend := e.server.Server.Backend()
	return backend.Size(), backend.SizeInUse()
}

// DB returns a connection to the keyspace inside the process, which needs no certificate.
func (e *Etcd) DB(prefix string, timeout time.Duration) *etcd.DB {
	return etcd.Over(v3client.New(e.server.Server), e.server.Server.Backend().Defrag, e.Endpoint(), prefix, timeout)
}

// Failed delivers the error that stops the member, if any.
func (e *Etcd) Failed() <-chan error { return e.server.Err() }

// Close stops the member; a second call does nothing (etcd's own Close would panic).
func (e *Etcd) Close() {
	e.once.Do(func() {
		e.level.SetLevel(zapcore.FatalLevel) // etcd logs the close of its listeners as an error
		e.bounds.shut()
		e.server.Close()
		_ = e.release() // the process may continue, for example a test
	})
}
