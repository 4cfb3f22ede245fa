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

// World reads all of etcd that a plan needs, at one revision. A value that can't be read is an error, as a plan without it
// could make a second machine or destroy a good one; but for a status, which is one node's word: that node counts as one that
// has said nothing.
func (s *Machines) World(ctx context.Context, ref environments.Ref, now time.Time) (machines.World, error) {
	for try := 0; ; try++ {
		w, err := s.world(ctx, ref, now)
		if errors.Is(err, rpctypes.ErrCompacted) && try < 4 { // a prune did that at this moment
			continue
		}
		if err != nil {
			err = fmt.Errorf("cannot read what is known of %s: %w", ref, err)
		}
		return w, err
	}
}

func (s *Machines) world(ctx context.Context, ref environments.Ref, now time.Time) (machines.World, error) {
	env := ref.String()
	w := machines.World{Now: now, Records: map[string]machines.Record{}, Views: map[string]agent.View{}, Held: map[string]string{}}
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
	at := clientv3.WithRev(resp.Header.Revision)
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

// roleOf is a node's role as the list of hosts has it, else as it says itself, else as its name does.
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

// held tells why nodes are under a hold: those that are there, and those that are called for.
func (f FleetState) held(w *machines.World) {
	if len(f.Holds) == 0 {
		return
	}
	judge := func(role, node string) {
		if h := f.Desired(role, node).Held(); h != nil {
			w.Held[node] = h.String()
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

// releases reports whether nodes have something to converge on: everybody's release, or one of each role that calls for nodes.
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

// World is the store's, of this moment. It can be read by whoever lost the mark, too.
func (a *Applying) World(ctx context.Context) (machines.World, error) {
	return a.machines.World(ctx, a.ref, time.Now())
}
