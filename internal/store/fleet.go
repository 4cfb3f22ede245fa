package store

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
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
}

// State reads an environment's view: five ranges in one or more pages.
func (s *Fleet) State(ctx context.Context, ref environments.Ref) (FleetState, error) {
	f := FleetState{}
	var err error
	if f.Spec, _, err = s.specs.Spec(ctx, ref); err != nil {
		return FleetState{}, err
	}
	if f.Desires, err = s.targets.Desires(ctx, ref); err != nil {
		return FleetState{}, err
	}
	f.Revision, f.Damaged = f.Desires.Revision, f.Desires.Damaged
	said, err := s.fleetOf(ctx, ref, &f)
	if err != nil {
		return FleetState{}, fmt.Errorf("cannot read the fleet of %s: %w", ref, err)
	}
	f.Damaged = append(f.Damaged, said...)
	return f, nil
}

// fleetOf reads the ranges of a fleet. It returns unreadable statuses separately, because each affects one node.
func (s *Fleet) fleetOf(ctx context.Context, ref environments.Ref, f *FleetState, more ...clientv3.OpOption) (unread []string, err error) {
	env := ref.String()
	f.Holds = map[etcd.Scope]agent.Hold{}
	var damaged []string
	if f.Hosts, damaged, err = etcd.ReadAll[agent.Host](ctx, s.db, s.db.Keys.Env(env).Hosts(), more...); err != nil {
		return nil, err
	}
	f.Damaged = append(f.Damaged, damaged...)
	damaged, err = etcd.Collect(ctx, s.db, s.db.Keys.Env(env).Holds(), func(rest string, h agent.Hold) {
		if scope, ok := etcd.ScopeOf(rest, "all"); ok {
			f.Holds[scope] = h
		} else {
			f.Damaged = append(f.Damaged, etcd.UnknownKey(s.db.Keys.Env(env).Holds()+rest))
		}
	}, more...)
	if err != nil {
		return nil, err
	}
	f.Damaged = append(f.Damaged, damaged...)
	if f.Assigned, damaged, err = etcd.ReadAll[agent.Assignment](ctx, s.db, s.db.Keys.Env(env).Assignment(""), more...); err != nil {
		return nil, err
	}
	f.Damaged = append(f.Damaged, damaged...)
	f.Statuses, unread, err = etcd.ReadAll[agent.Status](ctx, s.db, s.db.Keys.Env(env).Statuses(), more...)
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
	return etcd.ReadAll[agent.Host](ctx, s.db, s.db.Keys.Env(ref.String()).Hosts())
}

// ReportedKeys counts the keys that each node wrote: its status and runs.
func (s *Fleet) ReportedKeys(ctx context.Context, ref environments.Ref) (map[string]int64, error) {
	counts, k := map[string]int64{}, s.db.Keys.Env(ref.String())
	for _, prefix := range []string{k.Statuses(), k.NodesRuns()} {
		_, err := s.db.Pages(ctx, prefix, 2000, func(rest string, _ []byte) error {
			node, _, _ := strings.Cut(rest, "/")
			counts[etcd.Unescape(node)]++
			return nil
		}, clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// Hosts returns the host list.
func (s *Fleet) Hosts(ctx context.Context, ref environments.Ref) (map[string]agent.Host, error) {
	hosts, _, err := etcd.ReadAll[agent.Host](ctx, s.db, s.db.Keys.Env(ref.String()).Hosts())
	if err != nil {
		return nil, fmt.Errorf("cannot list the hosts of %s: %w", ref, err)
	}
	return hosts, nil
}

// Runs lists a node's run records, oldest first. damaged names the unreadable ones.
func (s *Fleet) Runs(ctx context.Context, ref environments.Ref, node string) (runs []agent.Run, damaged []string, err error) {
	prefix := s.db.Keys.Env(ref.String()).Runs(node)
	_, err = s.db.Scan(ctx, prefix, func(rest string, b []byte) error {
		r, _, err := agent.DecodeRun(b)
		if err != nil {
			damaged = append(damaged, fmt.Sprintf("%s: %v", etcd.Unescape(rest), err))
			return nil
		}
		runs = append(runs, r)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the runs of %s: %w", node, err)
	}
	return runs, damaged, nil
}

// Health is the state of one etcd member.
type Health struct {
	Endpoint, Version   string
	DBBytes, InUseBytes int64
	Alarms              []string
}

// Health reads the version and size of each endpoint.
func (s *Cluster) Health(ctx context.Context) ([]Health, error) {
	var all []Health
	endpoints := s.db.Client.Endpoints()
	if len(endpoints) == 0 { // in etcd's own process
		endpoints = []string{s.db.Endpoints}
	}
	for _, e := range endpoints {
		one, cancel := context.WithTimeout(ctx, s.db.Timeout)
		st, err := s.db.Client.Status(one, e)
		cancel()
		if err != nil {
			return all, s.db.Explain(err)
		}
		all = append(all, Health{Endpoint: e, Version: st.Version, DBBytes: st.DbSize, InUseBytes: st.DbSizeInUse, Alarms: st.Errors})
	}
	return all, nil
}

// Ping reads one key, which need not exist.
func (s *Cluster) Ping(ctx context.Context) error {
	_, err := s.db.Get(ctx, s.db.Keys.Environments(), clientv3.WithCountOnly())
	return err
}
