// Package targets stores what is desired of an environment and how it came to it: targets, their history, live data, and the signed
// documents with which nodes follow, which are permits, statements and endings. What belongs to a change shares its transaction.
//
// The caller chooses a target; this package refuses one that is not there, or that another owner of the environment forbids. It must never
// read the state of a node, except its role.
package targets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/desired"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/trust"
)

// Targets stores the desired state: targets, their history, live data, and rollback permits.
type Targets struct {
	*desired.Records
	db *etcd.DB
}

// In returns the targets of a fleet.
func In(db *etcd.DB) *Targets { return &Targets{desired.In(db), db} }

// Change is the change of one epoch: the target of one scope. Rollback undoes changes, newest first.
type Change struct {
	Epoch   model.Epoch  `json:"epoch"`
	Kind    ChangeKind   `json:"kind"`
	Role    string       `json:"role,omitempty"` // scope; both empty: all nodes
	Node    string       `json:"node,omitempty"`
	Before  model.Target `json:"before"`
	After   model.Target `json:"after"`
	Undoes  model.Epoch  `json:"undoes,omitempty"`  // of a rollback: the oldest change that it undid
	Edit    *Edit        `json:"edit,omitempty"`    // of a data change
	Rollout *Started     `json:"rollout,omitempty"` // of the start or the revert of a staged rollout
	By      string       `json:"by"`
	Why     model.Prose  `json:"why,omitempty"`
	At      time.Time    `json:"at"`

	// Unsigned means that nodes may go to a lower release without a signed permit.
	Unsigned bool `json:"-"`
	// Permits is the signed permit of the change; nil: it needs none, or nobody signed it.
	Permits *trust.Permit `json:"-"`
	// Unstated means that the environment demands a statement of its targets, and the change signed none.
	Unstated bool `json:"-"`

	recovery *Recovery // of a change of the kind Recovered
	until    time.Time // end of its permit; zero: none
	Ending   *Ending   `json:"-"` // signed before, for a change without a key; nil: none
	written            // zero for a change that was not read
}

// Edit is what a change of data sets: one key of one layer, the first if it sets several. Values are one line of YAML, shortened;
// "" is no value.
type Edit struct {
	Layer hieradata.Layer `json:"layer"`
	Key   string          `json:"key"`
	From  string          `json:"from,omitempty"`
	To    string          `json:"to,omitempty"`
	More  int             `json:"more,omitempty"` // other keys that the change sets
}

// String renders an edit for people.
func (e Edit) String() string {
	text := fmt.Sprintf("%s %s: %s → %s", e.Layer, e.Key, cmp.Or(e.From, "unset"), cmp.Or(e.To, "unset"))
	if e.More > 0 {
		text += fmt.Sprintf(", and %d more", e.More)
	}
	return text
}

// ChangeKind is the kind of an operator's change.
type ChangeKind string

// The kinds of changes.
const (
	Promoted       ChangeKind = "promote"
	DataChange     ChangeKind = "data"
	RolledBack     ChangeKind = "rollback"
	RolloutStarted ChangeKind = "rollout"  // no target changed yet
	Reverted       ChangeKind = "revert"   // of a staged rollout: no target changed
	JobStarted     ChangeKind = "job"      // no target changes
	JobEnded       ChangeKind = "job_end"  // no target changed
	Restored       ChangeKind = "restore"  // from a backup: no target changed
	Recreated      ChangeKind = "recreate" // of an environment of the name of a destroyed one, whose epochs it continues: no target is set
	Recovered      ChangeKind = "recover"  // of high-water marks, and of a target that was written without Pulley
)

// Recovery is the input of a recovery: a scope's target, the high-water marks above it that nodes reported, and the end
// of the permit for nodes with these marks.
type Recovery struct {
	Target model.Target
	Marks  []model.Target // release and data
	Until  time.Time
}

// Scope returns the scope of the change.
func (c Change) Scope() etcd.Scope { return etcd.Scope{Role: c.Role, Node: c.Node} }

// Author is the author of a change, and the reason.
type Author struct {
	By, Why string
	At      time.Time
	Sign    release.Sign // with their key; nil: unsigned
	Ends    string       // the staged rollout that the change ends
	Aborts  bool         // the change ends any staged rollout
}

