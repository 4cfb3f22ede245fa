package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/desired"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// Fleet is the operators' view of the nodes: the host list, statuses, runs, holds, requests and agent versions.
type Fleet struct {
	db      *etcd.DB
	specs   *specs.Environments
	targets *targets.Targets
}

// In returns the nodes of a fleet.
func In(db *etcd.DB) *Fleet { return &Fleet{db, specs.In(db), targets.In(db)} }

// FleetState is the state of an environment's nodes in etcd.
type FleetState struct {
	Revision int64 // of the targets and of the gate; the rest is read at it or later
	Spec     *environments.Environment
	Desires  targets.Desires
	Hosts    map[string]model.Host
	Holds    map[etcd.Scope]model.Hold
	Statuses map[string]model.Status
	Assigned map[string]model.Assignment
	Damaged  []string // unreadable keys, with the reason; one bad value does not hide the fleet

	Lockouts map[string]model.Lockout // of nodes, also of some that reported since

	Removed map[string]model.Prose // removals of nodes that are not on the host list, where a caller read them

	Unconfirmed []string // nodes, in order, with a request to retire that no administrator confirmed: they refuse it
}

// State reads an environment's view: seven ranges in one or more pages.
func (s *Fleet) State(ctx context.Context, ref model.Ref) (FleetState, error) {
	f, err := s.view(ctx, ref)
	if err != nil {
		return FleetState{}, err
	}
	unread, err := s.FleetOf(ctx, ref, &f)
	if err != nil {
		return FleetState{}, fmt.Errorf("cannot read the fleet of %s: %w", ref, err)
	}
	f.Damaged = append(f.Damaged, unread...)
	if err := s.confirm(ctx, ref, &f); err != nil {
		return FleetState{}, fmt.Errorf("cannot read the retirements of %s: %w", ref, err)
	}
	return f, nil
}

// Listed is State without the nodes' statuses and assignments, which are most of its bytes. With a node, its Hosts
// contain only that node.
func (s *Fleet) Listed(ctx context.Context, ref model.Ref, node string) (FleetState, error) {
	f, err := s.view(ctx, ref)
	if err != nil {
		return FleetState{}, err
	}
	if err := s.listOf(ctx, ref, &f, node); err != nil {
		return FleetState{}, fmt.Errorf("cannot read the fleet of %s: %w", ref, err)
	}
	return f, nil
}

// view reads the environment and its targets.
func (s *Fleet) view(ctx context.Context, ref model.Ref) (FleetState, error) {
	spec, _, err := s.specs.Spec(ctx, ref)
	if err != nil {
		return FleetState{}, err
	}
	d, err := s.targets.Desires(ctx, ref)
	return FleetState{Spec: spec, Desires: d, Revision: d.Revision, Damaged: d.Damaged}, err
}

// Each is State without keeping the statuses: it calls each for every node that reported, with a state whose Statuses is that one's. Its
// memory does not grow with the reports. Those of nodes whose clocks are ahead come last. It returns the rest of the state.
func (s *Fleet) Each(ctx context.Context, ref model.Ref, now time.Time, each func(f FleetState, node string)) (FleetState, error) {
	f, err := s.view(ctx, ref)
	if err == nil {
		err = s.ordersOf(ctx, ref, &f)
	}
	if err == nil {
		err = s.confirm(ctx, ref, &f)
	}
	if err != nil {
		return FleetState{}, etcd.Wrap(err, "cannot read the fleet of %s", ref)
	}
	f.Statuses = map[string]model.Status{}
	var read []*Report
	show := func(r *Report) {
		f.Statuses[r.Node] = *r.Status
		each(f, r.Node)
		delete(f.Statuses, r.Node)
	}
	err = s.db.Scan(ctx, s.db.Env(ref).Statuses(), func(rest string, kv *etcd.KV) error {
		var st model.Status
		if err := etcd.Into(&st)(kv); err != nil {
			f.Damaged = append(f.Damaged, err.Error())
			return nil
		}
		r := &Report{etcd.Unescape(rest), kv.ModRevision, st.SeenAt, &st}
		if read = append(read, r); !r.At.After(now) {
			show(r)
			r.Status = nil
		}
		return nil
	})
	InOrder(read, now)
	for _, r := range read {
		if r.Status != nil && err == nil {
			show(r)
		}
	}
	return f, etcd.Wrap(err, "cannot read the reports of %s", ref)
}

