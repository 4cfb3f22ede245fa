package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/machines"
)

// checks in their order. Some need the machines of earlier ones, which saves machines of a cloud.
var checks = []struct {
	name  string
	do    func(context.Context, *suite) error
	needs []func(*suite) string // names of machines
}{
	{"a fleet without machines has an empty list", emptyAtFirst, nil},
	{"a created machine is listed at once", createAndList, nil},
	{"a repeated create returns the same machine, and another program sees it", createAgain, of(first)},
	{"the machine runs within the deadline", comesToRun, of(first)},
	{"the machine gets its complete userdata", userdataArrives, nil},
	{"two concurrent creates of one name leave one machine, or two with different IDs", createAtOnce, nil},
	{"a list of six machines is complete", listOfMany, nil},
	{"the name of one machine with the ID of another deletes neither", deleteNeither, of(first, second)},
	{"machines of other fleets are not listed", othersNotListed, nil},
	{"machines of other fleets are not deleted", othersNotDeleted, of(theirs, first)},
	{"a name of another fleet is taken, or makes a new machine", othersName, of(theirs)},
	{"machines without a mark are not listed, changed or deleted", foreignUnharmed, nil},
	{"a deletion of a missing machine is no error", deleteAbsent, nil},
	{"a deleted machine leaves the list within the deadline", deleteByName, of(first)},
	{"the name of a deleted machine can be used again, and the old ID reaches no other machine", nameAgain, of(deleted)},
	{"an unknown flavor is refused, and leaves nothing", refuseFlavor, nil},
	{"an unknown image is refused, and leaves nothing", refuseImage, nil},
	{"a name that is not a hostname is refused, or kept exactly", hostileNames, nil},
	{"a deletion by pattern, part of a name or path deletes nothing", deletePatterns, of(first, theirs)},
	{"labels of any bytes are refused, or kept exactly", hostileLabels, nil},
	{"userdata of any bytes is refused, or kept exactly", hostileUserdata, nil},
	{"each call ends with its context", contextEnds, nil},
	{"an interrupted create ends soon, and can be repeated", createInterrupted, nil},
	{"a machine can be deleted by its ID", deleteByID, of(first)},
	{"all machines of a fleet can be deleted", deleteAll, nil},
}

func of(machines ...func(*suite) string) []func(*suite) string { return machines }

func first(s *suite) string   { return s.first.Name }
func second(s *suite) string  { return s.second.Name }
func deleted(s *suite) string { return s.deleted.Name }
func theirs(s *suite) string  { return s.theirs.Name }