// Desires is all targets of an environment, at one revision.
type Desires struct {
	Revision int64
	Gate     model.Gate
	Default  model.Target
	Roles    map[string]model.Target
	Nodes    map[string]model.Target
	Damaged  []string // keys of unknown meaning, with the reason

	Job       *model.LiveJob         // that lets nodes wait; nil: none
	Agents    desired.AgentWish      // desired versions of the agent
	Statement *trust.SignedStatement // of the targets in force, not verified; nil: none, or unreadable

	Demands      desired.Demands
	GateRevision int64
	Revisions    map[string]int64 // of each target's key
}

// Silence is how long a node may report nothing; 0: model.DefaultSilence.
func (d Desires) Silence() time.Duration { return time.Duration(d.Demands.Silence) }

// For returns the targets of one node.
func (d Desires) For(role, node string) model.Desired {
	return model.Desired{
		Revision: d.Revision, Gate: d.Gate, Default: d.Default, ForRole: d.Roles[role], ForNode: d.Nodes[node], Agent: d.Agents.For(role, node),
		Job: d.Job, Silence: d.Silence(),
	}
}

// Desires reads an environment's gate and targets, page by page at one revision.
func (s *Targets) Desires(ctx context.Context, ref model.Ref) (d Desires, err error) {
	err = etcd.Retry(ctx, func() error { // a prune may compact the revision between two pages
		d, err = s.DesiresAt(ctx, ref.String())
		return uncompacted(err)
	})
	return d, err
}

// DesiresAt reads what is desired of an environment, also at another revision.
func (s *Targets) DesiresAt(ctx context.Context, env string, more ...clientv3.OpOption) (Desires, error) {
	k := s.db.Keys.Env(env)
	d := Desires{Roles: map[string]model.Target{}, Nodes: map[string]model.Target{}, Revisions: map[string]int64{}}
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{
		clientv3.OpGet(k.Gate(), more...), clientv3.OpGet(k.Statement(), more...), clientv3.OpGet(k.Spec(), more...),
		clientv3.OpGet(k.AgentChoice(), more...), clientv3.OpGet(k.Job(), more...),
	}, nil)
	if err != nil {
		return Desires{}, fmt.Errorf("cannot read the targets of %s: %w", env, err)
	}
	d.Revision = resp.Header.Revision
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		d.GateRevision = kv.ModRevision
		if err := etcd.Into(&d.Gate)(kv); err != nil {
			return Desires{}, err
		}
	}
	for _, kv := range resp.Responses[3].GetResponseRange().Kvs {
		d.Revisions[k.AgentChoice()], d.Agents = kv.ModRevision, desired.WishOf(kv)
	}
	for _, kv := range resp.Responses[4].GetResponseRange().Kvs {
		if err := etcd.Into(&d.Job)(kv); err != nil {
			return Desires{}, err
		}
	}
	at := append([]clientv3.OpOption{clientv3.WithRev(d.Revision)}, more...)
	err = s.db.Scan(ctx, k.Desired(), func(rest string, kv *etcd.KV) error { return d.add(rest, kv) }, at...)
	if errors.As(err, new(*etcd.UnreadableError)) {
		return Desires{}, err
	}
	if err != nil {
		return Desires{}, etcd.Wrap(uncompacted(err), "cannot read the targets of %s", env)
	}
	d.Demands = desired.DemandsOf(resp.Responses[2].GetResponseRange().Kvs)
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		d.Revisions[k.Statement()] = kv.ModRevision
		if st, err := trust.ParseStatement(kv.Value); err == nil && st.Environment == env {
			d.Statement = &st
		} else {
			d.Damaged = append(d.Damaged, (&etcd.UnreadableError{Key: k.Statement(), Problem: "it is no statement of " + env}).Error())
		}
	}
	return d, nil
}

// uncompacted is ErrConflict for a revision that a prune compacted after an earlier read: the caller reads again.
func uncompacted(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return etcd.ErrConflict
	}
	return err
}