// One is State for one node. It reads the reports of the fleet only if the clock of the node is ahead: a node can cause that.
func (s *Fleet) One(ctx context.Context, ref model.Ref, node string) (FleetState, error) {
	f, err := s.OneAsReported(ctx, ref, node)
	if err == nil {
		err = etcd.Wrap(s.compare(ctx, ref, f.Statuses), "cannot read the reports of %s", ref)
	}
	return f, err
}

// OneAsReported is State for one node, with point reads: its size does not grow with the fleet, and a clock that is ahead hides that the node is
// silent. No change may rest on its Desires: they have no guards.
func (s *Fleet) OneAsReported(ctx context.Context, ref model.Ref, node string) (FleetState, error) {
	f := FleetState{
		Desires: targets.Desires{Roles: map[string]model.Target{}, Nodes: map[string]model.Target{}},
		Hosts:   map[string]model.Host{}, Holds: map[etcd.Scope]model.Hold{},
		Statuses: map[string]model.Status{}, Assigned: map[string]model.Assignment{}, Lockouts: map[string]model.Lockout{},
	}
	k, guards := s.db.Env(ref), map[string]int64{}
	var confirmed *model.Confirmation
	_, err := s.db.Read(ctx, guards,
		etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) (err error) {
			f.Desires.Demands = desired.DemandsOf([]*etcd.KV{kv})
			f.Spec, err = specs.Decode(kv)
			return err
		}},
		etcd.Point{Key: k.Host(node), Read: readable(&f, func(h model.Host) { f.Hosts[node] = h })},
		etcd.Point{Key: k.Retirement(node), Read: readable(&f, func(c model.Confirmation) { confirmed = &c })},
		etcd.Point{Key: k.Status(node), Read: readable(&f, func(st model.Status) { f.Statuses[node] = st })},
		etcd.Point{Key: k.Lockout(node), Read: readable(&f, func(l model.Lockout) { f.Lockouts[node] = l })},
	)
	if err != nil {
		return FleetState{}, fmt.Errorf("cannot read node %s of %s: %w", node, ref, err)
	}
	if h := f.Hosts[node]; h.Retires() && (confirmed == nil || !confirmed.Confirms(*h.Request, h.MachineID)) {
		f.Unconfirmed = []string{node}
	}
	role := f.RoleOf(node)
	target := func(scope etcd.Scope, put func(model.Target)) etcd.Point {
		return etcd.Point{Key: k.Target(scope), Read: func(kv *etcd.KV) error {
			var t model.Target
			err := etcd.Into(&t)(kv)
			put(t)
			return err
		}}
	}
	hold := func(scope etcd.Scope) etcd.Point {
		return etcd.Point{Key: k.Hold(scope), Read: readable(&f, func(h model.Hold) { f.Holds[scope] = h })}
	}
	points := []etcd.Point{
		{Key: k.Gate(), Read: etcd.Into(&f.Desires.Gate)},
		{Key: k.Job(), Read: etcd.Into(&f.Desires.Job)},
		{Key: k.AgentChoice(), Read: func(kv *etcd.KV) error {
			f.Desires.Agents = desired.WishOf(kv)
			return nil
		}},
		{Key: k.Assignment(node), Read: readable(&f, func(a model.Assignment) { f.Assigned[node] = a })},
		target(etcd.Scope{}, func(t model.Target) { f.Desires.Default = t }),
		target(etcd.Scope{Node: node}, func(t model.Target) { f.Desires.Nodes[node] = t }),
		hold(etcd.Scope{}), hold(etcd.Scope{Node: node}),
	}
	if role != "" {
		points = append(points, target(etcd.Scope{Role: role}, func(t model.Target) { f.Desires.Roles[role] = t }), hold(etcd.Scope{Role: role}))
	}
	f.Revision, err = s.db.Read(ctx, guards, points...)
	f.Desires.Revision = f.Revision
	return f, etcd.Wrap(err, "cannot read node %s of %s", node, ref)
}

