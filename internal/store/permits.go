package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
	"pulley/internal/trust"
)

// Each permit covers the complete target of its change. Nodes therefore need only the newest permit of their scope,
// which is mostly on the first page. A node that was offline may have to read past the later permits of every other
// scope.
const (
	permitPage  = 64
	mostPermits = 2048 // bound of one search
)

// Permits calls more with the rollback permits, newest first, page by page, until more has enough. It skips a permit
// that is unreadable or was copied from another key: such a permit permits nothing, and must not hide valid ones.
func (s *Targets) Permits(ctx context.Context, env string, more func([]trust.SignedPermit) bool) error {
	k := s.db.Keys.Env(env)
	from := k.Permits()
	end := clientv3.GetPrefixRangeEnd(from)
	for range mostPermits / permitPage {
		resp, err := s.db.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(permitPage), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
		if err != nil {
			return fmt.Errorf("cannot read the permits to go back in %s: %w", env, err)
		}
		var page []trust.SignedPermit
		for _, kv := range resp.Kvs {
			var p trust.SignedPermit
			p.Record, p.Signatures = trust.Split(kv.Value)
			if p.Permit, err = trust.ParsePermit(p.Record); err == nil && p.Environment == env && k.Permit(agent.Epoch(p.Epoch)) == string(kv.Key) {
				page = append(page, p)
			}
			end = string(kv.Key) // older permits come before it
		}
		if !more(page) || !resp.More {
			return nil
		}
	}
	return nil
}

// permit adds the permit for nodes to follow c to a lower target. It adds none if no target is lower, or without sign.
// A node without allowed signers needs no permit, and a node with them accepts no unsigned one.
func (s *Targets) permit(ctx context.Context, b *etcd.Batch, ref environments.Ref, d Desires, c *Change, sign Sign) error {
	env := ref.String()
	p, lower, err := s.permitOf(ctx, env, d, *c)
	if err != nil {
		return err
	}
	if !lower || sign == nil {
		c.Unsigned = lower
		return nil
	}
	if c.recovery == nil { // a recovery chose its epoch
		if err := s.plausibleEpoch(ctx, env, d, c.At); err != nil {
			return fmt.Errorf("cannot sign the permit to go back: %w", err)
		}
	}
	p.Environment, p.Epoch, p.By, p.Why, p.At = env, int64(c.Epoch), c.By, string(c.Why), c.At
	if c.recovery != nil {
		p.Until = c.recovery.Until
	}
	record, err := p.Encode()
	if err != nil {
		return err
	}
	document, err := sign.document(ctx, trust.Rollback, record)
	if err != nil {
		return fmt.Errorf("cannot sign the permit to go back: %w", err)
	}
	b.Op(clientv3.OpPut(s.db.Env(ref).Permit(c.Epoch), document))
	return nil
}

// maxEpoch is the highest epoch of a key: keys have 12 digits, and a number above them would sort before others.
const maxEpoch agent.Epoch = 1_000_000_000_000 - 1

// PlausibleEpoch reports whether a change can have an epoch at a time: nodes use nothing that is signed under a higher one.
func PlausibleEpoch(e agent.Epoch, now time.Time) bool {
	return e <= maxEpoch && trust.PlausibleEpoch(int64(e), now)
}

// plausibleEpoch refuses a gate whose epoch is not that of the last change, and a history with a gap: the next epoch would
// be one that somebody wrote for a signer to sign. Only a restore and a recovery skip epochs.
func (s *Targets) plausibleEpoch(ctx context.Context, env string, d Desires, now time.Time) error {
	k, epoch := s.db.Keys.Env(env), d.Gate.Epoch
	resp, err := s.db.Get(ctx, k.History(), clientv3.WithPrefix(), clientv3.WithLimit(HistoryKept),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithRev(d.Revision))
	switch {
	case err != nil:
		return uncompacted(err)
	case len(resp.Kvs) == 0 && epoch == 0:
		return nil
	case len(resp.Kvs) == 0:
		return fmt.Errorf("the gate of %s has epoch %d, and its history is empty\nfind who deleted %s; `pulley recover -e %s` begins it again", env, epoch, k.History(), env)
	case string(resp.Kvs[0].Key) != k.Change(epoch):
		return fmt.Errorf("the gate of %s has epoch %d, which is not that of the last change\nfind who wrote it; `pulley recover -e %s` restores it", env, epoch, env)
	case !PlausibleEpoch(epoch, now):
		return s.Implausible(env, epoch)
	}
	for i, kv := range resp.Kvs {
		if string(kv.Key) != k.Change(epoch-agent.Epoch(i)) {
			return fmt.Errorf("the history of %s has no change between %s and %s\nfind who deleted it, or wrote the newer one; compare `pulley history -e %s` with what you know, then `pulley recover -e %s`",
				env, kv.Key, resp.Kvs[i-1].Key, env, env)
		}
		var c Change
		if err := etcd.Into(&c)(kv); err == nil && (c.Kind == Restored || c.Kind == Recovered) {
			break
		}
	}
	return nil
}

