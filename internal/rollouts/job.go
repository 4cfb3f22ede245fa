package rollouts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/environments/applications"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// JobOrder is how a job runs its layers of nodes.
type JobOrder struct {
	Batch       rollout.Share // nodes of a layer at a time; "": all
	Concurrency int           // nodes at a time, also within a batch; 0: rollout.JobConcurrency
	Deadline    time.Duration // for one node; 0: an hour
	KeepWaiting time.Duration // hold the nodes that fail for this long; 0: do not
	Noop        bool          // the runs make no changes
	SkipOutside bool          // also if what the nodes consume from other nodes is not healthy
}

// errNoJob means that an environment has no job in progress.
var errNoJob = errors.New("no job is in progress")

// StartJob starts a planned job. It refuses nodes that could not run now. From then on `pulley serve` lets all of them wait,
// and runs group after group.
func StartJob(ctx context.Context, s *etcd.DB, ref model.Ref, p JobPlan, o JobOrder, a promotion.Author) (r Rollout, err error) {
	err = promotion.Retry(func() error {
		f, err := fleet.In(s).State(ctx, ref)
		if err != nil {
			return err
		}
		if causes := p.refused(f, o, a.At); len(causes) > 0 {
			return fmt.Errorf("cannot start a job in %s: %s", ref, strings.Join(causes, "\n"))
		}
		made, err := rollout.MakeJob(rollout.Order{
			Policy: rollout.Policy{Batch: o.Batch, Concurrency: o.Concurrency, Deadline: model.Duration(o.Deadline), KeepWaiting: model.Duration(o.KeepWaiting)},
			Noop:   o.Noop, By: a.By, Why: a.Why, At: a.At,
		}, p.layers())
		if errors.Is(err, rollout.ErrEmpty) {
			err = errors.New("the selection has no registered node")
		}
		if err != nil {
			return fmt.Errorf("cannot start a job in %s: %w", ref, err)
		}
		if !a.DryRun {
			if made, err = journal.In(s).Start(ctx, ref, f.Desires, made, a.Signing()); err != nil {
				return err
			}
		}
		r = describeRollout(made, rollout.Start(a.At), model.Gate{Rollout: made.ID, State: model.GateOpen})
		return nil
	})
	return r, err
}

// refused returns why a job cannot start: nodes that could not run now, and producers outside of it that are not healthy.
func (p JobPlan) refused(f fleet.FleetState, o JobOrder, now time.Time) (causes []string) {
	for _, n := range notReady(f, p, now) {
		causes = append(causes, fmt.Sprintf("%s is %s: %s", n.Node, n.State, n.Why))
	}
	remedy := "repair, enable or remove them, or select other nodes"
	for _, need := range p.Outside {
		if need.State = stateOf(f, need.On, now); !need.Healthy() && !o.SkipOutside {
			causes = append(causes, need.Sentence())
			remedy = "select these nodes as well, repair them, or give --skip-outside-check"
		}
	}
	if !o.SkipOutside && len(p.Left) > 0 {
		causes = append(causes, fmt.Sprintf("nodes of earlier groups did not run, and are not selected: %s", strings.Join(p.Left, ", ")))
		remedy = "select these nodes as well, or give --skip-outside-check"
	}
	if len(causes) > 0 {
		causes = append(causes, remedy)
	}
	return causes
}

// viewOf is the state of a registered node.
func viewOf(f fleet.FleetState, node string, now time.Time) model.View {
	var last *model.Status
	if st, said := f.Statuses[node]; said {
		last = &st
	}
	return model.Look(last, f.Desired(f.Hosts[node].Role, node), now)
}

// AbortJob ends the job in progress: the nodes that did not begin do not run, and nobody waits any longer.
func AbortJob(ctx context.Context, s *etcd.DB, ref model.Ref, a promotion.Author) (r Rollout, err error) {
	err = promotion.Retry(func() error {
		c, _, err := journal.In(s).Open(ctx, ref, nil)
		switch {
		case err != nil:
			return err
		case c == nil || c.Plan.Kind != rollout.Run:
			return fmt.Errorf("%w in %s\n`pulley job list -e %s` lists earlier ones", errNoJob, ref, ref)
		}
		state := c.State.Abort(a.At, a.By, model.Prose(a.Why))
		if !a.DryRun {
			if state, err = journal.In(s).Abort(ctx, ref, c, a.Signing()); err != nil {
				return err
			}
		}
		r = describeRollout(c.Plan, state, model.Gate{})
		return nil
	})
	return r, err
}

