package journal

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/clip"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/specs"
)

// Away reports whether an apply retires the node of a machine record, or replaces its machine. Package records has it.
type Away func(record *etcd.KV) (bool, error)

// Observe reads what the next step of a campaign needs: point keys of the nodes in progress, and rarely all keys or the host list.
func (s *Campaigns) Observe(ctx context.Context, ref model.Ref, c *Campaign, need rollout.Needs, away Away, now time.Time) (rollout.Observed, error) {
	o := rollout.Observed{Gate: c.Gate, Nodes: map[string]rollout.Node{}}
	f := fleet.FleetState{Desires: c.Desires, Hosts: map[string]model.Host{}, Holds: map[etcd.Scope]model.Hold{}}
	k := s.db.Env(ref)
	_, err := etcd.Collect(ctx, s.db, k.Holds(), func(rest string, h model.Hold, _ int64) {
		if scope, ok := etcd.ScopeOf(rest, "all"); ok {
			f.Holds[scope] = h
		}
	})
	if err == nil { // an unreadable one affects no step
		f.Lockouts, _, err = etcd.ReadAll[model.Lockout](ctx, s.db, k.Lockout(""))
	}
	if need.All && err == nil {
		err = s.pages(ctx, k, need.Nodes, o.Nodes)
	} else {
		for part := range slices.Chunk(need.Nodes, nodesInTxn) {
			if err == nil {
				err = s.points(ctx, k, part, o.Nodes)
			}
		}
	}
	if len(c.Plan.Policy.Limits()) > 0 && err == nil {
		err = s.replaced(ctx, k, away, o.Nodes)
	}
	var reports []*fleet.Report
	for name, n := range o.Nodes {
		if n.Status != nil {
			reports = append(reports, &fleet.Report{Node: name, Revision: n.StatusAt, At: n.Status.SeenAt, Status: n.Status})
		}
	}
	fleet.InOrder(reports, now)
	for name, n := range o.Nodes {
		o.Nodes[name] = c.look(f, name, n, now)
	}
	if c.Plan.Kind == rollout.Run && err == nil {
		var job *model.LiveJob
		job, _, err = etcd.Single[model.LiveJob](ctx, s.db, k.Job())
		o.Gone = err == nil && (job == nil || job.ID != c.Plan.ID)
	}
	if need.Hosts && err == nil {
		o.Hosts, err = s.candidates(ctx, ref, c)
	}
	return o, etcd.Wrap(err, "cannot read the nodes of %s %s of %s", model.Noun(c.Plan.ID), c.Plan.ID, ref)
}

// points reads nodes by point keys, in one transaction.
func (s *Campaigns) points(ctx context.Context, k etcd.EnvKeys, names []string, into map[string]rollout.Node) error {
	nodes := make([]rollout.Node, len(names))
	revisions, points := map[string]int64{}, []etcd.Point{}
	for i, name := range names {
		n := &nodes[i]
		points = append(points,
			etcd.Point{Key: k.Host(name), Read: etcd.Into(&n.Host)},
			etcd.Point{Key: k.Assignment(name), Read: etcd.Into(&n.Assigned)},
			etcd.Point{Key: k.Status(name), Read: func(kv *etcd.KV) error {
				if etcd.Into(&n.Status)(kv) != nil {
					n.Status = nil // what a node wrote must not stop the others
				}
				return nil
			}},
		)
	}
	if _, err := s.db.Read(ctx, revisions, points...); err != nil {
		return err
	}
	for i, name := range names {
		n := nodes[i]
		n.HostAt, n.AssignedAt, n.StatusAt = revisions[k.Host(name)], revisions[k.Assignment(name)], revisions[k.Status(name)]
		into[name] = n
	}
	return nil
}

// pages reads nodes out of all keys of the environment, at one revision. For most of its nodes, these are a quarter of the requests.
func (s *Campaigns) pages(ctx context.Context, k etcd.EnvKeys, names []string, into map[string]rollout.Node) error {
	revision, err := s.db.Read(ctx, map[string]int64{}, etcd.Point{Key: k.Gate(), Read: func(*etcd.KV) error { return nil }})
	at := clientv3.WithRev(revision)
	for _, name := range names {
		into[name] = rollout.Node{}
	}
	edit := func(rest string, set func(*rollout.Node)) {
		name := etcd.Unescape(rest)
		if n, ok := into[name]; ok {
			set(&n)
			into[name] = n
		}
	}
	var hosts, assigned []string
	if err == nil {
		hosts, err = etcd.Collect(ctx, s.db, k.Hosts(), func(rest string, h model.Host, revision int64) {
			edit(rest, func(n *rollout.Node) { n.Host, n.HostAt = &h, revision })
		}, at)
	}
	if err == nil {
		assigned, err = etcd.Collect(ctx, s.db, k.Assignment(""), func(rest string, a model.Assignment, revision int64) {
			edit(rest, func(n *rollout.Node) { n.Assigned, n.AssignedAt = &a, revision })
		}, at)
	}
	if err == nil { // what a node wrote must not stop the others
		_, err = etcd.Collect(ctx, s.db, k.Statuses(), func(rest string, st model.Status, revision int64) {
			edit(rest, func(n *rollout.Node) { n.Status, n.StatusAt = &st, revision })
		}, at)
	}
	if damaged := append(hosts, assigned...); err == nil && len(damaged) > 0 {
		err = errors.New(damaged[0])
	}
	return err
}

