package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pulley/internal/clip"
	"pulley/internal/failpoint"
	"pulley/internal/release/trust/refusal"
)

// PreviewOrder is an operator's order to show what a target would change. The node carries it out once, in addition to its
// own work. A lease of etcd ends the order.
type PreviewOrder struct {
	ID      string        `json:"id"`                // 16 hex digits; the answer names it
	Machine string        `json:"machine,omitempty"` // machine id of the host list when it was written
	Target  Target        `json:"target"`            // the node's wanted target fills its empty parts
	Limit   time.Duration `json:"limit"`             // of Puppet's run
	By      string        `json:"by,omitempty"`
	At      time.Time     `json:"at,omitzero"`
}

// Preview is a node's answer to a preview order. Without a cause and a problem, Puppet looked at the complete catalog.
type Preview struct {
	Order   string          `json:"order"` // its id
	Node    string          `json:"node"`
	Target  Target          `json:"target"`
	Cause   *Cause          `json:"cause,omitempty"`  // why the node did not run Puppet
	Problem Problem         `json:"problem,omitzero"` // cause of a failed run
	Counts  Counts          `json:"counts"`
	Changes []ResourceEvent `json:"changes,omitempty"` // failed first, then skipped, then those that would change
	Left    int             `json:"left,omitempty"`    // changes beyond the limits
	NoDiffs bool            `json:"no_diffs,omitempty"`
	Took    time.Duration   `json:"took"`
}

// PropertyChange is a property of a resource that a run would change. Puppet replaces sensitive values.
type PropertyChange struct {
	Property string `json:"property"`
	Old      string `json:"old"`
	New      string `json:"new"`
}

// PreviewState is what the node remembers of the newest preview order.
type PreviewState struct {
	Order    string `json:"order"` // its id
	Tries    int    `json:"tries"` // begun so far
	Answered bool   `json:"answered,omitempty"`
}

// maxPreviewTries limits the runs of one order: the first may have ended the agent.
const maxPreviewTries = 2

// Limits of an answer.
const (
	maxPreviewBytes = 32 << 10 // of a stored answer
	maxDiff         = 4 << 10
	maxValue        = 400  // of a property, and of each name
	maxChanges      = 1000 // resources
	maxParts        = 50   // properties or messages of a resource
)

// previewOrder returns the order that concerns this machine, or nil.
func (d Desired) previewOrder(machine string) *PreviewOrder {
	o := d.Preview
	if o == nil || d.Host == nil || anotherMachine(d.Host, machine) || o.Machine != "" && machine != "" && o.Machine != machine {
		return nil
	}
	return o
}

// preview answers a preview order. It follows the node's own work, and never takes its place. It writes neither the
// status nor anything that a run depends on.
func (t *tick) preview(ctx context.Context) error {
	if t.opts.Noop || t.opts.Keep || t.opts.uncounted() || ctx.Err() != nil || t.decision.Action == "" || !t.desired.known() {
		return nil
	}
	order, before := t.desired.previewOrder(t.MachineID), t.state.Preview
	switch {
	case order == nil && before == nil:
		return nil
	case order == nil:
		return t.forgetPreview(ctx)
	case before != nil && before.Order == order.ID && before.Answered:
		return nil
	}
	p := PreviewState{Order: order.ID, Tries: 1}
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
	b, err := encodePreview(answer)
	if err != nil {
		return err
	}
	failpoint.Here("preview:shown")
	err = t.Control.AnswerPreview(ctx, t.Identity, t.desired, b)
	if err != nil && !errors.Is(err, ErrChanged) { // a withdrawn order needs no answer
		t.offline = t.offline || errors.Is(err, ErrUnreachable)
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

func (t *tick) keepPreview(p *PreviewState) error {
	t.state.Preview = p
	return t.Memory.Save(t.state)
}

// answer carries out an order. An error means that the next tick must repeat it.
func (t *tick) answer(ctx context.Context, o *PreviewOrder, try int) (p Preview, err error) {
	began := t.Now()
	p = Preview{Order: o.ID, Node: t.Identity.Node, Target: o.Target.Overlay(t.decision.Wanted)}
	defer func() { p.Took = t.Now().Sub(began) }()
	switch t.decision.Reason {
	case ReasonDisabled, ReasonStopped, ReasonRetire, ReasonRetired, ReasonPuppetBlocked:
		p.Cause = t.decision.Cause.clipped(maxDetailInHead)
		return p, nil
	}
	if try > maxPreviewTries {
		p.Problem = Problem{Code: PreviewInterrupted, Times: maxPreviewTries}
		return p, nil
	}
	staged, err := t.Content.Stage(ctx, t.Identity, p.Target, Staging{Taking: true, Noop: true, Preview: true})
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused):
		r := Refusal{Target: p.Target, Error: *refused, At: began.UTC().Truncate(time.Second)}.clipped(maxDetailInHead)
		p.Cause = &Cause{ReasonRefused, Params{Refusal: &r}}
		return p, nil
	case errors.Is(err, ErrUnreachable) || ctx.Err() != nil:
		return p, err
	case err != nil:
		p.Problem = Problem{Code: StageFailed, Release: p.Target.String(), Text: Prose(err.Error())}
		return p, nil
	}
	if staged.Release != nil {
		defer staged.Release()
	}
	seen, err := t.seenBy(ctx, p.Target.Tree)
	if err != nil {
		return p, err
	}
	job := Job{
		Identity: t.Identity, ID: PreviewRun, Target: p.Target, Tree: staged.Tree, Data: staged.Data, Hosts: seen.File,
		Noop: true, Preview: true, Deadline: o.Limit,
	}
	t.Log.Info("running Puppet for a preview", "order", o.ID, "release", p.Target.Release, "data", p.Target.Data)
	r, err := t.Puppet.Apply(ctx, job)
	if err != nil {
		r = Result{Problem: Problem{Code: PuppetNotStarted, Text: Prose(err.Error())}}
	}
	p.Problem, p.Counts, p.Changes, p.Left, p.NoDiffs = r.Problem, r.Counts, r.Resources, r.Left, r.NoDiffs
	return p, nil
}

