package member

import (
	"context"
	"crypto/x509"
	"errors"
	"maps"
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
	"go.etcd.io/etcd/server/v3/storage/mvcc"
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

// headersAtMost bounds the headers of one call: those of Pulley's clients have some hundred bytes. gRPC takes 16 MiB, and in memory
// they have the tenfold.
const headersAtMost = 16 << 10

// Leases of one operator. Commands open one for each lock, and one for each hold that ends.
const leasesBurst, leasesASecond = 300, 1

// Looks at whether a refused node has a user: each may be a write of serve.
const deniedBurst, deniedASecond = 2, 1. / 30

// rootRole is etcd's own role of administrators.
const rootRole = "root"

// leaseCall creates a lease.
const leaseCall = "/etcdserverpb.Lease/LeaseGrant"

// forRoot begins the names of the calls that no command of an operator makes, and that only serve and administrators may make. etcd keeps
// what a watch has not read in memory, also of old revisions. Its locks and elections read all keys below their name.
var forRoot = []string{watchCall, "/v3lockpb.", "/v3electionpb."}

// forEverybody begins the names of the calls that users without a writing role may make. Pulley's nodes make no others but one watch.
// Leases, watches, locks and elections cost etcd memory for as long as their caller likes. Changes of users and roles enter its log
// before it refuses them.
var forEverybody = []string{
	"/etcdserverpb.KV/", "/etcdserverpb.Auth/AuthStatus", "/etcdserverpb.Auth/UserGet", "/etcdserverpb.Cluster/MemberList",
	"/etcdserverpb.Maintenance/Status", "/etcdserverpb.Maintenance/Alarm", "/grpc.health.v1.Health/",
}

// forRemoved begins the names of the calls with which clients learn that their user was removed.
var forRemoved = []string{"/etcdserverpb.Auth/UserGet", watchCall}

// forViewers begins the names of the calls of a viewer's `pulley doctor` beside these.
var forViewers = []string{"/etcdserverpb.Auth/UserList", "/etcdserverpb.Auth/RoleList", "/etcdserverpb.Auth/Authenticate"}

// bounds are what a member with TLS lets its clients do. The methods of a nil one do nothing.
type bounds struct {
	run         string // folder of a socket
	connections *limits.Connections
	refused     func(user, call string)
	lockedOut   func(pki.Name, time.Time)
	operator    string                         // role whose users may make every call but those for root, within a budget of leases
	users       atomic.Pointer[auth.AuthStore] // nil until etcd runs

	kv   atomic.Pointer[mvcc.KV] // nil until etcd runs
	flow *flow

	mu      sync.Mutex
	budgets map[spending]*budget
	watches map[string]int    // open ones of nodes
	calls   map[string]*calls // by user
}

// spending names a budget, for example the leases of an operator, or the writes of a node.
type spending struct{ user, of string }

// budget is what remains of it.
type budget struct {
	left float64
	at   time.Time
}

// budgetsKept is the number of budgets from which on unused ones are dropped.
const budgetsKept = 4096

func newBounds(c EtcdConfig) *bounds {
	b := &bounds{
		connections: c.Connections, refused: c.Refused, lockedOut: c.LockedOut, operator: c.OperatorRole,
		budgets: map[spending]*budget{}, watches: map[string]int{}, calls: map[string]*calls{},
	}
	b.flow = newFlow(func(user string) { b.refuse(user, "answers that it takes slowly") })
	return b
}

// bound adds the bounds to the configuration of a member with TLS. Its port then speaks only gRPC: etcd offers its HTTP
// paths (metrics, health, version) on a socket in a private folder, where nobody needs them.
func (c EtcdConfig) bound(cfg *embed.Config) (*bounds, error) {
	run, err := makeRun()
	if err != nil {
		return nil, err
	}
	b := newBounds(c)
	b.run = run
	tlsConfig, err := cfg.ClientTLSInfo.ServerConfig()
	if err != nil {
		_ = b.remove()
		return nil, err
	}
	cfg.ListenClientHttpUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(run, "http")}}
	cfg.MaxConcurrentStreams = streamsAtMost
	decoder := newDecoder(b)
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{
		grpc.ForceServerCodecV2(decoder), grpc.StatsHandler(decoder),
		grpc.ConnectionTimeout(handshakeWithin), grpc.MaxHeaderListSize(headersAtMost),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleAtMost, Time: pingEvery, Timeout: handshakeWithin}),
		grpc.ChainUnaryInterceptor(b.call), grpc.ChainStreamInterceptor(b.stream),
	}
	if c.OperatorRole != "" { // each user has certificates of its own, and limits
		cfg.GRPCAdditionalServerOptions = append(cfg.GRPCAdditionalServerOptions, grpc.InTapHandle(b.begin))
	}
	cfg.GRPCAdditionalServerOptions = append(cfg.GRPCAdditionalServerOptions, grpc.Creds(counted{credentials.NewTLS(tlsConfig), b}))
	return b, nil
}