// add adds the target of a key.
func (d *Desires) add(rest string, kv *etcd.KV) error {
	scope, ok := etcd.ScopeOf(rest, "default")
	if !ok {
		d.Damaged = append(d.Damaged, etcd.UnknownKey(string(kv.Key)))
		return nil
	}
	var t model.Target
	if err := etcd.Into(&t)(kv); err != nil {
		return err
	}
	d.Revisions[string(kv.Key)] = kv.ModRevision
	switch {
	case scope.Node != "":
		d.Nodes[scope.Node] = t
	case scope.Role != "":
		d.Roles[scope.Role] = t
	default:
		d.Default = t
	}
	return nil
}

// MayChange returns a CampaignError while a rollout or a job owns the environment, which the change does not end.
func (d Desires) MayChange(a Author) error {
	if id := d.Gate.Rollout; id != "" && a.Ends != id && !a.Aborts {
		return &CampaignError{id}
	}
	return nil
}

// Promote sets the target of a scope to after and raises the epoch, which voids every assignment. With a zero target,
// a role or node inherits again. It returns ErrConflict if the targets changed since d was read, or if the release
// does not exist: a prune may have deleted it after the lookup.
func (s *Targets) Promote(ctx context.Context, ref model.Ref, d Desires, scope etcd.Scope, kind ChangeKind, after model.Target, a Author) (Change, error) {
	c := Change{Kind: kind, Role: scope.Role, Node: scope.Node, Before: d.Target(scope), After: after}
	return s.Change(ctx, s.There(ref, after), ref, d, c, a)
}

// Recover writes a scope's target again, and a signed permit that lets nodes with any of these marks take it. The
// permit has an end, because its steps begin at marks that no release and no data ever had: no later release is above
// them. The epoch follows epoch. The gate in etcd may have another.
func (s *Targets) Recover(ctx context.Context, ref model.Ref, d Desires, scope etcd.Scope, epoch model.Epoch, r Recovery, a Author) (Change, error) {
	d.Gate.Epoch = epoch
	c := Change{Kind: Recovered, Role: scope.Role, Node: scope.Node, Before: r.Target, After: r.Target, recovery: &r}
	c, err := s.Change(ctx, s.There(ref, r.Target), ref, d, c, a)
	c.recovery = nil
	return c, err
}

// restoreGap is far more than the epochs that a fleet may lose in the seconds between a backup and its restore.
const restoreGap = 1_000_000

// aheadOfTime returns how far the epochs of a backup were ahead of the time at its last change, and a gap, as far as nodes accept it.
// It is zero for one that was behind. It is the same at each restore of a backup.
func aheadOfTime(reached model.Epoch, changed, now time.Time) model.Epoch {
	if changed.IsZero() || changed.After(now) {
		changed = now
	}
	if reached < model.Epoch(changed.Unix()) {
		return 0
	}
	return min(reached-model.Epoch(changed.Unix())+restoreGap, model.Epoch(trust.MaxEpoch(time.Unix(0, 0))))
}

// Anchor marks an environment as restored from a backup. Its epoch rises above each epoch that was lost, because nodes
// use no signed permit with an epoch that they have passed. It is the time in seconds, which no fleet's changes pass: a
// backup that is restored again gets a higher epoch. After a recovery from a stolen key, the epochs of the backup may be ahead of the
// time: then the new one is as far ahead. Its gate is paused until the next change: nodes would otherwise
// return to the targets of the backup.
func (s *Targets) Anchor(ctx context.Context, ref model.Ref, a Author) (model.Epoch, error) {
	return s.anchor(ctx, ref, 0, a)
}

