package control

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
)

// Plain text on an address that others reach would let anybody run code as root on every node.
func TestPlainTextIsServedOnLoopbackOnly(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:2379": true, "127.8.8.8:0": true, "[::1]:2379": true, "localhost:1": true,
		"0.0.0.0:2379": false, ":2379": false, "[::]:2379": false, "192.0.2.7:2379": false, "etcd.example:2379": false, "127.0.0.1": false, "": false,
	} {
		if err := CheckListen(listen, false); (err == nil) != ok {
			t.Errorf("%q: %v", listen, err)
		}
		if err := CheckListen(listen, true); (err == nil) != (ok || strings.Contains(listen, ":")) {
			t.Errorf("%q with TLS: %v", listen, err)
		}
	}
	if _, err := StartEtcd(t.Context(), EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", Cert: "c", Key: "k"}); err == nil || !strings.Contains(err.Error(), "--cacert") {
		t.Errorf("TLS without a CA lets every client in: %v", err)
	}
}

// A member that is closed twice (a signal while it ends) must not panic, and must free its address and its data.
func TestMemberClosesTwiceAndComesBack(t *testing.T) {
	c := EtcdConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: zapcore.AddSync(discard{})}
	for range 2 {
		e, err := StartEtcd(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		c.Listen = strings.TrimPrefix(e.Endpoint(), "http://")
		e.Close()
		e.Close()
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
