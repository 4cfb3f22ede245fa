package targets

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
	"pulley/internal/specs"
)

// permit adds the permit for nodes to follow c to a lower target: a new one, or that which was signed before. It adds none if no
// target is lower, or without both. A node without allowed signers needs no permit, and a node with them accepts no unsigned one.
func (s *Targets) permit(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, history past, c *Change, sign release.Sign) error {
	document, err := s.signedPermit(ctx, ref, d, history, c, sign)
	if err != nil {
		return err
	}
	if p, ok := c.Ending.PermitAt(c.Epoch); c.Unsigned && ok && !p.Ended(c.At) {
		document, c.Permits, c.Unsigned = string(c.Ending.Permit), &p, false
	}
	if document != "" {
		b.Op(clientv3.OpPut(s.db.Env(ref).Permit(c.Epoch), document))
	}
	return nil
}

// signedPermit returns the permit of c; "" if it needs none, or without sign: then it sets c.Unsigned.
func (s *Targets) signedPermit(ctx context.Context, ref model.Ref, d Desires, history past, c *Change, sign release.Sign) (string, error) {
	env := ref.String()
	p, lower, err := s.permitOf(ctx, env, d, history, *c)
	if err != nil {
		return "", err
	}
	if !lower || sign == nil {
		c.Unsigned = lower
		return "", nil
	}
	if c.recovery == nil { // a recovery chose its epoch
		if err := s.plausibleEpoch(env, d, history, c.At); err != nil {
			return "", fmt.Errorf("cannot sign the permit to go back: %w", err)
		}
	}
	p.Environment, p.Epoch, p.By, p.Why, p.At, p.Until = env, int64(c.Epoch), c.By, string(c.Why), c.At, c.until
	if c.recovery != nil {
		p.Until = c.recovery.Until
	}
	record, err := p.Encode()
	if err != nil {
		return "", err
	}
	document, err := sign.Document(ctx, trust.Rollback, record)
	if err != nil {
		return "", fmt.Errorf("cannot sign the permit to go back: %w", err)
	}
	c.Permits = &p
	return document, nil
}

// maxEpoch is the highest epoch of a key: keys have 12 digits, and a number above them would sort before others.
const maxEpoch model.Epoch = 1_000_000_000_000 - 1

// PlausibleEpoch reports whether a change can have an epoch at a time: nodes use nothing that is signed under a higher one.
func PlausibleEpoch(e model.Epoch, now time.Time) bool {
	return e <= maxEpoch && trust.PlausibleEpoch(int64(e), now)
}

// ahead is how far the changes of a recovery may be above what nodes accept: it makes one for each scope, perhaps above the highest
// epoch that nodes accepted of a stolen key. Nodes take them when their clocks allow it.
const ahead = 10 * time.Minute

// PossibleEpoch reports whether a change of the history can have an epoch at a time.
func PossibleEpoch(e model.Epoch, now time.Time) bool { return PlausibleEpoch(e, now.Add(ahead)) }

// past is the history that led to some targets, oldest first.
type past []entry

type entry struct {
	key    string
	change *Change // nil for an unreadable one: it must block no operator from the next change, and doctor reports it
	written
}

// written is when etcd got a change. Changes are written once, in the order of their epochs.
type written struct {
	revision int64
	again    bool
}

func writtenAt(kv *etcd.KV) written { return written{kv.ModRevision, kv.Version > 1} }

// altered reports whether somebody wrote a change again, or later than the newer one.
func (w written) altered(newer written) bool {
	return w.again || newer.revision != 0 && w.revision > newer.revision
}

// past reads the history that led to d: once for each change, whatever the change needs it for.
func (s *Targets) past(ctx context.Context, env string, d Desires) (all past, err error) {
	err = s.db.Scan(ctx, s.db.Keys.Env(env).History(), func(_ string, kv *etcd.KV) error {
		c := new(Change)
		if etcd.Into(c)(kv) != nil {
			c = nil
		}
		all = append(all, entry{string(kv.Key), c, writtenAt(kv)})
		return nil
	}, clientv3.WithRev(d.Revision))
	return all, etcd.Wrap(uncompacted(err), "cannot read the history of %s", env)
}

// changes lists the readable changes, oldest first.
func (p past) changes() []Change {
	var all []Change
	for _, e := range p {
		if e.change != nil {
			all = append(all, *e.change)
		}
	}
	return all
}

// epochs lists the epochs of the readable changes.
func (p past) epochs() []model.Epoch {
	var all []model.Epoch
	for _, c := range p.changes() {
		all = append(all, c.Epoch)
	}
	return all
}