// anchor is Anchor of an environment that is known to have reached an epoch. It returns 0 if it was anchored since that epoch.
func (s *Targets) anchor(ctx context.Context, ref model.Ref, known model.Epoch, a Author) (model.Epoch, error) {
	d, err := s.Desires(ctx, ref)
	if err != nil {
		return 0, err
	}
	k, at := s.db.Env(ref), a.At.UTC().Truncate(time.Second)
	history, err := s.past(ctx, ref.String(), d)
	if err != nil {
		return 0, err
	}
	for _, c := range history.changes() {
		if known > 0 && c.anchors() && c.Epoch > known {
			return 0, nil
		}
	}
	reached := known
	for _, e := range append(history.epochs(), d.Gate.Epoch) {
		if PossibleEpoch(e, at) {
			reached = max(reached, e)
		}
	}
	epoch := max(model.Epoch(at.Unix())+aheadOfTime(reached, d.Gate.At, at), reached+1)
	c := Change{Epoch: epoch, Kind: Restored, Before: d.Default, After: d.Default, By: a.By, Why: model.Prose(a.Why), At: at}
	b := etcd.If(etcd.Same(k.Gate(), d.GateRevision)).
		Put(k.Gate(), model.Gate{Epoch: c.Epoch, State: model.GatePaused, By: a.By, Why: model.Prose(a.Why), At: at}).
		Put(k.Change(c.Epoch), c).Touch(s.db.Keys.Targets())
	return c.Epoch, etcd.Wrap(s.db.Commit(ctx, b), "cannot mark %s as restored", ref)
}

// Change adds a target, the gate, the history record, and the permit for nodes that go to a lower release to a batch,
// and commits it.
func (s *Targets) Change(ctx context.Context, b *etcd.Batch, ref model.Ref, d Desires, c Change, a Author) (Change, error) {
	k, scope := s.db.Env(ref), c.Scope()
	c.Epoch, c.By, c.Why, c.At = d.Gate.Epoch+1, a.By, model.Prose(a.Why), a.At.UTC().Truncate(time.Second)
	fail := func(err error) (Change, error) {
		return Change{}, fmt.Errorf("cannot change the target of %s in %s: %w", scope, ref, err)
	}
	if err := d.MayChange(a); err != nil && c.Kind != Recovered {
		return fail(err)
	}
	record, err := etcd.Encode(c)
	if err != nil {
		return fail(err)
	}
	key := k.Target(scope)
	b.If(etcd.Same(k.Gate(), d.GateRevision), etcd.Same(key, d.Revisions[key]))
	if c.After == (model.Target{}) {
		b.Delete(key)
	} else {
		b.Put(key, c.After)
	}
	// A promotion opens the gate. It is the newest decision of an operator, and the new epoch voids an older pause or
	// abort.
	b.Put(k.Gate(), model.Gate{Epoch: c.Epoch, State: model.GateOpen, By: a.By, Why: model.Prose(a.Why), At: c.At})
	b.Op(clientv3.OpPut(k.Change(c.Epoch), record)).Touch(s.db.Keys.Targets())
	history, err := s.past(ctx, ref.String(), d)
	if err != nil {
		return fail(err)
	}
	if err := s.permit(ctx, b, ref, d, history, &c, a.Sign); err != nil {
		return fail(err)
	}
	if err := s.restate(ctx, b, ref, d, history, &c, a); err != nil {
		return fail(err)
	}
	if c.Epoch < 1 || !PossibleEpoch(c.Epoch, a.At) {
		return fail(fmt.Errorf("the gate has epoch %d, after which no change is possible\nfind who wrote it; `pulley recover -e %s` restores it", d.Gate.Epoch, ref))
	}
	err = s.db.Commit(ctx, b)
	switch {
	case errors.Is(err, etcd.ErrUnknownOutcome):
		err = s.outcome(ctx, k.Change(c.Epoch), record, err)
	case errors.Is(err, etcd.ErrConflict) && c.Kind == RolledBack:
		if pruned := s.pruned(ctx, ref, c.After); pruned != nil {
			return Change{}, pruned
		}
	}
	if err != nil {
		return fail(err)
	}
	return c, nil
}

// There guards that the contents of a target exist. A prune may have deleted them after the lookup.
func (s *Targets) There(ref model.Ref, t model.Target) *etcd.Batch {
	b := etcd.If()
	if t.Release != "" {
		b.If(etcd.Exists(s.db.Keys.Release(t.Release)))
	}
	if t.Data != 0 {
		b.If(etcd.Exists(s.db.Env(ref).Generation(t.Data)))
	}
	return b
}

