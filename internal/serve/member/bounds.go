package member

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pulley/internal/pki"
	"pulley/internal/serve/limits"
)

// Bounds of one connection to etcd.
const (
	handshakeWithin = 10 * time.Second
	idleAtMost      = 10 * time.Minute // a client connects again when it needs etcd
	pingEvery       = 2 * time.Minute  // ends connections whose client is gone
	streamsAtMost   = 1024             // calls and watches at the same time; more of them wait
)

// Leases of one operator. Commands open one for each lock, and one for each hold that ends.
const (
	leasesBurst = 300
	leasesEvery = time.Second // one more is allowed
)

// rootRole is etcd's own role of administrators.
const rootRole = "root"

// leaseCalls begins the names of the calls that create leases.
var leaseCalls = []string{"/etcdserverpb.Lease/LeaseGrant", "/v3lockpb.", "/v3electionpb."}

// forEverybody begins the names of the calls that users without a writing role may make. Pulley's viewers make no others, and its nodes
// one watch. Leases, watches, locks and elections cost etcd memory for as long as their caller likes.
var forEverybody = []string{
	"/etcdserverpb.KV/", "/etcdserverpb.Auth/", "/etcdserverpb.Cluster/MemberList", "/etcdserverpb.Maintenance/Status",
	"/etcdserverpb.Maintenance/Alarm", "/grpc.health.v1.Health/",
}

// bounds are what a member with TLS lets its clients do. The methods of a nil one do nothing.
type bounds struct {
	run         string // folder of a socket
	connections *limits.Connections
	refused     func(user, call string)
	operator    string                         // role whose users may make every call, within a budget of leases
	users       atomic.Pointer[auth.AuthStore] // nil until etcd runs

	mu      sync.Mutex
	budgets map[string]*budget // of operators
	watches map[string]int     // open ones of nodes
}

// budget is what remains of an operator's leases.
type budget struct {
	left float64
	at   time.Time
}

// bound adds the bounds to the configuration of a member with TLS. Its port then speaks only gRPC: etcd offers its HTTP
// paths (metrics, health, version) on a socket in a private folder, where nobody needs them.
func (c EtcdConfig) bound(cfg *embed.Config) (*bounds, error) {
	run, err := makeRun()
	if err != nil {
		return nil, err
	}
	b := &bounds{run: run, connections: c.Connections, refused: c.Refused, operator: c.OperatorRole, budgets: map[string]*budget{}, watches: map[string]int{}}
	tlsConfig, err := cfg.ClientTLSInfo.ServerConfig()
	if err != nil {
		_ = b.remove()
		return nil, err
	}
	cfg.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(run, "http")}}
	cfg.MaxConcurrentStreams = streamsAtMost
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeWithin),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleAtMost, Time: pingEvery, Timeout: handshakeWithin}),
		grpc.ChainUnaryInterceptor(b.call), grpc.ChainStreamInterceptor(b.stream),
	}
	if c.Connections != nil {
		cfg.GRPCAdditionalServerOptions = append(cfg.GRPCAdditionalServerOptions,
			grpc.Creds(counted{credentials.NewTLS(tlsConfig), c.Connections, c.OperatorRole != ""}))
	}
	return b, nil
}

// guard enforces the bounds of calls with etcd's users. Until then nobody may make the bounded ones.
func (b *bounds) guard(users auth.AuthStore) {
	if b != nil {
		b.users.Store(&users)
	}
}

func (b *bounds) shut() {
	if b != nil && b.connections != nil {
		b.connections.Shut()
	}
}

func (b *bounds) remove() error { return os.RemoveAll(b.run) }

func (b *bounds) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := b.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (b *bounds) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == watchCall {
		if others, err := b.watch(srv, s, handler); !others {
			return err
		}
	}
	if err := b.check(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, s)
}

// check refuses a call of a user without a writing role, and the leases of an operator beyond the budget. Without etcd's
// users, every client may make every call.
func (b *bounds) check(ctx context.Context, call string) error {
	if begins(call, forEverybody) {
		return nil
	}
	users, user := b.users.Load(), userOf(ctx)
	if users == nil {
		return status.Error(codes.Unavailable, "etcdserver: server is starting")
	}
	// A node has neither role. It is refused without a lookup.
	name, err := pki.ParseName(user)
	denied := auth.ErrUserNotFound
	if node := err == nil && name.Kind == pki.KindNode; !node || !(*users).IsAuthEnabled() {
		denied = (*users).IsAdminPermitted(&auth.AuthInfo{Username: user})
	}
	if denied == nil {
		return nil
	}
	// The texts are etcd's own: its clients know the errors by them.
	refusal := status.Error(codes.PermissionDenied, "etcdserver: permission denied")
	// HasRole takes the lock of etcd's writes: for users that exist, once.
	if b.operator != "" && errors.Is(denied, auth.ErrPermissionDenied) && (*users).HasRole(user, b.operator) {
		if !begins(call, leaseCalls) || b.spend(user, time.Now()) {
			return nil
		}
		refusal = status.Error(codes.ResourceExhausted, "etcdserver: too many requests")
	}
	if b.refused != nil {
		b.refused(user, call)
	}
	return refusal
}

func begins(call string, with []string) bool {
	return slices.ContainsFunc(with, func(begin string) bool { return strings.HasPrefix(call, begin) })
}

// spend takes one lease from an operator's budget, and reports whether there was one. Only operators have budgets: their
// number is small.
func (b *bounds) spend(user string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.budgets[user]
	if of == nil {
		of = &budget{left: leasesBurst, at: now}
		b.budgets[user] = of
	}
	of.left, of.at = min(leasesBurst, of.left+now.Sub(of.at).Seconds()/leasesEvery.Seconds()), now
	if of.left < 1 {
		return false
	}
	of.left--
	return true
}

// userOf returns the user that etcd derives from a connection: the common name of its certificate.
func userOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return nameOf(p.AuthInfo)
}

func nameOf(a credentials.AuthInfo) string {
	info, ok := a.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return ""
	}
	return info.State.VerifiedChains[0][0].Subject.CommonName
}

// counted counts connections from before their TLS handshake. It is the only place in which an embedded etcd shows its
// connections to its program.
type counted struct {
	credentials.TransportCredentials
	limit *limits.Connections
	users bool // each has certificates of its own, and a limit
}

// ServerHandshake admits a connection, or closes it.
func (c counted) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	admitted, err := c.limit.Admit(raw)
	if err != nil {
		return nil, nil, err
	}
	conn, info, err := c.TransportCredentials.ServerHandshake(admitted)
	if err != nil {
		_ = admitted.Close()
		return nil, nil, err
	}
	user := ""
	if c.users {
		user = nameOf(info)
	}
	admitted.Established(user)
	return conn, info, nil
}

// Clone copies the credentials.
func (c counted) Clone() credentials.TransportCredentials {
	return counted{c.TransportCredentials.Clone(), c.limit, c.users}
}
