package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/rollout"
	"pulley/internal/store"
)

// JobOrder is how a job runs its layers of nodes.
type JobOrder struct {
	Batch       rollout.Share // nodes of a layer at a time; "": all
	Concurrency int           // nodes at a time, also within a batch; 0: all
	Deadline    time.Duration // for one node; 0: an hour
	KeepWaiting time.Duration // hold the nodes that fail for this long; 0: do not
	Noop        bool          // the runs make no changes
}

// errNoJob means that an environment has no job in progress.
var errNoJob = errors.New("no job is in progress")

// PlanJob returns the registered nodes of an environment in groups: the nodes of a role, after those of the roles that it needs.
func PlanJob(ctx context.Context, s *store.Store, ref environments.Ref) (layers [][]rollout.Member, err error) {
	f, err := Find(ctx, s, ref, Scope{})
	if err != nil {
		return nil, err
	}
	roles := map[string][]rollout.Member{}
	for _, node := range slices.SortedFunc(maps.Keys(f.Hosts), fleet.CompareNatural) {
		h := f.Hosts[node]
		roles[h.Role] = append(roles[h.Role], rollout.Member{Node: node, Machine: h.MachineID})
	}
	for _, names := range append(f.Spec.Layers(), nil) { // nodes of roles that the file does not have come last
		var nodes []rollout.Member
		if names == nil {
			names = slices.Sorted(maps.Keys(roles))
		}
		for _, role := range names {
			nodes = append(nodes, roles[role]...)
			delete(roles, role)
		}
		if len(nodes) > 0 {
			slices.SortFunc(nodes, func(a, b rollout.Member) int { return fleet.CompareNatural(a.Node, b.Node) })
			layers = append(layers, nodes)
		}
	}
	return layers, nil
}

// StartJob starts a job over layers of nodes. It refuses nodes that could not run now. From then on `pulley serve` lets all of them wait,
// and runs layer after layer.
func StartJob(ctx context.Context, s *store.Store, ref environments.Ref, layers [][]rollout.Member, o JobOrder, a Author) (r Rollout, err error) {
	err = Retry(func() error {
		f, err := s.Fleet.State(ctx, ref)
		if err != nil {
			return err
		}
		if refused := notReady(f, layers, a.At); len(refused) > 0 {
			return fmt.Errorf("cannot start a job in %s: %s\nrepair, enable or remove them, or select other nodes", ref, strings.Join(refused, "\n"))
		}
		p, err := rollout.MakeJob(rollout.Order{
			Policy: rollout.Policy{Batch: o.Batch, Concurrency: o.Concurrency, Deadline: environments.Duration(o.Deadline), KeepWaiting: environments.Duration(o.KeepWaiting)},
			Noop:   o.Noop, By: a.By, Why: a.Why, At: a.At,
		}, layers)
		if errors.Is(err, rollout.ErrEmpty) {
			err = errors.New("the selection has no registered node")
		}
		if err != nil {
			return fmt.Errorf("cannot start a job in %s: %w", ref, err)
		}
		if !a.DryRun {
			if p, err = s.Campaigns.Start(ctx, ref, f.Desires, p, a.store()); err != nil {
				return err
			}
		}
		r = describeRollout(p, rollout.Start(a.At), agent.Gate{Rollout: p.ID, State: agent.GateOpen})
		return nil
	})
	return r, err
}

// notReady lists the nodes that could not run now, with their reasons. A node in a run is ready: the job waits for its end.
func notReady(f store.FleetState, layers [][]rollout.Member, now time.Time) (refused []string) {
	for _, nodes := range layers {
		for _, m := range nodes {
			if _, registered := f.Hosts[m.Node]; !registered {
				refused = append(refused, m.Node+" is not registered")
				continue
			}
			v := viewOf(f, m.Node, now)
			if v.Wanted.IsZero() || slices.Contains([]agent.NodeState{agent.Silent, agent.Held, agent.Missing}, v.State) {
				refused = append(refused, fmt.Sprintf("%s is %s: %s", m.Node, v.State, v.Sentence()))
			}
		}
	}
	return refused
}

