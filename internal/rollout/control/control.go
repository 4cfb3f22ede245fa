// Package control is the loop around staged rollouts: it reads a campaign, lets package rollout decide on the next step,
// and carries the step out. Any number of programs may do so at once: each step is guarded by what it was decided from.
//
// It must never decide, and must never keep more than the plan, which does not change.
package control

import (
	"context"
	"errors"
	"time"

	"pulley/environments"
	"pulley/internal/rollout"
	"pulley/internal/store"
)

// Controller advances the campaigns of one environment. It is not safe for concurrent use.
type Controller struct {
	Store *store.Store
	Ref   environments.Ref
	Now   func() time.Time

	plan *rollout.Plan // of the campaign that was read last
}

// Last returns the plan of the newest campaign that Advance saw; nil if there was none.
func (c *Controller) Last() *rollout.Plan { return c.plan }

// maxSteps bounds the steps of one call: a batch takes two.
const maxSteps = 50

// Advance takes steps until the campaign waits for something, and returns that wait. Without a campaign, it returns the
// zero Wait after one read. A step that another controller took first is no error.
func (c *Controller) Advance(ctx context.Context) (rollout.Wait, error) {
	for range maxSteps {
		wait, done, err := c.step(ctx)
		if errors.Is(err, store.ErrConflict) {
			continue // it is read again
		}
		if done || err != nil {
			return wait, err
		}
	}
	return rollout.Wait{Code: rollout.WaitRead}, nil
}

func (c *Controller) step(ctx context.Context) (wait rollout.Wait, done bool, err error) {
	campaign, err := c.Store.Campaigns.Open(ctx, c.Ref, c.plan)
	if err != nil || campaign == nil {
		return wait, true, err
	}
	c.plan = &campaign.Plan
	now := c.Now()
	o, err := c.Store.Campaigns.Observe(ctx, c.Ref, campaign, rollout.NeedsOf(campaign.Plan, campaign.State), now)
	if err != nil {
		return wait, true, err
	}
	step := rollout.Advance(campaign.Plan, campaign.State, o, now)
	if step.State == nil && len(step.Assign)+len(step.Withdraw) == 0 {
		return step.Wait, true, nil
	}
	return step.Wait, false, c.Store.Campaigns.Take(ctx, c.Ref, campaign, o, step, now)
}