// seenBy returns the data file with the nodes that the release in a tree shows to this node. It reads the host list only
// if this node never did: a newer list must not reach the node's own runs before its time.
func (t *tick) seenBy(ctx context.Context, tree string) (Seen, error) {
	if t.Hosts == nil {
		return Seen{}, nil
	}
	seen, err := t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
	if !errors.Is(err, ErrNoHosts) {
		return seen, err
	}
	if err := t.Hosts.FetchHosts(ctx, t.Identity); err != nil {
		return Seen{}, err
	}
	return t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
}

// storedPreview is an answer in its stored form, gzipped JSON.
type storedPreview struct {
	V int `json:"v"`
	Preview
}

// previewFormat is the version of answers that this package writes. It reads no newer one.
const previewFormat = 1

// encodePreview packs an answer. If it is too large, diffs are removed first, then changes, from the end.
func encodePreview(p Preview) ([]byte, error) {
	p = p.clipped()
	for diffs := len(p.Changes); ; {
		b, err := pack(storedPreview{previewFormat, p})
		if err != nil {
			return nil, fmt.Errorf("cannot encode the preview %s: %w", p.Order, err)
		}
		switch n := len(p.Changes); {
		case len(b) <= maxPreviewBytes:
			return b, nil
		case diffs > n/4:
			diffs /= 2
			for i := diffs; i < n; i++ {
				c := &p.Changes[i]
				c.Cut, c.Diff = c.Cut || c.Diff != "", ""
			}
		case n > 0:
			p.Left += n - n/2
			p.Changes = p.Changes[:n/2]
			diffs = n / 2
		default:
			return nil, fmt.Errorf("cannot encode the preview %s: its bare record is larger than %d bytes", p.Order, maxPreviewBytes)
		}
	}
}

// clipped returns a copy of p whose texts have their limits.
func (p Preview) clipped() Preview {
	p.Problem = p.Problem.clipped(4 * maxMessage)
	p.Left = max(p.Left, 0) + max(len(p.Changes)-maxChanges, 0)
	p.Changes = slices.Clone(p.Changes[:min(len(p.Changes), maxChanges)])
	for i := range p.Changes {
		c := &p.Changes[i]
		if len(c.Diff) > maxDiff {
			c.Diff, c.Cut = clip.Text(c.Diff, maxDiff), true
		}
		c.Resource, c.Status, c.File = clip.Text(c.Resource, maxValue), clip.Text(c.Status, maxValue), clip.Text(c.File, maxValue)
		c.Properties = slices.Clone(c.Properties[:min(len(c.Properties), maxParts)])
		c.Messages = slices.Clone(c.Messages[:min(len(c.Messages), maxParts)])
		for j := range c.Properties {
			v := &c.Properties[j]
			v.Property, v.Old, v.New = clip.Text(v.Property, maxValue), clip.Text(v.Old, maxValue), clip.Text(v.New, maxValue)
		}
		for j, m := range c.Messages {
			c.Messages[j] = clip.Text(m, maxMessage)
		}
	}
	return p
}

// DecodePreview unpacks the output of encodePreview. It never reads more than 1 MiB and never panics.
func DecodePreview(b []byte) (Preview, error) {
	var s storedPreview
	err := unpack(b, &s)
	if s.V > previewFormat {
		return Preview{}, fmt.Errorf("cannot decode the preview: its format %d is newer than this program's %d; upgrade pulley", s.V, previewFormat)
	}
	if err != nil {
		return Preview{}, fmt.Errorf("cannot decode the preview: %w", err)
	}
	return s.Preview.clipped(), nil
}