// pruned returns an error that names the missing contents of a target. It returns nil if nothing is missing, or if
// etcd cannot be read.
func (s *Targets) pruned(ctx context.Context, ref model.Ref, t model.Target) error {
	missing := func(key string) bool {
		resp, err := s.db.Get(ctx, key, clientv3.WithCountOnly())
		return err == nil && resp.Count == 0
	}
	switch {
	case t.Release != "" && missing(s.db.Keys.Release(t.Release)):
		return fmt.Errorf("cannot roll back to %s: it was pruned\npublish it again under a new version, and promote that", t.Release)
	case t.Data != 0 && missing(s.db.Env(ref).Generation(t.Data)):
		return fmt.Errorf("cannot roll back to data generation %d of %s: it was pruned\nset its values again with `pulley data set -e %s`", t.Data, ref, ref)
	}
	return nil
}

// outcome determines the result of a write that etcd did not answer. It returns nil if the record exists, and
// ErrConflict if another record has its place. Without either, the write may still take effect.
func (s *Targets) outcome(ctx context.Context, key, value string, unanswered error) error {
	resp, err := s.db.Get(ctx, key)
	switch {
	case err != nil || len(resp.Kvs) == 0:
		return fmt.Errorf("%w\n%w: check `pulley history -e ENVIRONMENT`", unanswered, etcd.ErrReadAgain)
	case string(resp.Kvs[0].Value) == value:
		return nil
	}
	return etcd.ErrConflict
}

// History lists an environment's changes, newest first, at most limit of them (0: all). damaged names the unreadable ones: no decision may rest on
// the list.
func (s *Targets) History(ctx context.Context, ref model.Ref, limit int) (all []Change, damaged []string, err error) {
	all, err = s.HistoryAt(ctx, ref.String(), limit, &damaged)
	return all, damaged, err
}