// viewOf is the state of a registered node.
func viewOf(f store.FleetState, node string, now time.Time) agent.View {
	var last *agent.Status
	if st, said := f.Statuses[node]; said {
		last = &st
	}
	return agent.Look(last, f.Desired(f.Hosts[node].Role, node), now)
}

// AbortJob ends the job in progress: the nodes that did not begin do not run, and nobody waits any longer.
func AbortJob(ctx context.Context, s *store.Store, ref environments.Ref, a Author) (r Rollout, err error) {
	err = Retry(func() error {
		c, _, err := s.Campaigns.Open(ctx, ref, nil)
		switch {
		case err != nil:
			return err
		case c == nil || c.Plan.Kind != rollout.Run:
			return fmt.Errorf("%w in %s\n`pulley job list -e %s` lists earlier ones", errNoJob, ref, ref)
		}
		state := c.State.Abort(a.At, a.By, agent.Prose(a.Why))
		if !a.DryRun {
			if state, err = s.Campaigns.Abort(ctx, ref, c, a.store()); err != nil {
				return err
			}
		}
		r = describeRollout(c.Plan, state, agent.Gate{})
		return nil
	})
	return r, err
}

// RestOfJob returns the layers of the nodes of an ended job that failed or never ran, and how the job ran its layers. "" is the newest.
func RestOfJob(ctx context.Context, s *store.Store, ref environments.Ref, id string) (layers [][]rollout.Member, o JobOrder, err error) {
	r, err := LookAtRollout(ctx, s, ref, rollout.Run, id, time.Now())
	if err != nil {
		return nil, o, err
	}
	c, err := s.Campaigns.Get(ctx, ref, r.ID, nil)
	switch {
	case err != nil:
		return nil, o, err
	case c.State.Phase == rollout.Advancing && c.Gate.Rollout == r.ID:
		return nil, o, fmt.Errorf("cannot repeat job %s of %s: it is in progress\n`pulley job watch -e %s` shows it", r.ID, ref, ref)
	}
	policy := c.Plan.Policy
	o = JobOrder{Batch: policy.Batch, Concurrency: policy.Concurrency, Deadline: time.Duration(policy.Deadline), KeepWaiting: time.Duration(policy.KeepWaiting), Noop: c.Plan.Noop}
	for _, g := range c.Plan.Groups {
		rest := slices.DeleteFunc(slices.Clone(g.Nodes), func(m rollout.Member) bool { return r.took[m.Node] })
		if len(rest) > 0 {
			layers = append(layers, rest)
		}
	}
	if len(layers) == 0 {
		err = fmt.Errorf("cannot repeat job %s of %s: all of its nodes ran\n`pulley job run -e %s` runs them again", r.ID, ref, ref)
	}
	return layers, o, err
}

// placeInJob tells where a node stands in the job in progress.
func placeInJob(r Rollout, c *store.Campaign, node string) string {
	for _, m := range r.Members {
		if m.Node == node {
			switch m.State {
			case NodeFailed, NodeSkipped:
				return m.Words()
			case RolloutNodeState(rollout.Ordered):
				return "it may run now"
			case RolloutNodeState(rollout.Withdrawing):
				return "its order is being withdrawn"
			}
			return "it began, and did not answer before its deadline"
		}
	}
	for i, g := range c.Plan.Groups {
		at := slices.IndexFunc(g.Nodes, func(m rollout.Member) bool { return m.Node == node })
		switch {
		case at < 0:
			continue
		case r.took[node]:
			return "it ran, and waits until the job ends"
		}
		text := fmt.Sprintf("it waits for group %d of %d, batch %d of %d", i+1, len(c.Plan.Groups), at/max(g.Batch, 1)+1, g.Batches())
		if r.Wait != nil {
			text += "; " + r.Wait.Sentence()
		}
		return text
	}
	return "not in it: it goes on by itself"
}