// RestOfJob plans a job over the selected nodes of an ended one that failed or never ran, and returns how that job ran its groups. "" is
// the newest. skipOutside is that of the new job.
func RestOfJob(ctx context.Context, s *etcd.DB, ref model.Ref, id string, sel JobSelection, skipOutside bool, now time.Time) (p JobPlan, o JobOrder, err error) {
	r, err := LookAtRollout(ctx, s, ref, rollout.Run, id, now)
	if err != nil {
		return p, o, err
	}
	c, err := journal.In(s).Get(ctx, ref, r.ID, nil)
	switch {
	case err != nil:
		return p, o, err
	case c.State.Phase == rollout.Advancing && c.Gate.Rollout == r.ID:
		return p, o, fmt.Errorf("cannot repeat job %s of %s: it is in progress\n`pulley job watch -e %s` shows it", r.ID, ref, ref)
	}
	policy := c.Plan.Policy
	o = JobOrder{Batch: policy.Batch, Concurrency: policy.Concurrency, Deadline: time.Duration(policy.Deadline), KeepWaiting: time.Duration(policy.KeepWaiting), Noop: c.Plan.Noop, SkipOutside: skipOutside}
	f, err := fleet.In(s).State(ctx, ref)
	if err == nil && f.Spec != nil {
		err = sel.Check(f.Spec, f.Known())
	}
	if err != nil {
		return p, o, err
	}
	if sel.Selection, p.Notes, err = fleet.Narrow(ctx, s, ref, f, sel.Selection, now); err != nil {
		return p, o, err
	}
	left, removed := []string{}, 0
	for _, g := range c.Plan.Groups {
		group := JobGroup{Number: len(p.Groups) + 1}
		before := left
		for _, m := range g.Nodes {
			switch _, registered := f.Hosts[m.Node]; {
			case r.took[m.Node]:
			case !registered:
				p.Notes, removed = append(p.Notes, m.Node+" is not registered any more: the job leaves it out"), removed+1
			case sel.Has(f.RoleOf(m.Node), m.Node) && sel.hasAny(m.Does):
				group.Nodes = append(group.Nodes, JobNode{Node: m.Node, machine: f.Hosts[m.Node].MachineID, Does: append([]applications.Name{}, m.Does...)})
			default:
				left = append(left, m.Node)
			}
		}
		if len(group.Nodes) > 0 {
			p.Groups, p.Left = append(p.Groups, group), before
		}
	}
	if p.Environment = ref.String(); len(p.Groups) > 0 {
		p.complete(f, now)
		if f.Spec != nil && !skipOutside {
			components, roles := f.Spec.Components(nodesByRole(f))
			if p.graph, err = applications.Make(components, lastOnes(roles, f)); err != nil {
				return p, o, fmt.Errorf("cannot repeat job %s of %s: %w\nor give --skip-outside-check: the job then does not check other nodes", r.ID, ref, unorderable(err))
			}
			p.needs(f, now)
		}
		err := p.readRuns(ctx, s, ref, f)
		p.Takes = p.takes(o)
		return p, o, err
	}
	switch {
	case len(left) > 0:
		return p, o, fmt.Errorf("cannot repeat job %s of %s: none of its nodes that failed or never ran is selected\n`pulley job show %[1]s -e %[2]s` shows them", r.ID, ref)
	case removed > 0:
		return p, o, fmt.Errorf("cannot repeat job %s of %s: its nodes that failed or never ran are not registered any more\n`pulley job run -e %[2]s` runs the others again", r.ID, ref)
	}
	return p, o, fmt.Errorf("cannot repeat job %s of %s: all of its nodes ran\n`pulley job run -e %s` runs them again", r.ID, ref, ref)
}

// placeInJob returns where a node stands in the job in progress.
func placeInJob(r Rollout, c *journal.Campaign, node string) string {
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
	return "not in it: it runs by its own schedule"
}
