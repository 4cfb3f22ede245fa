package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/encoding/protowire"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/release"
)

// stolen starts a member with 24 MiB of content, and returns it with clients that have the certificates of a node and of a viewer.
func stolen(t *testing.T) (s *Secured, node, viewer *clientv3.Client, refused *atomic.Int64) {
	t.Helper()
	c := secureConfig(t, t.TempDir())
	refused = &atomic.Int64{}
	c.Refused = func(string, string) { refused.Add(1) }
	s = startSecure(t, c)
	names := [2]pki.Name{
		{Prefix: "pulley", Kind: pki.KindNode, Environment: "dev", Subject: "web1", Incarnation: pki.NewIncarnation()},
		{Prefix: "pulley", Kind: pki.KindOperator, Subject: "vic", Incarnation: pki.NewIncarnation()},
	}
	users := access.In(connect(t, s.Connection))
	if err := errors.Join(users.EnsureEnvironment(t.Context(), "dev"), users.EnsureNode(t.Context(), "dev", "web1", names[0].String()),
		users.EnsureOperator(t.Context(), names[1].String(), access.RoleViewer)); err != nil {
		t.Fatal(err)
	}
	serve := rawClient(t, s.Connection)
	value := make([]byte, release.MaxValueBytes) // which nothing compresses
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	for n := range 48 {
		if _, err := serve.Put(t.Context(), fmt.Sprintf("/pulley/v1/content/%02d", n), string(value)); err != nil {
			t.Fatal(err)
		}
	}
	var clients [2]*clientv3.Client
	for i, name := range names {
		of := s.Connection
		of.Cert = identity(t, s.Certificates, name)
		of.Key = of.Cert
		clients[i] = rawClient(t, of)
	}
	return s, clients[0], clients[1], refused
}

func rawClient(t *testing.T, of etcd.Config) *clientv3.Client {
	t.Helper()
	config, err := of.TLS()
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: of.Endpoints, TLS: config, Logger: zap.NewNop(), MaxCallRecvMsgSize: 1 << 30, DialOptions: []grpc.DialOption{grpc.WithInitialWindowSize(1 << 20)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func nested(ops ...clientv3.Op) clientv3.Op {
	return clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpTxn(nil, ops, nil)}, nil)
}

