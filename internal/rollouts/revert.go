package rollouts

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/promotion"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// Reverting is the revert of the rollout in progress.
type Reverting struct {
	Rollout Rollout
	Back    model.Target     // what is desired for the scope
	Agent   string           // version of the agent that is desired for the scope, of a rollout of the agent
	Moves   []promotion.Move // registered nodes that took the rollout's target, or may take it now
}

// PlanRevert returns the revert of the rollout in progress, also of a paused or aborted one.
func PlanRevert(ctx context.Context, s *etcd.DB, ref model.Ref) (Reverting, error) {
	_, _, r, err := planRevert(ctx, s, ref)
	return r, err
}

func planRevert(ctx context.Context, s *etcd.DB, ref model.Ref) (f fleet.FleetState, c *journal.Campaign, r Reverting, err error) {
	if c, _, err = journal.In(s).Open(ctx, ref, nil); err != nil {
		return f, nil, r, err
	}
	if c == nil {
		return f, nil, r, fmt.Errorf("%w\n`pulley rollback -e %s` takes a completed one back", noRollout(ref), ref)
	}
	if c.Plan.Kind != rollout.Take {
		return f, nil, r, isJob(ref, c.Plan.ID)
	}
	if f, err = fleet.In(s).State(ctx, ref); err != nil {
		return f, nil, r, err
	}
	r.Rollout, r.Back = describeRollout(c.Plan, c.State, c.Gate), c.Desires.Target(promotion.Scope{Role: c.Plan.Role})
	if r.Rollout.Agent != "" {
		r.Agent = c.Desires.Agents.For(c.Plan.Role, "").Version
	}
	for _, node := range slices.SortedFunc(maps.Keys(f.Hosts), fleet.CompareNatural) {
		h := f.Hosts[node]
		d := f.Desires.For(h.Role, node)
		back := d.Wanted()
		if a, assigned := f.Assigned[node]; assigned && a.Rollout == c.Plan.ID {
			d.Host, d.Assigned = &h, &a
			if d.Assignment() != nil {
				r.Moves = append(r.Moves, promotion.Move{Node: node, From: d.Wanted(), To: back, FromAgent: a.Agent.Version, ToAgent: d.Agent.Version})
			}
		}
	}
	return f, c, r, nil
}

// RevertRollout carries out a planned revert: the rollout ends, and each node takes what is desired for it. It refuses the revert of
// another rollout than the planned one.
func RevertRollout(ctx context.Context, s *etcd.DB, ref model.Ref, planned Reverting, a promotion.Author) (done promotion.Targets, err error) {
	err = promotion.Retry(func() error {
		f, c, r, err := planRevert(ctx, s, ref)
		if err != nil {
			return err
		}
		if c.Plan.ID != planned.Rollout.ID {
			return fmt.Errorf("cannot revert rollout %s of %s: it ended, and %s is in progress", planned.Rollout.ID, ref, c.Plan.ID)
		}
		if !a.Unsigned && a.Key == nil && promotion.Signers(f, promotion.Scope{Role: c.Plan.Role}) {
			permitted, err := journal.In(s).MayRevert(ctx, ref, c, a.At)
			if err != nil {
				return err
			}
			if !permitted {
				return promotion.UnsignedError("revert rollout "+c.Plan.ID, ref, "sign the permit to go back: give --sign-key FILE")
			}
		}
		made, err := journal.In(s).Revert(ctx, ref, c, a.Signing())
		done = promotion.Targets{Change: made, Made: true, Moves: r.Moves}
		if h, held := f.Holds[promotion.Scope{}]; held {
			done.Hold = &h
		}
		return err
	})
	return done, err
}

// AwaitingRevert returns the wait for the nodes that a revert brings back.
func AwaitingRevert(ref model.Ref, done promotion.Targets) fleet.Awaited {
	a := promotion.Awaiting(ref, done.Change)
	a.What = fmt.Sprintf("the revert of rollout %s in %s", done.Rollout.ID, ref)
	back := map[string]bool{}
	for _, m := range done.Moves {
		back[m.Node] = true
	}
	a.Has = func(f fleet.FleetState, n fleet.Node) bool {
		_, listed := f.Hosts[n.Node]
		return listed && back[n.Node]
	}
	if done.Rollout.Agent != "" {
		a.Settled = onAgent
	}
	return a
}

// placeAfterRevert tells where a node stood in the rollout that the last change reverted; "" if it was another change.
func placeAfterRevert(ctx context.Context, s *etcd.DB, ref model.Ref, gate model.Gate, node string) (string, error) {
	last, err := targets.In(s).Last(ctx, ref)
	if err != nil || last == nil || last.Kind != targets.Reverted || last.Epoch != gate.Epoch {
		return "", err
	}
	c, err := journal.In(s).Get(ctx, ref, last.Rollout.ID, nil)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s of %s: reverted by %s", last.Rollout.ID, last.Rollout.What(), last.By)
	if last.Why != "" {
		text += fmt.Sprintf(" (%s)", last.Why)
	}
	if c.State.Stop != nil {
		text += ", after " + c.State.Stop.Sentence()
	}
	if !begun(c, node) {
		return text + "; it never reached this node", nil
	}
	if f, failed := c.State.Failed[node]; failed {
		return text + "; here, " + f.Code.Words(), nil
	}
	return text + "; it had begun to take the target", nil
}

// begun reports whether a rollout ordered a node.
func begun(c *journal.Campaign, node string) bool {
	if _, skipped := c.State.Skipped[node]; skipped {
		return false
	}
	for i, g := range slices.Backward(c.State.Groups(c.Plan)) { // a late group may have a new machine of the name
		if at := slices.IndexFunc(g.Nodes, func(m rollout.Member) bool { return m.Node == node }); at >= 0 {
			return i < c.State.Group || i == c.State.Group && at < c.State.Next
		}
	}
	return false
}