// Host reads a node's entry of the host list, nil for none, and its environment. An environment that cannot be read is specErr.
func (s *Fleet) Host(ctx context.Context, ref model.Ref, node string) (host *model.Host, spec *environments.Environment, specErr, err error) {
	k := s.db.Env(ref)
	_, err = s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.Host(node), Read: etcd.Into(&host)},
		etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) error {
			spec, specErr = specs.Decode(kv)
			return nil
		}})
	return host, spec, specErr, err
}

// readable returns the reader of a value. An unreadable one is added to the damaged keys of f.
func readable[T any](f *FleetState, put func(T)) func(*etcd.KV) error {
	return func(kv *etcd.KV) error {
		var v T
		if err := etcd.Into(&v)(kv); err != nil {
			f.Damaged = append(f.Damaged, err.Error())
			return nil
		}
		put(v)
		return nil
	}
}

// listOf reads the host list, or one entry of it, and the holds.
func (s *Fleet) listOf(ctx context.Context, ref model.Ref, f *FleetState, node string, more ...clientv3.OpOption) (err error) {
	k := s.db.Env(ref)
	var damaged []string
	if node == "" {
		f.Hosts, damaged, err = etcd.ReadAll[model.Host](ctx, s.db, k.Hosts(), more...)
	} else {
		f.Hosts = map[string]model.Host{}
		_, err = s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.Host(node), Read: readable(f, func(h model.Host) { f.Hosts[node] = h })})
	}
	f.Damaged = append(f.Damaged, damaged...)
	if err != nil {
		return err
	}
	f.Holds = map[etcd.Scope]model.Hold{}
	damaged, err = etcd.Collect(ctx, s.db, k.Holds(), func(rest string, h model.Hold, _ int64) {
		if scope, ok := etcd.ScopeOf(rest, "all"); ok {
			f.Holds[scope] = h
		} else {
			f.Damaged = append(f.Damaged, etcd.UnknownKey(k.Holds()+rest))
		}
	}, more...)
	f.Damaged = append(f.Damaged, damaged...)
	return err
}

// FleetOf reads the ranges of a fleet. It returns unreadable statuses separately, because each affects one node.
func (s *Fleet) FleetOf(ctx context.Context, ref model.Ref, f *FleetState, more ...clientv3.OpOption) (unread []string, err error) {
	if err := s.ordersOf(ctx, ref, f, more...); err != nil {
		return nil, err
	}
	f.Statuses, unread, err = s.statuses(ctx, ref, more...)
	return unread, err
}

func (s *Fleet) statuses(ctx context.Context, ref model.Ref, more ...clientv3.OpOption) (all map[string]model.Status, unread []string, err error) {
	var read []*Report
	unread, err = etcd.Collect(ctx, s.db, s.db.Env(ref).Statuses(), func(rest string, st model.Status, revision int64) {
		read = append(read, &Report{etcd.Unescape(rest), revision, st.SeenAt, &st})
	}, more...)
	InOrder(read, s.db.Now())
	all = make(map[string]model.Status, len(read))
	for _, r := range read {
		all[r.Node] = *r.Status
	}
	return all, unread, err
}

// Report is the time of a node's report, and what etcd says of it.
type Report struct {
	Node     string
	Revision int64
	At       time.Time
	Status   *model.Status // nil: only the time matters
}

// InOrder compares the times of reports with their order in etcd. A report of a clock that is behind those of earlier reports says
// nothing about these: one such node would make every node with a fast clock silent.
func InOrder(all []*Report, now time.Time) {
	slices.SortFunc(all, func(a, b *Report) int { return cmp.Compare(a.Revision, b.Revision) })
	behind := make([]bool, len(all))
	var newest time.Time // of the older ones
	for i, r := range all {
		behind[i] = newest.Sub(r.At) > model.ClockOff
		if r.At.After(newest) && !r.At.After(now) {
			newest = r.At
		}
	}
	var first time.Time // of the newer ones
	for i, r := range slices.Backward(all) {
		if r.Status != nil {
			r.Status.Before = first
		}
		if !behind[i] && (first.IsZero() || r.At.Before(first)) {
			first = r.At
		}
	}
}

