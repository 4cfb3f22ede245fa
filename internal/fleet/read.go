package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// FindEnvironment reads an environment that must exist. Its error suggests a similar name.
func FindEnvironment(ctx context.Context, s *specs.Environments, ref model.Ref) (*environments.Environment, error) {
	e, _, err := s.Spec(ctx, ref)
	if err != nil || e != nil {
		return e, err
	}
	hint := "store it first: pulley env apply environments/" + ref.Environment + ".yaml"
	if ref.Stack != "" {
		hint += " --stack " + ref.Stack
	}
	if known, err := s.List(ctx); err == nil {
		if near := model.SuggestName(ref.String(), known); near != "" {
			hint = "did you mean " + near + "?"
		}
	}
	return nil, fmt.Errorf("cannot find environment %s: %w\n%s", ref, etcd.ErrNotFound, hint)
}

// FindNode reads one node of an environment, with point reads. Both must exist: the error suggests a similar name.
func FindNode(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (FleetState, error) {
	f, err := In(s).One(ctx, ref, node)
	if err != nil {
		return f, err
	}
	if f.Spec == nil {
		_, err := FindEnvironment(ctx, specs.In(s), ref)
		if err == nil {
			err = fmt.Errorf("cannot find environment %s: %w", ref, etcd.ErrNotFound)
		}
		return f, err
	}
	if f.Known()[node] {
		return f, removals(ctx, s, ref, &f)
	}
	if _, called := f.Spec.RoleOf(node); called || f.LockedOut(node) != nil {
		return f, nil
	}
	all, err := In(s).State(ctx, ref) // for the suggestion of a name
	if err == nil {
		err = CheckNode(f.Spec, all.Known(), node)
	}
	return f, err
}

// Find reads what a selection needs: one node with point reads, else the whole fleet. Its roles and nodes must exist.
func Find(ctx context.Context, s *etcd.DB, ref model.Ref, sel Selection) (FleetState, error) {
	if len(sel.Nodes) == 1 {
		return FindNode(ctx, s, ref, sel.Nodes[0])
	}
	e, err := FindEnvironment(ctx, specs.In(s), ref)
	if err != nil {
		return FleetState{}, err
	}
	f, err := In(s).State(ctx, ref)
	if err == nil {
		err = sel.Check(e, f.Known())
	}
	if err == nil {
		err = removals(ctx, s, ref, &f)
	}
	return f, err
}

// fewReads is the number of identities up to which single reads are cheaper than a list of all.
const fewReads = 16

// removals reads why nodes that reported are not on the host list. An unreadable identity, and one that the caller may not read,
// leaves the reason open.
func removals(ctx context.Context, s *etcd.DB, ref model.Ref, f *FleetState) (err error) {
	var unlisted []string
	for node := range f.Statuses {
		if _, listed := f.Hosts[node]; !listed {
			unlisted = append(unlisted, node)
		}
	}
	all := map[string]access.Identity{}
	if len(unlisted) > fewReads {
		all, _, err = access.IdentitiesIn(s).List(ctx, ref)
	} else {
		for _, node := range unlisted {
			i, _, failed := access.IdentitiesIn(s).Get(ctx, ref, node)
			if i != nil {
				all[node] = *i
			}
			err = errors.Join(err, failed)
		}
	}
	f.Removed = map[string]model.Prose{}
	for _, node := range unlisted {
		i, has := all[node]
		if !has || i.Live() || i.Removed == nil {
			continue
		}
		text := i.Removed.At.UTC().Format(time.RFC3339)
		if i.Removed.By != "" {
			text += " by " + i.Removed.By
		}
		if i.Removed.Why != "" {
			text += ", " + string(i.Removed.Why)
		}
		remedy := JoinAgain(ref.String(), node)
		if f.Spec != nil {
			if _, called := f.Spec.RoleOf(node); !called {
				remedy = fmt.Sprintf("`pulley nodes remove %s -e %s --forget` deletes its status and runs; %s", node, ref, remedy)
			}
		}
		f.Removed[node] = model.Prose(text + "; " + remedy)
	}
	if errors.Is(err, model.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	return nil
}

// JoinAgain is the remedy for a node that was removed from the fleet, or that etcd does not know.
func JoinAgain(env, node string) string {
	return fmt.Sprintf("for its machine to join again: `pulley token create --node %s -e %s`, then `pulley-agent bootstrap --token TOKEN` on the machine", node, env)
}

// Count reads an environment in numbers, with one read of everything that its nodes wrote. Its memory does not grow with their reports.
func Count(ctx context.Context, s *etcd.DB, ref model.Ref, now time.Time) (Tally, error) {
	t := newTally(now)
	f, err := In(s).Each(ctx, ref, now, t.add)
	if err != nil {
		return Tally{}, err
	}
	return t.finish(f), nil
}
