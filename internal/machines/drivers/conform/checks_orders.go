package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pulley/internal/machines"
)

func refuseFlavor(ctx context.Context, s *suite) error {
	o := s.order(7)
	o.Flavor = "no-such-flavor-" + s.word
	return s.refuses(ctx, o)
}

func refuseImage(ctx context.Context, s *suite) error {
	o := s.order(8)
	o.Image = "no-such-image-" + s.word
	return s.refuses(ctx, o)
}

var errHarmful = skip("after an earlier failure, this check could harm foreign machines")

// refuses sends an impossible order. A machine that fails later, or an error of another kind, would make an apply wait in vain.
func (s *suite) refuses(ctx context.Context, o machines.Order) error {
	_, err := s.ours.create(ctx, o)
	switch {
	case err == nil:
		return errors.Join(errors.New("the order was not refused"), s.ours.end(ctx, machines.Ref{Name: o.Name}))
	case errors.Is(err, machines.ErrRefused):
		err = nil
	default:
		err = fmt.Errorf("the kind of the error is not refused: %w", err)
	}
	return errors.Join(err, s.nothing(ctx, o.Name))
}

// nothing checks that a failed order left no machine, and deletes it.
func (s *suite) nothing(ctx context.Context, name string) error {
	all, err := s.ours.named(ctx, name)
	if err != nil || len(all) == 0 {
		return err
	}
	return errors.Join(fmt.Errorf("the order of %q failed, and the machine is listed", name), s.ours.end(ctx, machines.Ref{Name: name}))
}

// hostileNames never come from an environment file: a driver must survive errors of its callers.
func hostileNames(ctx context.Context, s *suite) error {
	if s.harmful {
		return errHarmful
	}
	w := s.word
	for _, name := range []string{
		"", "../" + w, "/" + w, "-" + w, "." + w, w + " two", w + "\ntwo", w + "*", w + ";id", "$(id)" + w, w + `"'`, w + "\x00", strings.Repeat("a", 300) + w,
	} {
		if err := s.refusedOrKept(ctx, s.orderOf(name)); err != nil {
			return fmt.Errorf("name %.40q: %w", name, err)
		}
		if name == "" {
			continue // a deletion of it has no meaning
		}
		if err := s.nothing(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// deletePatterns accepts errors of Delete: the machines must stay.
func deletePatterns(ctx context.Context, s *suite) error {
	if s.harmful {
		return errHarmful
	}
	for _, name := range []string{
		"", "*", ".*", "%", s.first.Name[:len(s.first.Name)-1], strings.ToUpper(s.first.Name), "../" + s.prefix.mark.Fleet + "/" + s.theirs.Name,
	} {
		_ = s.ours.remove(ctx, machines.Ref{Name: name})
		if err := errors.Join(s.ours.is(ctx, s.first), s.prefix.is(ctx, s.theirs)); err != nil {
			return fmt.Errorf("after %q was deleted: %w", name, err)
		}
	}
	return nil
}

// refusedOrKept orders a machine and deletes it.
func (s *suite) refusedOrKept(ctx context.Context, o machines.Order) error {
	m, err := s.ours.create(ctx, o)
	if err != nil {
		if errors.Is(err, machines.ErrRefused) {
			return nil
		}
		return fmt.Errorf("the kind of the error is not refused: %w", err)
	}
	if o.Name == "" {
		return errors.New("a machine without a name was made")
	}
	return errors.Join(s.ours.is(ctx, m), s.ours.end(ctx, machines.Ref{Name: o.Name}))
}

// maxUserdata is the lowest limit of all clouds: EC2's.
const maxUserdata = 16 << 10

func hostileLabels(ctx context.Context, s *suite) error {
	o := s.order(9)
	o.Labels = map[string]string{"team": `a "b" 'c' $(id) \ ; & é`}
	m, err := s.ours.create(ctx, o)
	if errors.Is(err, machines.ErrRefused) {
		return s.nothing(ctx, o.Name)
	}
	if err == nil {
		err = s.ours.is(ctx, m)
	}
	if err == nil && s.config.Labels != nil {
		var got map[string]string
		if got, err = s.config.Labels(ctx, m); err == nil && got["team"] != o.Labels["team"] {
			err = fmt.Errorf("ordered label %q, and the machine has %q", o.Labels["team"], got["team"])
		}
	}
	if err := errors.Join(err, s.ours.end(ctx, machines.Ref{Name: o.Name})); err != nil {
		return err
	}
	if s.config.Labels == nil {
		return skip("the labels were accepted, but this provider has no way to read them")
	}
	return nil
}

func hostileUserdata(ctx context.Context, s *suite) error {
	o := s.order(10)
	data := append(make([]byte, 0, maxUserdata), "#!/bin/sh\n"+s.config.Script+"\nexit 0\n"...)
	for len(data) < maxUserdata {
		data = append(data, byte(len(data)*31+len(data)>>8)) // all bytes, in an irregular order
	}
	o.Userdata = data
	err := s.arrives(ctx, o)
	if errors.Is(err, machines.ErrRefused) {
		return s.nothing(ctx, o.Name)
	}
	if err := errors.Join(err, s.ours.end(ctx, machines.Ref{Name: o.Name})); err != nil {
		return err
	}
	if s.config.Userdata == nil {
		return skip("the userdata was accepted, but this provider has no way to read it")
	}
	return nil
}

func contextEnds(ctx context.Context, s *suite) error {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	o := s.order(11)
	_, listErr := s.ours.list(ended)
	_, createErr := s.ours.create(ended, o)
	deleteErr := s.ours.remove(ended, machines.Ref{Name: o.Name})
	start := time.Now()
	if _, err := s.ours.list(ctx); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, partOf(time.Since(start), 2))
	defer cancel()
	_, cutErr := s.ours.list(short)
	for _, err := range []error{listErr, createErr, deleteErr, cutErr} {
		if errors.Is(err, errHung) {
			return err
		}
	}
	if createErr == nil && deleteErr != nil {
		if _, err := s.ours.only(ctx, o.Name); err != nil {
			return fmt.Errorf("create with an ended context returned no error: %w", err)
		}
	}
	return s.ours.end(ctx, machines.Ref{Name: o.Name})
}

// createInterrupted interrupts creates at three moments within their usual duration.
func createInterrupted(ctx context.Context, s *suite) error {
	for quarter := range 3 {
		at := partOf(s.took*time.Duration(quarter+1), 4)
		o := s.order(12 + quarter)
		short, cancel := context.WithTimeout(ctx, at)
		_, err := s.ours.create(short, o) // whatever the outcome
		cancel()
		if errors.Is(err, errHung) {
			return fmt.Errorf("interrupted after %v of about %v: %w", at, s.took, err)
		}
		if _, err = s.again.create(ctx, o); err == nil {
			if err = s.settleAndEnd(ctx, o.Name); err != nil { // the interrupted order may reach a loaded cloud after the second one
				err = s.settleAndEnd(ctx, o.Name)
			}
		}
		if err != nil {
			return fmt.Errorf("after one that was interrupted after %v of about %v: %w", at, s.took, err)
		}
	}
	return nil
}

// settleAndEnd checks the machines of a name, and deletes them.
func (s *suite) settleAndEnd(ctx context.Context, name string) error {
	return errors.Join(s.settle(ctx, name), s.ours.end(ctx, machines.Ref{Name: name}))
}

// partOf returns a part of a duration, long enough for the call to start.
func partOf(took, parts time.Duration) time.Duration {
	return max(took/parts, time.Millisecond)
}
