package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pulley/internal/machines"
)

// grace is how long a call may continue after its context has ended: a program may have to end.
const grace = 5 * time.Second

var errHung = errors.New("did not return after its context had ended")

// fleet is a provider whose answers are checked.
type fleet struct {
	machines.Provider
	mark   machines.Mark
	config Config
	word   string // in the name of every machine of this run
}

// call runs one call with its deadline, and does not wait for a call that ignores it.
func call[T any](ctx context.Context, f *fleet, what string, do func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, f.config.Call)
	defer cancel()
	answered := make(chan answer, 1)
	go func() {
		value, err := do(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-timer.C:
		var none T
		return none, fmt.Errorf("%s %w, for %v", what, errHung, grace)
	}
}

func (f *fleet) create(ctx context.Context, o machines.Order) (machines.Machine, error) {
	m, err := call(ctx, f, "Create", func(ctx context.Context) (machines.Machine, error) { return f.Create(ctx, o) })
	switch {
	case err != nil:
		return m, err
	case m.Name != o.Name:
		return m, fmt.Errorf("ordered %q, and got %q", o.Name, m.Name)
	}
	return m, nil
}

func (f *fleet) remove(ctx context.Context, v machines.Ref) error {
	_, err := call(ctx, f, "Delete", func(ctx context.Context) (struct{}, error) { return struct{}{}, f.Delete(ctx, v) })
	return err
}

func withID(id string) string {
	if id == "" {
		return ""
	}
	return " (" + id + ")"
}

// list returns the fleet's machines. An invalid machine or a repeated one is an error.
func (f *fleet) list(ctx context.Context) ([]machines.Machine, error) {
	all, err := call(ctx, f, "List", f.List)
	if err != nil {
		return nil, err
	}
	seen := map[machines.Ref]bool{}
	for _, m := range all {
		key := machines.Ref{Name: m.Name, ID: m.ID}
		switch {
		case m.Name == "":
			return nil, fmt.Errorf("a machine without a name is listed%s", withID(m.ID))
		case !slices.Contains(machines.States(), m.State):
			return nil, fmt.Errorf("%s is listed in the unknown state %q", m.Name, m.State)
		case seen[key]:
			return nil, fmt.Errorf("%s%s is listed twice", m.Name, withID(m.ID))
		}
		seen[key] = true
	}
	return all, nil
}

// named returns the listed machines of that name that are not being deleted.
func (f *fleet) named(ctx context.Context, name string) ([]machines.Machine, error) {
	all, err := f.list(ctx)
	return slices.DeleteFunc(all, func(m machines.Machine) bool { return m.Name != name || m.State == machines.Deleting }), err
}

// only returns the one machine of that name.
func (f *fleet) only(ctx context.Context, name string) (machines.Machine, error) {
	all, err := f.named(ctx, name)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d machines called %q are listed, not 1", len(all), name)
	}
	if err != nil {
		return machines.Machine{}, err
	}
	return all[0], nil
}

// is checks that a machine still exists.
func (f *fleet) is(ctx context.Context, m machines.Machine) error {
	found, err := f.only(ctx, m.Name)
	if err == nil && found.ID != m.ID {
		err = fmt.Errorf("%s is now %q, and was %q", m.Name, found.ID, m.ID)
	}
	return err
}

// lists checks that exactly these machines are listed.
func (f *fleet) lists(ctx context.Context, want []machines.Machine) error {
	got, err := f.list(ctx)
	if err != nil {
		return err
	}
	for _, m := range want {
		if !slices.ContainsFunc(got, func(g machines.Machine) bool { return g.Name == m.Name && g.ID == m.ID }) {
			return fmt.Errorf("%s%s is not listed: %d of %d machines are", m.Name, withID(m.ID), len(got), len(want))
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d machines are listed, not %d", len(got), len(want))
	}
	return nil
}

// runs waits until a machine runs.
func (f *fleet) runs(ctx context.Context, name string) (m machines.Machine, err error) {
	err = f.poll(ctx, f.config.Boot, func() (done bool, why error) {
		m, err = f.only(ctx, name)
		if err != nil {
			return true, err
		}
		switch m.State {
		case machines.Running:
			return true, nil
		case machines.Failed, machines.Stopped:
			return true, fmt.Errorf("%s is %s: %s", name, m.State, m.Problem)
		}
		return false, fmt.Errorf("%s is still %s", name, m.State)
	})
	return m, err
}

// gone waits until no matching machine is listed.
func (f *fleet) gone(ctx context.Context, v machines.Ref) error {
	return f.poll(ctx, f.config.Gone, func() (bool, error) {
		machines, err := f.list(ctx)
		if err != nil {
			return true, err
		}
		for _, m := range machines {
			if m.Name == v.Name && (v.ID == "" || m.ID == v.ID) {
				return false, fmt.Errorf("the deleted %s%s is still listed as %s", m.Name, withID(m.ID), m.State)
			}
		}
		return true, nil
	})
}

// end deletes machines and waits for their end.
func (f *fleet) end(ctx context.Context, v machines.Ref) error {
	if err := f.remove(ctx, v); err != nil {
		return err
	}
	return f.gone(ctx, v)
}

// maxLooks bounds how often a list may fail in a row.
const maxLooks = 8

// empty deletes every machine of this run, and none that a driver lists by mistake. It retries failed deletions.
func (f *fleet) empty(ctx context.Context) error {
	failed := 0
	return f.poll(ctx, f.config.Gone, func() (bool, error) {
		all, err := f.list(ctx)
		if err != nil {
			failed++
			return failed == maxLooks, err
		}
		failed = 0
		var left []string
		var errs []error
		for _, m := range all {
			if !strings.Contains(m.Name, f.word) {
				continue
			}
			left = append(left, m.Name+withID(m.ID))
			if m.State != machines.Deleting {
				errs = append(errs, f.remove(ctx, machines.Ref{Name: m.Name, ID: m.ID}))
			}
		}
		if len(left) == 0 {
			return true, nil
		}
		return false, errors.Join(append(errs, fmt.Errorf("left: %s", strings.Join(left, ", ")))...)
	})
}

// poll calls look until it is done, with growing pauses. The error after the deadline is the last one of look.
func (f *fleet) poll(ctx context.Context, most time.Duration, look func() (done bool, why error)) error {
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	for pause := f.config.Poll / 32; ; pause = min(2*pause, f.config.Poll) {
		done, why := look()
		if done {
			return why
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
			continue
		case <-deadline.C:
			why = fmt.Errorf("%w after %v", why, most)
		case <-ctx.Done():
			why = errors.Join(why, context.Cause(ctx))
		}
		next.Stop()
		return why
	}
}
