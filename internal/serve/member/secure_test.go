package member

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// secureConfig configures a member in a folder, at a free address.
func secureConfig(t *testing.T, dir string) SecureConfig {
	t.Helper()
	return SecureConfig{
		EtcdConfig: EtcdConfig{Dir: dir, Listen: "127.0.0.1:0", QuotaBytes: DefaultQuota, Retention: time.Minute, UnsafeNoFsync: true, Log: slog.DiscardHandler},
		Hostname:   "server1", Timeout: 5 * time.Second,
	}
}

func startSecure(t *testing.T, c SecureConfig) *Secured {
	t.Helper()
	s, err := StartSecure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, c etcd.Config) *etcd.DB {
	t.Helper()
	st, err := etcd.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// identity issues a certificate of the CA for a name, with or without a user in etcd.
func identity(t *testing.T, certs *fleetca.Certificates, name pki.Name) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "identity.pem")
	if err := certs.Issue(file, name, time.Hour); err != nil {
		t.Fatal(err)
	}
	return file
}

// The first administrator of a data folder can run the fleet, also after restarts. A certificate without a user can do
// nothing. The folder is never served in plain text again.
func TestSecureStartCreatesUsersOnce(t *testing.T) {
	c := secureConfig(t, t.TempDir())
	s := startSecure(t, c)
	if s.Admin != filepath.Join(c.Dir, "pki", "admin.pem") {
		t.Fatalf("the first start made no administrator: %q", s.Admin)
	}
	admin := s.Connection
	admin.Cert, admin.Key = s.Admin, s.Admin
	host := model.Host{Node: "controller1"}
	if err := fleet.In(connect(t, admin)).Register(t.Context(), "dev", host); err != nil {
		t.Fatal(err)
	}
	if err := access.In(connect(t, s.Connection)).SetUpAuth(t.Context(), s.Certificates.User()); err != nil {
		t.Errorf("serve itself may not look after users: %v", err)
	}
	foreign := s.Connection
	foreign.Cert = identity(t, s.Certificates, pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "eve", Incarnation: pki.NewIncarnation()})
	foreign.Key = foreign.Cert
	if err := fleet.In(connect(t, foreign)).Register(t.Context(), "dev", host); err == nil || errors.Is(err, model.ErrUnreachable) {
		t.Errorf("a certificate without a user wrote: %v", err)
	}
	s.Close()

	plain := c.EtcdConfig
	if _, err := StartEtcd(t.Context(), plain); err == nil || !strings.Contains(err.Error(), "--auth") {
		t.Fatalf("the folder was served in plain text: %v", err)
	}
	if err := os.Remove(filepath.Join(c.Dir, securedName)); err != nil {
		t.Fatal(err)
	}
	if _, err := StartEtcd(t.Context(), plain); err == nil || !strings.Contains(err.Error(), "--auth") {
		t.Fatalf("without its note the folder was served in plain text: %v", err)
	}
	if err := os.Remove(s.Certificates.Identity()); err != nil { // it is lost
		t.Fatal(err)
	}
	lost := s.Certificates
	s = startSecure(t, c)
	if s.Admin != "" {
		t.Error("a second start made another administrator")
	}
	admin.Endpoints = s.Connection.Endpoints
	if err := fleet.In(connect(t, admin)).Register(t.Context(), "dev", host); err != nil {
		t.Errorf("the administrator of the first start: %v", err)
	}
	users, err := access.In(connect(t, s.Connection)).Users(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	serves := 0
	for _, u := range users {
		if strings.HasPrefix(u, "pulley/serve/") {
			serves++
		}
	}
	if serves != 1 || lost.User() != s.Certificates.User() {
		t.Errorf("%d users are serve's", serves)
	}
}