// Last returns an environment's newest change; nil for none.
func (s *Targets) Last(ctx context.Context, ref model.Ref) (*Change, error) {
	all, err := s.HistoryAt(ctx, ref.String(), 1, nil)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// HistoryOf lists all changes that led to d, newest first. It reads them at d's revision. The guards of d then also
// cover the history, and a decision from both uses one state.
func (s *Targets) HistoryOf(ctx context.Context, ref model.Ref, d Desires) ([]Change, error) {
	return s.HistoryAt(ctx, ref.String(), 0, nil, clientv3.WithRev(d.Revision))
}

// historyPage is the number of changes in one response.
const historyPage = 500

// HistoryAt lists changes as History does. It fails at an unreadable change, unless it can add it to damaged.
func (s *Targets) HistoryAt(ctx context.Context, env string, limit int, damaged *[]string, opts ...clientv3.OpOption) ([]Change, error) {
	k, changes := s.db.Keys.Env(env), []Change{}
	if limit > 0 {
		opts = append(opts, clientv3.WithLimit(int64(min(limit, historyPage))))
	}
	err := s.db.ScanDown(ctx, k.History(), func(_ string, kv *etcd.KV) error {
		var c Change
		err := etcd.Into(&c)(kv)
		if err == nil && string(kv.Key) != k.Change(c.Epoch) {
			err = &etcd.UnreadableError{Key: string(kv.Key), Problem: fmt.Sprintf("it is the change of epoch %d", c.Epoch)}
		}
		if err != nil && damaged != nil {
			*damaged = append(*damaged, err.Error())
			return nil
		}
		if err != nil {
			return err
		}
		c.written = writtenAt(kv)
		if changes = append(changes, c); len(changes) == limit {
			return etcd.ErrEnough
		}
		return nil
	}, opts...)
	if errors.As(err, new(*etcd.UnreadableError)) {
		return nil, err
	}
	return changes, etcd.Wrap(uncompacted(err), "cannot read the history of %s", env)
}

// Undo returns the change that a rollback of a scope undoes: the newest change of its target that is not a rollback and
// not yet undone.
func Undo(history []Change, scope etcd.Scope) (undo Change, ok bool) {
	limit := model.Epoch(-1)
	reachable(history, scope, func(c Change) bool {
		switch {
		case limit >= 0 && c.Epoch >= limit:
		case c.Kind == RolledBack:
			limit = c.Undoes
		case c.Before == c.After: // promoted again, to sign it
		default:
			undo, ok = c, true
		}
		return !ok
	})
	return undo, ok
}

// InForce lists the changes of a scope, from an epoch on, that no rollback undid and that changed its target. The history is newest first.
func InForce(history []Change, scope etcd.Scope, from model.Epoch) (all []Change) {
	for {
		c, ok := Undo(history, scope)
		if !ok || c.Epoch < from {
			return all
		}
		all = append(all, c)
		history = slices.DeleteFunc(slices.Clone(history), func(h Change) bool { return h.Epoch >= c.Epoch })
	}
}

// UndoTo returns the change with which a scope left the target of an epoch, whether or not a rollback undid that epoch
// later. The history is newest first; epoch is at least OldestReachable.
func UndoTo(history []Change, scope etcd.Scope, epoch model.Epoch) (undo Change, ok bool) {
	reachable(history, scope, func(c Change) bool {
		if c.Epoch > epoch {
			undo, ok = c, true
		}
		return c.Epoch > epoch
	})
	return undo, ok
}

// Rollback undoes a change and all later ones of its scope: the scope gets the target that it had before, release and
// data. The change must come from HistoryOf(d). A change from another revision would also undo later changes. Rollback
// fails if a prune deleted the contents of that target.
func (s *Targets) Rollback(ctx context.Context, ref model.Ref, d Desires, undo Change, a Author) (Change, error) {
	c := Change{Kind: RolledBack, Role: undo.Role, Node: undo.Node, Before: d.Target(undo.Scope()), After: undo.Before, Undoes: undo.Epoch}
	return s.Change(ctx, s.There(ref, c.After), ref, d, c, a)
}

// Target returns the scope's own target, without inheritance.
func (d Desires) Target(s etcd.Scope) model.Target {
	switch {
	case s.Node != "":
		return d.Nodes[s.Node]
	case s.Role != "":
		return d.Roles[s.Role]
	}
	return d.Default
}

// With returns d with another target of a scope, for a decision that needs it. Its guards stay those of the read.
func (d Desires) With(scope etcd.Scope, t model.Target) Desires {
	d.Roles, d.Nodes = maps.Clone(d.Roles), maps.Clone(d.Nodes)
	switch {
	case scope.Node != "":
		d.Nodes[scope.Node] = t
	case scope.Role != "":
		d.Roles[scope.Role] = t
	default:
		d.Default = t
	}
	return d
}

// Scopes lists the scopes with a target of their own: all nodes, then roles and nodes, each in order.
func (d Desires) Scopes() []etcd.Scope {
	all := []etcd.Scope{{}}
	for _, role := range slices.Sorted(maps.Keys(d.Roles)) {
		all = append(all, etcd.Scope{Role: role})
	}
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		all = append(all, etcd.Scope{Node: node})
	}
	return all
}

// Pinned lists the roles and nodes with a release of their own, roles first, in order.
func (d Desires) Pinned() []etcd.Scope {
	return slices.DeleteFunc(d.Scopes()[1:], func(s etcd.Scope) bool { return d.Target(s).IsZero() })
}

// Reaches reports whether a node gets a release that is promoted for a scope.
func (d Desires) Reaches(s etcd.Scope, role, node string) bool {
	switch {
	case s.Node != "":
		return s.Node == node
	case !d.Nodes[node].IsZero():
		return false
	case s.Role != "":
		return s.Role == role
	}
	return d.Roles[role].IsZero()
}

// ErrCampaign means that a staged rollout, or a job, owns the targets of an environment.
var ErrCampaign = errors.New("a campaign is in progress")

// CampaignError is an ErrCampaign with the ID of the rollout or job.
type CampaignError struct{ ID string }

func (e *CampaignError) Error() string {
	return "a " + model.Noun(e.ID) + " is in progress: " + e.ID
}

// Is makes it an ErrCampaign.
func (e *CampaignError) Is(target error) bool { return target == ErrCampaign }

// Started is what the start of a staged rollout adds to the history: nodes may have its target from then on.
type Started struct {
	ID     string       `json:"id"`
	Target model.Target `json:"target"`
	Agent  string       `json:"agent,omitempty"` // version of the agent, instead of a target
}

// What is what the rollout brings, for people.
func (s Started) What() string { return model.What(s.Target, s.Agent) }
