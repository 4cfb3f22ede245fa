package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/store/etcd"
)

// FleetState is the state of an environment's nodes in etcd.
type FleetState struct {
	Revision int64 // of the targets and of the gate; the rest is read at it or later
	Spec     *environments.Environment
	Desires  Desires
	Hosts    map[string]agent.Host
	Holds    map[etcd.Scope]agent.Hold
	Statuses map[string]agent.Status
	Assigned map[string]agent.Assignment
	Damaged  []string // unreadable keys, with the reason; one bad value does not hide the fleet

	Unconfirmed []string // nodes, in order, with a request to retire that no administrator confirmed: they refuse it
}

// State reads an environment's view: six ranges in one or more pages.
func (s *Fleet) State(ctx context.Context, ref environments.Ref) (FleetState, error) {
	spec, _, err := s.specs.Spec(ctx, ref)
	if err != nil {
		return FleetState{}, err
	}
	d, err := s.targets.Desires(ctx, ref)
	if err != nil {
		return FleetState{}, err
	}
	f := FleetState{Spec: spec, Desires: d, Revision: d.Revision, Damaged: d.Damaged}
	unread, err := s.fleetOf(ctx, ref, &f)
	if err != nil {
		return FleetState{}, fmt.Errorf("cannot read the fleet of %s: %w", ref, err)
	}
	f.Damaged = append(f.Damaged, unread...)
	if err := s.confirm(ctx, ref, &f); err != nil {
		return FleetState{}, fmt.Errorf("cannot read the retirements of %s: %w", ref, err)
	}
	return f, nil
}

// fleetOf reads the ranges of a fleet. It returns unreadable statuses separately, because each affects one node.
func (s *Fleet) fleetOf(ctx context.Context, ref environments.Ref, f *FleetState, more ...clientv3.OpOption) (unread []string, err error) {
	k, damaged := s.db.Env(ref), [3][]string{}
	f.Holds = map[etcd.Scope]agent.Hold{}
	f.Hosts, damaged[0], err = etcd.ReadAll[agent.Host](ctx, s.db, k.Hosts(), more...)
	if err == nil {
		damaged[1], err = etcd.Collect(ctx, s.db, k.Holds(), func(rest string, h agent.Hold) {
			if scope, ok := etcd.ScopeOf(rest, "all"); ok {
				f.Holds[scope] = h
			} else {
				f.Damaged = append(f.Damaged, etcd.UnknownKey(k.Holds()+rest))
			}
		}, more...)
	}
	if err == nil {
		f.Assigned, damaged[2], err = etcd.ReadAll[agent.Assignment](ctx, s.db, k.Assignment(""), more...)
	}
	if err == nil {
		f.Statuses, unread, err = etcd.ReadAll[agent.Status](ctx, s.db, k.Statuses(), more...)
	}
	f.Damaged = append(f.Damaged, slices.Concat(damaged[:]...)...)
	return unread, err
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

// Desired returns the desired state of one node, assembled from the view as the node itself would read it.
func (f FleetState) Desired(role, node string) agent.Desired {
	d := f.Desires.For(role, node)
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
	for _, scope := range []etcd.Scope{{Node: node}, {Role: role}, {}} {
		if h, ok := f.Holds[scope]; ok {
			d.Holds = append(d.Holds, h)
		}
	}
	return d
}

// HostList is Hosts, and names the unreadable entries.
func (s *Fleet) HostList(ctx context.Context, ref environments.Ref) (hosts map[string]agent.Host, damaged []string, err error) {
	hosts, damaged, err = etcd.ReadAll[agent.Host](ctx, s.db, s.db.Env(ref).Hosts())
	return hosts, damaged, etcd.Wrap(err, "cannot list the hosts of %s", ref)
}

// HostNames lists names of the host list that begin with a prefix, at most limit.
func (s *Fleet) HostNames(ctx context.Context, ref environments.Ref, prefix string, limit int64) ([]string, error) {
	return s.db.Names(ctx, s.db.Env(ref).Hosts(), prefix, limit)
}

// Hosts returns the host list.
func (s *Fleet) Hosts(ctx context.Context, ref environments.Ref) (map[string]agent.Host, error) {
	hosts, _, err := s.HostList(ctx, ref)
	return hosts, err
}

// ReportedKeys counts the keys that each node wrote: its status and runs.
func (s *Fleet) ReportedKeys(ctx context.Context, ref environments.Ref) (map[string]int64, error) {
	counts, k := map[string]int64{}, s.db.Env(ref)
	for _, prefix := range []string{k.Statuses(), k.NodesRuns()} {
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
func (s *Fleet) Runs(ctx context.Context, ref environments.Ref, node string) (runs []agent.Run, damaged []string, err error) {
	err = s.db.Scan(ctx, s.db.Env(ref).Runs(node), func(rest string, kv *etcd.KV) error {
		r, _, err := agent.DecodeRun(kv.Value)
		if err != nil {
			damaged = append(damaged, fmt.Sprintf("%s: %v", etcd.Unescape(rest), err))
			return nil
		}
		runs = append(runs, r)
		return nil
	})
	return runs, damaged, etcd.Wrap(err, "cannot list the runs of %s", node)
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

// Register adds a node to the host list. The entry has no lease, because a powered-off host stays on the list.
// Register keeps a pending request to the node.
func (s *Fleet) Register(ctx context.Context, env string, h agent.Host) error {
	k := s.db.Keys.Env(env)
	return etcd.Retry(ctx, func() error {
		old, revision, err := etcd.Single[agent.Host](ctx, s.db, k.Host(h.Node))
		if err != nil && !errors.As(err, new(*etcd.UnreadableError)) { // an unreadable entry is overwritten
			return err
		}
		h.Request = askedBefore(old, h)
		return s.db.Commit(ctx, etcd.If(etcd.Same(k.Host(h.Node), revision)).Put(k.Host(h.Node), h).Touch(k.HostsHead()))
	})
}

// askedBefore returns the pending request that an entry keeps when it replaces old. It returns nil for another
// machine.
func askedBefore(old *agent.Host, h agent.Host) *agent.Request {
	if old == nil || old.MachineID != "" && h.MachineID != "" && old.MachineID != h.MachineID {
		return nil
	}
	return old.Request
}

// Request stores a one-time request to a node in its entry of the host list. It returns machines.ErrNotListed for a
// node outside the list, and ErrRetires for a node with a retirement request, whose author waits for the answer. It
// does not touch the head of the list: the list itself is unchanged.
func (s *Fleet) Request(ctx context.Context, ref environments.Ref, node string, r agent.Request) error {
	err := s.ask(ctx, ref, node, r, s.db.Commit, func(h agent.Host, _ *etcd.Batch) error {
		if h.Retires() {
			return ErrRetires
		}
		return nil
	})
	return etcd.Wrap(err, "cannot ask node %s", node)
}

// ErrRetires means that a node has a retirement request, and accepts no other request meanwhile.
var ErrRetires = errors.New("it is being retired")

// ask changes the current entry, unless also refuses it. also may add writes to the transaction. A join of the node may
// write the same entry.
func (s *Fleet) ask(
	ctx context.Context, ref environments.Ref, node string, r agent.Request, commit func(context.Context, *etcd.Batch) error,
	also func(agent.Host, *etcd.Batch) error,
) error {
	key := s.db.Env(ref).Host(node)
	return etcd.Update(ctx, s.db, key, commit, func(h *agent.Host, b *etcd.Batch) error {
		if h == nil {
			return machines.ErrNotListed
		}
		if err := also(*h, b); err != nil {
			return err
		}
		h.Request = &r
		b.Put(key, h)
		return nil
	})
}