// An interrupted first start must have the same result as an uninterrupted one: exactly one administrator.
func TestInterruptedStartIsCompleted(t *testing.T) {
	c := secureConfig(t, t.TempDir())
	s := startSecure(t, c)
	st := connect(t, s.Connection)
	was, _, err := access.IdentitiesIn(st).Operator(t.Context(), "admin")
	if err == nil {
		err = access.In(st).DropUser(t.Context(), was.User)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	// The power failed after the users were on: the administrator's identity exists, and has no user in etcd.
	if err := os.Rename(filepath.Join(c.Dir, "pki", "admin.pem"), filepath.Join(c.Dir, "pki", "admin.new.pem")); err != nil {
		t.Fatal(err)
	}
	s = startSecure(t, c)
	if s.Admin == "" {
		t.Fatal("no user is administrator")
	}
	admin := s.Connection
	admin.Cert, admin.Key = s.Admin, s.Admin
	if _, err := access.In(connect(t, admin)).Users(t.Context()); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	if is, _, err := access.IdentitiesIn(connect(t, s.Connection)).Operator(t.Context(), "admin"); err != nil || is.User != was.User || !is.Live() {
		t.Errorf("the list of operators has %+v, %v", is, err)
	}
	s.Close()

	// The power failed before the users were on: the CA and the mark exist, and etcd has no users.
	if err := os.RemoveAll(filepath.Join(c.Dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	s = startSecure(t, c)
	admin.Endpoints = s.Connection.Endpoints
	if _, err := access.In(connect(t, admin)).Users(t.Context()); err != nil || s.Admin == "" {
		t.Errorf("the administrator that was made before, at a start from nothing: %v", err)
	}
}

// A new CA instead of a lost one would cut off every node and operator without an error.
func TestLostCAIsNotReplaced(t *testing.T) {
	c := secureConfig(t, t.TempDir())
	startSecure(t, c).Close()
	lost := filepath.Join(c.Dir, fleetca.PKIName)
	if err := os.Rename(lost, lost+"-away"); err != nil {
		t.Fatal(err)
	}
	if s, err := StartSecure(t.Context(), c); err == nil {
		s.Close()
		t.Error("serve started with an unknown CA")
	} else if !strings.Contains(err.Error(), "from a backup") {
		t.Error(err)
	}
	if _, err := os.Lstat(lost); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a start that was refused left a folder where the backup belongs: %v", err)
	}
	if err := os.Rename(lost+"-away", lost); err != nil {
		t.Fatal(err)
	}
	startSecure(t, c)
}

// Between the first start of etcd and the start of authentication, any certificate of the CA could write code that
// every node runs as root.
func TestCertificateWithoutUserNeverWrites(t *testing.T) {
	run := t.TempDir()
	t.Setenv("TMPDIR", run) // the folder of the first phase's socket
	c := secureConfig(t, t.TempDir())
	free, err := net.Listen("tcp", c.Listen)
	if err != nil {
		t.Fatal(err)
	}
	c.Listen = free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	// The CA exists before etcd, and a client has a certificate of it.
	certs, err := fleetca.Open(c.Dir, "", "server1", false, c.CA)
	if err == nil {
		err = certs.Refresh(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := identity(t, certs, pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "controller1", Incarnation: pki.NewIncarnation()})
	var wrote, refused, socket atomic.Int64
	hammer := func(ctx context.Context, config etcd.Config) {
		config.Cert, config.Key, config.CACert, config.Timeout = file, file, certs.Bundle(), 300*time.Millisecond
		st, err := etcd.Open(config)
		if err != nil {
			t.Error(err)
			return
		}
		defer st.Close()
		switch err := fleet.In(st).Register(ctx, "dev", model.Host{Node: "eve"}); {
		case err == nil:
			wrote.Add(1)
		case !errors.Is(err, model.ErrUnreachable) && ctx.Err() == nil:
			refused.Add(1) // by etcd itself
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var hammers sync.WaitGroup
	for range 4 {
		hammers.Go(func() {
			for ctx.Err() == nil {
				hammer(ctx, etcd.Config{Endpoints: []string{"https://" + c.Listen}})
			}
		})
	}
	hammers.Go(func() { // in its own goroutine: the socket exists for a moment, and not while another attempt waits
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			sockets, _ := filepath.Glob(filepath.Join(run, "*", "localhost"))
			for _, s := range sockets {
				socket.Add(1)
				hammer(ctx, etcd.Config{Endpoints: []string{"unixs://" + s}})
			}
		}
	})
	s := startSecure(t, c)
	for end := time.Now().Add(20 * time.Second); refused.Load() < 20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("etcd refused only %d writes", refused.Load())
		}
	}
	s.Close()
	s = startSecure(t, c)
	seen := refused.Load()
	for end := time.Now().Add(20 * time.Second); refused.Load() < seen+20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after the second start etcd refused only %d writes", refused.Load()-seen)
		}
	}
	stop()
	hammers.Wait()
	hosts, err := fleet.In(connect(t, s.Connection)).Hosts(t.Context(), model.Ref{Environment: "dev"})
	if err != nil || len(hosts) > 0 || wrote.Load() > 0 {
		t.Errorf("%d writes by a certificate without a user got through; hosts are %v, %v", wrote.Load(), hosts, err)
	}
	if socket.Load() == 0 {
		t.Error("the socket of the first phase was never found: the test looks in the wrong place")
	}
	t.Logf("refused %d, of the socket %d", refused.Load(), socket.Load())
}