// guard enforces the bounds of calls with etcd's users and its data. Until then nobody may make the bounded ones.
func (b *bounds) guard(users auth.AuthStore, kv mvcc.KV) {
	if b != nil {
		b.users.Store(&users)
		b.kv.Store(&kv)
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
	resp, err := b.serve(ctx, req, info.FullMethod, handler)
	if status.Code(err) == codes.PermissionDenied {
		b.denied(ctx)
	}
	return resp, err
}

// denied reports a node whose certificate is valid and has no user.
func (b *bounds) denied(ctx context.Context) {
	c, _ := callerOf(ctx)
	users, leaf := b.users.Load(), leafOf(ctx)
	if c.node == nil || b.lockedOut == nil || users == nil || !(*users).IsAuthEnabled() || !b.spend(c.user, "denied", 1, deniedBurst, deniedASecond, time.Now()) {
		return
	}
	if errors.Is((*users).IsAdminPermitted(&auth.AuthInfo{Username: c.user}), auth.ErrUserNotFound) {
		b.lockedOut(*c.node, pki.Issued(leaf))
	}
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
	if err := b.refusesStream(s.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, s)
}

// check refuses a call of a user without a writing role, and of an operator those for root, and leases beyond the budget. Without etcd's
// users, every client may make every call.
func (b *bounds) check(ctx context.Context, call string) error {
	if begins(call, forEverybody) {
		return nil
	}
	users, user := b.users.Load(), userOf(ctx)
	if users == nil {
		return errStarting
	}
	// A node has no writing role. It is refused without a lookup.
	name, err := pki.ParseName(user)
	node := err == nil && name.Kind == pki.KindNode
	if !node && begins(call, forViewers) {
		return nil
	}
	if node && (*users).IsAuthEnabled() {
		b.refuse(user, call)
		return errDenied
	}
	switch role := b.role(user); {
	case role == rootRole:
		return nil
	case role == "" || begins(call, forRoot):
	case call != leaseCall || b.spend(user, "leases", 1, leasesBurst, leasesASecond, time.Now()):
		return nil
	default:
		b.refuse(user, call)
		return errTooMany
	}
	b.refuse(user, call)
	return errDenied
}

// role returns the writing role of a user; "" for none.
func (b *bounds) role(user string) string {
	users := b.users.Load()
	if users == nil {
		return ""
	}
	err := (*users).IsAdminPermitted(&auth.AuthInfo{Username: user})
	switch {
	case err == nil:
		return rootRole
	// HasRole takes the lock of etcd's writes: for users that exist, once.
	case b.operator != "" && errors.Is(err, auth.ErrPermissionDenied) && (*users).HasRole(user, b.operator):
		return b.operator
	}
	return ""
}

func begins(call string, with []string) bool {
	return slices.ContainsFunc(with, func(begin string) bool { return strings.HasPrefix(call, begin) })
}

// spend takes from a budget of a user, which is full at first, and reports whether that much was left.
func (b *bounds) spend(user, what string, n, full, aSecond float64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := spending{user, what}
	of := b.budgets[key]
	if of == nil {
		if len(b.budgets) >= budgetsKept {
			maps.DeleteFunc(b.budgets, func(_ spending, one *budget) bool { return now.Sub(one.at) > time.Hour })
		}
		of = &budget{left: full, at: now}
		b.budgets[key] = of
	}
	of.left, of.at = min(full, of.left+now.Sub(of.at).Seconds()*aSecond), now
	if of.left < n {
		return false
	}
	of.left -= n
	return true
}

// userOf returns the user that etcd derives from a connection: the common name of its certificate.
func userOf(ctx context.Context) string {
	if leaf := leafOf(ctx); leaf != nil {
		return leaf.Subject.CommonName
	}
	return ""
}

// leafOf returns the certificate of a connection, as verified against the CA; nil for none.
func leafOf(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	return verified(p.AuthInfo)
}

func verified(a credentials.AuthInfo) *x509.Certificate {
	info, ok := a.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// counted counts connections from before their TLS handshake, and the bytes that they have to write. It is the only place in which
// an embedded etcd shows its connections to its program.
type counted struct {
	credentials.TransportCredentials
	of *bounds
}

// ServerHandshake admits a connection, or closes it.
func (c counted) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	under := raw
	var admitted *limits.Conn
	if c.of.connections != nil {
		var err error
		if admitted, err = c.of.connections.Admit(raw); err != nil {
			return nil, nil, err
		}
		under = admitted
	}
	conn, info, err := c.TransportCredentials.ServerHandshake(under)
	if err != nil {
		_ = under.Close()
		return nil, nil, err
	}
	user := ""
	if leaf := verified(info); leaf != nil && c.of.operator != "" {
		user = leaf.Subject.CommonName
	}
	if admitted != nil {
		admitted.Established(user)
	}
	return &outgoing{Conn: conn, flow: c.of.flow, user: user}, info, nil
}

// Clone copies the credentials.
func (c counted) Clone() credentials.TransportCredentials {
	return counted{c.TransportCredentials.Clone(), c.of}
}
