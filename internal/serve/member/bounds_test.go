package member

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pulley/internal/access"
	"pulley/internal/desired/control"
	"pulley/internal/model"
	"pulley/internal/pki"
	"pulley/internal/serve/limits"
)

// lookups is etcd's users. It counts lookups, and those that take the lock of etcd's writes.
type lookups struct {
	auth.AuthStore
	roles        map[string]string
	reads, locks int
}

func (l *lookups) IsAuthEnabled() bool { return true }
func (l *lookups) IsAdminPermitted(of *auth.AuthInfo) error {
	l.reads++
	switch role, known := l.roles[of.Username]; {
	case !known:
		return auth.ErrUserNotFound
	case role != rootRole:
		return auth.ErrPermissionDenied
	}
	return nil
}

func (l *lookups) HasRole(user, role string) bool {
	l.locks++
	return l.roles[user] == role
}

// A node's refused calls must cost etcd no lookup, and those of a viewer one lock: a flood of them would delay all writes.
func TestRefusedNodesAreNotLookedUp(t *testing.T) {
	t.Parallel()
	users := &lookups{roles: map[string]string{"pulley/operator/ann/0123456789abcdef": "pulley/viewer", "pulley/operator/bob/0123456789abcdef": "pulley/operator", "root": "root"}}
	b := newBounds(EtcdConfig{OperatorRole: "pulley/operator"})
	b.guard(users, nil)
	for _, c := range []struct {
		user         string
		reads, locks int
		refused      bool
	}{
		{"pulley/node/dev/compute1/0123456789abcdef", 0, 0, true},
		{"pulley/operator/ann/0123456789abcdef", 1, 1, true},
		{"pulley/operator/gone/0123456789abcdef", 1, 0, true},
		{"", 1, 0, true},
		{"pulley/operator/bob/0123456789abcdef", 1, 1, false},
		{"root", 1, 0, false},
	} {
		users.reads, users.locks = 0, 0
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: c.user}}
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
		err := b.check(ctx, "/etcdserverpb.Lease/LeaseGrant")
		if refused := err != nil && strings.Contains(err.Error(), "permission denied"); refused != c.refused || users.reads != c.reads || users.locks != c.locks {
			t.Errorf("a lease of %q: %v, after %d reads and %d locks", c.user, err, users.reads, users.locks)
		}
	}
}

// A node that etcd refuses after a restore looked converged, and a flood of its calls must not become writes of serve. A node with a user is none.
func TestNodesWithoutUsersAreReported(t *testing.T) {
	t.Parallel()
	var told []string
	b := newBounds(EtcdConfig{LockedOut: func(name pki.Name, issued time.Time) { told = append(told, name.Subject+issued.UTC().Format(" 15:04")) }})
	b.guard(&lookups{roles: map[string]string{"pulley/node/dev/web1/0123456789abcdef": "pulley/node/dev/web1"}}, nil)
	refuse := func(context.Context, any) (any, error) { return nil, errDenied }
	for _, user := range []string{"pulley/node/dev/web1/0123456789abcdef", "pulley/node/dev/web2/0123456789abcdef", "pulley/operator/gone/0123456789abcdef", ""} {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: user}, NotBefore: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), NotAfter: time.Date(2027, 3, 4, 5, 6, 7, 0, time.UTC)}
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
		for range 100 {
			if _, err := b.call(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/etcdserverpb.KV/Txn"}, refuse); err == nil {
				t.Error("it is not refused")
			}
		}
	}
	if want := []string{"web2 06:06", "web2 06:06"}; !slices.Equal(told, want) {
		t.Errorf("%v are reported, want %v", told, want)
	}
}

