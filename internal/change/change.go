// Package change owns changes of what an environment's nodes should run: a release is promoted or rolled back, live data is
// set, another version of the agent is wanted. It says whether a change is possible, makes it, and returns what it
// means. It must never print or ask.
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

// Author is who makes a change, why, and with which key it is signed; a nil key leaves it unsigned.
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

// Scope is whom a change is for: a role, a node or, without either, everybody.
type Scope = store.Scope

// errScope is the usage error of a scope with a role and a node.
var errScope = errors.New("--role and --node exclude each other")

// Find reads the environment, and refuses a scope that names nobody.
func Find(ctx context.Context, s *store.Store, ref environments.Ref, scope Scope) (store.FleetState, error) {
	if scope.Role != "" && scope.Node != "" {
		return store.FleetState{}, errScope
	}
	if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
		return store.FleetState{}, err
	}
	f, err := s.Fleet.State(ctx, ref)
	if err != nil {
		return store.FleetState{}, err
	}
	if f.Spec == nil {
		return store.FleetState{}, fmt.Errorf("cannot read environment %s: it was removed at this moment", ref)
	}
	registered := map[string]bool{}
	for node := range f.Hosts {
		registered[node] = true
	}
	return f, CheckScope(f.Spec, registered, scope)
}

// CheckScope refuses a role or a node that neither the environment nor the registered nodes have.
func CheckScope(e *environments.Environment, registered map[string]bool, scope Scope) error {
	switch {
	case scope.Role != "":
		return fleet.CheckRole(e, scope.Role)
	case scope.Node != "":
		return fleet.CheckNode(e, registered, scope.Node)
	}
	return nil
}

// maxTries bounds the attempts of a change that other operators overtake: enough for people, too few for a script that races.
const maxTries = 5

// Retry repeats an operation that lost a race against another operator, from a fresh read.
func Retry(do func() error) error {
	for range maxTries - 1 {
		if err := do(); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return do()
}

// Targets is a change of targets that was made, or that was in force already.
type Targets struct {
	store.Change
	Made   bool        // false: the target was in force already
	Takes  int         // registered nodes that it concerns
	Pinned []Pin       // scopes with a target of their own, which it does not reach
	Hold   *agent.Hold // on everybody, if any: nothing moves until it ends
}

// Pin is a scope with a target of its own.
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

// Promote makes a release the target of a scope; the empty version makes a role or node inherit again. With a key, a target
// in force that lacks a signed permit is promoted again.
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

// ErrNothingToUndo is the cause where no change is left to roll back.
var ErrNothingToUndo = errors.New("no change is left to roll back")

// NextRollback returns the newest change in force: the one that Rollback takes back.
func NextRollback(ctx context.Context, s *store.Store, ref environments.Ref) (store.Change, error) {
	_, undo, err := nextRollback(ctx, s, ref)
	return undo, err
}

func nextRollback(ctx context.Context, s *store.Store, ref environments.Ref) (store.FleetState, store.Change, error) {
	if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
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
		return store.FleetState{}, store.Change{}, fmt.Errorf("cannot roll %s back: %w", ref, ErrNothingToUndo)
	}
	return f, undo, nil
}

// Rollback gives the scope of the newest change in force the target that it had before.
func Rollback(ctx context.Context, s *store.Store, ref environments.Ref, a Author) (done Targets, err error) {
	err = Retry(func() error {
		f, undo, err := nextRollback(ctx, s, ref)
		if err != nil {
			return err
		}
		by := a.store()
		if by.Why == "" {
			by.Why = fmt.Sprintf("takes back epoch %d", undo.Epoch)
		}
		c, err := s.Targets.Rollback(ctx, ref, f.Desires, undo, by)
		done = made(f, c)
		return err
	})
	return done, err
}

// CanRollBackTo reports whether a change after an epoch is still in force.
func CanRollBackTo(ctx context.Context, s *store.Store, ref environments.Ref, to agent.Epoch) (bool, error) {
	if _, _, err := s.Environments.MustSpec(ctx, ref); err != nil {
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