func emptyAtFirst(ctx context.Context, s *suite) error {
	for _, f := range []*fleet{s.ours, s.prefix, s.owner} {
		machines, err := f.list(ctx)
		if err == nil && len(machines) > 0 {
			err = fmt.Errorf("%d machines are listed for %s, the first is %q", len(machines), f.mark, machines[0].Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func createAndList(ctx context.Context, s *suite) error {
	start := time.Now()
	m, err := s.ours.create(ctx, s.order(1))
	if err != nil {
		return err
	}
	s.first, s.took = m, time.Since(start)
	return s.ours.is(ctx, m)
}

func createAgain(ctx context.Context, s *suite) error {
	o := s.orderOf(s.first.Name) // with other userdata: each try has a new token
	m, err := s.again.create(ctx, o)
	if err == nil && m.ID != s.first.ID {
		err = fmt.Errorf("create returned %q instead of %q", m.ID, s.first.ID)
	}
	if err != nil {
		return err
	}
	return errors.Join(s.ours.is(ctx, s.first), s.again.is(ctx, s.first))
}

func comesToRun(ctx context.Context, s *suite) error {
	m, err := s.ours.runs(ctx, s.first.Name)
	if err == nil && m.ID != s.first.ID {
		err = fmt.Errorf("the ID changed from %q to %q", s.first.ID, m.ID)
	}
	return err
}

func userdataArrives(ctx context.Context, s *suite) error {
	if s.config.Userdata == nil {
		return skip("this provider has no way to read userdata")
	}
	o := s.order(2)
	return errors.Join(s.arrives(ctx, o), s.ours.end(ctx, machines.Ref{Name: o.Name}))
}

// arrives makes a machine and compares its userdata.
func (s *suite) arrives(ctx context.Context, o machines.Order) error {
	if _, err := s.ours.create(ctx, o); err != nil {
		return err
	}
	m, err := s.ours.runs(ctx, o.Name)
	if err != nil || s.config.Userdata == nil {
		return err
	}
	return s.ours.poll(ctx, s.config.Boot, func() (bool, error) {
		got, err := s.config.Userdata(ctx, m)
		switch {
		case err != nil:
			return false, fmt.Errorf("cannot read the userdata of %s: %w", m.Name, err)
		case !bytes.Equal(got, o.Userdata):
			return false, fmt.Errorf("ordered %d bytes of userdata, and the machine has %d other bytes", len(o.Userdata), len(got))
		}
		return true, nil
	})
}

func createAtOnce(ctx context.Context, s *suite) error {
	o := s.order(3)
	other := make(chan error, 1)
	go func() {
		_, err := s.again.create(ctx, o)
		other <- err
	}()
	_, err := s.ours.create(ctx, o)
	if otherErr := <-other; err != nil && otherErr != nil {
		return fmt.Errorf("both creates failed: %w", errors.Join(err, otherErr))
	}
	if err = s.settle(ctx, o.Name); err == nil {
		s.second, err = s.ours.only(ctx, o.Name)
	}
	return err
}

// settle leaves one machine of a name: it deletes the others by their IDs.
func (s *suite) settle(ctx context.Context, name string) error {
	all, err := s.ours.named(ctx, name)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no machine called %q is listed", name)
	}
	if err != nil {
		return err
	}
	for _, m := range all[1:] {
		if m.ID == "" {
			return fmt.Errorf("%d machines called %q are listed without IDs", len(all), name)
		}
		if err := s.ours.end(ctx, machines.Ref{Name: name, ID: m.ID}); err != nil {
			return err
		}
	}
	return s.ours.is(ctx, all[0])
}

func deleteAbsent(ctx context.Context, s *suite) error {
	return s.ours.remove(ctx, machines.Ref{Name: s.order(99).Name})
}

func deleteByName(ctx context.Context, s *suite) error {
	if err := s.ours.end(ctx, machines.Ref{Name: s.first.Name}); err != nil {
		return err
	}
	s.deleted, s.first = s.first, machines.Machine{}
	return nil
}

func nameAgain(ctx context.Context, s *suite) error {
	if err := s.ours.remove(ctx, machines.Ref{Name: s.deleted.Name}); err != nil { // a second time
		return err
	}
	m, err := s.ours.create(ctx, s.orderOf(s.deleted.Name))
	if err != nil {
		return err
	}
	s.first = m
	if m.ID != "" && m.ID == s.deleted.ID {
		return fmt.Errorf("the new machine has the ID of the one that was deleted: %q", m.ID)
	}
	if s.deleted.ID != "" {
		if err := errors.Join(s.ours.remove(ctx, machines.Ref{Name: m.Name, ID: s.deleted.ID}), s.ours.is(ctx, m)); err != nil {
			return err
		}
	}
	_, err = s.ours.runs(ctx, m.Name)
	return err
}

func deleteByID(ctx context.Context, s *suite) error {
	if s.first.ID == "" {
		return skip("its machines have no IDs")
	}
	err := s.ours.end(ctx, machines.Ref{Name: s.first.Name, ID: s.first.ID})
	s.first = machines.Machine{}
	return err
}

func deleteAll(ctx context.Context, s *suite) error {
	var errs []error
	for _, f := range []*fleet{s.ours, s.prefix, s.owner} {
		errs = append(errs, f.empty(ctx))
	}
	return errors.Join(errs...)
}

// many is the largest number of machines of the checks: more than one page of a short list.
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

// deleteNeither accepts errors of Delete: the machines must stay.
func deleteNeither(ctx context.Context, s *suite) error {
	if s.first.ID == "" || s.second.ID == "" {
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
