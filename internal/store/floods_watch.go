package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// NodeWrite is one write of a node, as a watch reports it.
type NodeWrite struct {
	Ref    environments.Ref
	Node   string
	Bytes  int64         // of the key and of the value
	Status *agent.Status // nil if the write is no readable status
}

// Watch calls each with the writes of all nodes from now on: statuses and runs. It returns when ctx ends or the watch
// breaks. The caller begins again and misses the writes in between.
func (s *Fleet) Watch(ctx context.Context, each func(NodeWrite)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without a leader the watch ends instead of staying silent. Large answers come in parts.
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithFilterDelete()}
	need := clientv3.WithRequireLeader(ctx)
	statuses := s.db.Client.Watch(need, s.db.Keys.AllStatuses(), opts...)
	runs := s.db.Client.Watch(need, s.db.Keys.AllRuns(), opts...)
	for {
		var resp clientv3.WatchResponse
		var open bool
		select {
		case resp, open = <-statuses:
		case resp, open = <-runs:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := resp.Err(); err != nil || !open {
			return fmt.Errorf("cannot watch what nodes write: %w", s.db.Explain(watchEnd(err)))
		}
		for _, e := range resp.Events {
			if w, ok := s.nodeWrite(e); ok {
				each(w)
			}
		}
	}
}

// watchEnd returns the error of an ended watch if etcd gives no reason.
func watchEnd(err error) error {
	if err == nil {
		return errors.New("etcd ended the watch")
	}
	return err
}

// nodeWrite reads the writer from its key: <kind>/<env>/<node>[/…].
func (s *Fleet) nodeWrite(e *clientv3.Event) (NodeWrite, bool) {
	key := string(e.Kv.Key)
	rest, ours := strings.CutPrefix(key, s.db.Keys.Root())
	parts := strings.SplitN(rest, "/", 4)
	if !ours || len(parts) < 3 {
		return NodeWrite{}, false
	}
	ref, err := environments.ParseRef(etcd.Unescape(parts[1]))
	if err != nil {
		return NodeWrite{}, false
	}
	w := NodeWrite{Ref: ref, Node: etcd.Unescape(parts[2]), Bytes: int64(len(key) + len(e.Kv.Value))}
	if parts[0]+"/" == strings.TrimPrefix(s.db.Keys.AllStatuses(), s.db.Keys.Root()) {
		var st agent.Status
		if etcd.Decode(key, e.Kv.Value, &st) == nil {
			w.Status = &st
		}
	}
	return w, true
}

// Watch calls each when any environment was written, until ctx ends or the watch breaks.
func (s *Environments) Watch(ctx context.Context, each func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last := "/" + segmentAfter(s.db.Keys.Env("x").Spec())
	for resp := range s.db.Client.Watch(clientv3.WithRequireLeader(ctx), s.db.Keys.Environments(), clientv3.WithPrefix(), clientv3.WithFragment()) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("cannot watch environments: %w", s.db.Explain(err))
		}
		for _, e := range resp.Events {
			if strings.HasSuffix(string(e.Kv.Key), last) {
				each()
			}
		}
	}
	return watchEnd(ctx.Err())
}

// segmentAfter returns the last segment of a key.
func segmentAfter(key string) string { return key[strings.LastIndex(key, "/")+1:] }
