package etcd

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// asked counts the connections to the proxy of this process's environment.
var asked atomic.Int32

// TestMain sets a proxy before anything reads the environment, which net/http does once. Addresses of this machine never use it.
func TestMain(m *testing.M) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = c.Close()
		}
	}()
	for _, name := range []string{"http_proxy", "https_proxy", "HTTPS_PROXY"} {
		if err := os.Setenv(name, "http://"+l.Addr().String()); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// A machine has https_proxy for its downloads. A proxy that refuses etcd's port would cut the node off, and one that allows it would see
// a node's whole traffic.
func TestConnectionsUseNoProxy(t *testing.T) {
	t.Parallel()
	db, err := Open(Config{Endpoints: []string{"http://192.0.2.1:2379"}, Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Get(t.Context(), "/x"); err == nil {
		t.Fatal("a reserved address answers")
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d connections to the proxy", n)
	}
}
