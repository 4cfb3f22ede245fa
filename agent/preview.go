package agent

import (
	"context"
	"errors"
	"time"

	"pulley/internal/failpoint"
	"pulley/internal/model"
	"pulley/internal/model/refusal"
)

// maxPreviewTries limits the runs of one order: the first may have ended the agent.
const maxPreviewTries = 2

// preview answers a preview order. It follows the node's own work, and never takes its place. It writes neither the
// status nor anything that a run depends on.
func (t *tick) preview(ctx context.Context) error {
	if t.opts.Noop || t.opts.Keep || t.opts.uncounted() || ctx.Err() != nil || t.decision.Action == "" || !t.desired.Known() {
		return nil
	}
	order, before := t.desired.PreviewOrder(t.MachineID), t.state.Preview
	switch {
	case order == nil && before == nil:
		return nil
	case order == nil:
		return t.forgetPreview(ctx)
	case before != nil && before.Order == order.ID && before.Answered:
		return nil
	}
	p := model.PreviewState{Order: order.ID, Tries: 1}
	if before != nil && before.Order == order.ID {
		p.Tries = before.Tries + 1
	}
	if err := t.keepPreview(&p); err != nil {
		return err
	}
	answer, err := t.answer(ctx, order, p.Tries)
	if err != nil || ctx.Err() != nil { // the next tick repeats it
		t.Log.Warn("cannot carry out a preview; the next tick repeats it", "order", order.ID, "err", errors.Join(err, ctx.Err()))
		return nil
	}
	b, err := model.EncodePreview(answer)
	if err != nil {
		return err
	}
	failpoint.Here("preview:shown")
	err = t.Control.AnswerPreview(ctx, t.Identity, t.desired, b)
	if err != nil && !errors.Is(err, model.ErrChanged) { // a withdrawn order needs no answer
		t.offline = t.offline || errors.Is(err, model.ErrUnreachable)
		t.Log.Warn("cannot answer a preview; the next tick repeats it", "order", order.ID, "err", err)
		return nil
	}
	failpoint.Here("preview:answered")
	p.Answered = true
	return t.keepPreview(&p)
}

// forgetPreview deletes the answer to an order that has ended.
func (t *tick) forgetPreview(ctx context.Context) error {
	if err := t.Control.AnswerPreview(ctx, t.Identity, t.desired, nil); err != nil {
		t.Log.Warn("cannot delete the answer to an ended preview; the next tick repeats it", "err", err)
		return nil
	}
	return t.keepPreview(nil)
}

func (t *tick) keepPreview(p *model.PreviewState) error {
	t.state.Preview = p
	return t.Memory.Save(t.state)
}

// answer carries out an order. An error means that the next tick must repeat it.
func (t *tick) answer(ctx context.Context, o *model.PreviewOrder, try int) (p model.Preview, err error) {
	began := t.Now()
	p = model.Preview{Order: o.ID, Node: t.Identity.Node, Target: o.Target.Overlay(t.decision.Wanted)}
	defer func() { p.Took = t.Now().Sub(began) }()
	switch t.decision.Reason {
	case model.ReasonDisabled, model.ReasonStopped, model.ReasonRetire, model.ReasonRetired, model.ReasonPuppetBlocked:
		p.Cause = t.decision.Cause.Clipped(model.MaxDetailInHead)
		return p, nil
	}
	if try > maxPreviewTries {
		p.Problem = model.Problem{Code: model.PreviewInterrupted, Times: maxPreviewTries}
		return p, nil
	}
	staged, err := t.Content.Stage(ctx, t.Identity, p.Target, Staging{Taking: true, Noop: true, Preview: true})
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused):
		r := model.Refusal{Target: p.Target, Error: *refused, At: began.UTC().Truncate(time.Second)}.Clipped(model.MaxDetailInHead)
		p.Cause = &model.Cause{Reason: model.ReasonRefused, Params: model.Params{Refusal: &r}}
		return p, nil
	case errors.Is(err, model.ErrUnreachable) || ctx.Err() != nil:
		return p, err
	case err != nil:
		p.Problem = model.Problem{Code: model.StageFailed, Release: p.Target.String(), Text: model.Prose(err.Error())}
		return p, nil
	}
	if staged.Release != nil {
		defer staged.Release()
	}
	seen, err := t.seenBy(ctx, p.Target.Tree)
	if err != nil {
		return p, err
	}
	job := model.Job{
		Identity: t.Identity, ID: model.PreviewRun, Target: p.Target, Tree: staged.Tree, Data: staged.Data, Hosts: seen.File,
		Noop: true, Preview: true, Deadline: o.Limit,
	}
	t.Log.Info("running Puppet for a preview", "order", o.ID, "release", p.Target.Release, "data", p.Target.Data)
	r, err := t.Puppet.Apply(ctx, job)
	if err != nil {
		r = model.Result{Problem: model.Problem{Code: model.PuppetNotStarted, Text: model.Prose(err.Error())}}
	}
	p.Problem, p.Counts, p.Changes, p.Left, p.NoDiffs = r.Problem, r.Counts, r.Resources, r.Left, r.NoDiffs
	return p, nil
}

// seenBy returns the data file with the nodes that the release in a tree shows to this node. It reads the host list only
// if this node never did: a newer list must not reach the node's own runs before its time.
func (t *tick) seenBy(ctx context.Context, tree string) (model.Seen, error) {
	if t.Hosts == nil {
		return model.Seen{}, nil
	}
	seen, err := t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
	if !errors.Is(err, model.ErrNoHosts) {
		return seen, err
	}
	if err := t.Hosts.FetchHosts(ctx, t.Identity); err != nil {
		return model.Seen{}, err
	}
	return t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
}
