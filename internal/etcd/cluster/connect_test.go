package cluster_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/model"
	"pulley/internal/pki/connect"
	"pulley/internal/testbed/etcdtest"
)

// An operator who reads "etcd is unreachable" for each of these mistakes searches the network for an hour.
func TestFailedConnectionNamesItsCause(t *testing.T) {
	t.Parallel()
	p, foreign := etcdtest.NewPKI(t), etcdtest.NewPKI(t)
	secure, plain, down := etcdtest.StartTLS(t, p), etcdtest.Start(t), etcdtest.Start(t)
	down.Down()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = deaf.Close() })
	url := func(scheme, of string) string { return scheme + "://" + strings.SplitN(of, "://", 2)[1] }
	with := func(endpoint, ca, cert, key string) etcd.Config {
		return etcd.Config{Endpoints: []string{endpoint}, CACert: ca, Cert: cert, Key: key, Timeout: 2 * time.Second}
	}
	own := func(endpoint string) etcd.Config { return with(endpoint, p.CA, p.ClientCert, p.ClientKey) }
	for _, c := range []struct {
		name   string
		config etcd.Config
		code   connect.Code
		waits  bool // only time shows the cause
		cause  string
	}{
		{"http for https", own(url("http", secure.Endpoint)), connect.ServerTLS, false, "the server requires TLS"},
		{"https for http", own(url("https", plain.Endpoint)), connect.ServerPlain, false, "the server has no TLS"},
		{"no certificate", with(secure.Endpoint, p.CA, "", ""), connect.OwnMissing, false, "requires a client certificate, and none is given"},
		{"certificate of another fleet", with(secure.Endpoint, p.CA, foreign.ClientCert, foreign.ClientKey), connect.OwnRejected, false, `rejects the client certificate "client"`},
		{"CA of another fleet", with(secure.Endpoint, foreign.CA, p.ClientCert, p.ClientKey), connect.CADiffers, false, "the CA of the server (pulley test CA) is not in " + foreign.CA},
		{"no CA", with(secure.Endpoint, "", p.ClientCert, p.ClientKey), connect.CAMissing, false, "no CA is given"},
		{"name outside the certificate", own("https://" + forward(t, "127.0.0.2:0", secure.Endpoint)), connect.OtherName, false, "the server's certificate is for localhost, 127.0.0.1, not for 127.0.0.2"},
		{"closed port", own("https://127.0.0.1:1"), connect.PortClosed, false, "the port is closed"},
		{"etcd is down", with(down.Endpoint, "", "", ""), connect.PortClosed, false, "the port is closed"},
		{"unknown host", own("https://etcd.invalid:2379"), connect.HostUnknown, false, "the host etcd.invalid is unknown"},
		{"another server", with(other.URL, "", "", ""), connect.OtherServer, false, "another server answers there"},
		{"no port", own("https://127.0.0.1"), connect.AddressInvalid, false, "missing port"},
		{"no answer to TLS", own("https://" + deaf.Addr().String()), connect.TLSTimeout, true, "does not answer TLS within 2s"},
		{"no answer", with("http://"+deaf.Addr().String(), "", "", ""), connect.AnswerTimeout, true, "does not answer within 2s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st, err := etcd.Open(c.config)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			began := time.Now()
			err = cluster.In(st).Ping(t.Context())
			took := time.Since(began)
			var failure *connect.Failure
			if !errors.Is(err, model.ErrUnreachable) || !errors.As(err, &failure) || failure.Code != c.code || failure.URL != c.config.Endpoints[0] {
				t.Fatalf("after %s: %v", took, err)
			}
			if !strings.Contains(err.Error(), c.cause) || strings.Contains(err.Error(), "\n") || failure.Hint() == "" {
				t.Errorf("%v, %q", err, failure.Hint())
			}
			if c.waits != (took > 1500*time.Millisecond) || took > c.config.Timeout+time.Second {
				t.Errorf("it took %s", took)
			}
			if _, err := cluster.In(st).Member(t.Context(), c.config.Endpoints[0]); !errors.As(err, new(*connect.Failure)) {
				t.Errorf("of one endpoint: %v", err)
			}
		})
	}
}

// forward listens at an address and forwards connections to an endpoint. It returns the address with its port.
func forward(t *testing.T, at, endpoint string) string {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", strings.SplitN(endpoint, "://", 2)[1])
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}

// With several endpoints, the cause of the first alone hides that the second has another.
func TestEachEndpointHasItsCause(t *testing.T) {
	t.Parallel()
	plain := etcdtest.Start(t)
	for _, c := range []struct {
		endpoints []string
		want      string // "": it works
	}{
		{[]string{"http://127.0.0.1:1", "http://etcd.invalid:2379"}, "cannot connect to etcd: http://127.0.0.1:1: the port is closed (connection refused); http://etcd.invalid:2379: the host etcd.invalid is unknown"},
		{[]string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, "cannot connect to etcd at http://127.0.0.1:1, http://127.0.0.1:2: the port is closed (connection refused)"},
		{[]string{"http://127.0.0.1:1", plain.Endpoint}, ""},
	} {
		st, err := etcd.Open(etcd.Config{Endpoints: c.endpoints})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = cluster.In(st).Ping(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %s: %v", c.endpoints, time.Since(began), err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A restart of etcd between two calls of one command must not end the command.
func TestLostConnectionComesBackWithinACall(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	st, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := cluster.In(st).Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Down()
	answered := make(chan error, 1)
	go func() { answered <- cluster.In(st).Ping(t.Context()) }()
	server.Up()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
