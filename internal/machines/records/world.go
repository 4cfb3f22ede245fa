package records

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/specs"
)

// FleetReader reads the input of plans of one fleet.
type FleetReader struct {
	machines *Machines
	db       *etcd.DB
	ref      model.Ref
	keys     etcd.EnvKeys
}

// FleetReader returns the reader of a fleet.
func (s *Machines) FleetReader(ref model.Ref) FleetReader {
	return FleetReader{s, s.db, ref, s.db.Env(ref)}
}

// World reads the input of a plan from etcd, at the current revision. It needs no lock.
func (r FleetReader) World(ctx context.Context) (machines.World, error) {
	return r.machines.World(ctx, r.ref, r.db.Now())
}

// Unchanged reports whether the stored environment, the host list, the inventory and the holds equal those of a World.
// A hold that has ended since does not count: its end only permits more.
func (r FleetReader) Unchanged(ctx context.Context, w machines.World) (bool, error) {
	k := r.keys
	older := func(prefix string) clientv3.Cmp {
		return clientv3.Compare(clientv3.ModRevision(prefix), "<", w.Revision+1).WithPrefix()
	}
	resp, err := r.db.Txn(ctx,
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

// Places returns of each registered node the places that an environment's policy for rollouts limits. A node that the environment
// does not call for has the attributes of the stored one.
func (r FleetReader) Places(ctx context.Context, e *environments.Environment) (map[string][]string, error) {
	limits := rollout.PolicyOf(e).Limits()
	if len(limits) == 0 {
		return nil, nil
	}
	hosts, err := r.machines.fleet.Hosts(ctx, r.ref)
	if err != nil {
		return nil, err
	}
	old, _, err := specs.In(r.db).Spec(ctx, r.ref)
	if err != nil {
		return nil, err
	}
	var stay, leave []rollout.Candidate
	for node, h := range hosts {
		c := rollout.Candidate{Node: node, Role: h.Role}
		if _, wanted := e.RoleOf(node); wanted || old == nil {
			stay = append(stay, c)
		} else {
			leave = append(leave, c)
		}
	}
	if _, err = r.machines.campaigns.Place(ctx, r.ref, e, limits, stay); err == nil && len(leave) > 0 {
		_, err = r.machines.campaigns.Place(ctx, r.ref, old, limits, leave)
	}
	places := map[string][]string{}
	for _, c := range slices.Concat(stay, leave) {
		places[c.Node] = c.Places
	}
	return places, err
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
func (s *Machines) World(ctx context.Context, ref model.Ref, now time.Time) (machines.World, error) {
	for try := 0; ; try++ {
		w, err := s.world(ctx, ref, now)
		if errors.Is(err, rpctypes.ErrCompacted) && try < 4 { // a concurrent prune
			continue
		}
		return w, etcd.Wrap(err, "cannot read the state of %s", ref)
	}
}

func (s *Machines) world(ctx context.Context, ref model.Ref, now time.Time) (machines.World, error) {
	k := s.db.Env(ref)
	w := machines.World{Now: now, Records: map[string]machines.Record{}, Views: map[string]model.View{}, Held: map[string]model.Hold{}}
	guards := map[string]int64{}
	var err error
	w.Revision, err = s.db.Read(ctx, guards, etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) (err error) {
		w.Old, err = specs.Decode(kv)
		return err
	}})
	if err != nil {
		return w, err
	}
	w.OldRevision = guards[k.Spec()]
	at := clientv3.WithRev(w.Revision)
	f := fleet.FleetState{Spec: w.Old}
	if f.Desires, err = s.targets.DesiresAt(ctx, ref.String(), at); err != nil {
		return w, err
	}
	if _, err = s.fleet.FleetOf(ctx, ref, &f, at); err != nil {
		return w, err
	}
	records, damaged, err := etcd.ReadAll[machines.Record](ctx, s.db, k.MachineRecords(), at)
	if err != nil {
		return w, err
	}
	for _, unread := range append(f.Damaged, damaged...) {
		return w, errors.New(unread)
	}
	w.Records = records
	w.Hosts, w.Statuses = f.Hosts, f.Statuses
	w.Released = releases(f.Desires, w.Old)
	if w.Boots, err = s.unreported(ctx, k, f, at); err != nil {
		return w, err
	}
	views := f.Known()
	for node := range f.Lockouts {
		views[node] = true
	}
	for node := range views {
		var said *model.Status
		if st, ok := f.Statuses[node]; ok {
			said = &st
		}
		w.Views[node] = model.Look(said, f.Desired(f.RoleOf(node), node), now)
	}
	held(f, &w)
	return w, nil
}

// unreported returns the first boots of registered nodes that have not reported. It reads nothing if each one has.
func (s *Machines) unreported(ctx context.Context, k etcd.EnvKeys, f fleet.FleetState, at clientv3.OpOption) (map[string]machines.Reason, error) {
	waits := map[string]machines.Reason{}
	for node := range f.Hosts {
		if _, reported := f.Statuses[node]; !reported {
			waits[node] = machines.Reason{}
		}
	}
	if len(waits) == 0 {
		return nil, nil
	}
	boots, _, err := etcd.ReadAll[access.FirstBoot](ctx, s.db, k.FirstBoots(), at)
	for _, b := range boots {
		if _, waiting := waits[b.Node]; waiting && b.Locks() && b.Machine == f.Hosts[b.Node].MachineID {
			waits[b.Node] = machines.Reason{Code: machines.WaitsForFirstBoot, Was: b.Step, Problem: b.Error}
		}
	}
	maps.DeleteFunc(waits, func(_ string, r machines.Reason) bool { return r.Code == "" })
	return waits, err
}

// held finds the holds of existing nodes, and of nodes that the environment requires.
func held(f fleet.FleetState, w *machines.World) {
	if len(f.Holds) == 0 {
		return
	}
	judge := func(role, node string) {
		if h := f.Desired(role, node).Held(); h != nil {
			w.Held[node] = *h
		}
	}
	for node := range f.Known() {
		judge(f.RoleOf(node), node)
	}
	for node := range w.Records {
		judge(f.RoleOf(node), node)
	}
	if w.Old != nil {
		for n := range w.Old.Nodes() {
			judge(n.Role, n.String())
		}
	}
}

// releases reports whether nodes have a release to converge on: a default one, or one for each role with nodes.
func releases(d targets.Desires, e *environments.Environment) bool {
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
