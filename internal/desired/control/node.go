package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

// Node is the node's side: it reads the node's input in a tick and writes the node's reports.
type Node struct{ db *etcd.DB }

// In returns the node's side of a keyspace.
func In(db *etcd.DB) *Node { return &Node{db} }

// RequiresSignatures reports whether an environment demands signed targets of its nodes. It reads only this value: a
// node understands environments of later versions. An environment that is unreadable demands nothing.
func (s *Node) RequiresSignatures(ctx context.Context, env string) (bool, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Spec())
	if err != nil {
		return false, etcd.Wrap(err, "cannot read environment %s", env)
	}
	d := desired.DemandsOf(resp.Kvs)
	return d.Signatures == model.SignaturesRequired || d.Statement != 0, nil
}

// HasPuppetServers reports whether an environment names existing Puppet servers. Like RequiresSignatures, it reads only that.
func (s *Node) HasPuppetServers(ctx context.Context, env string) (bool, error) {
	resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Spec())
	if err != nil || len(resp.Kvs) == 0 {
		return false, etcd.Wrap(err, "cannot read environment %s", env)
	}
	var of struct {
		Puppet struct {
			Servers map[string]json.RawMessage `json:"servers"`
		} `json:"puppet"`
	}
	_ = json.Unmarshal(resp.Kvs[0].Value, &of) // operators see that it is unreadable
	return len(of.Puppet.Servers) > 0, nil
}

// Desire reads all input of a node: fourteen point keys in one transaction, at one revision.
func (s *Node) Desire(ctx context.Context, id model.Identity) (model.Desired, error) {
	k, role, node := s.db.Keys.Env(id.Environment), etcd.Scope{Role: id.Role}, etcd.Scope{Node: id.Node}
	d := model.Desired{Guards: map[string]int64{}}
	hold := func(kv *etcd.KV) error {
		d.Holds = append(d.Holds, model.Hold{})
		return etcd.Into(&d.Holds[len(d.Holds)-1])(kv)
	}
	revision, err := s.db.Read(ctx, d.Guards,
		etcd.Point{Key: k.Host(id.Node), Read: etcd.Into(&d.Host)},
		etcd.Point{Key: k.Gate(), Read: etcd.Into(&d.Gate)},
		etcd.Point{Key: k.Target(etcd.Scope{}), Read: etcd.Into(&d.Default)},
		etcd.Point{Key: k.Target(role), Read: etcd.Into(&d.ForRole)},
		etcd.Point{Key: k.Target(node), Read: etcd.Into(&d.ForNode)},
		etcd.Point{Key: k.Assignment(id.Node), Read: etcd.Into(&d.Assigned)},
		etcd.Point{Key: k.Job(), Read: etcd.Into(&d.Job)},
		etcd.Point{Key: k.Hold(node), Read: hold},
		etcd.Point{Key: k.Hold(role), Read: hold},
		etcd.Point{Key: k.Hold(etcd.Scope{}), Read: hold},
		etcd.Point{Key: k.Statement(), Read: func(kv *etcd.KV) error {
			d.Statement = kv.Value
			return nil
		}},
		etcd.Point{Key: k.AgentChoice(), Read: func(kv *etcd.KV) error {
			d.Agent = desired.WishOf(kv).For(id.Role, id.Node)
			return nil
		}},
		etcd.Point{Key: k.HostsHead()}, // nodes write it: its value must not make every tick large
		etcd.Point{Key: k.PreviewOrder(id.Node), Read: func(kv *etcd.KV) error {
			if etcd.Into(&d.Preview)(kv) != nil {
				d.Preview = nil // it must not stop the node's own work
			}
			return nil
		}},
	)
	if err != nil {
		return model.Desired{}, err
	}
	// A node that joins must not end the ticks of all others, and a preview comes in addition to a run.
	d.HostList = d.Guards[k.HostsHead()]
	delete(d.Guards, k.HostsHead())
	d.Ordered = d.Guards[k.PreviewOrder(id.Node)]
	delete(d.Guards, k.PreviewOrder(id.Node))
	d.Revision = revision
	return d, nil
}

// Hosts reads the host list with the exports of its nodes. It leaves out unreadable entries, and counts them. An unreadable
// export is none.
func (s *Node) Hosts(ctx context.Context, id model.Identity) (hosts map[string]model.Host, exports map[string]model.Export, unreadable int, err error) {
	hosts, exports, damaged, err := desired.Listed(ctx, s.db, s.db.Keys.Env(id.Environment))
	return hosts, exports, len(damaged), etcd.Wrap(err, "cannot read the host list")
}

// Register adds the node to the host list, as desired.Register does.
func (s *Node) Register(ctx context.Context, env string, h model.Host) error {
	return desired.Register(ctx, s.db, env, h)
}

// OrdersKey is the key with the orders to a node, which its daemon watches. prefix is that of Config.
func OrdersKey(prefix, environment, node string) string {
	return etcd.NewKeys(prefix).Env(environment).Assignment(node)
}

// ErrWatchRefused means that etcd refuses a node its watch: an earlier serve does.
var ErrWatchRefused = errors.New("etcd refuses watches to this node")

