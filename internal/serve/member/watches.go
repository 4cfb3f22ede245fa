package member

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pulley/internal/desired/control"
	"pulley/internal/pki"
)

// watchCall is the only call of a node that stays open: its daemon watches the key with its orders. A daemon has one, and for a while
// those of its broken connections: watchesOfNode at most.
const (
	watchCall     = "/etcdserverpb.Watch/Watch"
	watchesOfNode = 4
)

// nodeWatch is a stream of watches of a node: it creates one watch, of one key.
type nodeWatch struct {
	grpc.ServerStream
	key     string
	created bool
	refused func()
}

// RecvMsg refuses what a daemon never sends.
func (w *nodeWatch) RecvMsg(m any) error {
	if err := w.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	req, _ := m.(*pb.WatchRequest)
	switch create := req.GetCreateRequest(); {
	case req.GetCancelRequest() != nil:
		return nil
	case create != nil && !w.created && string(create.Key) == w.key && len(create.RangeEnd) == 0:
		w.created = true
		return nil
	}
	w.refused()
	return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
}

// watch serves a stream of watches of a node. others is true if the caller is no node.
func (b *bounds) watch(srv any, s grpc.ServerStream, handler grpc.StreamHandler) (others bool, err error) {
	user := userOf(s.Context())
	name, err := pki.ParseName(user)
	if err != nil || name.Kind != pki.KindNode || b.users.Load() == nil {
		return true, nil
	}
	refused := func() {
		if b.refused != nil {
			b.refused(user, watchCall)
		}
	}
	if !b.opens(user) {
		refused()
		return false, status.Error(codes.ResourceExhausted, "etcdserver: too many requests")
	}
	defer b.closes(user)
	return false, handler(srv, &nodeWatch{ServerStream: s, key: control.OrdersKey(name.Prefix, name.Environment, name.Subject), refused: refused})
}

func (b *bounds) opens(user string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[user] >= watchesOfNode {
		return false
	}
	b.watches[user]++
	return true
}

func (b *bounds) closes(user string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[user]--; b.watches[user] == 0 {
		delete(b.watches, user)
	}
}