// A stolen certificate must not hold more of etcd's connections than its user needs, from any number of addresses.
func TestConnectionsOfOneCertificateAreLimited(t *testing.T) {
	t.Parallel()
	c := secureConfig(t, t.TempDir())
	told := make(chan limits.Overload, 1)
	c.Connections = &limits.Connections{Total: 100, PerAddress: 100, PerUser: 2, Overloaded: func(o limits.Overload) { told <- o }}
	s := startSecure(t, c)
	config, err := s.Connection.TLS()
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"h2"}
	_, address, _ := strings.Cut(s.local(), "://")
	for n := range 3 {
		dialer := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+n))}}, Config: config}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout*6)
	defer cancel()
	select {
	case o := <-told:
		if !strings.Contains(o.User, "/serve/") || o.Open != 2 {
			t.Errorf("%+v", o)
		}
	case <-ctx.Done():
		t.Error("three connections of one certificate are open")
	}
}

// Without its watch, a daemon sees the order of a job at its next tick only. Other watches would cost etcd memory for as long as a stolen
// node likes.
func TestNodeWatchesOneKey(t *testing.T) {
	t.Parallel()
	c := secureConfig(t, t.TempDir())
	calls := atomic.Int64{}
	c.Refused = func(string, string) { calls.Add(1) }
	s := startSecure(t, c)
	name := pki.Name{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "controller1", Incarnation: pki.NewIncarnation()}
	users := access.In(connect(t, s.Connection))
	if err := errors.Join(users.EnsureEnvironment(t.Context(), "dev"), users.EnsureNode(t.Context(), "dev", "controller1", name.String())); err != nil {
		t.Fatal(err)
	}
	of := s.Connection
	of.Cert = identity(t, s.Certificates, name)
	of.Key = of.Cert
	node, who := control.In(connect(t, of)), model.Identity{Environment: "dev", Node: "controller1"}
	if err := node.WatchOrders(t.Context(), model.Identity{Environment: "production", Node: "compute1"}, func() {}); !errors.Is(err, control.ErrWatchRefused) {
		t.Errorf("a watch of the orders in another environment: %v", err)
	}
	if calls.Swap(0) != 1 {
		t.Error("that watch is not counted")
	}
	b, end := s.Etcd.bounds, []context.CancelFunc{}
	open := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			b.mu.Lock()
			n := b.watches[name.String()]
			b.mu.Unlock()
			if n == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d watches are open, not %d", n, want)
			}
		}
	}
	open(0)
	for n := range watchesOfNode {
		ctx, cancel := context.WithCancel(t.Context())
		end = append(end, cancel)
		one := control.In(connect(t, of))
		go func() { _ = one.WatchOrders(ctx, who, func() {}) }()
		open(n + 1)
	}
	if calls.Load() != 0 {
		t.Errorf("%d calls of a daemon were refused", calls.Load())
	}
	if err := node.WatchOrders(t.Context(), who, func() {}); err == nil || errors.Is(err, control.ErrWatchRefused) || calls.Load() != 1 {
		t.Errorf("watch %d is open, after %d refusals: %v", watchesOfNode+1, calls.Load(), err)
	}
	end[0]()
	open(watchesOfNode - 1)
	for _, cancel := range end {
		cancel()
	}
	open(0)
}

