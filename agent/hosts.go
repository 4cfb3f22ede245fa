package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/clip"
	"pulley/internal/failpoint"
	"pulley/internal/model"
)

// longestKept is how long newer values of a node are kept back at most; a later time means that the clock was set back.
const longestKept = time.Hour

// see reads the host list again if it changed and the changes have settled. It writes the data file for the release in
// place. A node that sees no other nodes reads nothing. Without etcd, the file on disk stays.
func (t *tick) see(ctx context.Context) error {
	h := t.state.Hosts
	if t.Hosts == nil || h.Shown == "" || !t.desired.Known() || t.opts.Noop || t.opts.Keep || ctx.Err() != nil {
		return nil
	}
	now := t.Now()
	switch {
	case t.desired.HostList == h.List:
		h.Noticed = time.Time{}
		if !h.Watch.Due(now) && (h.Again.IsZero() || now.Before(h.Again) && h.Again.Sub(now) <= longestKept) {
			return t.keepView(h)
		}
	case h.Noticed.IsZero() || h.Noticed.After(now): // the clock was set back
		h.Noticed = now
	}
	if !h.Noticed.IsZero() && now.Sub(h.Noticed) < h.Settle && !t.opts.Force {
		return t.keepView(h)
	}
	watch := h.Watch.Read(now, t.desired.Revision)
	err := t.Hosts.FetchHosts(ctx, t.Identity)
	var seen model.Seen
	if err == nil {
		failpoint.Here("hosts:fetched")
		seen, err = t.Hosts.ShowHosts(t.Identity, t.state.LastGood.Tree, watch)
	}
	if err != nil { // enforcement goes on with the nodes that are known, and the next tick repeats it
		t.Log.Warn("cannot read the nodes that this node sees", "err", err)
		return nil
	}
	failpoint.Here("hosts:shown")
	h.List, h.Noticed, h.Watch = t.desired.HostList, time.Time{}, watch
	h.Shows(seen)
	return t.keepView(h)
}

func (t *tick) keepView(h model.HostView) error {
	if h == t.state.Hosts {
		return nil
	}
	t.state.Hosts = h
	return t.Memory.Save(t.state)
}

// showHosts writes the data file for the staged release. A catalog that was compiled without the nodes would remove them
// from the machine's files: without the host list, no run starts.
func (t *tick) showHosts(ctx context.Context) (err error) {
	if t.Hosts == nil {
		return nil
	}
	tree := t.decision.Target.Tree
	t.seen, err = t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
	missing := errors.Is(err, model.ErrNoHosts)
	stale := t.state.Hosts.List == 0 && t.seen.Digest != "" && t.desired.Known() // of a time before this release
	switch {
	case missing && t.desired.Unreachable != "":
		return fmt.Errorf("%w, and %w", err, model.ErrUnreachable)
	case !missing && (err != nil || !stale):
		return err
	}
	if err := t.Hosts.FetchHosts(ctx, t.Identity); err != nil {
		return err
	}
	t.state.Hosts.List = t.desired.HostList
	t.seen, err = t.Hosts.ShowHosts(t.Identity, tree, t.state.Hosts.Watch)
	t.state.Hosts.Again = t.seen.Again // also if the run fails
	return err
}

// tell runs the hooks of hosts.d/ with the difference between the files that they know and the file of the last good run.
// Each hook that succeeded is recorded, and never receives this difference again. A later difference waits for it.
func (t *tick) tell(ctx context.Context) error {
	h := t.state.Hosts
	switch t.decision.Reason {
	case model.ReasonDisabled, model.ReasonStopped, model.ReasonRetire, model.ReasonRetired, model.ReasonPuppetBlocked:
		return nil
	}
	if t.Hosts == nil || t.opts.Noop || t.opts.Keep || h.Told == h.Applied && h.Telling == "" {
		return nil
	}
	if h.Telling == "" {
		h.Telling, h.Hook = h.Applied, ""
		h.Number++
		if err := t.keepView(h); err != nil {
			return err
		}
	}
	difference, err := t.Hosts.Difference(h.Number, h.Told, h.Telling)
	if err != nil {
		return err
	}
	job := model.Job{Identity: t.Identity, Target: t.state.LastGood, Tree: t.Hosts.Folder(t.state.LastGood.Tree)}
	if difference != nil {
		err = t.Machine.Tell(ctx, job, difference, h.Hook, func(hook string) error {
			failpoint.Here("hosts:told")
			h.Hook = hook
			return t.keepView(h)
		})
	}
	if err != nil {
		h.Failed = model.Prose(clip.Line(err.Error(), model.MaxDetailInHead))
		return errors.Join(err, t.keepView(h))
	}
	h.Told, h.Telling, h.Hook, h.Failed = h.Telling, "", "", ""
	if err := t.keepView(h); err != nil {
		return err
	}
	return t.Hosts.CollectHosts(h.Applied, h.Told)
}