// One request of a stolen node, or of a viewer, must not take the memory of serve: it would end etcd with it.
func TestRequestsReadBoundedBytes(t *testing.T) {
	t.Parallel()
	s, node, viewer, refused := stolen(t)
	all := clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix())
	many, counts := make([]clientv3.Op, 90), make([]clientv3.Op, opsOfNode+1)
	points := make([]clientv3.Op, 48)
	for i := range many {
		many[i] = clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithLimit(1))
	}
	for i := range counts {
		counts[i] = clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	for i := range points {
		points[i] = clientv3.OpGet(fmt.Sprintf("/pulley/v1/content/%02d", i))
	}
	guard := clientv3.Compare(clientv3.Version("/pulley/v1/content/"), ">", 0).WithPrefix()
	for name, op := range map[string]clientv3.Op{
		"a range":                   all,
		"a range at its end":        clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithLimit(40)),
		"in a transaction":          clientv3.OpTxn(nil, []clientv3.Op{all}, nil),
		"in what is not done":       clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("/pulley/v1/content/00"), "=", 0)}, []clientv3.Op{all}, nil),
		"in a nested transaction":   nested(all),
		"nested many times":         nested(points...),
		"sorted":                    clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend)),
		"keys sorted by values":     clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend)),
		"filtered":                  clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithMinModRev(1)),
		"points":                    clientv3.OpTxn(nil, points, nil),
		"many ranges of few keys":   clientv3.OpTxn(nil, many, nil),
		"many counts":               clientv3.OpTxn(nil, counts, nil),
		"a guard on a range":        clientv3.OpTxn([]clientv3.Cmp{guard}, nil, nil),
		"a transaction that writes": clientv3.OpTxn(nil, []clientv3.Op{all, clientv3.OpPut("/pulley/v1/status/dev/web1", "x")}, nil),
	} {
		before := refused.Load()
		if _, err := node.Do(t.Context(), op); err == nil || refused.Load() == before {
			t.Errorf("%s of a node: %v, and %d refusals are counted", name, err, refused.Load()-before)
		}
	}
	threefold := clientv3.OpTxn(nil, []clientv3.Op{all, clientv3.OpGet("/pulley/v1/content/", clientv3.WithFromKey(), clientv3.WithRange("/pulley/v1/d")), clientv3.OpGet("/pulley/v1/content/", clientv3.WithRange("/pulley/v1/e"))}, nil)
	if _, err := viewer.Do(t.Context(), threefold); err == nil || !strings.Contains(err.Error(), "reads too many bytes") {
		t.Errorf("72 MiB of a viewer: %v", err)
	}
	if _, err := viewer.Do(t.Context(), nested(threefold)); err == nil {
		t.Error("a viewer read 72 MiB in a nested transaction")
	}
	if _, err := viewer.Do(t.Context(), all); err != nil {
		t.Errorf("24 MiB of a viewer: %v", err)
	}
	before := refused.Load()
	if _, err := viewer.Do(t.Context(), clientv3.OpTxn(make([]clientv3.Cmp, recordsAtMost+1), nil, nil)); err == nil || !strings.Contains(err.Error(), errRecords.Error()) {
		t.Errorf("many guards: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); refused.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they are not counted")
		}
	}
	before = refused.Load()
	stream, err := pb.NewKVClient(node.ActiveConnection()).RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("/pulley/v1/content/"), RangeEnd: []byte("/pulley/v1/content0")})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || refused.Load() == before {
		t.Errorf("a stream of content for a node: %v", err)
	}
	// What programs of Pulley send.
	for name, op := range map[string]clientv3.Op{
		"some content":  clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithLimit(30)),
		"all keys":      clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithKeysOnly()),
		"their number":  clientv3.OpGet("/pulley/v1/content/", clientv3.WithPrefix(), clientv3.WithCountOnly()),
		"a few points":  clientv3.OpTxn(nil, points[:14], nil),
		"a value again": clientv3.OpGet("/pulley/v1/content/00", clientv3.WithSerializable()),
	} {
		if _, err := node.Do(t.Context(), op); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := rawClient(t, s.Connection).Do(t.Context(), all); err != nil {
		t.Errorf("serve itself: %v", err)
	}
	f := s.bounds.flow
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		f.mu.Lock()
		left := f.total[true] + f.total[false]
		f.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are in flight after all answers", left)
		}
	}
}

