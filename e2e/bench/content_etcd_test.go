//go:build bench

package bench

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"pulley/internal/serve/member"
)

// benchEtcd is an etcd like that of `pulley serve`: it flushes acknowledged writes. It runs in this process, for its
// metrics.
type benchEtcd struct {
	t        *testing.T
	etcd     *member.Etcd
	endpoint string
	client   *clientv3.Client
}

func startMember(t *testing.T) *benchEtcd {
	t.Helper()
	e, err := member.StartEtcd(t.Context(), member.EtcdConfig{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: member.DefaultQuota, Retention: member.DefaultRetention, Log: slog.DiscardHandler,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	m := &benchEtcd{t: t, etcd: e, endpoint: e.Endpoint()}
	if m.client, err = clientv3.New(clientv3.Config{Endpoints: []string{m.endpoint}, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.client.Close() })
	return m
}

// metric returns the sum of all series of one of etcd's metrics.
func (m *benchEtcd) metric(name string) float64 {
	m.t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	total, found := 0.0, false
	for _, f := range families {
		if f.GetName() == name {
			for _, s := range f.GetMetric() {
				total, found = total+s.GetCounter().GetValue()+s.GetGauge().GetValue(), true
			}
		}
	}
	if !found {
		m.t.Fatalf("etcd has no metric %s", name)
	}
	return total
}

func (m *benchEtcd) requests() float64 { return m.metric("grpc_server_started_total") }
func (m *benchEtcd) sent() float64     { return m.metric("etcd_network_client_grpc_sent_bytes_total") }

// compact deletes all revisions except the last, as etcd's periodic compaction does. It returns the bytes in use in the
// database, and the bytes of all keys and values.
func (m *benchEtcd) compact() (inUse, values float64) {
	m.t.Helper()
	ctx := context.WithoutCancel(m.t.Context())
	revision := int64(0)
	for key := "\x00"; ; {
		resp, err := m.client.Get(ctx, key, clientv3.WithFromKey(), clientv3.WithLimit(200))
		if err != nil {
			m.t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			values += float64(len(kv.Key) + len(kv.Value))
		}
		if revision = resp.Header.Revision; !resp.More {
			break
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	if _, err := m.client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		m.t.Fatal(err)
	}
	return m.metric("etcd_mvcc_db_total_size_in_use_in_bytes"), values
}

// tap is a TCP proxy in front of etcd that counts the returned bytes.
type tap struct {
	endpoint string
	bytes    atomic.Int64
}

func startTap(t *testing.T, to string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &tap{endpoint: "http://" + l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(c, strings.TrimPrefix(to, "http://"))
		}
	}()
	return p
}

func (p *tap) pass(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		_, _ = io.Copy(s, c)
		s.Close()
	}()
	_, _ = io.Copy(c, io.TeeReader(s, p))
}

// Write counts the bytes.
func (p *tap) Write(b []byte) (int, error) {
	p.bytes.Add(int64(len(b)))
	return len(b), nil
}
