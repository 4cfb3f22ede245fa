package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/store/etcd"
)

// Change is the change of one epoch: the target of one scope. Rollback undoes changes, newest first.
type Change struct {
	Epoch  agent.Epoch  `json:"epoch"`
	Kind   ChangeKind   `json:"kind"`
	Role   string       `json:"role,omitempty"` // scope; both empty: all nodes
	Node   string       `json:"node,omitempty"`
	Before agent.Target `json:"before"`
	After  agent.Target `json:"after"`
	Undoes agent.Epoch  `json:"undoes,omitempty"` // of a rollback: the oldest change that it undid
	By     string       `json:"by"`
	Why    agent.Prose  `json:"why,omitempty"`
	At     time.Time    `json:"at"`

	// Unsigned means that nodes may go to a lower release without a signed permit.
	Unsigned bool `json:"-"`
}

// ChangeKind is the kind of an operator's change.
type ChangeKind string

// The kinds of changes.
const (
	Promoted   ChangeKind = "promote"
	DataChange ChangeKind = "data"
	RolledBack ChangeKind = "rollback"
)

// Scope returns the scope of the change.
func (c Change) Scope() etcd.Scope { return etcd.Scope{Role: c.Role, Node: c.Node} }

// Author is the author of a change, and the reason.
type Author struct {
	By, Why string
	At      time.Time
	Sign    Sign // with their key; nil: unsigned
}

// Desires is all targets of an environment, at one revision.
type Desires struct {
	Revision int64
	Gate     agent.Gate
	Default  agent.Target
	Roles    map[string]agent.Target
	Nodes    map[string]agent.Target
	Damaged  []string // keys of unknown meaning, with the reason

	gateRevision int64
	revisions    map[string]int64 // of each target's key
}

// For returns the targets of one node.
func (d Desires) For(role, node string) agent.Desired {
	return agent.Desired{Revision: d.Revision, Gate: d.Gate, Default: d.Default, ForRole: d.Roles[role], ForNode: d.Nodes[node]}
}

// Desires reads an environment's gate and targets in one transaction.
func (s *Targets) Desires(ctx context.Context, ref environments.Ref) (Desires, error) {
	return s.desires(ctx, ref.String())
}

func (s *Targets) desires(ctx context.Context, env string, more ...clientv3.OpOption) (Desires, error) {
	prefix := s.db.Keys.Env(env).Desired()
	all := append([]clientv3.OpOption{clientv3.WithPrefix()}, more...)
	resp, err := s.db.Txn(ctx, nil, []clientv3.Op{clientv3.OpGet(s.db.Keys.Env(env).Gate(), more...), clientv3.OpGet(prefix, all...)}, nil)
	if err != nil {
		return Desires{}, fmt.Errorf("cannot read the targets of %s: %w", env, err)
	}
	d := Desires{Revision: resp.Header.Revision, Roles: map[string]agent.Target{}, Nodes: map[string]agent.Target{}, revisions: map[string]int64{}}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		d.gateRevision = kv.ModRevision
		if err := etcd.Decode(string(kv.Key), kv.Value, &d.Gate); err != nil {
			return Desires{}, err
		}
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		scope, ok := etcd.ScopeOf(strings.TrimPrefix(string(kv.Key), prefix), "default")
		if !ok {
			d.Damaged = append(d.Damaged, etcd.UnknownKey(string(kv.Key)))
			continue
		}
		var t agent.Target
		if err := etcd.Decode(string(kv.Key), kv.Value, &t); err != nil {
			return Desires{}, err
		}
		d.revisions[string(kv.Key)] = kv.ModRevision
		switch {
		case scope.Node != "":
			d.Nodes[scope.Node] = t
		case scope.Role != "":
			d.Roles[scope.Role] = t
		default:
			d.Default = t
		}
	}
	return d, nil
}

