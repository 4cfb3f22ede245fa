// Package change owns changes of an environment's targets: it promotes and rolls back releases, sets live data, and
// selects the version of the agent. It checks that a change is possible, makes it, and returns its effects. It must
// never print or prompt.
package change

import (
	"context"
	"errors"
	"fmt"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/store"
	"pulley/internal/trust"
)

// Author is the author of a change, with a reason and a signing key. With a nil key the change is not signed.
type Author struct {
	store.Author
	Key *trust.Key
}

func (a Author) store() store.Author {
	if a.Key != nil {
		a.Author.Sign = a.Key.Sign
	}
	return a.Author
}

// Scope is the target of a change: a role, a node, or all nodes if both are empty.
type Scope = store.Scope

// errScope reports a scope with both a role and a node.
var errScope = errors.New("--role and --node exclude each other")

// Find reads the environment. It refuses a role or a node that is neither in the environment nor
// registered: a removed node keeps its status, and is no target.
func Find(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope) (store.FleetState, error) {
	if scope.Role != "" && scope.Node != "" {
		return store.FleetState{}, errScope
	}
	if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
		return store.FleetState{}, err
	}
	f, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return store.FleetState{}, err
	}
	if f.Spec == nil {
		return store.FleetState{}, fmt.Errorf("cannot read environment %s: it was removed meanwhile", ref)
	}
	switch {
	case scope.Role != "":
		err = fleet.CheckRole(f.Spec, scope.Role)
	case scope.Node != "":
		registered := map[string]bool{}
		for node := range f.Hosts {
			registered[node] = true
		}
		err = fleet.CheckNode(f.Spec, registered, scope.Node)
	}
	return f, err
}

// maxTries limits the attempts of a change that loses races against other operators. Five attempts are enough for
// people, but too few for scripts that race.
const maxTries = 5

// Retry repeats an operation that lost a race against another operator. Each attempt reads again.
func Retry(do func() error) error {
	for range maxTries - 1 {
		if err := do(); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return do()
}

// Targets is the result of a change of targets.
type Targets struct {
	store.Change
	Made   bool        // false: the target was already in force
	Takes  int         // affected registered nodes
	Pinned []Pin       // scopes with their own target, which the change does not affect
	Hold   *agent.Hold // hold of all nodes, if any: no node changes until it ends
}

// Pin is a scope with its own target.
type Pin struct {
	Scope  Scope
	Target agent.Target
}

func made(before store.FleetState, c store.Change) Targets {
	t := Targets{Change: c, Made: true}
	for _, h := range before.Hosts {
		if before.Desires.Reaches(c.Scope(), h.Role, h.Node) {
			t.Takes++
		}
	}
	if c.Scope() == (Scope{}) {
		for _, scope := range before.Desires.Pinned() {
			t.Pinned = append(t.Pinned, Pin{scope, before.Desires.Target(scope)})
		}
	}
	if h, held := before.Holds[Scope{}]; held {
		t.Hold = &h
	}
	return t
}

// Promote sets the target of a scope to a release. With an empty version, a role or node inherits its target again.
// With a key, Promote repeats a target that is in force without a signed permit.
func Promote(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope, version string, a Author) (done Targets, err error) {
	err = Retry(func() error {
		done, err = promote(ctx, s, ref, scope, version, a)
		return err
	})
	return done, err
}

func promote(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope, version string, a Author) (Targets, error) {
	f, err := Find(ctx, s, ref, scope)
	if err != nil {
		return Targets{}, err
	}
	var after agent.Target
	if version != "" {
		r, err := s.Releases.Resolve(ctx, version)
		if err != nil {
			return Targets{}, err
		}
		after = r.Target()
		if scope == (Scope{}) {
			after.Data, after.DataDigest = f.Desires.Default.Data, f.Desires.Default.DataDigest
		}
	}
	if before := f.Desires.Target(scope); before == after {
		permitted := true
		if a.Key != nil {
			if permitted, err = s.Targets.Permitted(ctx, ref, f.Desires, scope); err != nil {
				return Targets{}, err
			}
		}
		if permitted {
			return Targets{Change: store.Change{Role: scope.Role, Node: scope.Node, Before: before, After: after}}, nil
		}
	}
	c, err := s.Targets.Promote(ctx, ref, f.Desires, scope, store.Promoted, after, a.store())
	if err != nil {
		return Targets{}, err
	}
	return made(f, c), nil
}

// NextRollback returns the newest change in force. Rollback reverts this change.
func NextRollback(ctx context.Context, s *store.Store, ref environments.Ref) (store.Change, error) {
	_, undo, err := nextRollback(ctx, s, ref)
	return undo, err
}

func nextRollback(ctx context.Context, s *store.Store, ref environments.Ref) (store.FleetState, store.Change, error) {
	if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
		return store.FleetState{}, store.Change{}, err
	}
	f, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return store.FleetState{}, store.Change{}, err
	}
	history, err := s.Targets.HistoryOf(ctx, ref, f.Desires)
	if err != nil {
		return store.FleetState{}, store.Change{}, err
	}
	undo, ok := store.Undo(history)
	if !ok {
		return store.FleetState{}, store.Change{}, fmt.Errorf("cannot roll %s back: no change is left to roll back", ref)
	}
	return f, undo, nil
}

// Rollback restores the previous target of the newest change in force.
func Rollback(ctx context.Context, s *store.Store, ref environments.Ref, a Author) (done Targets, err error) {
	err = Retry(func() error {
		f, undo, err := nextRollback(ctx, s, ref)
		if err != nil {
			return err
		}
		by := a.store()
		if by.Why == "" {
			by.Why = fmt.Sprintf("rolls back epoch %d", undo.Epoch)
		}
		c, err := s.Targets.Rollback(ctx, ref, f.Desires, undo, by)
		done = made(f, c)
		return err
	})
	return done, err
}

// CanRollBackTo reports whether a change after an epoch is still in force.
func CanRollBackTo(ctx context.Context, s *store.Store, ref environments.Ref, to agent.Epoch) (bool, error) {
	if _, err := fleet.FindEnvironment(ctx, s.Environments, ref); err != nil {
		return false, err
	}
	history, err := s.Targets.History(ctx, ref, 0)
	if err != nil {
		return false, err
	}
	newest := agent.Epoch(0)
	if len(history) > 0 {
		newest = history[0].Epoch
	}
	if to > newest {
		return false, fmt.Errorf("cannot roll %s back to epoch %d: its newest epoch is %d", ref, to, newest)
	}
	undo, ok := store.Undo(history)
	return ok && undo.Epoch > to, nil
}
