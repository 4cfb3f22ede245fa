package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"pulley/internal/machines"
)

// checks are done in this order. Some use what those before them made, so that a cloud has to make few machines.
var checks = []struct {
	name string
	do   func(context.Context, *suite) error
}{
	{"a fleet without machines has an empty list", emptyAtFirst},
	{"a machine that was created is listed at once", createAndList},
	{"to create it again returns it and makes no second one", createAgain},
	{"another program sees the same machine", seenByOthers},
	{"it comes to run, within the deadline", comesToRun},
	{"its userdata arrives whole", userdataArrives},
	{"two creates of one name at once leave one machine, or two that are told apart", createAtOnce},
	{"a list of six machines is whole", listOfMany},
	{"the name of one machine with the ID of another deletes neither", deleteNeither},
	{"other fleets' machines are not listed", othersNotListed},
	{"other fleets' machines are not deleted", othersNotDeleted},
	{"a name that another fleet has is taken, or makes a machine of its own", othersName},
	{"machines without a mark are not listed, changed or deleted", foreignUnharmed},
	{"to delete what is not there is no error", deleteAbsent},
	{"a machine that was deleted is gone from the list, within the deadline", deleteByName},
	{"to delete it again is no error, and with its ID reaches no other machine", deleteAgain},
	{"its name can be used again, for a new machine", nameAgain},
	{"a flavor that does not exist is refused, and leaves nothing", refuseFlavor},
	{"an image that does not exist is refused, and leaves nothing", refuseImage},
	{"a name that is no hostname is refused, or kept to the letter", hostileNames},
	{"to delete a pattern, a part of a name or a path deletes nothing", deletePatterns},
	{"labels of any bytes are refused, or kept to the letter", hostileLabels},
	{"userdata of any bytes is refused, or kept to the letter", hostileUserdata},
	{"each call ends when its context does", contextEnds},
	{"a create that is cut off ends soon, and can be repeated", createCutOff},
	{"a machine can be deleted by its ID", deleteByID},
	{"all of a fleet can be deleted", deleteAll},
}

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

var errNone = skip("the machine that this needs was not made")

func createAgain(ctx context.Context, s *suite) error {
	if s.first.Name == "" {
		return errNone
	}
	o := s.orderOf(s.first.Name) // with other userdata: a token is made anew for each try
	m, err := s.again.create(ctx, o)
	if err == nil && m.ID != s.first.ID {
		err = fmt.Errorf("it returned %q instead of %q", m.ID, s.first.ID)
	}
	if err != nil {
		return err
	}
	return s.ours.is(ctx, s.first)
}

func seenByOthers(ctx context.Context, s *suite) error {
	if s.first.Name == "" {
		return errNone
	}
	return s.again.is(ctx, s.first)
}

func comesToRun(ctx context.Context, s *suite) error {
	if s.first.Name == "" {
		return errNone
	}
	m, err := s.ours.runs(ctx, s.first.Name)
	if err == nil && m.ID != s.first.ID {
		err = fmt.Errorf("its ID changed from %q to %q", s.first.ID, m.ID)
	}
	return err
}

func userdataArrives(ctx context.Context, s *suite) error {
	if s.config.Userdata == nil {
		return skip("nothing is known that reads a machine's userdata")
	}
	o := s.order(2)
	return errors.Join(s.arrives(ctx, o), s.ours.end(ctx, machines.Ref{Name: o.Name}))
}

// arrives makes a machine and compares what it was given.
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
			return false, fmt.Errorf("%d bytes of userdata were ordered, and %d others arrived", len(o.Userdata), len(got))
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
		return fmt.Errorf("neither made it: %w", errors.Join(err, otherErr))
	}
	if err = s.settle(ctx, o.Name); err == nil {
		s.second, err = s.ours.only(ctx, o.Name)
	}
	return err
}

// settle leaves one machine of a name: where there are several, each but one is deleted by its ID.
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
			return fmt.Errorf("%d machines called %q are listed, without IDs that tell them apart", len(all), name)
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
	if s.first.Name == "" {
		return errNone
	}
	if err := s.ours.end(ctx, machines.Ref{Name: s.first.Name}); err != nil {
		return err
	}
	s.deleted, s.first = s.first, machines.Machine{}
	return nil
}

func deleteAgain(ctx context.Context, s *suite) error {
	if s.deleted.Name == "" {
		return errNone
	}
	if err := s.ours.remove(ctx, machines.Ref{Name: s.deleted.Name}); err != nil || s.deleted.ID == "" {
		return err
	}
	m, err := s.ours.create(ctx, s.orderOf(s.deleted.Name))
	if err != nil {
		return err
	}
	s.first = m
	if m.ID == s.deleted.ID {
		return skip("the new machine of the name has the ID of the old one")
	}
	if err := s.ours.remove(ctx, machines.Ref{Name: s.deleted.Name, ID: s.deleted.ID}); err != nil {
		return err
	}
	return s.ours.is(ctx, m)
}

func nameAgain(ctx context.Context, s *suite) error {
	if s.deleted.Name == "" {
		return errNone
	}
	if s.first.Name == "" {
		m, err := s.ours.create(ctx, s.orderOf(s.deleted.Name))
		if err != nil {
			return err
		}
		s.first = m
	}
	if s.first.ID != "" && s.first.ID == s.deleted.ID {
		return fmt.Errorf("the new machine has the ID of the one that was deleted: %q", s.first.ID)
	}
	_, err := s.ours.runs(ctx, s.first.Name)
	return err
}

func deleteByID(ctx context.Context, s *suite) error {
	if s.first.Name == "" {
		return errNone
	}
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
