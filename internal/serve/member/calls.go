package member

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/pkg/v3/traceutil"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/etcdserver/txn"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/pki"
	"pulley/internal/release"
)

// Bounds of what etcd reads for one request. It has all of it in memory at once, also what it reads for guards, sorts or leaves out.
const (
	readByNode     = 16 << 20 // bytes: no client of Pulley takes a larger answer
	readByOperator = 64 << 20 // guards on ranges included
	opsOfNode      = 64       // operations and guards of a transaction, through all levels: a tick has 14. etcd allows everybody 128 of each
	pointsUnread   = 16       // keys that a request may name before their values are measured
	keyBytes       = 128      // of a key in memory beside its name and value
	measuredAtOnce = 2        // requests of one user
	waitAtMost     = 10 * time.Second
	otherAtMost    = 4 << 10 // bytes of a request of a node or a viewer that etcd may log without a write
)

// Bounds of what one node writes. Within a minute it may write about what serve takes for a flood, and less from then on.
const (
	writesBurst, writesASecond = 300, 1
	bytesBurst, bytesASecond   = 1 << 20, 4 << 10
	headsBurst, headsASecond   = 20, 1. / 300 // of the head of the host list: each makes other nodes read the list again
	otherBurst, otherASecond   = 1000, 10     // other calls and nested transactions, of a viewer as well: etcd logs most of them
)

// Calls of one user at a time. A request has memory from its first byte on.
const (
	callsOfNode     = 32 // or of a viewer
	callsUnseen     = 8  // of a user whom this member may not know yet, or who was removed: etcd itself refuses these
	callsOfOperator = 256
)

// calls are those of one user that are open.
type calls struct {
	open      int
	role      sync.Once // is read once they are many
	operator  bool
	measuring chan struct{}
}

var (
	errTooMany  = rpctypes.ErrGRPCRequestTooManyRequests
	errDenied   = rpctypes.ErrGRPCPermissionDenied
	errStarting = status.Error(codes.Unavailable, "etcdserver: server is starting")
	errTooLarge = status.Error(codes.ResourceExhausted, "etcdserver: the request reads too many bytes ("+etcd.LargeAnswer+"); read fewer keys, with a limit")
)

// caller is a user whose calls are bounded: everybody but serve and etcd's own root.
type caller struct {
	user string
	node *pki.Name // nil: an operator
}

func callerOf(ctx context.Context) (c caller, bounded bool) {
	c.user = userOf(ctx)
	name, err := pki.ParseName(c.user)
	if err == nil && name.Kind == pki.KindNode {
		c.node = &name
	}
	return c, c.user != access.RootUser && (err != nil || name.Kind != pki.KindServe)
}

// begin admits a call before its request is read, and counts it until its end.
func (b *bounds) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, bounded := callerOf(ctx)
	if !bounded {
		return ctx, nil
	}
	b.mu.Lock()
	of := b.calls[c.user]
	if of == nil {
		of = &calls{measuring: make(chan struct{}, measuredAtOnce)}
		b.calls[c.user] = of
	}
	of.open++
	open := of.open
	b.mu.Unlock()
	end := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if of.open--; of.open == 0 {
			delete(b.calls, c.user)
		}
	}
	if users := b.users.Load(); open > callsUnseen && users != nil && !begins(info.FullMethodName, forRemoved) &&
		errors.Is((*users).IsAdminPermitted(&auth.AuthInfo{Username: c.user}), auth.ErrUserNotFound) {
		end()
		return nil, errDenied
	}
	if open > callsOfNode {
		of.role.Do(func() { of.operator = c.node == nil && b.role(c.user) != "" })
		if !of.operator || open > callsOfOperator {
			end()
			b.refuse(c.user, info.FullMethodName)
			return nil, errTooMany
		}
	}
	context.AfterFunc(ctx, end)
	return ctx, nil
}

func (b *bounds) refuse(user, call string) {
	if b.refused != nil {
		b.refused(user, call)
	}
}

