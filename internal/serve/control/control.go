// Package control is the loop around staged rollouts: it reads a campaign, lets package rollout decide on the next step,
// and carries the step out. Any number of programs may do so at once: each step is guarded by what it was decided from.
//
// It must never decide, and must never keep more than the plan, which does not change, and what to read first.
package control

import (
	"context"
	"errors"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// Controller advances the campaigns of one environment. It is not safe for concurrent use.
type Controller struct {
	DB  *etcd.DB
	Ref model.Ref
	Now func() time.Time
	Ask func(ctx context.Context, p rollout.Plan, gates []string) map[string]rollout.Answer // nil: no gate is defined

	asking  map[string]*question // by gate
	plan    *rollout.Plan        // of the campaign that was read last
	blocked []string             // nodes for which its last step waits
	reached journal.Gated        // the highest epoch of the gate; a lower one comes from a backup, unless the environment was made again since
	renewed time.Time            // when the lease of the job was renewed
}

// question is a question to one gate.
type question struct {
	asked
	at      time.Time
	answers chan map[string]rollout.Answer
	answer  *rollout.Answer // nil: none yet
}

// asked is what gates are asked for: a batch of a campaign, since its State.Asked. Instants are whole seconds, in which another batch can follow.
type asked struct {
	nonce        string
	group, batch int
	since        time.Time
}

// askEvery is the time between two questions to a gate that does not pass, and answersWithin how long a step waits for the answers before the
// next one does. renewEvery is the time between two renewals of the lease of a job.
const (
	renewEvery    = time.Minute
	askEvery      = 10 * time.Second
	answersWithin = time.Second
)

// ask returns the answers of the gates, without those that did not answer yet. A gate may take minutes, and must not delay other gates or
// campaigns. Each one is asked again when its answer is too old: etcd, or another gate, may have taken longer than an answer lasts.
func (c *Controller) ask(ctx context.Context, p rollout.Plan, s rollout.State, gates []string) map[string]rollout.Answer {
	within, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	if c.asking == nil {
		c.asking = map[string]*question{}
	}
	answers, of := map[string]rollout.Answer{}, asked{p.Nonce, s.Group, s.Batch, s.Asked.UTC()}
	for _, gate := range gates { // all are asked before the first answer is awaited
		if q := c.asking[gate]; q == nil || q.asked != of || q.ended(c.Now()) {
			c.asking[gate] = c.question(ctx, p, of, gate)
		}
	}
	for _, gate := range gates {
		q := c.asking[gate]
		if q.answer == nil {
			select {
			case all := <-q.answers:
				answer := all[gate]
				q.answer = &answer
			case <-within.Done():
			}
		}
		if q.answer != nil && !q.answer.Outdated(c.Now()) {
			answers[gate] = *q.answer
		}
	}
	return answers
}

// question asks a gate.
func (c *Controller) question(ctx context.Context, p rollout.Plan, of asked, gate string) *question {
	q := &question{asked: of, at: c.Now(), answers: make(chan map[string]rollout.Answer, 1)}
	if ask := c.Ask; ask != nil {
		go func() { q.answers <- ask(ctx, p, []string{gate}) }()
	} else {
		q.answers <- map[string]rollout.Answer{gate: {Code: rollout.GateUndefined, At: c.Now().UTC()}}
	}
	return q
}

// ended reports whether a gate has to be asked again.
func (q *question) ended(now time.Time) bool {
	return q.answer != nil && (q.answer.Outdated(now) || q.answer.Code != rollout.GatePassed && now.Sub(q.at) >= askEvery)
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
		if errors.Is(err, etcd.ErrConflict) {
			continue // it is read again
		}
		if done || err != nil {
			return wait, err
		}
	}
	return rollout.Wait{Code: rollout.WaitRead}, nil
}

func (c *Controller) step(ctx context.Context) (wait rollout.Wait, done bool, err error) {
	campaign, gate, err := journal.In(c.DB).Open(ctx, c.Ref, c.plan)
	if gate.Epoch > c.reached.Epoch || gate.Since > c.reached.Since {
		c.reached = gate
	}
	if err != nil || campaign == nil {
		return wait, true, err
	}
	c.plan = &campaign.Plan
	now := c.Now()
	step, o, err := rollout.Decide(campaign.Plan, campaign.State, now, func(needs rollout.Needs) (rollout.Observed, error) {
		o, err := journal.In(c.DB).Observe(ctx, c.Ref, campaign, needs, records.Away, now)
		o.Reached = c.reached.Epoch
		switch {
		case len(needs.Gates) == 0:
			c.asking = nil // what passed decides once
		case err == nil && (campaign.Gate.State == model.GateOpen || campaign.Gate.State == ""):
			o.Answers = c.ask(ctx, campaign.Plan, campaign.State, needs.Gates)
		}
		return o, err
	}, c.blocked...)
	c.blocked = step.Blocking
	if err == nil && !step.Empty() {
		err = journal.In(c.DB).Take(ctx, c.Ref, campaign, o, step, now)
	}
	if err == nil || errors.Is(err, etcd.ErrConflict) {
		err = errors.Join(err, c.renew(ctx, campaign.Plan, now))
	}
	return step.Wait, step.Empty(), err
}

// renew renews the lease of a job after a step that succeeded: a job that no serve can advance must end, or its nodes would wait for ever.
func (c *Controller) renew(ctx context.Context, p rollout.Plan, now time.Time) error {
	if p.Kind != rollout.Run || now.Sub(c.renewed).Abs() < renewEvery {
		return nil
	}
	err := journal.In(c.DB).KeepAlive(ctx, c.Ref)
	if err == nil {
		c.renewed = now
	}
	return err
}