// named lists every earlier target: a node that was offline may have any of them. It ignores the present targets and those
// before a change, and data that no change can have: a target that was written without Pulley would make signers permit
// steps from any height.
func (p past) named(now time.Time) []model.Target {
	var all []model.Target
	for _, c := range p.changes() {
		all = append(all, c.Named(now)...)
	}
	return all
}

// Named returns the targets that nodes may have by a change: its own and that of its rollout, without data that no change can have.
func (c Change) Named(now time.Time) []model.Target {
	named := []model.Target{c.After}
	if c.Rollout != nil {
		named = append(named, c.Rollout.Target)
	}
	for i, t := range named {
		if !trust.PlausibleData(int64(t.Data), now) {
			named[i] = model.Target{Release: t.Release, Tree: t.Tree}
		}
	}
	return named
}

// plausibleEpoch refuses a gate whose epoch is not that of the last change, and a history with a gap: the next epoch would
// be one that somebody wrote for a signer to sign. Only the changes that anchor a history skip epochs.
func (s *Targets) plausibleEpoch(env string, d Desires, history past, now time.Time) error {
	k, epoch := s.db.Keys.Env(env), d.Gate.Epoch
	kept := history[max(len(history)-HistoryKept, 0):]
	switch {
	case len(kept) == 0 && epoch == 0:
		return nil
	case len(kept) == 0:
		return fmt.Errorf("the gate of %s has epoch %d, and its history is empty\nfind who deleted %s; `pulley recover -e %s` begins it again", env, epoch, k.History(), env)
	case kept[len(kept)-1].key != k.Change(epoch):
		return fmt.Errorf("the gate of %s has epoch %d, which is not that of the last change\nfind who wrote it; `pulley recover -e %s` restores it", env, epoch, env)
	case !PossibleEpoch(epoch, now):
		return s.Implausible(env, epoch)
	}
	newer := entry{}
	compare := fmt.Sprintf("compare `pulley history -e %s` with what you know, then `pulley recover -e %[1]s`", env)
	for _, e := range slices.Backward(kept) {
		switch {
		case e.key != k.Change(epoch):
			return fmt.Errorf("the history of %s has no change between %s and %s\nfind who deleted it, or wrote the newer one; %s", env, e.key, newer.key, compare)
		case e.change != nil && e.altered(newer.written):
			return fmt.Errorf("somebody wrote %s again: a change is written once\nfind who wrote it; %s", e.key, compare)
		}
		if c := e.change; c != nil && c.anchors() {
			return nil
		}
		newer, epoch = e, epoch-1
	}
	if len(history) < HistoryKept && epoch > 0 {
		return fmt.Errorf("the history of %s has no change before %s\nfind who deleted it; %s", env, newer.key, compare)
	}
	return nil
}

// anchors reports whether the epochs of a history begin with the change.
func (c Change) anchors() bool {
	return c.Kind == Restored || c.Kind == Recovered || c.Kind == Recreated
}

// Gap reports whether the part of a history that is kept, newest first, lacks a change since the last restore or recovery, or
// has one that somebody wrote again.
func Gap(history []Change) bool {
	if gap(history[:min(len(history), HistoryKept)]) {
		return true
	}
	n := len(history)
	return n > 0 && n < HistoryKept && history[n-1].Epoch > 1 && !slices.ContainsFunc(history, Change.anchors)
}

func gap(history []Change) bool {
	newer := written{}
	for i, c := range history {
		if c.Epoch != history[0].Epoch-model.Epoch(i) || c.altered(newer) {
			return true
		}
		if c.anchors() {
			break
		}
		newer = c.written
	}
	return false
}

// Implausible is the error about a last change that somebody wrote without Pulley.
func (s *Targets) Implausible(env string, epoch model.Epoch) error {
	return fmt.Errorf("the last change of %s has epoch %d, which no change can have\nfind who wrote %s, and delete it from etcd; then run `pulley recover -e %s`",
		env, epoch, s.db.Keys.Env(env).Change(epoch), env)
}