// serve answers a call within the bounds of its user.
func (b *bounds) serve(ctx context.Context, req any, call string, handler grpc.UnaryHandler) (any, error) {
	c, bounded := callerOf(ctx)
	if !bounded || b.operator == "" {
		return handler(ctx, req)
	}
	if b.users.Load() == nil {
		return nil, errStarting
	}
	r, whole := parts(req), 0
	if m, is := req.(proto.Message); is {
		whole = proto.Size(m)
	}
	other := r == nil // not to the key-value store
	if (other || r.nested) && (c.node != nil || b.role(c.user) == "") {
		switch {
		case whole > otherAtMost:
			b.refuse(c.user, call)
			return nil, rpctypes.ErrGRPCRequestTooLarge
		case !b.spend(c.user, "other", 1, otherBurst, otherASecond, time.Now()):
			b.refuse(c.user, call)
			return nil, errTooMany
		}
	}
	if other {
		return handler(ctx, req)
	}
	r.bytes = whole
	err := c.judge(r)
	if err == nil && c.node == nil && r.writes > 0 && b.role(c.user) == "" {
		err = errDenied
	}
	if err == nil && c.node != nil && r.writes > 0 && !b.mayWrite(c.user, r, time.Now()) {
		err = errTooMany
	}
	if err != nil {
		b.refuse(c.user, call)
		return nil, err
	}
	if len(r.reads) == 0 {
		return handler(ctx, req)
	}
	waiting, cancel := context.WithTimeout(ctx, waitAtMost)
	defer cancel()
	size, err := b.measure(waiting, c, r)
	own := errors.Is(err, errTooLarge) // a wait is no fault of the user
	if err == nil {
		own, err = b.flow.take(waiting, c.user, size) // not own: others hold what there is
	}
	if err != nil {
		if own {
			b.refuse(c.user, call)
		}
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err != nil {
		b.flow.give(c.user, size)
		return nil, err
	}
	return b.flow.answer(ctx, c.user, size, resp), nil
}

// request is what a call reads and writes, through all levels.
type request struct {
	reads  []*pb.RangeRequest
	puts   []*pb.PutRequest
	drops  []*pb.DeleteRangeRequest
	ops    int // with guards
	ranges bool
	nested bool // etcd logs it, also without a write
	writes int
	heads  int // of them, those of the head of the host list
	bytes  int // of the whole request: its guards and ends of ranges enter the log as well
}

// parts returns the parts of a request to the key-value store; nil for others.
func parts(req any) *request {
	r := &request{}
	switch m := req.(type) {
	case *pb.RangeRequest:
		r.read(m)
	case *pb.PutRequest:
		r.put(m)
	case *pb.DeleteRangeRequest:
		r.drop(m)
	case *pb.TxnRequest:
		r.txn(m)
	default:
		return nil
	}
	return r
}

func (r *request) read(m *pb.RangeRequest) {
	r.ops++
	if m != nil && !m.CountOnly { // counts are read from etcd's index
		r.reads = append(r.reads, m)
		r.ranges = r.ranges || len(m.RangeEnd) > 0
	}
}

func (r *request) put(m *pb.PutRequest) {
	r.ops++
	r.writes++
	r.puts = append(r.puts, m)
	if m.GetPrevKv() {
		r.reads = append(r.reads, &pb.RangeRequest{Key: m.Key})
	}
}

func (r *request) drop(m *pb.DeleteRangeRequest) {
	r.ops++
	r.writes++
	r.drops = append(r.drops, m)
	if m.GetPrevKv() {
		r.read(&pb.RangeRequest{Key: m.Key, RangeEnd: m.RangeEnd})
	}
}

func (r *request) txn(m *pb.TxnRequest) {
	for _, g := range m.GetCompare() {
		r.ops++
		if len(g.GetRangeEnd()) > 0 {
			r.read(&pb.RangeRequest{Key: g.Key, RangeEnd: g.RangeEnd})
		}
	}
	for _, ops := range [][]*pb.RequestOp{m.GetSuccess(), m.GetFailure()} {
		for _, op := range ops {
			switch o := op.GetRequest().(type) {
			case *pb.RequestOp_RequestRange:
				r.read(o.RequestRange)
			case *pb.RequestOp_RequestPut:
				r.put(o.RequestPut)
			case *pb.RequestOp_RequestDeleteRange:
				r.drop(o.RequestDeleteRange)
			case *pb.RequestOp_RequestTxn:
				r.nested = true
				r.txn(o.RequestTxn)
			default:
				r.nested = true
			}
		}
	}
}

// judge refuses what no program of Pulley sends.
func (c caller) judge(r *request) error {
	if c.node == nil {
		return nil
	}
	if r.ops > opsOfNode {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, p := range r.puts {
		most, own := access.NodeWrites(*c.node, string(p.GetKey()))
		switch {
		case !own || p.GetLease() != 0:
			return errDenied
		case len(p.GetValue()) > most:
			return rpctypes.ErrGRPCRequestTooLarge
		case most == etcd.TouchBytes:
			r.heads++
		}
	}
	for _, d := range r.drops {
		switch most, own := access.NodeWrites(*c.node, string(d.GetKey())); {
		case !own:
			return errDenied
		case most == etcd.TouchBytes:
			r.heads++
		}
	}
	return nil
}

// mayWrite takes the writes of a node from its budget.
func (b *bounds) mayWrite(user string, r *request, now time.Time) bool {
	return (r.heads == 0 || b.spend(user, "heads", float64(r.heads), headsBurst, headsASecond, now)) &&
		b.spend(user, "writes", float64(r.writes), writesBurst, writesASecond, now) && b.spend(user, "bytes", float64(r.bytes), bytesBurst, bytesASecond, now)
}

// measure returns the bytes that etcd will have in memory for a request. It reads ranges in small parts first: a limit of keys bounds
// no bytes. What the user may not read is not measured, because etcd refuses it.
func (b *bounds) measure(ctx context.Context, c caller, r *request) (size int64, err error) {
	if !r.ranges && len(r.reads) <= pointsUnread {
		return int64(len(r.reads)) * release.MaxValueBytes, nil
	}
	users, kv := b.users.Load(), b.kv.Load()
	if users == nil || kv == nil {
		return 0, errStarting
	}
	b.mu.Lock()
	of := b.calls[c.user]
	b.mu.Unlock()
	if of == nil { // the call was given up
		return 0, errTooMany
	}
	select {
	case of.measuring <- struct{}{}:
		defer func() { <-of.measuring }()
	case <-ctx.Done():
		return 0, errTooMany
	}
	most := int64(readByOperator)
	if c.node != nil {
		most = readByNode
	}
	tx := (*kv).Read(mvcc.ConcurrentReadTxMode, traceutil.TODO())
	defer tx.End()
	for _, read := range r.reads {
		if (*users).IsRangePermitted(&auth.AuthInfo{Username: c.user, Revision: (*users).Revision()}, read.Key, read.RangeEnd) != nil {
			return size, nil
		}
		if size += sizeOf(ctx, tx, read, most-size); size > most {
			return 0, errTooLarge
		}
	}
	return size, nil
}

// sizeOf returns the size of what etcd reads for a range, or more than most once it exceeds that. An error of the read is left to
// etcd's own answer.
func sizeOf(ctx context.Context, tx mvcc.TxnRead, r *pb.RangeRequest, most int64) (size int64) {
	key, end := r.Key, r.RangeEnd
	switch {
	case len(end) == 0: // one key
		end = nil
	case len(end) == 1 && end[0] == 0: // all keys from this one on
		end = []byte{}
	}
	left := int64(math.MaxInt64)
	if r.Limit > 0 && txn.IsDefaultOrdering(r.SortTarget, r.SortOrder) && !txn.HasRevisionFilters(r) { // else etcd reads all, and cuts afterwards
		left = r.Limit
	}
	for page := int64(8); left > 0 && size <= most; {
		rr, err := tx.Range(ctx, key, end, mvcc.RangeOptions{
			Limit: min(page, left), Rev: r.Revision, FastKeysOnly: r.KeysOnly && r.SortTarget != pb.RangeRequest_VALUE,
		})
		if err != nil || len(rr.KVs) == 0 {
			return size
		}
		part := int64(0)
		for _, kv := range rr.KVs {
			part += sizeOfKey(kv)
		}
		size, left = size+part, left-int64(len(rr.KVs))
		if end == nil || int64(len(rr.KVs)) < page {
			return size
		}
		if key = append(bytes.Clone(rr.KVs[len(rr.KVs)-1].Key), 0); part < 1<<20 {
			page = min(page*2, 1024)
		} else {
			page = 8
		}
	}
	return size
}

func sizeOfKey(kv *mvccpb.KeyValue) int64 { return int64(len(kv.Key) + len(kv.Value) + keyBytes) }

// refusedStreams begins the names of the streams of the key-value store. No program of Pulley opens one.
const refusedStreams = "/etcdserverpb.KV/"

func (b *bounds) refusesStream(ctx context.Context, call string) error {
	c, bounded := callerOf(ctx)
	if !bounded || b.operator == "" || !strings.HasPrefix(call, refusedStreams) {
		return nil
	}
	b.refuse(c.user, call)
	return errDenied
}