// Gap reports whether the part of a history that is kept, newest first, lacks a change since the last restore or recovery.
func Gap(history []Change) bool {
	for i, c := range history[:min(len(history), HistoryKept)] {
		if c.Epoch != history[0].Epoch-agent.Epoch(i) {
			return true
		}
		if c.Kind == Restored || c.Kind == Recovered {
			break
		}
	}
	return false
}

// Implausible is the error about a last change that somebody wrote without Pulley.
func (s *Targets) Implausible(env string, epoch agent.Epoch) error {
	return fmt.Errorf("the last change of %s has epoch %d, which no change can have\nfind who wrote %s, and delete it from etcd; then run `pulley recover -e %s`",
		env, epoch, s.db.Keys.Env(env).Change(epoch), env)
}

// plausibleHead refuses a head above the data of the history: signed, a generation near the maximum would end all
// later changes. It reads the history after the head.
func (s *Targets) plausibleHead(ctx context.Context, env string, head agent.Generation) error {
	named, err := s.named(ctx, env, Desires{})
	if err != nil {
		return err
	}
	newest := agent.Generation(0)
	for _, t := range named {
		newest = max(newest, t.Data)
	}
	if head > newest {
		return fmt.Errorf("the head of the data is generation %d, and the newest in the history is %d\nfind who wrote %s, and write %d there", head, newest, s.db.Keys.Env(env).DataHead(), newest)
	}
	return nil
}

// Permitted reports whether nodes at a higher target may follow a scope to its target. Either no part is lower than
// any earlier target, or a signed permit covers it that no node can have used before: the permit of the change that set
// the part, or of a later one. The signature is not verified.
func (s *Targets) Permitted(ctx context.Context, ref environments.Ref, d Desires, scope etcd.Scope) (bool, error) {
	env := ref.String()
	needed, lower, err := s.permitOf(ctx, env, d, Change{Role: scope.Role, Node: scope.Node, After: d.Target(scope)})
	if err != nil || !lower {
		return err == nil, err
	}
	role, err := s.roleOfScope(ctx, env, scope)
	if err != nil {
		return false, err
	}
	history, err := s.changes(ctx, env, d)
	if err != nil {
		return false, err
	}
	releaseSet, dataSet := d.setAt(history, scope, role)
	release, data := needed.Release == nil, needed.Data == nil
	err = s.Permits(ctx, env, func(page []trust.SignedPermit) bool {
		for _, p := range page {
			if p.Signatures != nil && p.Until.IsZero() {
				epoch := agent.Epoch(p.Epoch)
				release = release || epoch >= releaseSet && p.Release != nil && *p.Release == *needed.Release
				data = data || epoch >= dataSet && p.Data != nil && *p.Data == *needed.Data
			}
		}
		return !release || !data
	})
	return release && data && err == nil, err
}

// setAt returns the epochs at which the release and the data that a scope has, or inherits, were set last. Permits of
// earlier epochs may be used up: a node that went back and up again accepts none of them a second time.
func (d Desires) setAt(history []Change, scope etcd.Scope, role string) (release, data agent.Epoch) {
	chain := []etcd.Scope{scope}
	if scope.Node != "" && role != "" {
		chain = append(chain, etcd.Scope{Role: role})
	}
	if scope != (etcd.Scope{}) {
		chain = append(chain, etcd.Scope{})
	}
	for _, c := range history {
		if c.Scope() == (etcd.Scope{}) && c.Before.Data != c.After.Data {
			data = max(data, c.Epoch)
		}
	}
	for _, s := range chain {
		for _, c := range history {
			if c.Scope() == s && (c.Before.Release != c.After.Release || c.Before.Tree != c.After.Tree) {
				release = max(release, c.Epoch)
			}
		}
		if !d.Target(s).IsZero() {
			break
		}
	}
	return release, data
}

