package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Defaults of the embedded member.
const (
	DefaultListen    = "127.0.0.1:2379"
	DefaultQuota     = 2 << 30 // bytes; etcd's own default, made visible
	DefaultRetention = 30 * time.Minute
	startTimeout     = 60 * time.Second
)

// EtcdConfig says how to run the embedded member.
type EtcdConfig struct {
	Dir           string // its data
	Listen        string // host:port for clients; port 0 picks one
	CACert        string // files: whose client certificates are let in,
	Cert, Key     string // and the member's own
	QuotaBytes    int64
	Retention     time.Duration // how long old revisions are kept
	Log           zapcore.WriteSyncer
	UnsafeNoFsync bool // for tests that never survive a power cut
}

// Etcd is a running embedded member.
type Etcd struct {
	server *embed.Etcd
	secure bool
	level  zap.AtomicLevel // of the member's log
	once   sync.Once
}

// CheckListen refuses to listen in plain text where others than this machine could connect.
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

// StartEtcd starts a single member and waits until it serves. Its data under Dir survives restarts.
func StartEtcd(ctx context.Context, c EtcdConfig) (*Etcd, error) {
	secure := c.Cert != "" || c.Key != "" || c.CACert != ""
	if secure && (c.Cert == "" || c.Key == "" || c.CACert == "") {
		return nil, errors.New("cannot serve TLS: --cert, --key and --cacert go together\nwithout the CA's certificate, any client would be let in")
	}
	if err := CheckListen(c.Listen, secure); err != nil {
		return nil, err
	}
	cfg, level, err := c.embedded(secure)
	if err != nil {
		return nil, err
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot start etcd: %w", c.explain(err))
	}
	e := &Etcd{server: server, secure: secure, level: level}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
		return e, nil
	case err := <-server.Err():
		e.Close()
		return nil, fmt.Errorf("cannot start etcd: %w", err)
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("cannot start etcd: it was not ready within %s", startTimeout)
	}
}

func (c EtcdConfig) embedded(secure bool) (*embed.Config, zap.AtomicLevel, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, zap.AtomicLevel{}, fmt.Errorf("cannot make the data folder: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = "pulley"
	cfg.Dir = filepath.Join(c.Dir, "etcd")
	scheme := "http"
	if secure {
		scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CACert, ClientCertAuth: true}
	}
	cfg.ListenClientUrls = []url.URL{{Scheme: scheme, Host: c.Listen}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	// A single member talks to no peers: port 0 keeps it from colliding with anything, and loopback from being found.
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	cfg.QuotaBackendBytes = c.QuotaBytes
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = c.Retention.String()
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	if c.Log == nil {
		c.Log = zapcore.AddSync(os.Stderr)
	}
	level := zap.NewAtomicLevelAt(zapcore.ErrorLevel)
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewProductionEncoderConfig()), c.Log, level)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(core))
	return cfg, level, nil
}

// explain adds what to do about the two errors that people meet.
func (c EtcdConfig) explain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "listen" {
		return fmt.Errorf("%w\nis another etcd or `pulley serve` running? --listen 127.0.0.1:0 picks a free port", err)
	}
	return err
}

// Endpoint is the URL for clients, with the port that was picked.
func (e *Etcd) Endpoint() string {
	scheme := "http"
	if e.secure {
		scheme = "https"
	}
	return scheme + "://" + e.server.Clients[0].Addr().String()
}

// Failed delivers the error that ends the member, if one does.
func (e *Etcd) Failed() <-chan error { return e.server.Err() }

// Close stops the member; a second call does nothing (etcd's own Close would panic).
func (e *Etcd) Close() {
	e.once.Do(func() {
		e.level.SetLevel(zapcore.FatalLevel) // closing its listeners is an error in etcd's eyes
		e.server.Close()
	})
}
