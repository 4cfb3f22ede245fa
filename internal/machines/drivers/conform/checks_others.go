package conform

import (
	"context"
	"errors"
	"fmt"

	"pulley/internal/machines"
)

func othersNotListed(ctx context.Context, s *suite) error {
	mine, theirs := s.order(4).Name, s.order(5)
	m, err := s.prefix.create(ctx, theirs)
	if err != nil {
		return err
	}
	s.theirs = m
	if _, err := s.ours.create(ctx, s.orderOf(mine)); err != nil {
		return err
	}
	all, err := s.ours.named(ctx, theirs.Name)
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("%s of %s is listed for %s", theirs.Name, s.prefix.mark, s.ours.mark)
	}
	if err != nil {
		return err
	}
	for _, f := range []struct {
		*fleet
		want int
	}{{s.prefix, 1}, {s.owner, 0}} {
		machines, err := f.list(ctx)
		if err == nil && len(machines) != f.want {
			err = fmt.Errorf("%d machines are listed for %s, which has %d", len(machines), f.mark, f.want)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(s.prefix.is(ctx, m), s.ours.end(ctx, machines.Ref{Name: mine}))
}

// othersNotDeleted accepts errors of Delete: the machine must stay.
func othersNotDeleted(ctx context.Context, s *suite) error {
	for _, one := range []struct {
		of     *fleet
		m      machines.Machine
		others []*fleet
	}{
		{s.prefix, s.theirs, []*fleet{s.ours, s.owner}},
		{s.ours, s.first, []*fleet{s.prefix, s.owner}},
	} {
		for _, other := range one.others {
			for _, v := range []machines.Ref{{Name: one.m.Name}, {Name: one.m.Name, ID: one.m.ID}} {
				_ = other.remove(ctx, v)
				if err := one.of.is(ctx, one.m); err != nil {
					return fmt.Errorf("after %s deleted %q%s: %w", other.mark, v.Name, withID(v.ID), err)
				}
			}
		}
	}
	return nil
}

func othersName(ctx context.Context, s *suite) error {
	m, err := s.ours.create(ctx, s.orderOf(s.theirs.Name))
	var taken *machines.TakenError
	switch {
	case err == nil && m.ID != "" && m.ID == s.theirs.ID:
		return errors.New("the other fleet's machine was returned")
	case err == nil:
		err = errors.Join(s.ours.is(ctx, m), s.ours.end(ctx, machines.Ref{Name: m.Name}))
	case errors.As(err, &taken):
		err = nil
	}
	return errors.Join(err, s.prefix.is(ctx, s.theirs))
}

func foreignUnharmed(ctx context.Context, s *suite) error {
	if s.config.Foreign == nil {
		return skip("this provider has no way to make one")
	}
	name := s.order(6).Name
	unharmed, err := s.config.Foreign(ctx, name)
	if err != nil {
		return fmt.Errorf("cannot make a machine without a mark: %w", err)
	}
	all, err := s.ours.named(ctx, name)
	if err == nil && len(all) > 0 {
		err = errors.New("the machine is listed")
	}
	if err != nil {
		return err
	}
	_ = s.ours.remove(ctx, machines.Ref{Name: name})
	if err := unharmed(ctx); err != nil {
		return fmt.Errorf("after its deletion: %w", err)
	}
	_, err = s.ours.create(ctx, s.orderOf(name))
	var taken *machines.TakenError
	if errors.As(err, &taken) {
		err = nil
	} else if err == nil {
		err = s.ours.end(ctx, machines.Ref{Name: name})
	}
	return errors.Join(err, unharmed(ctx))
}