// Lowers reports whether a scope's target is lower than an earlier one: nodes with allowed signers then need a signed
// permit to take it.
func (s *Targets) Lowers(ctx context.Context, ref environments.Ref, d Desires, scope etcd.Scope, after agent.Target) (bool, error) {
	_, lower, err := s.permitOf(ctx, ref.String(), d, Change{Role: scope.Role, Node: scope.Node, After: after})
	return lower, err
}

// permitOf returns the permit that a change of d needs, with only its steps. lower is false if it needs none.
func (s *Targets) permitOf(ctx context.Context, env string, d Desires, c Change) (p trust.Permit, lower bool, err error) {
	role, err := s.roleOfScope(ctx, env, c.Scope())
	if err != nil {
		return p, false, err
	}
	named, err := s.named(ctx, env, d)
	if err != nil {
		return p, false, err
	}
	if c.recovery != nil {
		named = append(named, c.recovery.Marks...)
	}
	p, lower = permitFor(d.after(c, role), named)
	return p, lower, nil
}

// roleOfScope returns the role of a scope, or of its node.
func (s *Targets) roleOfScope(ctx context.Context, env string, scope etcd.Scope) (string, error) {
	if scope.Node == "" {
		return scope.Role, nil
	}
	return s.roleOf(ctx, env, scope.Node)
}

// roleOf returns a node's role by the host list, else by its name, else "".
func (s *Targets) roleOf(ctx context.Context, env, node string) (string, error) {
	h, _, err := etcd.Single[agent.Host](ctx, s.db, s.db.Keys.Env(env).Host(node))
	if err != nil && !errors.As(err, new(*etcd.UnreadableError)) {
		return "", err
	}
	if h != nil && h.Role != "" {
		return h.Role, nil
	}
	n, err := environments.ParseNode(node)
	if err != nil {
		return "", nil
	}
	return n.Role, nil
}

// named lists every earlier target of an environment in its history: a node that was offline may have any of them. It
// ignores the present targets and those before a change: a target that was written without Pulley would make signers
// permit steps from any height.
func (s *Targets) named(ctx context.Context, env string, d Desires) ([]agent.Target, error) {
	history, err := s.changes(ctx, env, d)
	all := make([]agent.Target, 0, len(history))
	for _, c := range history {
		all = append(all, c.After)
	}
	return all, err
}

// changes lists the history that led to d, oldest first. It skips an unreadable change, which must not block operators
// from the next change.
func (s *Targets) changes(ctx context.Context, env string, d Desires) ([]Change, error) {
	var all []Change
	_, err := etcd.Collect(ctx, s.db, s.db.Keys.Env(env).History(), func(_ string, c Change) {
		all = append(all, c)
	}, clientv3.WithRev(d.Revision))
	return all, uncompacted(err)
}

// permitFor computes the downgrades that a target needs for nodes on any of the named targets. It compares release and
// data, whichever changed. A node that missed the permit of an earlier change then needs only this one.
func permitFor(to agent.Target, named []agent.Target) (p trust.Permit, lower bool) {
	highest, newest := "", agent.Generation(0)
	for _, t := range named {
		newest = max(newest, t.Data)
		if _, err := ParseVersion(t.Release); err == nil && (highest == "" || CompareVersions(t.Release, highest) > 0) {
			highest = t.Release
		}
	}
	if _, err := ParseVersion(to.Release); err == nil && highest != "" && CompareVersions(to.Release, highest) < 0 {
		p.Release = &trust.ReleaseStep{From: highest, To: to.Release, Tree: to.Tree}
	}
	if to.Data < newest {
		p.Data = &trust.DataStep{From: int64(newest), To: int64(to.Data), Digest: to.DataDigest}
	}
	return p, p.Release != nil || p.Data != nil
}

// after returns the target of the change's scope after the change, for nodes without a closer target.
func (d Desires) after(c Change, role string) agent.Target {
	t := c.After
	if c.Node != "" {
		t = t.Overlay(d.Roles[role])
	}
	if c.Scope() != (etcd.Scope{}) {
		t = t.Overlay(d.Default)
	}
	return t
}
