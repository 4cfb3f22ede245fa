// Package etcdtest owns real etcd for tests: one embedded member, in plain text or with TLS, that tests can stop and
// start again at the same address. It must never be part of a program.
package etcdtest

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"

	"pulley/internal/serve/member"
)

// Server is one member.
type Server struct {
	Endpoint string
	Prefix   string // of all keys that Client sees; "" for a server of the test's own
	t        testing.TB
	config   member.EtcdConfig
	etcd     *member.Etcd
}

// Start runs a member until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, member.EtcdConfig{Dir: t.TempDir()}, member.DefaultQuota)
}

// StartTLS runs a member that accepts only clients with a certificate of the CA in p.
func StartTLS(t testing.TB, p PKI) *Server {
	t.Helper()
	return start(t, member.EtcdConfig{Dir: t.TempDir(), CACert: p.CA, Cert: p.ServerCert, Key: p.ServerKey}, member.DefaultQuota)
}

func start(t testing.TB, c member.EtcdConfig, quotaBytes int64) *Server {
	t.Helper()
	c.Listen = "127.0.0.1:0"
	c.QuotaBytes, c.Retention, c.UnsafeNoFsync = quotaBytes, member.DefaultRetention, true
	c.Log = slog.DiscardHandler
	s := &Server{t: t, config: c}
	s.Up()
	t.Cleanup(s.Down)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(s.Endpoint, "http://"), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	s.config.Listen = "127.0.0.1:" + port
	return s
}

// Up starts the member again after Down, at the same address and with the same data.
func (s *Server) Up() {
	s.t.Helper()
	e, err := member.StartEtcd(context.Background(), s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.etcd, s.Endpoint = e, e.Endpoint()
}

// Quota starts the member again with another quota.
func (s *Server) Quota(bytes int64) {
	s.t.Helper()
	s.Down()
	s.config.QuotaBytes = bytes
	s.Up()
}

// Down stops the member. Its address then refuses connections.
func (s *Server) Down() { s.etcd.Close() }

// Keep returns a copy of the data, for SetBack.
func (s *Server) Keep() (dir string) {
	s.t.Helper()
	dir = filepath.Join(s.t.TempDir(), "kept")
	s.Down()
	if err := os.CopyFS(dir, os.DirFS(s.config.Dir)); err != nil {
		s.t.Fatal(err)
	}
	s.Up()
	return dir
}

// SetBack starts the member again with the data that Keep copied, as an operator would who restores a disk: etcd goes back in time.
func (s *Server) SetBack(dir string) {
	s.t.Helper()
	s.Down()
	err := os.RemoveAll(s.config.Dir)
	if err == nil {
		err = os.CopyFS(s.config.Dir, os.DirFS(dir))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.Up()
}

// Client returns a plain client of the member, for values that Pulley would never write.
func (s *Server) Client() *clientv3.Client {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if s.Prefix != "" {
		c.KV = namespace.NewKV(c.KV, s.Prefix)
	}
	return c
}

// Shared is a member for many tests of a package. Tests that stop, fill or compact etcd, or count its requests, start
// their own member.
type Shared struct {
	dir  string
	etcd *member.Etcd
}

// Share runs a member until Close.
func Share() (*Shared, error) {
	dir, err := os.MkdirTemp("", "pulley-etcd-")
	if err != nil {
		return nil, err
	}
	e, err := member.StartEtcd(context.Background(), member.EtcdConfig{
		Dir: dir, Listen: "127.0.0.1:0", QuotaBytes: member.DefaultQuota, Retention: member.DefaultRetention, UnsafeNoFsync: true,
		Log: slog.DiscardHandler,
	})
	return &Shared{dir, e}, err
}

// Close stops the member and deletes its data.
func (s *Shared) Close() error {
	s.etcd.Close()
	return os.RemoveAll(s.dir)
}

// Keyspace returns the member for one test, with keys of the test's own.
func (s *Shared) Keyspace(t testing.TB) *Server {
	return &Server{Endpoint: s.etcd.Endpoint(), Prefix: "/" + t.Name(), t: t, etcd: s.etcd}
}

// Drop deletes all keys that begin with prefix, and returns their number.
func (s *Server) Drop(prefix string) int64 {
	s.t.Helper()
	resp, err := s.Client().Delete(context.Background(), prefix, clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.Deleted
}

// Keys lists all keys that exist.
func (s *Server) Keys() []string {
	s.t.Helper()
	resp, err := s.Client().Get(context.Background(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		s.t.Fatal(err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// Full makes the server refuse writes, like a server whose quota is used up, or accept them again.
func (s *Server) Full(ctx context.Context, full bool) error {
	action := etcdserverpb.AlarmRequest_DEACTIVATE
	if full {
		action = etcdserverpb.AlarmRequest_ACTIVATE
	}
	members, err := s.Client().MemberList(ctx)
	if err != nil {
		return err
	}
	_, err = etcdserverpb.NewMaintenanceClient(s.Client().ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: action, MemberID: members.Members[0].ID, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	return err
}

// Requests returns the number of gRPC requests that etcd has begun to serve in this process, over all members. It
// reads etcd's metric grpc_server_started_total.
func (s *Server) Requests() int {
	s.t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() != "grpc_server_started_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue()
		}
	}
	return int(total)
}