// A node must write its own keys, in sizes that its agent writes, and not more in a time than etcd's quota allows for a fleet.
func TestNodeWritesAreBounded(t *testing.T) {
	t.Parallel()
	_, node, _, refused := stolen(t)
	head, export := "/pulley/v1/environments/dev/hosts/head", "/pulley/v1/environments/dev/hosts/exports/web1"
	for name, op := range map[string]clientv3.Op{
		"a large head":      clientv3.OpPut(head, strings.Repeat("x", 1<<20)),
		"a large export":    clientv3.OpPut(export, strings.Repeat("x", 1<<20)),
		"a large status":    clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("/pulley/v1/status/dev/web1", strings.Repeat("x", 100<<10))}, nil),
		"a large run":       clientv3.OpPut("/pulley/v1/runs/dev/web1/r1", strings.Repeat("x", 100<<10)),
		"large facts":       clientv3.OpPut("/pulley/v1/facts/dev/web1", strings.Repeat("x", 100<<10)),
		"another's key":     clientv3.OpPut("/pulley/v1/status/dev/web2", "x"),
		"an operator's key": clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("/pulley/v1/environments/dev/gate", strings.Repeat("x", 1<<20))}),
		"a nested put":      nested(clientv3.OpPut(head, strings.Repeat("x", 1<<20))),
		"a small one":       nested(clientv3.OpPut("/pulley/v1/status/dev/web2", "x")),
		"a deletion":        clientv3.OpDelete("/pulley/v1/status/dev/web2"),
	} {
		before := refused.Load()
		if _, err := node.Do(t.Context(), op); err == nil || refused.Load() == before {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A loop of exports, as in the attack.
	wrote := 0
	value := strings.Repeat("x", 20<<10)
	for ; wrote < 1000; wrote++ {
		if _, err := node.Put(t.Context(), export, value); err != nil {
			break
		}
	}
	if wrote < 40 || wrote > 100 {
		t.Errorf("a node wrote an export of 20 KiB %d times", wrote)
	}
	// Others read the list again with each head.
	for wrote = 0; wrote < 100; wrote++ {
		ops := [2]clientv3.Op{clientv3.OpPut(head, `{"v":1}`), clientv3.OpDelete(head)}
		if _, err := node.Do(t.Context(), ops[wrote%2]); err != nil {
			break
		}
	}
	if wrote != headsBurst {
		t.Errorf("a node wrote the head of the host list %d times", wrote)
	}
}

// etcd logs a write, or a change of its users, before it refuses it, and keeps its log in memory: what it will refuse, and what is no
// write of Pulley, must not get there.
func TestLargeRequestsAreRefusedBeforeTheLog(t *testing.T) {
	t.Parallel()
	s, node, viewer, refused := stolen(t)
	large := strings.Repeat("x", 1_400_000)
	status, ctx := "/pulley/v1/status/dev/web1", t.Context()
	guard := clientv3.Compare(clientv3.Value(status), "=", large)
	do := func(c *clientv3.Client, op clientv3.Op) func() error {
		return func() error { _, err := c.Do(ctx, op); return err }
	}
	unknown := &pb.AuthUserListRequest{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), large))
	calls := map[string]func() error{
		"a guard":              do(node, clientv3.OpTxn([]clientv3.Cmp{guard}, []clientv3.Op{clientv3.OpPut(status, "x")}, nil)),
		"the end of a range":   do(node, clientv3.OpDelete(status, clientv3.WithRange(status+large))),
		"a nested transaction": do(node, clientv3.OpTxn([]clientv3.Cmp{guard}, []clientv3.Op{clientv3.OpTxn(nil, nil, nil)}, nil)),
		"a viewer's put":       do(viewer, clientv3.OpPut("/pulley/v1/nobody", large)),
		"a viewer's small put": do(viewer, clientv3.OpPut("/pulley/v1/nobody", "x")),
		"a viewer's deletion":  do(viewer, clientv3.OpDelete("/pulley/v1/nobody/"+large)),
		"in a transaction":     do(viewer, clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("/pulley/v1/nobody", large)})),
		"a viewer's guard":     do(viewer, clientv3.OpTxn([]clientv3.Cmp{guard}, []clientv3.Op{clientv3.OpTxn(nil, nil, nil)}, nil)),
		"an unknown field":     func() error { _, err := pb.NewAuthClient(viewer.ActiveConnection()).UserList(ctx, unknown); return err },
	}
	for name, c := range map[string]*clientv3.Client{" of a node": node, " of a viewer": viewer} {
		calls["a role"+name] = func() error { _, err := c.RoleAdd(ctx, large); return err }
		calls["a role that goes"+name] = func() error { _, err := c.RoleDelete(ctx, "small"); return err }
		calls["a user"+name] = func() error {
			_, err := c.UserAddWithOptions(ctx, large, "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		}
		calls["reading a user"+name] = func() error { _, err := c.UserGet(ctx, large); return err }
		calls["a password"+name] = func() error { _, err := c.Authenticate(ctx, "root", large); return err }
	}
	for name, call := range calls {
		before, logged := refused.Load(), s.server.Server.CommittedIndex()
		if err := call(); err == nil || refused.Load() == before || s.server.Server.CommittedIndex() != logged {
			t.Errorf("%s: %v, %d refusals are counted, and %d entries logged", name, err, refused.Load()-before, s.server.Server.CommittedIndex()-logged)
		}
	}
	// What their programs send.
	before := refused.Load()
	for _, c := range []*clientv3.Client{node, viewer} {
		if _, err := c.AuthStatus(ctx); err != nil {
			t.Error(err)
		}
		if _, err := c.UserGet(ctx, "pulley/serve"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Error(err)
		}
	}
	if _, err := viewer.UserList(ctx); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Error(err)
	}
	if _, err := viewer.Authenticate(ctx, "root", "x"); err == nil {
		t.Error("root has a password")
	}
	if refused.Load() != before {
		t.Errorf("%d calls of programs of Pulley are refused", refused.Load()-before)
	}
	if _, err := node.Put(ctx, status, "x"); err != nil {
		t.Error(err)
	}
}

