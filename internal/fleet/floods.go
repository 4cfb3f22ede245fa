package fleet

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Flood means that a node writes or calls far more than normal. The note exists while the flood lasts, and one day longer.
type Flood struct {
	Node   string    `json:"node"`
	Bytes  int64     `json:"bytes"`           // written within the worst minute
	Writes int64     `json:"writes"`          // within the worst minute
	Calls  int64     `json:"calls,omitempty"` // that the embedded etcd refused within the worst minute
	Shown  int64     `json:"shown,omitempty"` // changes within the worst hour of what other nodes see: its export, or its entry in the host list
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

// Floods lists the nodes of an environment with a recent flood. damaged names the unreadable ones.
func (s *Fleet) Floods(ctx context.Context, ref model.Ref) (all map[string]Flood, damaged []string, err error) {
	all, damaged, err = etcd.ReadAll[Flood](ctx, s.db, s.db.Env(ref).Flood(""))
	return all, damaged, etcd.Wrap(err, "cannot list the nodes of %s that flood", ref)
}

// NoteFlood stores that a node flooded within the last minute, and adds to an earlier note. first is true if there was
// none: of several serves that see the same flood, one gets true. There is no lease, because a full etcd grants none.
// ForgetFlood deletes the note.
func (s *Fleet) NoteFlood(ctx context.Context, ref model.Ref, now Flood) (first bool, err error) {
	key := s.db.Env(ref).Flood(now.Node)
	err = etcd.Update(ctx, s.db, key, s.db.Commit, func(old *Flood, b *etcd.Batch) error {
		sum := now
		if first = old == nil; !first {
			sum.First, sum.Bytes, sum.Writes, sum.Calls = old.First, max(sum.Bytes, old.Bytes), max(sum.Writes, old.Writes), max(sum.Calls, old.Calls)
			sum.Shown = max(sum.Shown, old.Shown)
		}
		b.Put(key, sum)
		return nil
	})
	return first && err == nil, etcd.Wrap(err, "cannot record that node %s floods", now.Node)
}

// ForgetFloods deletes the notes of nodes that did not flood after a time.
func (s *Fleet) ForgetFloods(ctx context.Context, ref model.Ref, last time.Time) error {
	floods, _, err := s.Floods(ctx, ref)
	for node, f := range floods {
		if err == nil && !f.Last.After(last) {
			err = s.ForgetFlood(ctx, ref, node, last)
		}
	}
	return err
}

// ForgetFlood deletes the note unless the node flooded after it. A flood that continues is noted again.
func (s *Fleet) ForgetFlood(ctx context.Context, ref model.Ref, node string, last time.Time) error {
	key := s.db.Env(ref).Flood(node)
	return etcd.Update(ctx, s.db, key, s.db.Commit, func(old *Flood, b *etcd.Batch) error {
		if old != nil && !old.Last.After(last) {
			b.Delete(key)
		}
		return nil
	})
}

// NodeWrite is one write of a node, as a watch reports it.
type NodeWrite struct {
	Ref    model.Ref
	Node   string        // "" for the head of the host list, if the same transaction has no other key of the list: any node may have written it
	Bytes  int64         // of the key and of the value; 0 for an entry in the host list, which the node does not write itself
	Status *model.Status // nil if the write is no readable status
	Run    *model.Run    // nil if the write is no readable record of a run, or not its first
	Shown  string        // what other nodes see of this one, as text to compare; "" for other writes
}

// Watch calls each with the writes of all nodes from now on: statuses, runs, facts and exports, and entries in the host list. It returns when
// ctx ends or the watch breaks. The caller begins again and misses the writes in between.
func (s *Fleet) Watch(ctx context.Context, each func(NodeWrite)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without a leader the watch ends instead of staying silent. Large answers come in parts.
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithFilterDelete()}
	need := clientv3.WithRequireLeader(ctx)
	statuses := s.db.Client.Watch(need, s.db.Keys.AllStatuses(), opts...)
	runs := s.db.Client.Watch(need, s.db.Keys.AllRuns(), opts...)
	facts := s.db.Client.Watch(need, s.db.Keys.AllFacts(), opts...)
	lists := s.db.Client.Watch(need, s.db.Keys.Environments(), opts...)
	for {
		var resp clientv3.WatchResponse
		var open bool
		select {
		case resp, open = <-statuses:
		case resp, open = <-runs:
		case resp, open = <-facts:
		case resp, open = <-lists:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := resp.Err(); err != nil || !open {
			return fmt.Errorf("cannot watch what nodes write: %w", s.db.Explain(etcd.WatchEnd(err)))
		}
		writers, heads := map[int64]string{}, map[int64]NodeWrite{} // by revision
		for _, e := range resp.Events {
			switch w, ok := s.nodeWrite(e); {
			case ok && w.Node == "":
				heads[e.Kv.ModRevision] = w
			case ok:
				writers[e.Kv.ModRevision] = w.Node
				each(w)
			}
		}
		for revision, w := range heads {
			if w.Node = writers[revision]; w.Node == "" || w.Bytes > maxTouch {
				each(w)
			}
		}
	}
}

// maxTouch is more than the bytes of the head of a host list, with its key, when a program of Pulley wrote it.
const maxTouch = 1 << 10

// nodeWrite reads the writer from its key: <kind>/<env>/<node>[/…], or environments/<env>/hosts/….
func (s *Fleet) nodeWrite(e *clientv3.Event) (w NodeWrite, ok bool) {
	key := string(e.Kv.Key)
	rest, ours := strings.CutPrefix(key, s.db.Keys.Root())
	parts := strings.SplitN(rest, "/", 4)
	if !ours || len(parts) < 3 {
		return w, false
	}
	ref, err := model.ParseRef(etcd.Unescape(parts[1]))
	if err != nil {
		return w, false
	}
	w = NodeWrite{Ref: ref, Node: etcd.Unescape(parts[2]), Bytes: int64(len(key) + len(e.Kv.Value))}
	k := s.db.Env(ref)
	switch {
	case strings.HasPrefix(key, k.Statuses()):
		var st model.Status
		if etcd.Decode(key, e.Kv.Value, &st) == nil {
			w.Status = &st
		}
	case len(parts) == 4 && strings.HasPrefix(key, s.db.Keys.AllRuns()):
		if run, _, err := model.DecodeRun(e.Kv.Value); err == nil && e.IsCreate() && parts[3] != model.PreviewRun {
			w.Run = &run
		}
	case strings.HasPrefix(key, k.Exports()):
		var export model.Export
		w.Node = etcd.Unescape(strings.TrimPrefix(key, k.Exports()))
		w.Shown = "export unreadable"
		if etcd.Decode(key, e.Kv.Value, &export) == nil {
			w.Shown = fmt.Sprintf("export %s", export.Facts) // in the order of paths; signs of life change nothing
		}
	case strings.HasPrefix(key, k.Hosts()):
		w.Node, w.Bytes = etcd.Unescape(strings.TrimPrefix(key, k.Hosts())), 0
		var host model.Host
		if etcd.Decode(key, e.Kv.Value, &host) != nil {
			return w, false
		}
		w.Shown = fmt.Sprintf("entry %s %q %s", host.Hostname, host.Addresses, host.Checked)
	case key == k.HostsHead():
		w.Node = ""
	default:
		return w, !strings.HasPrefix(key, k.Root())
	}
	return w, true
}