// replaced marks the nodes without a host entry whose machine an apply replaces, or retires.
func (s *Campaigns) replaced(ctx context.Context, k etcd.EnvKeys, away Away, nodes map[string]rollout.Node) error {
	var absent []string
	for name, n := range nodes {
		if n.Host == nil {
			absent = append(absent, name)
		}
	}
	slices.Sort(absent)
	for part := range slices.Chunk(absent, nodesInTxn) {
		points := []etcd.Point{}
		for _, name := range part {
			points = append(points, etcd.Point{Key: k.MachineRecord(name), Read: func(kv *etcd.KV) (err error) {
				n := nodes[name]
				n.Replaced, err = away(kv)
				nodes[name] = n
				return err
			}})
		}
		if _, err := s.db.Read(ctx, map[string]int64{}, points...); err != nil {
			return err
		}
	}
	return nil
}

// look completes what was read of a node: its view, and what it wants if the campaign assigns it.
func (c *Campaign) look(f fleet.FleetState, name string, n rollout.Node, now time.Time) rollout.Node {
	role := ""
	if n.Host != nil {
		role = n.Host.Role
	}
	d := f.Desires.For(role, name)
	d.Host, d.Assigned = n.Host, n.Assigned
	if l, ok := f.Lockouts[name]; ok && (n.Status == nil || !n.Status.Ends(l)) {
		d.LockedOut = &l
	}
	d.Holds = f.HoldsOf(role, name)
	n.View = model.Look(n.Status, d, now)
	d.Assigned = &model.Assignment{Target: c.Plan.Target, Epoch: d.Gate.Epoch}
	n.Wanted = d.Wanted()
	return n
}

// candidates lists the registered nodes, with the places that the campaign's policy limits.
func (s *Campaigns) candidates(ctx context.Context, ref model.Ref, c *Campaign) ([]rollout.Candidate, error) {
	hosts, err := s.fleet.Hosts(ctx, ref)
	if err != nil {
		return nil, err
	}
	all := Candidates(hosts, c.Desires, c.Plan)
	limits := c.Plan.Policy.Limits()
	if len(limits) == 0 {
		return all, nil
	}
	e, _, err := specs.In(s.db).Spec(ctx, ref)
	if err != nil {
		return nil, err
	}
	_, err = s.Place(ctx, ref, e, limits, all)
	return all, err
}

// Candidates lists the nodes of a host list. Those that a campaign of a role, a target and an agent does not reach are excluded: a
// node with a release of its own takes data, and no release.
func Candidates(hosts map[string]model.Host, d targets.Desires, p rollout.Plan) []rollout.Candidate {
	all, scope := []rollout.Candidate{}, etcd.Scope{Role: p.Role}
	for name, h := range hosts {
		excluded := p.Target.Release != "" && !d.Reaches(scope, h.Role, name) || p.Agent.Version != "" && !d.Agents.Reaches(scope, h.Role, name)
		all = append(all, rollout.Candidate{Node: name, Role: h.Role, Machine: h.MachineID, Excluded: excluded})
	}
	return all
}

// maxPlace limits the characters of a value in a place: nodes choose their facts.
const maxPlace = 100

// Place sets the places of candidates: their values of attributes of the environment, and of published facts that it trusts, by their
// paths. It returns the names of which no candidate has a value.
func (s *Campaigns) Place(ctx context.Context, ref model.Ref, e *environments.Environment, limits []string, candidates []rollout.Candidate) (unknown []string, err error) {
	var paths []string
	found := map[string]bool{}
	at := map[string]*rollout.Candidate{}
	place := func(c *rollout.Candidate, name, value string) {
		if value != "" {
			c.Places, found[name] = append(c.Places, name+"="+value), true
		}
	}
	for i := range candidates {
		at[candidates[i].Node] = &candidates[i]
	}
	for _, name := range limits {
		switch {
		case e == nil:
		case e.HasAttribute(name):
			for _, c := range at {
				place(c, name, e.AttributeOf(c.Role, c.Node, name))
			}
		case slices.Contains(e.Rollout.TrustedFacts, name):
			paths = append(paths, name)
		}
	}
	if len(paths) > 0 {
		err = s.fleet.Facts(ctx, ref, func(node string, b []byte) {
			for _, path := range paths {
				if raw := facts.At(b, path); raw != nil && at[node] != nil && string(raw) != "null" {
					place(at[node], path, clip.Line(facts.Text(raw), maxPlace))
				}
			}
		})
	}
	return slices.DeleteFunc(slices.Clone(limits), func(name string) bool { return found[name] }), err
}
