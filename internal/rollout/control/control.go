// Package control is the loop around staged rollouts: it reads a campaign, lets package rollout decide on the next step,
// and carries the step out. Any number of programs may do so at once: each step is guarded by what it was decided from.
//
// It must never decide, and must never keep more than the plan, which does not change, and what to read first.
package control

import (
	"context"
	"errors"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/rollout"
	"pulley/internal/store"
)

// Controller advances the campaigns of one environment. It is not safe for concurrent use.
type Controller struct {
	Store *store.Store
	Ref   environments.Ref
	Now   func() time.Time
	Ask   func(ctx context.Context, p rollout.Plan, gates []string) map[string]rollout.Answer // nil: no gate is defined

	asking  *question
	plan    *rollout.Plan // of the campaign that was read last
	blocked []string      // nodes for which its last step waits
	reached agent.Epoch   // the highest of the gate; a lower one comes from a backup
	renewed time.Time     // when the lease of the job was renewed
}

// question is a question to the gates of a campaign, since its State.Asked.
type question struct {
	id      string
	since   time.Time
	at      time.Time
	answers chan map[string]rollout.Answer
}

// askEvery is the time between two questions, and answersWithin how long a step waits for the answers before the next one does.
// renewEvery is the time between two renewals of the lease of a job.
const (
	renewEvery    = time.Minute
	askEvery      = 10 * time.Second
	answersWithin = time.Second
)

// ask returns the answers of the gates, once for each question; nil if they did not answer yet. A gate may take minutes, and must
// not delay other campaigns.
func (c *Controller) ask(ctx context.Context, p rollout.Plan, s rollout.State, gates []string, now time.Time) map[string]rollout.Answer {
	q := c.asking
	if q == nil || q.id != p.ID || !q.since.Equal(s.Asked) || q.answers == nil && now.Sub(q.at) >= askEvery {
		q = &question{p.ID, s.Asked, now, make(chan map[string]rollout.Answer, 1)}
		c.asking = q
		ask := c.Ask
		go func() {
			if ask == nil {
				undefined := map[string]rollout.Answer{}
				for _, gate := range gates {
					undefined[gate] = rollout.Answer{Code: rollout.GateUndefined, At: now.UTC()}
				}
				q.answers <- undefined
				return
			}
			q.answers <- ask(ctx, p, gates)
		}()
	}
	if q.answers == nil {
		return nil
	}
	select {
	case answers := <-q.answers:
		q.answers = nil
		return answers
	case <-time.After(answersWithin):
	case <-ctx.Done():
	}
	return nil
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
	campaign, epoch, err := c.Store.Campaigns.Open(ctx, c.Ref, c.plan)
	c.reached = max(c.reached, epoch)
	if err != nil || campaign == nil {
		return wait, true, err
	}
	c.plan = &campaign.Plan
	now := c.Now()
	step, o, err := rollout.Decide(campaign.Plan, campaign.State, now, func(needs rollout.Needs) (rollout.Observed, error) {
		o, err := c.Store.Campaigns.Observe(ctx, c.Ref, campaign, needs, now)
		o.Reached = c.reached
		if err == nil && len(needs.Gates) > 0 && (campaign.Gate.State == agent.GateOpen || campaign.Gate.State == "") {
			o.Answers = c.ask(ctx, campaign.Plan, campaign.State, needs.Gates, now)
		}
		return o, err
	}, c.blocked...)
	c.blocked = step.Blocking
	if err == nil && !step.Empty() {
		err = c.Store.Campaigns.Take(ctx, c.Ref, campaign, o, step, now)
	}
	if err == nil || errors.Is(err, store.ErrConflict) {
		err = errors.Join(err, c.renew(ctx, campaign.Plan, now))
	}
	return step.Wait, step.Empty(), err
}

// renew renews the lease of a job after a step that succeeded: a job that no serve can advance must end, or its nodes would wait for ever.
func (c *Controller) renew(ctx context.Context, p rollout.Plan, now time.Time) error {
	if p.Kind != rollout.Run || now.Sub(c.renewed).Abs() < renewEvery {
		return nil
	}
	err := c.Store.Campaigns.KeepAlive(ctx, c.Ref)
	if err == nil {
		c.renewed = now
	}
	return err
}