// Permitted reports whether nodes at a higher target may follow a scope to its target. Either no part is lower than
// any earlier target, or a signed permit covers it that no node can have used before: the permit of the change that set
// the part, or of a later one. The signature is not verified.
func (s *Targets) Permitted(ctx context.Context, ref model.Ref, d Desires, scope etcd.Scope, now time.Time) (bool, error) {
	env := ref.String()
	history, err := s.past(ctx, env, d)
	if err != nil {
		return false, err
	}
	needed, lower, err := s.permitOf(ctx, env, d, history, Change{Role: scope.Role, Node: scope.Node, After: d.Target(scope), At: now})
	if err != nil || !lower {
		return err == nil, err
	}
	role, err := s.roleOfScope(ctx, env, scope)
	if err != nil {
		return false, err
	}
	releaseSet, dataSet := d.setAt(history.changes(), scope, role)
	release, data := needed.Release == nil, needed.Data == nil
	err = s.Permits(ctx, env, func(page []trust.SignedPermit) bool {
		for _, p := range page {
			if p.Signatures != nil && p.Until.IsZero() {
				epoch := model.Epoch(p.Epoch)
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
func (d Desires) setAt(history []Change, scope etcd.Scope, role string) (release, data model.Epoch) {
	chain := []etcd.Scope{scope}
	if scope.Node != "" && role != "" {
		chain = append(chain, etcd.Scope{Role: role})
	}
	if scope != (etcd.Scope{}) {
		chain = append(chain, etcd.Scope{})
	}
	for _, c := range history {
		if c.setsData() {
			data = max(data, c.Epoch)
		}
	}
	for _, s := range chain {
		for _, c := range history {
			if c.Scope() == s && c.setsRelease() {
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
func (s *Targets) Lowers(ctx context.Context, ref model.Ref, d Desires, scope etcd.Scope, after model.Target, now time.Time) (bool, error) {
	history, err := s.past(ctx, ref.String(), d)
	if err != nil {
		return false, err
	}
	_, lower, err := s.permitOf(ctx, ref.String(), d, history, Change{Role: scope.Role, Node: scope.Node, After: after, At: now})
	return lower, err
}

// permitOf returns the permit that a change of d needs at its time, with only its steps. lower is false if it needs none.
func (s *Targets) permitOf(ctx context.Context, env string, d Desires, history past, c Change) (p trust.Permit, lower bool, err error) {
	role, err := s.roleOfScope(ctx, env, c.Scope())
	if err != nil {
		return p, false, err
	}
	named := history.named(c.At)
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

// roleOf returns the role of a node, as FleetState.RoleOf does, with point reads.
func (s *Targets) roleOf(ctx context.Context, env, node string) (string, error) {
	k := s.db.Keys.Env(env)
	var spec *environments.Environment
	var host model.Host
	var status model.Status
	_, err := s.db.Read(ctx, map[string]int64{},
		etcd.Point{Key: k.Spec(), Read: func(kv *etcd.KV) (err error) {
			spec, err = specs.Decode(kv)
			return err
		}},
		etcd.Point{Key: k.Host(node), Read: ifReadable(&host)},
		etcd.Point{Key: k.Status(node), Read: ifReadable(&status)},
	)
	return specs.RoleOf(spec, host.Role, status.Role, node), etcd.Wrap(err, "cannot read the role of %s", node)
}

// ifReadable returns the reader of a value of which an unreadable one counts as none.
func ifReadable[T any](into *T) func(*etcd.KV) error {
	return func(kv *etcd.KV) error {
		if v := *new(T); etcd.Into(&v)(kv) == nil {
			*into = v
		}
		return nil
	}
}

// permitFor computes the downgrades that a target needs for nodes on any of the named targets. It compares release and
// data, whichever changed. A node that missed the permit of an earlier change then needs only this one.
func permitFor(to model.Target, named []model.Target) (p trust.Permit, lower bool) {
	highest, newest := "", model.Generation(0)
	for _, t := range named {
		newest = max(newest, t.Data)
		if _, err := release.ParseVersion(t.Release); err == nil && (highest == "" || release.CompareVersions(t.Release, highest) > 0) {
			highest = t.Release
		}
	}
	if _, err := release.ParseVersion(to.Release); err == nil && highest != "" && release.CompareVersions(to.Release, highest) < 0 {
		p.Release = &trust.ReleaseStep{From: highest, To: to.Release, Tree: to.Tree}
	}
	if to.Data < newest {
		p.Data = &trust.DataStep{From: int64(newest), To: int64(to.Data), Digest: to.DataDigest}
	}
	return p, p.Release != nil || p.Data != nil
}

// after returns the target of the change's scope after the change, for nodes without a closer target.
func (d Desires) after(c Change, role string) model.Target {
	t := c.After
	if c.Node != "" {
		t = t.Overlay(d.Roles[role])
	}
	if c.Scope() != (etcd.Scope{}) {
		t = t.Overlay(d.Default)
	}
	return t
}