// What a watch has not read, and all keys below the name of a lock, fill the memory of serve. No command of an operator needs one.
func TestOperatorsDoNotWatch(t *testing.T) {
	t.Parallel()
	c := secureConfig(t, t.TempDir())
	refused := atomic.Int64{}
	c.Refused = func(string, string) { refused.Add(1) }
	s := startSecure(t, c)
	users := access.In(connect(t, s.Connection))
	clients := map[access.OperatorRole]*grpc.ClientConn{"serve": rawClient(t, s.Connection).ActiveConnection()}
	for _, role := range []access.OperatorRole{access.RoleViewer, access.RoleOperator, access.RoleAdmin} {
		name := pki.Name{Prefix: "pulley", Kind: pki.KindOperator, Subject: "ann", Incarnation: pki.NewIncarnation()}
		if err := users.EnsureOperator(t.Context(), name.String(), role); err != nil {
			t.Fatal(err)
		}
		of := s.Connection
		of.Cert = identity(t, s.Certificates, name)
		of.Key = of.Cert
		clients[role] = rawClient(t, of).ActiveConnection()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for role, conn := range clients {
		calls := map[string]func() error{
			"a watch": func() error {
				w, err := pb.NewWatchClient(conn).Watch(ctx)
				if err != nil {
					return err
				}
				create := &pb.WatchCreateRequest{Key: []byte("/pulley/v1/content/"), RangeEnd: []byte("/pulley/v1/content0"), StartRevision: 1, PrevKv: true}
				if err := w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				_, err = w.Recv()
				return err
			},
			"a lock": func() error {
				lease, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 60})
				if err != nil {
					return err
				}
				_, err = v3lockpb.NewLockClient(conn).Lock(ctx, &v3lockpb.LockRequest{Name: []byte("/pulley/v1/content/" + role), Lease: lease.ID})
				return err
			},
		}
		for name, call := range calls {
			before, err := refused.Load(), call()
			if may := role == "serve" || role == access.RoleAdmin; (err == nil) != may || err != nil && status.Code(err) != codes.PermissionDenied || (refused.Load() > before) == may {
				t.Errorf("%s of %s: %v, after %d refusals", name, role, err, refused.Load()-before)
			}
		}
	}
}

// requests is the stream of a client.
type requests struct {
	grpc.ServerStream
	next *pb.WatchRequest
}

func (r requests) RecvMsg(m any) error {
	m.(*pb.WatchRequest).RequestUnion = r.next.RequestUnion
	return nil
}

func TestNodeWatchRefusesMore(t *testing.T) {
	t.Parallel()
	create := func(key, end string) *pb.WatchRequest {
		return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
	}
	cancels := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{}}}
	progress := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	for name, all := range map[string][]*pb.WatchRequest{
		"a second key": {create("a", ""), create("b", "")}, "keys from one on": {create("a", "\x00")}, "all keys": {create("", "")}, "a range": {create("a", "b")},
		"another one after its end": {create("a", ""), cancels, create("a", "")}, "progress": {create("a", ""), progress}, "nothing": {{}},
	} {
		refused := 0
		w := &nodeWatch{key: "a", refused: func() { refused++ }}
		for i, r := range all {
			w.ServerStream = requests{next: r}
			if err := w.RecvMsg(&pb.WatchRequest{}); (err != nil) != (i == len(all)-1) {
				t.Errorf("%s: request %d: %v", name, i+1, err)
			}
		}
		if refused != 1 {
			t.Errorf("%s: %d were refused", name, refused)
		}
	}
}

// One connection must not fill serve's memory with the headers of a call that it never ends: each byte of them may stand for a header.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	s := startSecure(t, secureConfig(t, t.TempDir()))
	config, err := s.Connection.TLS()
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"h2"}
	_, address, _ := strings.Cut(s.local(), "://")
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	frame := func(kind byte, payload []byte) []byte { // of the first stream, without its end
		n, stream := len(payload), byte(1)
		if kind == 4 { // settings
			stream = 0
		}
		return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0, 0, 0, 0, stream}, payload...)
	}
	begin := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, nil)...)
	begin = append(begin, frame(1, []byte{0x40, 1, 'a', 0})...) // the header "a" enters the connection's table as number 62
	go func() {
		if _, err := conn.Write(begin); err != nil {
			return
		}
		for range 30 { // each byte is one header
			if _, err := conn.Write(frame(9, bytes.Repeat([]byte{0x80 | 62}, 16000))); err != nil {
				return
			}
		}
	}()
	_, err = io.Copy(io.Discard, conn) // until serve closes the connection
	var waited net.Error
	if errors.As(err, &waited) && waited.Timeout() {
		t.Error("serve holds half a million headers of one call")
	}
}
