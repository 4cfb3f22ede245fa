package fleet

import (
	"context"
	"fmt"

	"pulley/environments"
	"pulley/internal/store"
)

// FindEnvironment reads an environment that must exist. Its error suggests a similar name.
func FindEnvironment(ctx context.Context, s *store.Environments, ref environments.Ref) (*environments.Environment, error) {
	e, _, err := s.Spec(ctx, ref)
	if err != nil || e != nil {
		return e, err
	}
	hint := "store it first: pulley env apply environments/" + ref.Environment + ".yaml"
	if ref.Stack != "" {
		hint += " --stack " + ref.Stack
	}
	if known, err := s.List(ctx); err == nil {
		if near := environments.SuggestName(ref.String(), known); near != "" {
			hint = "did you mean " + near + "?"
		}
	}
	return nil, fmt.Errorf("cannot find environment %s: %w\n%s", ref, store.ErrNotFound, hint)
}

// FindNode reads one node of an environment, with point reads. Both must exist: the error suggests a similar name.
func FindNode(ctx context.Context, s *store.Store, ref environments.Ref, node string) (store.FleetState, error) {
	f, err := s.Fleet.One(ctx, ref, node)
	if err != nil {
		return f, err
	}
	if f.Spec == nil {
		_, err := FindEnvironment(ctx, s.Environments, ref)
		if err == nil {
			err = fmt.Errorf("cannot find environment %s: %w", ref, store.ErrNotFound)
		}
		return f, err
	}
	if f.Known()[node] {
		return f, nil
	}
	if _, called := f.Spec.RoleOf(node); called {
		return f, nil
	}
	all, err := s.Fleet.State(ctx, ref) // for the suggestion of a name
	if err == nil {
		err = CheckNode(f.Spec, all.Known(), node)
	}
	return f, err
}

// Find reads what a selection needs: one node with point reads, else the whole fleet. Its roles and nodes must exist.
func Find(ctx context.Context, s *store.Store, ref environments.Ref, sel Selection) (store.FleetState, error) {
	if len(sel.Nodes) == 1 {
		return FindNode(ctx, s, ref, sel.Nodes[0])
	}
	e, err := FindEnvironment(ctx, s.Environments, ref)
	if err != nil {
		return store.FleetState{}, err
	}
	f, err := s.Fleet.State(ctx, ref)
	if err == nil {
		err = sel.Check(e, f.Known())
	}
	return f, err
}
