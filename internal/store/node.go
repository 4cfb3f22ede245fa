package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"pulley/agent"
)

var _ agent.Control = (*nodePart)(nil)

// Desire reads everything that concerns a node: ten point keys in one transaction, so at one revision.
func (s *nodePart) Desire(ctx context.Context, id agent.Identity) (agent.Desired, error) {
	points := s.points(id)
	ops := make([]clientv3.Op, len(points))
	for i, p := range points {
		ops[i] = clientv3.OpGet(p.key)
	}
	resp, err := s.txn(ctx, nil, ops, nil)
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

// point is one key of a node's read, and where its value goes.
type point struct {
	key  string
	read func(*agent.Desired, *mvccpb.KeyValue) error
}

func (s *nodePart) points(id agent.Identity) []point {
	env, role, node := id.Environment, Scope{Role: id.Role}, Scope{Node: id.Node}
	into := func(value func(*agent.Desired) any) func(*agent.Desired, *mvccpb.KeyValue) error {
		return func(d *agent.Desired, kv *mvccpb.KeyValue) error { return decode(string(kv.Key), kv.Value, value(d)) }
	}
	hold := func(d *agent.Desired, kv *mvccpb.KeyValue) error {
		var h agent.Hold
		if err := decode(string(kv.Key), kv.Value, &h); err != nil {
			return err
		}
		d.Holds = append(d.Holds, h)
		return nil
	}
	return []point{
		{s.keys.host(env, id.Node), into(func(d *agent.Desired) any { d.Host = &agent.Host{}; return d.Host })},
		{s.keys.gate(env), into(func(d *agent.Desired) any { return &d.Gate })},
		{s.keys.target(env, Scope{}), into(func(d *agent.Desired) any { return &d.Default })},
		{s.keys.target(env, role), into(func(d *agent.Desired) any { return &d.ForRole })},
		{s.keys.target(env, node), into(func(d *agent.Desired) any { return &d.ForNode })},
		{s.keys.assigned(env, id.Node), into(func(d *agent.Desired) any { d.Assigned = &agent.Assignment{}; return d.Assigned })},
		{s.keys.hold(env, node), hold},
		{s.keys.hold(env, role), hold},
		{s.keys.hold(env, Scope{}), hold},
		{s.keys.agentWanted(env), func(d *agent.Desired, kv *mvccpb.KeyValue) error {
			var w AgentWish
			if decode(string(kv.Key), kv.Value, &w) != nil { // its operators are told; nodes go on with what they are at
				d.Agent = agent.AgentChoice{Unknown: true}
				return nil
			}
			d.Agent = w.For(id.Role, id.Node)
			return nil
		}},
	}
}

// Admit writes the status of a run that starts if nothing that Desire read has changed since; else agent.ErrChanged.
func (s *nodePart) Admit(ctx context.Context, id agent.Identity, d agent.Desired, st agent.Status) error {
	cmps := make([]clientv3.Cmp, 0, len(d.Guards))
	for key, revision := range d.Guards {
		cmps = append(cmps, same(key, revision))
	}
	put, err := s.putStatus(id, st)
	if err != nil {
		return err
	}
	resp, err := s.txn(ctx, cmps, []clientv3.Op{put}, nil)
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		return agent.ErrChanged
	}
	return nil
}

// Report writes a node's status and run records. It needs no guard: the node is the only writer of these keys, and its
// lock allows one agent at a time.
func (s *nodePart) Report(ctx context.Context, id agent.Identity, st agent.Status, runs []agent.EncodedRun, drop []string) error {
	put, err := s.putStatus(id, st)
	if err != nil {
		return err
	}
	ops := []clientv3.Op{put}
	written := map[string]bool{}
	for _, r := range runs {
		written[r.ID] = true
		ops = append(ops, clientv3.OpPut(s.keys.run(id.Environment, id.Node, r.ID), string(r.Bytes)))
	}
	for _, run := range drop {
		if !written[run] { // one transaction may touch a key only once
			ops = append(ops, clientv3.OpDelete(s.keys.run(id.Environment, id.Node, run)))
		}
	}
	if len(ops) > maxOps {
		return fmt.Errorf("cannot report: %d operations are more than a transaction may have", len(ops))
	}
	_, err = s.txn(ctx, nil, ops, nil)
	return err
}

// maxOps is etcd's default bound on a transaction's operations.
const maxOps = 128

func (s *nodePart) putStatus(id agent.Identity, st agent.Status) (clientv3.Op, error) {
	b, err := encode(st)
	if err != nil {
		return clientv3.Op{}, err
	}
	return clientv3.OpPut(s.keys.status(id.Environment, id.Node), b), nil
}

// Register puts a node on the list of hosts that should be alive. The entry has no lease: a host that is off should still
// be alive. What was asked of the node stays asked.
func (s *fleetPart) Register(ctx context.Context, env string, h agent.Host) error {
	key := s.keys.host(env, h.Node)
	for {
		var old *agent.Host
		resp, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		revision := int64(0)
		for _, kv := range resp.Kvs {
			revision = kv.ModRevision
			_ = decode(key, kv.Value, &old) // one that can't be read is written anew
		}
		entry := h
		entry.Request = askedBefore(old, h)
		b, err := encode(entry)
		if err != nil {
			return err
		}
		done, err := s.txn(ctx, []clientv3.Cmp{same(key, revision)}, []clientv3.Op{clientv3.OpPut(key, b), s.touchHosts(env)}, nil)
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// askedBefore is what a node was asked for, in an entry that takes the place of old: nothing when it is another machine.
func askedBefore(old *agent.Host, h agent.Host) *agent.Request {
	if old == nil || old.MachineID != "" && h.MachineID != "" && old.MachineID != h.MachineID {
		return nil
	}
	return old.Request
}

// touchHosts announces a change of the list of hosts. The head is a blind put in the change's own transaction, and the
// list's generation is its ModRevision: five hundred joins a minute would fight over a compare.
func (s *db) touchHosts(env string) clientv3.Op {
	return clientv3.OpPut(s.keys.hostsHead(env), fmt.Sprintf(`{"v":%d}`, valueFormat))
}
