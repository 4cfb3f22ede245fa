package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// FleetReader reads the input of plans of one fleet.
type FleetReader struct {
	machines *Machines
	ref      environments.Ref
}

// FleetReader returns the reader of a fleet.
func (s *Machines) FleetReader(ref environments.Ref) FleetReader { return FleetReader{s, ref} }

// World reads the input of a plan from etcd, at the current revision. It needs no lock.
func (r FleetReader) World(ctx context.Context) (machines.World, error) {
	return r.machines.World(ctx, r.ref, time.Now())
}

// Unchanged reports whether the stored environment, the host list, the inventory and the holds equal those of a World.
// A hold that has ended since does not count: its end only permits more.
func (r FleetReader) Unchanged(ctx context.Context, w machines.World) (bool, error) {
	k := r.machines.db.Keys.Env(r.ref.String())
	older := func(prefix string) clientv3.Cmp {
		return clientv3.Compare(clientv3.ModRevision(prefix), "<", w.Revision+1).WithPrefix()
	}
	resp, err := r.machines.db.Txn(ctx,
		[]clientv3.Cmp{etcd.Same(k.Spec(), w.OldRevision), older(k.Hosts()), older(k.MachineRecords()), older(k.Holds())},
		[]clientv3.Op{
			clientv3.OpGet(k.Hosts(), clientv3.WithPrefix(), clientv3.WithCountOnly()),
			clientv3.OpGet(k.MachineRecords(), clientv3.WithPrefix(), clientv3.WithCountOnly()),
		}, nil)
	if err != nil || !resp.Succeeded {
		return false, err
	}
	count := func(i int) int { return int(resp.Responses[i].GetResponseRange().Count) }
	return count(0) == len(w.Hosts) && count(1) == len(w.Records), nil // a deleted key has no revision to compare
}

// Acts returns the acts since a time. An unreadable act is an error: a budget cannot be counted without it.
func (r FleetReader) Acts(ctx context.Context, since time.Time) ([]machines.Act, error) {
	all, damaged, err := r.machines.Acts(ctx, r.ref, since)
	if err == nil && len(damaged) > 0 {
		err = errors.New(damaged[0])
	}
	return all, err
}

// World reads the input of a plan from etcd, at one revision. An unreadable value is an error: a plan without it could
// create a second machine, or delete a good one. An unreadable status counts as none: its node counts as one that
// never reported.
func (s *Machines) World(ctx context.Context, ref environments.Ref, now time.Time) (machines.World, error) {
	for try := 0; ; try++ {
		w, err := s.world(ctx, ref, now)
		if errors.Is(err, rpctypes.ErrCompacted) && try < 4 { // a concurrent prune
			continue
		}
		if err != nil {
			err = fmt.Errorf("cannot read the state of %s: %w", ref, err)
		}
		return w, err
	}
}

func (s *Machines) world(ctx context.Context, ref environments.Ref, now time.Time) (machines.World, error) {
	env := ref.String()
	w := machines.World{Now: now, Records: map[string]machines.Record{}, Views: map[string]agent.View{}, Held: map[string]agent.Hold{}}
	key := s.db.Keys.Env(env).Spec()
	resp, err := s.db.Get(ctx, key)
	if err != nil {
		return w, err
	}
	for _, kv := range resp.Kvs {
		w.OldRevision = kv.ModRevision
		if w.Old, err = environments.Decode(kv.Value); err != nil {
			return w, &etcd.UnreadableError{Key: key, Problem: err.Error()}
		}
	}
	w.Revision = resp.Header.Revision
	at := clientv3.WithRev(w.Revision)
	var f FleetState
	if f.Desires, err = s.targets.desires(ctx, env, at); err != nil {
		return w, err
	}
	if _, err = s.fleet.fleetOf(ctx, ref, &f, at); err != nil {
		return w, err
	}
	records, damaged, err := etcd.ReadAll[machines.Record](ctx, s.db, s.db.Keys.Env(env).MachineRecords(), at)
	if err != nil {
		return w, err
	}
	for _, unread := range append(f.Damaged, damaged...) {
		return w, errors.New(unread)
	}
	w.Records = records
	w.Hosts, w.Statuses = f.Hosts, f.Statuses
	w.Released = f.Desires.releases(w.Old)
	for node := range f.Known() {
		var said *agent.Status
		if st, ok := f.Statuses[node]; ok {
			said = &st
		}
		w.Views[node] = agent.Look(said, f.Desired(f.roleOf(node), node), now)
	}
	f.held(&w)
	return w, nil
}

// roleOf returns a node's role by the host list, else by its status, else by its name.
func (f FleetState) roleOf(node string) string {
	if h, ok := f.Hosts[node]; ok && h.Role != "" {
		return h.Role
	}
	if st, ok := f.Statuses[node]; ok && st.Role != "" {
		return st.Role
	}
	n, err := environments.ParseNode(node)
	if err != nil {
		return ""
	}
	return n.Role
}

// held finds the holds of existing nodes, and of nodes that the environment requires.
func (f FleetState) held(w *machines.World) {
	if len(f.Holds) == 0 {
		return
	}
	judge := func(role, node string) {
		if h := f.Desired(role, node).Held(); h != nil {
			w.Held[node] = *h
		}
	}
	for node := range f.Known() {
		judge(f.roleOf(node), node)
	}
	for node := range w.Records {
		judge(f.roleOf(node), node)
	}
	if w.Old != nil {
		for n := range w.Old.Nodes() {
			judge(n.Role, n.String())
		}
	}
}

// releases reports whether nodes have a release to converge on: a default one, or one for each role with nodes.
func (d Desires) releases(e *environments.Environment) bool {
	if !d.Default.IsZero() {
		return true
	}
	if e == nil {
		return false
	}
	for _, r := range e.Roles {
		if (r.Cardinality > 0 || len(r.Members) > 0) && d.Roles[r.Name].IsZero() {
			return false
		}
	}
	return e.Count() > 0
}