// WatchOrders calls each when etcd orders the node to run or to take a target, until ctx ends or the watch breaks. It watches the node's
// own key: a change of the gate, or an order to wait, must not make a whole fleet read at once.
func (s *Node) WatchOrders(ctx context.Context, id model.Identity, each func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range s.db.Client.Watch(clientv3.WithRequireLeader(ctx), s.db.Keys.Env(id.Environment).Assignment(id.Node), clientv3.WithFilterDelete()) {
		if err := resp.Err(); err != nil && strings.Contains(err.Error(), "permission denied") { // of a watch, it has no code
			return fmt.Errorf("cannot watch for orders: %w", ErrWatchRefused)
		} else if err != nil {
			return fmt.Errorf("cannot watch for orders: %w", s.db.Explain(err))
		}
		for _, e := range resp.Events {
			a := model.Assignment{}
			if etcd.Into(&a)(e.Kv) == nil && a.Kind != model.AssignWait {
				each()
			}
		}
	}
	return etcd.WatchEnd(ctx.Err())
}

// Admit writes the status of a starting run if nothing that Desire read has changed. Otherwise it returns
// model.ErrChanged.
func (s *Node) Admit(ctx context.Context, id model.Identity, d model.Desired, st model.Status) error {
	b := etcd.If(etcd.Unchanged(d.Guards)...).Put(s.db.Keys.Env(id.Environment).Status(id.Node), st)
	err := s.db.Commit(ctx, b)
	if errors.Is(err, etcd.ErrConflict) {
		return model.ErrChanged
	}
	return err
}

// Report writes a node's status and run records. It needs no guard: only the node writes these keys, and its lock
// allows one agent at a time.
func (s *Node) Report(ctx context.Context, id model.Identity, st model.Status, runs []model.EncodedRun, drop []string) error {
	k := s.db.Keys.Env(id.Environment)
	b := etcd.If().Put(k.Status(id.Node), st)
	written := map[string]bool{}
	for _, r := range runs {
		written[r.ID] = true
		b.Op(clientv3.OpPut(k.Run(id.Node, r.ID), string(r.Bytes)))
	}
	for _, run := range drop {
		if !written[run] { // one transaction may touch a key only once
			b.Delete(k.Run(id.Node, run))
		}
	}
	return s.db.Commit(ctx, b)
}

// PublishFacts writes the node's facts. It needs no guard: only the node writes this key.
func (s *Node) PublishFacts(ctx context.Context, id model.Identity, facts []byte) error {
	return s.db.Commit(ctx, etcd.If().Op(clientv3.OpPut(s.db.Keys.Env(id.Environment).Facts(id.Node), string(facts))))
}

// PublishExport writes the facts that the node shows to others, with its sign of life; without both, it deletes the key. If
// it changed, those who see the node read the host list again. It needs no guard: only the node writes this key.
func (s *Node) PublishExport(ctx context.Context, id model.Identity, e model.Export, changed bool) error {
	k := s.db.Keys.Env(id.Environment)
	b := etcd.If()
	if len(e.Facts) == 0 && e.Alive == 0 {
		b.Delete(k.Export(id.Node))
	} else {
		b.Put(k.Export(id.Node), e)
	}
	if changed { // a sign of life alone must not make the whole fleet read
		b.Touch(k.HostsHead())
	}
	return s.db.Commit(ctx, b)
}

// Status returns a node's last status, and whether the node ever reported.
func (s *Node) Status(ctx context.Context, id model.Identity) (st model.Status, ok bool, err error) {
	stored, _, err := etcd.Single[model.Status](ctx, s.db, s.db.Keys.Env(id.Environment).Status(id.Node))
	if err != nil || stored == nil {
		return model.Status{}, false, err
	}
	return *stored, true, nil
}

// RepeatStatus writes a node's own status again, byte for byte. Success proves that the node can report. A node
// without a status repeats nothing, which is no error.
func (s *Node) RepeatStatus(ctx context.Context, id model.Identity) error {
	key := s.db.Keys.Env(id.Environment).Status(id.Node)
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("cannot read the node's own status: %w", err)
	}
	for _, kv := range resp.Kvs {
		err = s.db.Commit(ctx, etcd.If(etcd.Same(key, kv.ModRevision)).Op(clientv3.OpPut(key, string(kv.Value))))
		if errors.Is(err, etcd.ErrConflict) {
			err = nil // a tick reported at this moment: the write was allowed, which is all that this call tests
		}
	}
	return etcd.Wrap(err, "cannot write the node's own status")
}

// AnswerPreview writes a node's answer to its preview order in d, or deletes its last one. Only the node writes this key.
func (s *Node) AnswerPreview(ctx context.Context, id model.Identity, d model.Desired, answer []byte) error {
	k := s.db.Keys.Env(id.Environment)
	if answer == nil {
		return s.db.Commit(ctx, etcd.If().Delete(k.Preview(id.Node)))
	}
	b := etcd.If(etcd.Same(k.PreviewOrder(id.Node), d.Ordered)).Op(clientv3.OpPut(k.Preview(id.Node), string(answer)))
	err := s.db.Commit(ctx, b)
	if errors.Is(err, etcd.ErrConflict) {
		return model.ErrChanged
	}
	return err
}

// Confirmation reads the confirmation of a request to retire the node; nil if there is none.
func (s *Node) Confirmation(ctx context.Context, id model.Identity) (*model.Confirmation, error) {
	c, _, err := etcd.Single[model.Confirmation](ctx, s.db, s.db.Keys.Env(id.Environment).Retirement(id.Node))
	return c, etcd.Wrap(err, "cannot read the confirmation of the retirement")
}