// A removed node, or one that calls etcd in a loop, must not fill its log with calls that are no writes.
func TestOtherCallsAreBounded(t *testing.T) {
	t.Parallel()
	node, viewer, operator := "pulley/node/dev/web1/0123456789abcdef", "pulley/operator/vic/0123456789abcdef", "pulley/operator/bob/0123456789abcdef"
	b := newBounds(EtcdConfig{OperatorRole: "pulley/operator"})
	b.guard(&lookups{roles: map[string]string{node: "pulley/node/dev", viewer: "pulley/viewer", operator: "pulley/operator"}}, nil)
	as := func(user string) context.Context {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: user}}
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
	}
	call := func(user, method string, req any) error {
		_, err := b.serve(as(user), req, method, func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
	empty := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{}}}}}
	for _, user := range []string{node, viewer, operator} {
		calls := 0
		for ; calls < 10_000; calls++ {
			err := call(user, "/etcdserverpb.Auth/AuthStatus", &pb.AuthStatusRequest{})
			if calls%2 == 1 {
				err = call(user, "/etcdserverpb.KV/Txn", empty)
			}
			if err != nil {
				break
			}
		}
		if bounded := calls < 10_000; bounded != (user != operator) || calls < otherBurst/2 {
			t.Errorf("%s has %d calls", user, calls)
		}
	}
	gone := as("pulley/node/dev/web2/0123456789abcdef")
	for range callsUnseen {
		if _, err := b.begin(gone, &tap.Info{FullMethodName: "/etcdserverpb.KV/Range"}); err != nil {
			t.Errorf("a user that this member may not know yet: %v", err)
		}
	}
	if _, err := b.begin(gone, &tap.Info{FullMethodName: "/etcdserverpb.KV/Range"}); !errors.Is(err, errDenied) {
		t.Errorf("a removed node reads: %v", err)
	}
	if _, err := b.begin(gone, &tap.Info{FullMethodName: "/etcdserverpb.Auth/UserGet"}); err != nil {
		t.Errorf("a removed node does not learn of it: %v", err)
	}
}

// The budget of writes returns with time, and one node's writes are not another's.
func TestWritesReturnWithTime(t *testing.T) {
	t.Parallel()
	b, now := newBounds(EtcdConfig{}), time.Unix(1000, 0)
	one := &request{writes: 1, bytes: 10}
	for range writesBurst {
		if !b.mayWrite("a", one, now) {
			t.Fatal("a burst is refused")
		}
	}
	if b.mayWrite("a", one, now) || !b.mayWrite("b", one, now) {
		t.Error("the wrong node is refused")
	}
	if now = now.Add(time.Minute); !b.mayWrite("a", &request{writes: 59, bytes: 100 << 10}, now) {
		t.Error("a node that waited is refused")
	}
}

// Calls whose request never ends must not hold memory for all.
func TestCallsOfOneNodeAreLimited(t *testing.T) {
	t.Parallel()
	s, node, viewer, refused := stolen(t)
	for _, of := range []*clientv3.Client{node, viewer} {
		refused.Store(0)
		callsAreLimited(t, s, of, refused)
	}
}

func callsAreLimited(t *testing.T, s *Secured, node *clientv3.Client, refused *atomic.Int64) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	for range callsOfNode {
		if _, err := node.ActiveConnection().NewStream(ctx, desc, "/etcdserverpb.KV/Range"); err != nil { // it sends nothing
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := node.Get(ctx, "/pulley/v1/environments/dev/gate")
		if err != nil && refused.Load() > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("one more call is answered")
		}
	}
	cancel()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s.bounds.mu.Lock()
		left := len(s.bounds.calls)
		s.bounds.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d users have calls after the end of all", left)
		}
	}
	if _, err := node.Get(t.Context(), "/pulley/v1/environments/dev/gate"); err != nil {
		t.Errorf("after their end: %v", err)
	}
}