// Promote sets the target of a scope to after and raises the epoch, which voids every assignment. With a zero target,
// a role or node inherits again. It returns ErrConflict if the targets changed since d was read, or if the release
// does not exist: a prune may have deleted it after the lookup.
func (s *Targets) Promote(ctx context.Context, ref environments.Ref, d Desires, scope etcd.Scope, kind ChangeKind, after agent.Target, a Author) (Change, error) {
	c := Change{Kind: kind, Role: scope.Role, Node: scope.Node, Before: d.Target(scope), After: after}
	return s.change(ctx, ref, d, c, a, s.there(ref.String(), after), nil)
}

// change writes a target, the gate and the history record in one transaction. It adds the permit for nodes that go to
// a lower release, and its caller's operations.
func (s *Targets) change(ctx context.Context, ref environments.Ref, d Desires, c Change, a Author, cmps []clientv3.Cmp, ops []clientv3.Op) (Change, error) {
	env, scope := ref.String(), c.Scope()
	c.Epoch, c.By, c.Why, c.At = d.Gate.Epoch+1, a.By, agent.Prose(a.Why), a.At.UTC().Truncate(time.Second)
	// A promotion opens the gate. It is the newest decision of an operator, and the new epoch voids an older pause or
	// abort.
	gate := agent.Gate{Epoch: c.Epoch, State: agent.GateOpen, By: a.By, Why: agent.Prose(a.Why), At: c.At}
	gateValue, err := etcd.Encode(gate)
	if err != nil {
		return Change{}, err
	}
	changeValue, err := etcd.Encode(c)
	if err != nil {
		return Change{}, err
	}
	key := s.db.Keys.Env(env).Target(scope)
	put := clientv3.OpDelete(key)
	if c.After != (agent.Target{}) {
		value, err := etcd.Encode(c.After)
		if err != nil {
			return Change{}, err
		}
		put = clientv3.OpPut(key, value)
	}
	permit, err := s.permit(ctx, ref, d, &c, a.Sign)
	if err != nil {
		return Change{}, fmt.Errorf("cannot change the target of %s in %s: %w", scope, ref, err)
	}
	cmps = append(cmps, etcd.Same(s.db.Keys.Env(env).Gate(), d.gateRevision), etcd.Same(key, d.revisions[key]))
	ops = append(ops, put, clientv3.OpPut(s.db.Keys.Env(env).Gate(), gateValue), clientv3.OpPut(s.db.Keys.Env(env).Change(c.Epoch), changeValue))
	ops = append(append(ops, permit...), etcd.Touch(s.db.Keys.Targets()))
	resp, err := s.db.Txn(ctx, cmps, ops, nil)
	switch {
	case errors.Is(err, agent.ErrUnreachable):
		err = s.outcome(ctx, s.db.Keys.Env(env).Change(c.Epoch), changeValue, err)
	case err == nil && !resp.Succeeded && c.Kind == RolledBack:
		if pruned := s.pruned(ctx, env, c.After); pruned != nil {
			return Change{}, pruned
		}
		err = etcd.ErrConflict
	case err == nil && !resp.Succeeded:
		err = etcd.ErrConflict
	}
	if err != nil {
		return Change{}, fmt.Errorf("cannot change the target of %s in %s: %w", scope, ref, err)
	}
	return c, nil
}

// there guards that the contents of a target exist. A prune may have deleted them after the lookup.
func (s *Targets) there(env string, t agent.Target) []clientv3.Cmp {
	var cmps []clientv3.Cmp
	if t.Release != "" {
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(s.db.Keys.Release(t.Release)), ">", 0))
	}
	if t.Data != 0 {
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(s.db.Keys.Env(env).Generation(t.Data)), ">", 0))
	}
	return cmps
}

// pruned returns an error that names the missing contents of a target. It returns nil if nothing is missing, or if
// etcd cannot be read.
func (s *Targets) pruned(ctx context.Context, env string, t agent.Target) error {
	if t.Release != "" {
		if resp, err := s.db.Get(ctx, s.db.Keys.Release(t.Release), clientv3.WithCountOnly()); err == nil && resp.Count == 0 {
			return fmt.Errorf("cannot roll back to %s: it was pruned\npublish it again under a new version, and promote that", t.Release)
		}
	}
	if t.Data != 0 {
		if resp, err := s.db.Get(ctx, s.db.Keys.Env(env).Generation(t.Data), clientv3.WithCountOnly()); err == nil && resp.Count == 0 {
			return fmt.Errorf("cannot roll back to data generation %d of %s: it was pruned\nset its values again with `pulley data set`", t.Data, env)
		}
	}
	return nil
}

