package promotion

import (
	"context"
	"fmt"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Undoing is a rollback of one scope's target: what it undoes, and what nodes get.
type Undoing struct {
	Scope Scope
	From  model.Target
	To    model.Target
	Undo  targets.Change   // the oldest change that it undoes
	All   []targets.Change // changes in force that it undoes, newest first
	Moves []Move           // affected registered nodes
	Other *targets.Change  // the newest change in force of another scope, if it is newer than Undo; it stays
}

// PlanRollback returns the rollback of a scope: of its newest change in force or, with an epoch, of all its changes after
// that epoch. It returns nil if the epoch's target is in force already.
func PlanRollback(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, to *model.Epoch) (*Undoing, error) {
	_, u, err := planRollback(ctx, s, ref, scope, to)
	return u, err
}

func planRollback(ctx context.Context, s *etcd.DB, ref model.Ref, scope Scope, to *model.Epoch) (f fleet.FleetState, u *Undoing, err error) {
	if f, err = listed(ctx, s, ref, scope.Node); err != nil {
		return f, nil, err
	}
	history, err := targets.In(s).HistoryOf(ctx, ref, f.Desires)
	if err != nil {
		return f, nil, err
	}
	undo, err := undone(ref, history, scope, to)
	if err != nil || undo == nil {
		return f, nil, err
	}
	u = &Undoing{Scope: scope, From: f.Desires.Target(scope), To: undo.Before, Undo: *undo}
	if u.From == u.To {
		return f, nil, nil
	}
	u.Moves = moves(f, scope, u.To)
	u.All = targets.InForce(history, scope, undo.Epoch)
	u.Other = newerElsewhere(history, *undo)
	return f, u, nil
}

// undone returns the change that a rollback of a scope undoes; nil: the target of the epoch is in force.
func undone(ref model.Ref, history []targets.Change, scope Scope, to *model.Epoch) (*targets.Change, error) {
	if to != nil {
		newest := model.Epoch(0)
		if len(history) > 0 {
			newest = history[0].Epoch
		}
		if *to > newest {
			return nil, fmt.Errorf("cannot roll %s back to epoch %d: its newest epoch is %d", ref, *to, newest)
		}
		if oldest := targets.OldestReachable(history); *to < oldest {
			return nil, fmt.Errorf("cannot roll %s back to epoch %d: its history is kept from epoch %d on\npromote the release of that epoch instead", ref, *to, oldest)
		}
		if undo, ok := targets.UndoTo(history, scope, *to); ok {
			return &undo, nil
		}
		return nil, nil
	}
	if undo, ok := targets.Undo(history, scope); ok {
		return &undo, nil
	}
	err := fmt.Errorf("cannot roll %s back: no change of %s is left to roll back", ref, scope)
	if other := newerElsewhere(history, targets.Change{Role: scope.Role, Node: scope.Node}); other != nil {
		err = fmt.Errorf("%w\nthe newest change is of %s: `pulley rollback -e %s%s` rolls that back", err, other.Scope(), ref, Flags(other.Scope()))
	}
	return nil, err
}

// newerElsewhere returns the newest change in force of another scope, if it is newer than a change.
func newerElsewhere(history []targets.Change, than targets.Change) *targets.Change {
	for _, c := range history {
		if c.Epoch <= than.Epoch {
			return nil
		}
		if c.Scope() == than.Scope() {
			continue
		}
		if undo, ok := targets.Undo(history, c.Scope()); ok && undo.Epoch == c.Epoch {
			return &c
		}
	}
	return nil
}

// Flags are the flags of a command line that name a scope, with a leading space; "" for all nodes.
func Flags(s Scope) string {
	switch {
	case s.Node != "":
		return " --node " + s.Node
	case s.Role != "":
		return " --role " + s.Role
	}
	return ""
}

// Rollback carries out a planned rollback. It refuses one that other changes have overtaken: the operator confirmed
// another one.
func Rollback(ctx context.Context, s *etcd.DB, ref model.Ref, planned Undoing, to *model.Epoch, a Author) (done Targets, err error) {
	err = Retry(func() error {
		f, u, err := planRollback(ctx, s, ref, planned.Scope, to)
		if err != nil {
			return err
		}
		if u == nil || u.From != planned.From || u.To != planned.To {
			return fmt.Errorf("cannot roll %s back: another command changed the target of %s meanwhile\nrun `pulley history -e %s`, then repeat the command", ref, planned.Scope, ref)
		}
		by := a.Signing()
		if by.Why == "" {
			by.Why = fmt.Sprintf("rolls back epoch %d", u.Undo.Epoch)
			if to != nil {
				by.Why = fmt.Sprintf("rolls back to epoch %d", *to)
			}
		}
		c, err := targets.In(s).Rollback(ctx, ref, f.Desires, u.Undo, by)
		done = made(f, c)
		return err
	})
	return done, err
}
