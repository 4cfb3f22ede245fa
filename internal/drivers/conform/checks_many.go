package conform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/machines"
)

// many is how many machines of a fleet there are at most while it is checked: more than a page of a list that has been set short.
const many = 6

func listOfMany(ctx context.Context, s *suite) error {
	want, err := s.ours.list(ctx)
	if err != nil {
		return err
	}
	have := len(want)
	var createErr error
	start := time.Now()
	for n := 20; len(want) < many; n++ {
		var m machines.Machine
		if m, createErr = s.ours.create(ctx, s.order(n)); createErr != nil {
			break
		}
		want = append(want, m)
		s.took = time.Since(start) / time.Duration(len(want)-have)
	}
	if createErr == nil {
		err = s.ours.lists(ctx, want)
	}
	for _, m := range want[have:] {
		err = errors.Join(err, s.ours.remove(ctx, machines.Ref{Name: m.Name, ID: m.ID}))
	}
	for _, m := range want[have:] {
		err = errors.Join(err, s.ours.gone(ctx, machines.Ref{Name: m.Name, ID: m.ID}))
	}
	if err == nil && errors.Is(createErr, machines.ErrQuota) {
		return skip(fmt.Sprintf("the provider has no room for %d machines", many))
	}
	return errors.Join(createErr, err)
}

// deleteNeither takes an error of Delete for an answer: all that counts is that the machines stay.
func deleteNeither(ctx context.Context, s *suite) error {
	switch {
	case s.first.Name == "" || s.second.Name == "":
		return errNone
	case s.first.ID == "" || s.second.ID == "":
		return skip("its machines have no IDs")
	}
	for _, v := range []machines.Ref{{Name: s.first.Name, ID: s.second.ID}, {Name: s.second.Name, ID: s.first.ID}} {
		_ = s.ours.remove(ctx, v)
		if err := errors.Join(s.ours.is(ctx, s.first), s.ours.is(ctx, s.second)); err != nil {
			return fmt.Errorf("after %q%s was deleted: %w", v.Name, withID(v.ID), err)
		}
	}
	return nil
}