// outcome determines the result of a write that etcd did not answer. It returns nil if the record exists, and
// ErrConflict if another record has its place. Without either, the write may still take effect.
func (s *Targets) outcome(ctx context.Context, key, value string, unanswered error) error {
	resp, err := s.db.Get(ctx, key)
	switch {
	case err != nil || len(resp.Kvs) == 0:
		return fmt.Errorf("%w\nthe outcome is unknown: look at `pulley history`", unanswered)
	case string(resp.Kvs[0].Value) == value:
		return nil
	}
	return etcd.ErrConflict
}

// History lists an environment's changes, newest first, at most limit of them (0: all).
func (s *Targets) History(ctx context.Context, ref environments.Ref, limit int64) ([]Change, error) {
	return s.history(ctx, ref.String(), clientv3.WithLimit(limit))
}

// HistoryOf lists all changes that led to d, newest first. It reads them at d's revision. The guards of d then also
// cover the history, and a decision from both uses one state.
func (s *Targets) HistoryOf(ctx context.Context, ref environments.Ref, d Desires) ([]Change, error) {
	return s.history(ctx, ref.String(), clientv3.WithRev(d.Revision))
}

func (s *Targets) history(ctx context.Context, env string, opts ...clientv3.OpOption) ([]Change, error) {
	prefix := s.db.Keys.Env(env).History()
	opts = append(opts, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	resp, err := s.db.Get(ctx, prefix, opts...)
	if errors.Is(err, rpctypes.ErrCompacted) { // a prune compacted it: the earlier read is too old
		err = etcd.ErrConflict
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the history of %s: %w", env, err)
	}
	changes := make([]Change, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		if err := etcd.Decode(string(kv.Key), kv.Value, &changes[i]); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// Undo returns the change that a rollback undoes: the newest change of a target that is not a rollback and not yet
// undone.
func Undo(history []Change) (Change, bool) {
	limit := agent.Epoch(-1)
	for _, c := range history {
		switch {
		case limit >= 0 && c.Epoch >= limit:
			continue
		case c.Kind == RolledBack:
			limit = c.Undoes
			continue
		case c.Before == c.After: // promoted again, to sign it
			continue
		}
		return c, true
	}
	return Change{}, false
}

// Rollback undoes one change: its scope gets its previous target again, release and data. The change must come from
// HistoryOf(d). A change from another revision would also undo later changes. Rollback fails if a prune deleted the
// contents of the previous target.
func (s *Targets) Rollback(ctx context.Context, ref environments.Ref, d Desires, undo Change, a Author) (Change, error) {
	c := Change{Kind: RolledBack, Role: undo.Role, Node: undo.Node, Before: d.Target(undo.Scope()), After: undo.Before, Undoes: undo.Epoch}
	return s.change(ctx, ref, d, c, a, s.there(ref.String(), c.After), nil)
}

// Target returns the scope's own target, without inheritance.
func (d Desires) Target(s etcd.Scope) agent.Target {
	switch {
	case s.Node != "":
		return d.Nodes[s.Node]
	case s.Role != "":
		return d.Roles[s.Role]
	}
	return d.Default
}

// Pinned lists the roles and nodes with a release of their own, roles first, in order.
func (d Desires) Pinned() []etcd.Scope {
	var scopes []etcd.Scope
	for _, role := range slices.Sorted(maps.Keys(d.Roles)) {
		if !d.Roles[role].IsZero() {
			scopes = append(scopes, etcd.Scope{Role: role})
		}
	}
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		if !d.Nodes[node].IsZero() {
			scopes = append(scopes, etcd.Scope{Node: node})
		}
	}
	return scopes
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
