package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"pulley/agent"
	"pulley/internal/store/etcd"
)

var _ agent.Control = (*Node)(nil)

// Desire reads all input of a node: ten point keys in one transaction, at one revision.
func (s *Node) Desire(ctx context.Context, id agent.Identity) (agent.Desired, error) {
	points := s.points(id)
	ops := make([]clientv3.Op, len(points))
	for i, p := range points {
		ops[i] = clientv3.OpGet(p.key)
	}
	resp, err := s.db.Txn(ctx, nil, ops, nil)
	if err != nil {
		return agent.Desired{}, err
	}
	d := agent.Desired{Revision: resp.Header.Revision, Guards: make(map[string]int64, len(points))}
	for i, p := range points {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			d.Guards[p.key] = 0
			continue
		}
		d.Guards[p.key] = kvs[0].ModRevision
		if err := p.read(&d, kvs[0]); err != nil {
			return agent.Desired{}, err
		}
	}
	return d, nil
}

// point is one key of a node's read, and the destination of its value.
type point struct {
	key  string
	read func(*agent.Desired, *mvccpb.KeyValue) error
}

func (s *Node) points(id agent.Identity) []point {
	env, role, node := id.Environment, etcd.Scope{Role: id.Role}, etcd.Scope{Node: id.Node}
	into := func(value func(*agent.Desired) any) func(*agent.Desired, *mvccpb.KeyValue) error {
		return func(d *agent.Desired, kv *mvccpb.KeyValue) error {
			return etcd.Decode(string(kv.Key), kv.Value, value(d))
		}
	}
	hold := func(d *agent.Desired, kv *mvccpb.KeyValue) error {
		var h agent.Hold
		if err := etcd.Decode(string(kv.Key), kv.Value, &h); err != nil {
			return err
		}
		d.Holds = append(d.Holds, h)
		return nil
	}
	return []point{
		{s.db.Keys.Env(env).Host(id.Node), into(func(d *agent.Desired) any { d.Host = &agent.Host{}; return d.Host })},
		{s.db.Keys.Env(env).Gate(), into(func(d *agent.Desired) any { return &d.Gate })},
		{s.db.Keys.Env(env).Target(etcd.Scope{}), into(func(d *agent.Desired) any { return &d.Default })},
		{s.db.Keys.Env(env).Target(role), into(func(d *agent.Desired) any { return &d.ForRole })},
		{s.db.Keys.Env(env).Target(node), into(func(d *agent.Desired) any { return &d.ForNode })},
		{s.db.Keys.Env(env).Assignment(id.Node), into(func(d *agent.Desired) any { d.Assigned = &agent.Assignment{}; return d.Assigned })},
		{s.db.Keys.Env(env).Hold(node), hold},
		{s.db.Keys.Env(env).Hold(role), hold},
		{s.db.Keys.Env(env).Hold(etcd.Scope{}), hold},
		{s.db.Keys.Env(env).AgentChoice(), func(d *agent.Desired, kv *mvccpb.KeyValue) error {
			var w AgentWish
			if etcd.Decode(string(kv.Key), kv.Value, &w) != nil { // serve reports it; nodes keep their version
				d.Agent = agent.AgentChoice{Unknown: true}
				return nil
			}
			d.Agent = w.For(id.Role, id.Node)
			return nil
		}},
	}
}

// Admit writes the status of a starting run if nothing that Desire read has changed. Otherwise it returns
// agent.ErrChanged.
func (s *Node) Admit(ctx context.Context, id agent.Identity, d agent.Desired, st agent.Status) error {
	cmps := make([]clientv3.Cmp, 0, len(d.Guards))
	for key, revision := range d.Guards {
		cmps = append(cmps, etcd.Same(key, revision))
	}
	put, err := s.putStatus(id, st)
	if err != nil {
		return err
	}
	resp, err := s.db.Txn(ctx, cmps, []clientv3.Op{put}, nil)
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		return agent.ErrChanged
	}
	return nil
}

// Report writes a node's status and run records. It needs no guard: only the node writes these keys, and its lock
// allows one agent at a time.
func (s *Node) Report(ctx context.Context, id agent.Identity, st agent.Status, runs []agent.EncodedRun, drop []string) error {
	put, err := s.putStatus(id, st)
	if err != nil {
		return err
	}
	ops := []clientv3.Op{put}
	written := map[string]bool{}
	for _, r := range runs {
		written[r.ID] = true
		ops = append(ops, clientv3.OpPut(s.db.Keys.Env(id.Environment).Run(id.Node, r.ID), string(r.Bytes)))
	}
	for _, run := range drop {
		if !written[run] { // one transaction may touch a key only once
			ops = append(ops, clientv3.OpDelete(s.db.Keys.Env(id.Environment).Run(id.Node, run)))
		}
	}
	if len(ops) > maxOps {
		return fmt.Errorf("cannot report: %d operations are more than a transaction may have", len(ops))
	}
	_, err = s.db.Txn(ctx, nil, ops, nil)
	return err
}

// maxOps is etcd's default limit on the operations of one transaction.
const maxOps = 128

func (s *Node) putStatus(id agent.Identity, st agent.Status) (clientv3.Op, error) {
	b, err := etcd.Encode(st)
	if err != nil {
		return clientv3.Op{}, err
	}
	return clientv3.OpPut(s.db.Keys.Env(id.Environment).Status(id.Node), b), nil
}

// Register adds a node to the host list. The entry has no lease, because a powered-off host stays on the list.
// Register keeps a pending request to the node.
func (s *Fleet) Register(ctx context.Context, env string, h agent.Host) error {
	key := s.db.Keys.Env(env).Host(h.Node)
	for {
		var old *agent.Host
		resp, err := s.db.Get(ctx, key)
		if err != nil {
			return err
		}
		revision := int64(0)
		for _, kv := range resp.Kvs {
			revision = kv.ModRevision
			_ = etcd.Decode(key, kv.Value, &old) // an unreadable entry is overwritten
		}
		entry := h
		entry.Request = askedBefore(old, h)
		b, err := etcd.Encode(entry)
		if err != nil {
			return err
		}
		done, err := s.db.Txn(ctx, []clientv3.Cmp{etcd.Same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, b), etcd.Touch(s.db.Keys.Env(env).HostsHead())}, nil)
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// askedBefore returns the pending request that an entry keeps when it replaces old. It returns nil for another
// machine.
func askedBefore(old *agent.Host, h agent.Host) *agent.Request {
	if old == nil || old.MachineID != "" && h.MachineID != "" && old.MachineID != h.MachineID {
		return nil
	}
	return old.Request
}