// ordersOf reads the host list, the holds, the assignments and the lockouts.
func (s *Fleet) ordersOf(ctx context.Context, ref model.Ref, f *FleetState, more ...clientv3.OpOption) error {
	err := s.listOf(ctx, ref, f, "", more...)
	if err != nil {
		return err
	}
	var damaged []string
	f.Assigned, damaged, err = etcd.ReadAll[model.Assignment](ctx, s.db, s.db.Env(ref).Assignment(""), more...)
	f.Damaged = append(f.Damaged, damaged...)
	if err == nil {
		f.Lockouts, damaged, err = etcd.ReadAll[model.Lockout](ctx, s.db, s.db.Env(ref).Lockout(""), more...)
		f.Damaged = append(f.Damaged, damaged...)
	}
	return err
}

// Known returns the nodes that are registered or have reported.
func (f FleetState) Known() map[string]bool {
	known := map[string]bool{}
	for n := range f.Hosts {
		known[n] = true
	}
	for n := range f.Statuses {
		known[n] = true
	}
	return known
}

// LockedOut returns the lockout of a node, also of one that its environment does not expect; nil: none since its last report.
func (f FleetState) LockedOut(node string) *model.Lockout {
	l, noted := f.Lockouts[node]
	if st, reported := f.Statuses[node]; !noted || reported && st.Ends(l) {
		return nil
	}
	return &l
}

// Desired returns the desired state of one node, assembled from the view as the node itself would read it.
func (f FleetState) Desired(role, node string) model.Desired {
	d := f.Desires.For(role, node)
	d.Removed = f.Removed[node]
	d.LockedOut = f.LockedOut(node)
	if h, ok := f.Hosts[node]; ok {
		d.Host = &h
		_, refuses := slices.BinarySearch(f.Unconfirmed, node)
		if answer := f.Statuses[node].Answer; refuses && (answer == nil || answer.ID != h.Request.ID) {
			h.Request = nil // the node's next tick refuses it
		}
	}
	if a, ok := f.Assigned[node]; ok {
		d.Assigned = &a
	}
	d.Holds = f.HoldsOf(role, node)
	return d
}

// HoldsOf returns the holds that apply to a node: its own, that of its role, and that of all nodes.
func (f FleetState) HoldsOf(role, node string) (all []model.Hold) {
	for _, scope := range []etcd.Scope{{Node: node}, {Role: role}, {}} {
		if h, ok := f.Holds[scope]; ok {
			all = append(all, h)
		}
	}
	return all
}

// HostList is Hosts, and names the unreadable entries.
func (s *Fleet) HostList(ctx context.Context, ref model.Ref) (hosts map[string]model.Host, damaged []string, err error) {
	hosts, damaged, err = etcd.ReadAll[model.Host](ctx, s.db, s.db.Env(ref).Hosts())
	return hosts, damaged, etcd.Wrap(err, "cannot list the hosts of %s", ref)
}

// Exports returns the host list with the exported facts of its nodes, as nodes read both.
func (s *Fleet) Exports(ctx context.Context, ref model.Ref) (hosts map[string]model.Host, exports map[string]model.Export, err error) {
	hosts, exports, _, err = desired.Listed(ctx, s.db, s.db.Env(ref))
	return hosts, exports, etcd.Wrap(err, "cannot list the hosts of %s", ref)
}

// Statuses returns the last readable reports of all nodes.
func (s *Fleet) Statuses(ctx context.Context, ref model.Ref) (map[string]model.Status, error) {
	statuses, _, err := s.statuses(ctx, ref)
	return statuses, etcd.Wrap(err, "cannot list the statuses of %s", ref)
}

// statusesInTxn is the number of statuses that one request reads by their names.
const statusesInTxn = 40

// StatusesOf returns the statuses of some nodes, by name. A node without a readable status is left out. As One, it may read all reports.
func (s *Fleet) StatusesOf(ctx context.Context, ref model.Ref, names []string) (map[string]model.Status, error) {
	all, err := s.StatusesAsReported(ctx, ref, names)
	if err == nil {
		err = etcd.Wrap(s.compare(ctx, ref, all), "cannot read the reports of %s", ref)
	}
	return all, err
}

