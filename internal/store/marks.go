package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// markLasts is how long a mark outlives a program that was killed.
const markLasts = time.Minute

// mark is a key that stands while something is under way. A lease keeps it; transactions that depend on it compare the
// revision at which it was created, so that one who lost it without noticing writes nothing any more.
type mark struct {
	store    *db
	key      string
	revision int64
	lease    clientv3.LeaseID
	stands   context.Context // ends when the mark can't be counted on any more; its cause says why
	end      context.CancelCauseFunc
}

// marked is a mark's value.
type marked struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// Publishing is a publish that is under way. While it stands nothing is pruned, so that what it found in etcd stays there.
type Publishing struct{ *mark }

// Publishing begins a publish; Close ends it. While a prune is under way it is refused, with an error that says whose.
func (s *releasesPart) Publishing(ctx context.Context, by string) (*Publishing, error) {
	pruning := s.keys.pruning()
	m, inTheWay, err := s.mark(ctx, markOf{s.keys.publishing, by, markLasts}, same(pruning, 0), clientv3.OpGet(pruning))
	if err != nil {
		return nil, fmt.Errorf("cannot begin to publish: %w", err)
	}
	if m == nil {
		return nil, fmt.Errorf("cannot publish while %s\ntry again when that is done; if it was cut off, it counts for a minute more", s.doing(inTheWay))
	}
	return &Publishing{m}, nil
}

// beginPrune keeps publishers out until the mark is closed. It is refused while any is at work.
func (s *releasesPart) beginPrune(ctx context.Context, by string) (*mark, error) {
	nobody := nothingBelow(s.keys.publishings())
	key := func(string) string { return s.keys.pruning() }
	m, inTheWay, err := s.mark(ctx, markOf{key, by, markLasts}, nobody, clientv3.OpGet(s.keys.publishings(), clientv3.WithPrefix(), clientv3.WithLimit(1)), clientv3.OpGet(s.keys.pruning()))
	if err != nil {
		return nil, fmt.Errorf("cannot begin to prune: %w", err)
	}
	if m == nil {
		return nil, fmt.Errorf("cannot prune while %s\ntry again when that is done; if it was cut off, it counts for a minute more", s.doing(inTheWay))
	}
	return m, nil
}

// markOf is a mark to be set.
type markOf struct {
	key   func(id string) string
	by    string
	lasts time.Duration // how long it outlives a program that was killed
}

// mark sets a mark if the way is free, and else returns nil and the keys that the other operations find.
func (s *db) mark(ctx context.Context, of markOf, free clientv3.Cmp, otherwise ...clientv3.Op) (*mark, []*mvccpb.KeyValue, error) {
	value, err := encode(marked{By: of.by, Since: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return nil, nil, err
	}
	asked := time.Now()
	lease, lasts, err := s.grantFor(ctx, of.lasts)
	if err != nil {
		return nil, nil, err
	}
	m := &mark{store: s, key: of.key(fmt.Sprintf("%016x", int64(lease))), lease: lease}
	m.stands, m.end = context.WithCancelCause(context.WithoutCancel(ctx)) // until Close: what was interrupted still writes how far it came
	resp, err := s.txn(ctx, []clientv3.Cmp{free, same(m.key, 0)}, []clientv3.Op{clientv3.OpPut(m.key, value, clientv3.WithLease(lease))}, otherwise)
	if err != nil || !resp.Succeeded {
		_ = m.Close() // the lease would end by itself
	}
	if err != nil {
		return nil, nil, err
	}
	if !resp.Succeeded {
		var found []*mvccpb.KeyValue
		for _, r := range resp.Responses {
			found = append(found, r.GetResponseRange().Kvs...)
		}
		return nil, found, nil
	}
	m.revision = resp.Header.Revision
	go m.live(asked, lasts)
	return m, nil, nil
}

// standing is the guard of a write that is allowed only while the mark stands.
func (m *mark) standing() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(m.key), "=", m.revision)
}

// Close takes the mark away. When etcd can't be reached it goes by itself, a minute after.
func (m *mark) Close() error {
	m.end(errClosed)
	ctx, cancel := context.WithTimeout(context.Background(), m.store.timeout) // also when what was under way was interrupted
	defer cancel()
	if _, err := m.store.client.Revoke(ctx, m.lease); err != nil {
		return fmt.Errorf("cannot take away the mark %s: %w\nit goes by itself within a minute", m.key, m.store.explain(err))
	}
	return nil
}

// doing says what the first of some marks stands for: "ann publishes, since 2026-11-20T22:23:30Z".
func (s *db) doing(marks []*mvccpb.KeyValue) string {
	if len(marks) == 0 {
		return "another one ended at this moment"
	}
	key := string(marks[0].Key)
	verb := "publishes"
	switch {
	case key == s.keys.pruning():
		verb = "prunes"
	case strings.HasPrefix(key, s.keys.environments()):
		verb = "applies"
	}
	var m marked
	if err := decode(key, marks[0].Value, &m); err != nil || m.By == "" {
		return fmt.Sprintf("somebody %s (%s)", verb, key)
	}
	return fmt.Sprintf("%s %s, since %s", strings.ToValidUTF8(m.By, "?"), verb, m.Since.UTC().Format(time.RFC3339))
}