// The ranges of one user must not keep others waiting, and who waited is no flood.
func TestUsersMeasureApart(t *testing.T) {
	t.Parallel()
	s, _, _, refused := stolen(t)
	if err := access.In(connect(t, s.Connection)).EnsureOperator(t.Context(), "pulley/operator/ann/0123456789abcdef", access.RoleViewer); err != nil {
		t.Fatal(err)
	}
	as := func(ctx context.Context, user string) error {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: user}}
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}})
		ctx, end := context.WithCancel(ctx)
		defer end()
		ctx, err := s.bounds.begin(ctx, &tap.Info{FullMethodName: "/etcdserverpb.KV/Range"})
		if err != nil {
			return err
		}
		all := &pb.RangeRequest{Key: []byte("/pulley/v1/content/"), RangeEnd: []byte("/pulley/v1/content0")}
		_, err = s.bounds.serve(ctx, all, "/etcdserverpb.KV/Range", func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
	busy := &calls{open: measuredAtOnce, measuring: make(chan struct{}, measuredAtOnce)}
	for range measuredAtOnce {
		busy.measuring <- struct{}{}
	}
	s.bounds.mu.Lock()
	s.bounds.calls["pulley/operator/eve/0123456789abcdef"] = busy
	s.bounds.mu.Unlock()
	within, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := as(within, "pulley/operator/eve/0123456789abcdef"); err == nil {
		t.Error("a user measures more ranges at the same time")
	}
	if err := as(t.Context(), "pulley/operator/ann/0123456789abcdef"); err != nil {
		t.Errorf("another user: %v", err)
	}
	if refused.Load() != 0 {
		t.Errorf("%d waits are counted as refusals", refused.Load())
	}
}

// reader returns a connection of a user that has an answer of this many bytes to write.
func (f *flow) reader(t *testing.T, user string, n int64) *outgoing {
	_, server := net.Pipe()
	c := &outgoing{Conn: server, flow: f, user: user}
	if err := f.within(t, user, n); err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()})
	f.answer(ctx, user, n, &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: make([]byte, n-16)}}})
	return c
}

func (f *flow) within(t *testing.T, user string, n int64) error {
	ctx, cancel := context.WithTimeout(t.Context(), waitAtMost)
	defer cancel()
	_, err := f.take(ctx, user, n)
	return err
}

// gRPC drops an answer without a word if its stream ended before it began to write: its user would have less for as long as its connection lasts.
func TestDroppedAnswersAreFreed(t *testing.T) {
	t.Parallel()
	f := newFlow(func(string) {})
	_, server := net.Pipe()
	c := &outgoing{Conn: server, flow: f, user: "a"}
	defer c.Close()
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()})
	codec := decoder{CodecV2: encoding.GetCodecV2("proto"), sent: prometheus.NewCounter(prometheus.CounterOpts{})}
	for _, put := range []bool{true, false} {
		if err := f.within(t, "a", 1<<20); err != nil {
			t.Fatal(err)
		}
		data, err := codec.Marshal(f.answer(ctx, "a", 1<<20, &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: make([]byte, 1<<20)}}}))
		if err != nil {
			t.Fatal(err)
		}
		if put {
			data.Free()
		}
	}
	for end := time.Now().Add(20 * time.Second); ; {
		runtime.GC()
		f.mu.Lock()
		left := f.users["a"]
		f.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes stay taken", left)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// Clients that do not read their answers hold memory until their connection closes.
func TestStalledConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(func(string) {})
		c := f.reader(t, "a", flowInAll) // one request may exceed the limit of its user
		if f.within(t, "a", 1) == nil {
			t.Error("a user that holds more than its limit gets more")
		}
		<-time.After(stallAfter)
		synctest.Wait()
		if !c.closed || f.total[false] != 0 || len(f.users) != 0 || len(f.conns) != 0 {
			t.Errorf("closed %t, %d bytes are left of %v", c.closed, f.total[false], f.users)
		}
	})
}