// StatusesAsReported is StatusesOf by point reads alone.
func (s *Fleet) StatusesAsReported(ctx context.Context, ref model.Ref, names []string) (map[string]model.Status, error) {
	k, all := s.db.Env(ref), map[string]model.Status{}
	for part := range slices.Chunk(names, statusesInTxn) {
		var points []etcd.Point
		for _, name := range part {
			points = append(points, etcd.Point{Key: k.Status(name), Read: func(kv *etcd.KV) error {
				if st := (model.Status{}); etcd.Into(&st)(kv) == nil { // what a node wrote must not stop the others
					all[name] = st
				}
				return nil
			}})
		}
		if _, err := s.db.Read(ctx, map[string]int64{}, points...); err != nil {
			return nil, fmt.Errorf("cannot read the statuses of nodes of %s: %w", ref, err)
		}
	}
	return all, nil
}

// compare compares statuses whose clocks are ahead with the statuses of all nodes, as statuses does. Without such a clock it reads nothing.
func (s *Fleet) compare(ctx context.Context, ref model.Ref, some map[string]model.Status) error {
	now := s.db.Now()
	ahead := func(st model.Status) bool { return st.SeenAt.Sub(now) > model.ClockOff }
	if !slices.ContainsFunc(slices.Collect(maps.Values(some)), ahead) {
		return nil
	}
	all, _, err := s.statuses(ctx, ref)
	for node, st := range some {
		if other, read := all[node]; read && ahead(st) {
			st.Before = other.Before
			some[node] = st
		}
	}
	return err
}

// HostNames lists names of the host list that begin with a prefix, at most limit.
func (s *Fleet) HostNames(ctx context.Context, ref model.Ref, prefix string, limit int64) ([]string, error) {
	return s.db.Names(ctx, s.db.Env(ref).Hosts(), prefix, limit)
}

// Hosts returns the host list.
func (s *Fleet) Hosts(ctx context.Context, ref model.Ref) (map[string]model.Host, error) {
	hosts, _, err := s.HostList(ctx, ref)
	return hosts, err
}

