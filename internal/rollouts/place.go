package rollouts

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// PlaceInRollout returns a sentence about the place of a node in the rollout in progress, or in that which the last change reverted; ""
// without one.
func PlaceInRollout(ctx context.Context, s *etcd.DB, ref model.Ref, gate model.Gate, node string, now time.Time) (string, error) {
	if gate.Rollout == "" {
		return placeAfterRevert(ctx, s, ref, gate, node)
	}
	r, c, err := lookAtRollout(ctx, s, ref, gate.Rollout, nil, now)
	if err != nil {
		return "", err
	}
	if r.Kind == rollout.Run {
		return fmt.Sprintf("job %s: %s", r.ID, placeInJob(r, c, node)), nil
	}
	return fmt.Sprintf("%s of %s: %s", r.ID, r.What(), place(r, c, node, now)), nil
}

func place(r Rollout, c *journal.Campaign, node string, now time.Time) string {
	for _, m := range r.Members {
		if m.Node != node {
			continue
		}
		switch m.State {
		case NodeFailed, NodeSkipped, NodeAgain:
			return m.Words()
		case RolloutNodeState(rollout.Ordered):
			return "it may take the target now"
		case RolloutNodeState(rollout.Healthy):
			if until := m.Since.Add(time.Duration(c.Plan.Policy.Settle)); until.After(now) {
				return "it took the target, and must stay healthy until " + until.UTC().Format(time.RFC3339)
			}
			return "it took the target, stayed healthy, and must report once more"
		case RolloutNodeState(rollout.Withdrawing):
			return "its order is being withdrawn"
		}
		return "it began, and did not answer before its deadline; it keeps its place in the batch"
	}
	if slices.Contains(r.Excluded, node) {
		return "not in it: it has a desired version of its own, or of its role"
	}
	if slices.Contains(r.Daemons, node) {
		return "not in it: Puppet's own daemon runs on the machine"
	}
	for i, g := range slices.Backward(c.State.Groups(c.Plan)) { // a late group may have a new machine of the name
		at := slices.IndexFunc(g.Nodes, func(m rollout.Member) bool { return m.Node == node })
		switch {
		case at < 0:
			continue
		case i < c.State.Group || i == c.State.Group && at < c.State.Next:
			return "it took the target"
		}
		return beforeItsTurn(r, c, i, at/max(g.Batch, 1), now)
	}
	switch {
	case r.Role != "":
		return fmt.Sprintf("not in it: it is a rollout of role %s; nodes of this role that registered after the start take the target after the others", r.Role)
	case c.State.Listed:
		return "not in it: it registered after all others began, and takes what is desired"
	}
	return "not in it: it registered after the start, and takes the target after the others"
}

// beforeItsTurn returns what a node of a batch waits for.
func beforeItsTurn(r Rollout, c *journal.Campaign, group, batch int, now time.Time) string {
	named := func(group, batch int) (string, int) {
		g, ok := c.State.InOrder(c.Plan, group)
		if !ok {
			return "the last batch", 0
		}
		return fmt.Sprintf("batch %d of %d of %s", batch+1, g.Batches(), g.Name()), g.Batches()
	}
	own, _ := named(group, batch)
	present, batches := named(c.State.Group, c.State.Batch)
	var wait rollout.Wait
	if r.Wait != nil {
		wait = *r.Wait
	}
	text := "; " + wait.Sentence()
	if r.Wait == nil {
		text = ""
	}
	next := group == c.State.Group && batch == c.State.Batch+1 || group == c.State.Group+1 && batch == 0 && c.State.Batch == batches-1
	again := len(c.State.Again) > 0
	for _, slot := range c.State.Slots {
		again = again || slot.Again
	}
	then := ""
	if len(c.Plan.Policy.Gates) > 0 {
		then = " and the gates pass"
	}
	g, _ := c.State.Current(c.Plan)
	if promote := c.Plan.Policy.Promote; !c.State.Approved && (promote == rollout.Batches || promote == rollout.Manual && g.Kind == rollout.Canaries) {
		then += " and an operator approves it"
	}
	switch {
	case again:
		return "waiting for " + own + "; nodes that failed are ordered again before" + text
	case group == c.State.Group && batch == c.State.Batch && (wait.Code == rollout.WaitAnswers || wait.Code == rollout.WaitApproval):
		return "waiting for " + own + text
	case group == c.State.Group && batch == c.State.Batch:
		return "in " + own + ", which is in progress" + text
	case next && wait.Code == rollout.WaitSettle && wait.Until.After(now):
		return fmt.Sprintf("waiting for %s, which opens when %s stayed healthy for %s%s", own, wait.Names(), more(wait.Until.Sub(now)), then)
	case next && wait.Code == rollout.WaitSettle:
		return fmt.Sprintf("waiting for %s, which opens when %s reported once more%s", own, wait.Names(), then)
	case next && wait.Code == rollout.WaitNodes:
		return fmt.Sprintf("waiting for %s, which opens when %s ended%s%s", own, wait.Names(), then, text)
	}
	return "waiting for " + own + "; the rollout is at " + present + text
}

// more renders the rest of a time: "2 more minutes".
func more(d time.Duration) string {
	n, unit := int((d+time.Second-1)/time.Second), "second"
	if n > 90 {
		n, unit = (n+59)/60, "minute"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d more %s", n, unit)
}