// Stolen identities that read slowly must not keep the answers of others waiting for as long as these wait, and are named.
func TestSlowReadersGiveWay(t *testing.T) {
	t.Parallel()
	node := func(name string, i int) string { return fmt.Sprintf("pulley/node/dev/%s%d/%016x", name, i, i) }
	for _, users := range []int{5, 20} {
		for _, n := range []int64{1<<20 - 1<<10, readByNode - 1<<10} {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				named := map[string]int{}
				f := newFlow(func(user string) {
					mu.Lock()
					named[user]++
					mu.Unlock()
				})
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range users {
					all.Go(func() { f.eve(ctx, node("eve", i), n) })
				}
				honest := func(user string, n int64) {
					within, cancel := context.WithTimeout(ctx, 5*time.Second)
					defer cancel()
					if _, err := f.take(within, user, n); err != nil {
						t.Errorf("%d users of %d bytes: %s: %v", users, n, user, err)
						return
					}
					f.give(user, n)
				}
				for i := range 40 { // at any moment of a minute
					<-time.After(1370 * time.Millisecond)
					all.Go(func() { honest(node("web", i), pointsUnread*release.MaxValueBytes) })
					at := time.Now()
					if honest("pulley/operator/ann/0123456789abcdef", readByOperator); time.Since(at) > 0 {
						t.Errorf("an operator waits for %s", time.Since(at))
					}
				}
				cancel()
				all.Wait()
				for user := range named {
					if !strings.Contains(user, "/eve") {
						t.Errorf("%s is named", user)
					}
				}
				if len(named) == 0 {
					t.Error("nobody is named")
				}
				<-time.After(slowPause)
				if f.total[true] != 0 || len(f.users) != 0 {
					t.Errorf("%d bytes are left of %v", f.total[true], f.users)
				}
			})
		}
	}
}

// Honest nodes must not lose their connections because the network of serve is slow, as at the start of a rollout.
func TestSlowNetworkClosesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFlow(func(user string) { t.Errorf("%s is named", user) })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		const n, nodes = 3 << 20, 42
		var all []*outgoing
		for i := range nodes {
			_, server := net.Pipe()
			c := &outgoing{Conn: server, flow: f, user: fmt.Sprintf("pulley/node/dev/web%d/%016x", i, i)}
			f.mu.Lock()
			f.add(c.user, n)
			c.hold(n)
			f.mu.Unlock()
			all = append(all, c)
		}
		var writes sync.WaitGroup
		writes.Go(func() {
			for ctx.Err() == nil {
				<-time.After(100 * time.Millisecond)
				for _, c := range all {
					c.written.Add(25_000) // 10 MB/s together: 12 s for each
				}
			}
		})
		if _, err := f.take(ctx, "pulley/node/dev/last1/0123456789abcdef", 9<<20); !errors.Is(err, errTooMany) {
			t.Errorf("there was room: %v", err)
		}
		writes.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range all {
			c.free(c.held)
		}
	})
}

// eve reads as many answers of n bytes as it may, slowly, and connects again.
func (f *flow) eve(ctx context.Context, user string, n int64) {
	resp := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: make([]byte, n)}}}
	for ctx.Err() == nil {
		_, server := net.Pipe()
		c := &outgoing{Conn: server, flow: f, user: user}
		on, cancel := context.WithCancel(peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr()}))
		var calls sync.WaitGroup
		for range callsOfNode - 1 {
			calls.Go(func() {
				for on.Err() == nil {
					waiting, cancel := context.WithTimeout(on, waitAtMost)
					if _, err := f.take(waiting, user, n); err == nil {
						f.answer(on, user, n, resp)
						<-on.Done()
					}
					cancel()
				}
			})
		}
		for closed := false; ctx.Err() == nil && !closed; {
			<-time.After(100 * time.Millisecond)
			c.written.Add(1600)
			f.mu.Lock()
			closed = c.closed
			f.mu.Unlock()
		}
		cancel()
		calls.Wait()
		_ = c.Close()
	}
}

// A client that gives up slow calls must not lock itself out, even while its connection is in use.
func TestAnswersOfCallsGivenUpAreFreed(t *testing.T) {
	t.Parallel()
	s, node, _, _ := stolen(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := node.ActiveConnection().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/etcdserverpb.KV/Range", grpc.UseCompressor("gzip"))
	if err == nil { // it takes a part of the answer, as large as the window
		err = errors.Join(stream.SendMsg(&pb.RangeRequest{Key: []byte("/pulley/v1/content/"), RangeEnd: []byte("/pulley/v1/content0"), Limit: 10}), stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	held := func(want bool) {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			f := s.bounds.flow
			f.mu.Lock()
			total, conns := f.total[true], len(f.conns)
			f.mu.Unlock()
			if (conns > 0) == want && (total > 4<<20) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are held, and it must be %t", total, want)
			}
		}
	}
	if _, err := stream.Header(); err != nil { // which precedes the answer
		t.Fatal(err)
	}
	for until := time.Now().Add(100 * time.Millisecond); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		held(true)
	}
	cancel()
	held(false)
}
