package fleetca_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/serve/member"
	"pulley/internal/testbed/etcdtest"
)

// Authentication that was enabled in an etcd of another CA cannot be used or disabled by anybody. In an etcd that is too old, nodes
// have more rights than theirs.
func TestSetUpIsRefusedBeforeAnyChange(t *testing.T) {
	t.Parallel()
	certs, err := fleetca.Open(t.TempDir(), "", "server1", false, pki.Options{})
	if err == nil {
		err = certs.Refresh([]string{"127.0.0.1"})
	}
	if err != nil {
		t.Fatal(err)
	}
	foreign := etcdtest.NewPKI(t)
	trusting := func(cert, key, ca string) string {
		t.Helper()
		etcd, err := member.StartEtcd(t.Context(), member.EtcdConfig{
			Dir: t.TempDir(), Listen: "127.0.0.1:0", QuotaBytes: member.DefaultQuota, Retention: member.DefaultRetention,
			Cert: cert, Key: key, CACert: ca, UnsafeNoFsync: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(etcd.Close)
		return etcd.Endpoint()
	}
	old := &outdated{}
	for name, c := range map[string]struct {
		endpoint string
		want     fleetca.Obstacle
	}{
		"its certificate is of another CA": {trusting(foreign.ServerCert, foreign.ServerKey, certs.Bundle()), fleetca.CANotTrusted},
		"it trusts another CA":             {trusting(certs.Server(), certs.Server(), foreign.CA), fleetca.CANotTrusted},
		"it is too old":                    {old.serve(t, certs), fleetca.Outdated},
		"all is as it should be":           {trusting(certs.Server(), certs.Server(), certs.Bundle()), ""},
	} {
		err := certs.MaySetUp(t.Context(), etcd.Config{Endpoints: []string{c.endpoint}, Timeout: 20 * time.Second})
		var got *fleetca.JoinError
		if errors.As(err, &got); c.want == "" && err != nil || c.want != "" && (got == nil || got.Obstacle != c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	for _, method := range old.called {
		if method != "/etcdserverpb.KV/Range" {
			t.Errorf("the old etcd was asked for more than reads: %s", method)
		}
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(certs.Bundle()), "admin.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an administrator was made: %v", err)
	}
}

// outdated answers as an etcd 3.4 that knows only its version.
type outdated struct {
	etcdserverpb.UnimplementedMaintenanceServer
	mu     sync.Mutex
	called []string
}

func (*outdated) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{}, Version: "3.4.30"}, nil
}

func (o *outdated) serve(t *testing.T, certs *fleetca.Certificates) (endpoint string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certs.Server(), certs.Server())
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(certs.CA.Bundle())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert})),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			o.mu.Lock()
			defer o.mu.Unlock()
			if !slices.Contains(o.called, method) {
				o.called = append(o.called, method)
			}
			return status.Error(codes.Unimplemented, method)
		}))
	etcdserverpb.RegisterMaintenanceServer(server, o)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return "https://" + listener.Addr().String()
}