// ReportedKeys counts the keys that each node wrote: its status, runs and facts. The answer to a preview counts as a run.
func (s *Fleet) ReportedKeys(ctx context.Context, ref model.Ref) (map[string]int64, error) {
	counts, k := map[string]int64{}, s.db.Env(ref)
	for _, prefix := range []string{k.Statuses(), k.NodesRuns(), k.NodesFacts()} {
		err := s.db.Scan(ctx, prefix, func(rest string, _ *etcd.KV) error {
			node, _, _ := strings.Cut(rest, "/")
			counts[etcd.Unescape(node)]++
			return nil
		}, clientv3.WithKeysOnly(), clientv3.WithLimit(2000))
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// Runs lists a node's run records, oldest first. damaged names the unreadable ones.
func (s *Fleet) Runs(ctx context.Context, ref model.Ref, node string) (runs []model.Run, damaged []string, err error) {
	err = s.db.Scan(ctx, s.db.Env(ref).Runs(node), func(rest string, kv *etcd.KV) error {
		if rest == model.PreviewRun {
			return nil
		}
		r, _, err := model.DecodeRun(kv.Value)
		if err != nil {
			damaged = append(damaged, fmt.Sprintf("%s: %v", etcd.Unescape(rest), err))
			return nil
		}
		runs = append(runs, r)
		return nil
	})
	return runs, damaged, etcd.Wrap(err, "cannot list the runs of %s", node)
}

// runsInPage is the number of run records in one response.
const runsInPage = 50

// Took returns how long runs took, by node: ids has one run of each. A run without a readable record is left out.
func (s *Fleet) Took(ctx context.Context, ref model.Ref, ids map[string]string) (map[string]time.Duration, error) {
	k, took := s.db.Env(ref), map[string]time.Duration{}
	for nodes := range slices.Chunk(slices.Sorted(maps.Keys(ids)), runsInPage) {
		var points []etcd.Point
		for _, node := range nodes {
			points = append(points, etcd.Point{Key: k.Run(node, ids[node]), Read: func(kv *etcd.KV) error {
				if r, _, err := model.DecodeRun(kv.Value); err == nil {
					took[node] = r.Duration
				}
				return nil
			}})
		}
		if _, err := s.db.Read(ctx, map[string]int64{}, points...); err != nil {
			return nil, fmt.Errorf("cannot read the runs of the nodes of %s: %w", ref, err)
		}
	}
	return took, nil
}

// factsInPage is the number of facts in one response: an answer of honest nodes has at most 8 MiB.
const factsInPage = 500

// Facts calls each with the facts that each node published. Package internal/facts decodes them.
func (s *Fleet) Facts(ctx context.Context, ref model.Ref, each func(node string, facts []byte)) error {
	err := s.db.Scan(ctx, s.db.Env(ref).NodesFacts(), func(rest string, kv *etcd.KV) error {
		each(etcd.Unescape(rest), kv.Value)
		return nil
	}, clientv3.WithLimit(factsInPage))
	return etcd.Wrap(err, "cannot read the facts of the nodes of %s", ref)
}

// FactsOf returns the facts that one node published; nil without any.
func (s *Fleet) FactsOf(ctx context.Context, ref model.Ref, node string) ([]byte, error) {
	resp, err := s.db.Get(ctx, s.db.Env(ref).Facts(node))
	if err != nil || len(resp.Kvs) == 0 {
		return nil, etcd.Wrap(err, "cannot read the facts of %s", node)
	}
	return resp.Kvs[0].Value, nil
}

// RoleOf returns a node's role by the host list, else by its status, else by the environment, else by its name.
func (f FleetState) RoleOf(node string) string {
	return specs.RoleOf(f.Spec, f.Hosts[node].Role, f.Statuses[node].Role, node)
}

// Register adds a node to the host list, as desired.Register does.
func (s *Fleet) Register(ctx context.Context, env string, h model.Host) error {
	return desired.Register(ctx, s.db, env, h)
}

// Request stores a one-time request to a node in its entry of the host list. It returns ErrNotListed for a
// node outside the list, and ErrRetires for a node with a retirement request, whose author waits for the answer. It
// does not touch the head of the list: the list itself is unchanged.
func (s *Fleet) Request(ctx context.Context, ref model.Ref, node string, r model.Request) error {
	err := s.Ask(ctx, ref, node, r, s.db.Commit, func(h model.Host, _ *etcd.Batch) error {
		if h.Retires() {
			return ErrRetires
		}
		return nil
	})
	return etcd.Wrap(err, "cannot ask node %s", node)
}

// Withdraw deletes a request: the node begins no run for it from then on. A run in progress continues. Another request stays.
func (s *Fleet) Withdraw(ctx context.Context, ref model.Ref, node, request string) error {
	gone := errors.New("it has no such request")
	key := s.db.Env(ref).Host(node)
	err := etcd.Update(ctx, s.db, key, s.db.Commit, func(h *model.Host, b *etcd.Batch) error {
		if h == nil || h.Request == nil || h.Request.ID != request {
			return gone
		}
		h.Request = nil
		b.Put(key, h)
		return nil
	})
	if errors.Is(err, gone) {
		return nil
	}
	return etcd.Wrap(err, "cannot withdraw a request from node %s", node)
}

// ErrRetires means that a node has a retirement request, and accepts no other request meanwhile.
var ErrRetires = errors.New("it is being retired")

// Ask changes the current entry, unless also refuses it. also may add writes to the transaction. A join of the node may
// write the same entry.
func (s *Fleet) Ask(
	ctx context.Context, ref model.Ref, node string, r model.Request, commit func(context.Context, *etcd.Batch) error,
	also func(model.Host, *etcd.Batch) error,
) error {
	key := s.db.Env(ref).Host(node)
	return etcd.Update(ctx, s.db, key, commit, func(h *model.Host, b *etcd.Batch) error {
		if h == nil {
			return ErrNotListed
		}
		if err := also(*h, b); err != nil {
			return err
		}
		h.Request = &r
		b.Put(key, h)
		return nil
	})
}
