// Package apply carries plans out: it claims names, orders machines, waits for nodes, retires nodes and deletes
// machines.
//
// Every task reads the current state and can run again: the next apply resumes interrupted work. The package must never
// delete a machine without an approval, never order one whose name is not claimed, and never wait without a deadline.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
	"pulley/userdata"
)

// Waiting is the state that an apply waits for after it ordered a machine.
type Waiting string

// The states to wait for. Roles that come after others wait at least until these have joined.
const (
	WaitConverged  Waiting = "converged"  // the node is on its target; if no release is promoted, it has joined
	WaitRegistered Waiting = "registered" // the node has joined
	WaitNone       Waiting = "none"       // the provider has accepted the order
)

// The defaults of an Applier.
const (
	DefaultParallel     = 10
	DefaultDrainTimeout = 10 * time.Minute
)

// callTimeout limits one call to the provider.
const callTimeout = 5 * time.Minute

// Applier plans for one fleet and carries plans out. Its Source, Fleet, Form, Driver and By are required. Applying needs
// the fleet's lock, which a Session holds.
type Applier struct {
	Source
	Fleet  machines.Fleet
	Form   userdata.Form
	Driver string // as in machine records
	By     string
	Log    *slog.Logger

	Parallel     int             // machines that are worked on at a time; 0 is DefaultParallel
	Wait         Waiting         // "" is WaitConverged
	Limit        time.Duration   // of the whole apply, which then stops as after an interrupt; 0 is none
	DrainTimeout time.Duration   // of a node's retire hooks; 0 is DefaultDrainTimeout
	NoDrain      bool            // hooks do not run before a machine is retired
	Lock         context.Context // ends when the fleet's lock is lost; nil: then ctx ends with the cause ErrLost
	Watch        bool            // a watch applies, and its budget has counted the machine
	Progress     func(Event)     // receives every event, from several goroutines, one call at a time; may be nil
}

// Event is progress of one machine. A task begins, may wait, and ends or fails.
type Event struct {
	At      time.Time
	Node    string
	Role    string
	Verb    plan.Verb
	Task    string // as Tasks names them: "order", "converge"
	State   EventState
	Reasons []machines.Reason // of Waits and Notes
	Err     error             // of Fails
}

// EventState is the kind of an Event.
type EventState string

// The kinds of events.
const (
	Begins EventState = "begins" // this task begins
	Waits  EventState = "waits"  // the cause of the wait changed
	Notes  EventState = "notes"  // information for the operator
	Ends   EventState = "ends"   // this task is done
	Fails  EventState = "fails"  // this task failed, and its step with it
	Done   EventState = "done"   // the step is done; Task is ""
)

// Draft is a plan with the world that it is based on.
type Draft struct {
	plan.Plan
	World   machines.World
	options plan.Options
}

// Source contains the inputs of a plan.
type Source struct {
	Reader   machines.Reader
	Provider machines.Provider // nil: Pulley makes no machines here
	Ref      model.Ref
	Place    string // as in machine records; "" is unknown
	Now      func() time.Time
}

// Look plans the changes from the fleet to want. nil is the stored environment; without one, the draft has no Spec.
// Look reads etcd before the provider: a machine that is made in between always has its record.
func (s Source) Look(ctx context.Context, want *environments.Environment, o plan.Options) (Draft, error) {
	w, err := s.Reader.World(ctx)
	if err != nil {
		return Draft{}, fmt.Errorf("cannot read the fleet of %s: %w", s.Ref, err)
	}
	if s.Provider != nil {
		calling, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if w.Machines, err = s.Provider.List(calling); err != nil {
			return Draft{}, fmt.Errorf("cannot list the machines of %s: %w", s.Ref, err)
		}
	}
	w.Now = s.Now()
	if want == nil {
		want = w.Old
	}
	if want == nil {
		return Draft{World: w}, nil
	}
	if w.Places, err = s.Reader.Places(ctx, want); err != nil {
		return Draft{}, fmt.Errorf("cannot read the places of the nodes of %s: %w", s.Ref, err)
	}
	plan.Recall(want, w)
	o.Place = cmp.Or(o.Place, s.Place)
	return Draft{plan.Make(want, w, o), w, o}, nil
}

// Apply carries out a plan that was just made or rechecked. It may delete the machines in approved. It does nothing if
// a step is blocked or deletes another machine. The error names each machine that failed; the result lists the
// completed work in any case. When ctx ends, Apply begins nothing new, and calls in flight have a short time to end.
// The next apply resumes.
func (a *Applier) Apply(ctx context.Context, d Draft, approved []machines.Ref) (Result, error) {
	unprotects := d.Unprotects()
	if err := render.Refused(d.Plan, d.Refused(approved)); err != nil && !unprotects {
		return Result{}, err
	}
	e := a.engine(ctx, d, approved)
	defer e.stop()
	if e.over() != nil { // do not store the environment either
		r := e.result()
		return r, r.Err()
	}
	if err := e.keepPlaces(d); err != nil {
		return Result{}, err
	}
	if err := e.putSpec(d.Plan); err != nil {
		return Result{}, err
	}
	if unprotects {
		e.remark(machines.Reason{Code: machines.ProtectionRemoved})
		return e.result(), nil
	}
	e.carryOut(d.Plan)
	e.react(d.Plan)
	r := e.result()
	return r, r.Err()
}

// CheckRetire returns an error if a plan deletes and removes more than most machines and nodes. With an incomplete list
// of the provider, the machines of working nodes appear to be gone.
func CheckRetire(p plan.Plan, most int) error {
	deletes, removes := len(p.Deleted()), len(p.Removed())
	n := deletes + removes
	if n <= most {
		return nil
	}
	what := "it deletes " + render.Count(deletes, "machine")
	absent := fmt.Sprintf("removes %s without a machine", render.Count(removes, "node"))
	switch {
	case deletes == 0:
		what = "it " + absent
	case removes > 0:
		what += " and " + absent
	}
	return fmt.Errorf("cannot %s %s: %s, and the limit is %d\ncheck the plan, and use --max-retire %d if it is right", render.Command(p.Destroys), p.Fleet, what, most, n)
}

// Lock is the lock of one fleet.
type Lock interface {
	// Context ends with ctx, and when the lock is lost. Then its cause is ErrLost.
	Context(ctx context.Context) (context.Context, context.CancelFunc)
	Close() error
}

// Session is an Applier that holds its fleet's lock until Close.
type Session struct {
	*Applier
	Context context.Context // ends when the lock is lost
	lock    Lock
	end     func()
}

// Begin makes a session of an Applier and the lock of its fleet.
func Begin(ctx context.Context, a *Applier, lock Lock) *Session {
	standing, end := lock.Context(context.WithoutCancel(ctx)) // also if ctx ends first
	ctx, cancel := lock.Context(ctx)
	a.Lock = standing
	return &Session{a, ctx, lock, func() { cancel(); end() }}
}

// Close releases the lock.
func (s *Session) Close() error {
	s.end()
	return s.lock.Close()
}

// freshFor is how long a list of machines stays valid without another read.
const freshFor = time.Minute

// Recheck returns a draft that was approved before the lock was taken. If etcd has changed since, or the list of
// machines is old, it plans again. A plan with other changes is an error.
func (s *Session) Recheck(approved Draft) (Draft, error) {
	if s.Now().Sub(approved.World.Now) < freshFor {
		unchanged, err := s.Fleet.Unchanged(s.Context, approved.World)
		if unchanged && err == nil {
			return approved, nil
		}
		if err != nil {
			return approved, fmt.Errorf("cannot read the fleet of %s: %w", s.Ref, err)
		}
	}
	now, err := s.Look(s.Context, approved.Spec, approved.options)
	if err != nil {
		return now, err
	}
	if differs := render.Changed(plan.Differences(approved.Plan, now.Plan)); differs != nil {
		return now, fmt.Errorf("cannot %s %s: the plan changed meanwhile:\n%w\nnothing was done; look at the new plan and try again", render.Command(now.Destroys), now.Fleet, differs)
	}
	return now, nil
}

// Apply carries out a draft with the session's lock.
func (s *Session) Apply(d Draft, approved []machines.Ref) (Result, error) {
	return s.Applier.Apply(s.Context, d, approved)
}

// lookAgain returns the remedy if the world differs from a plan.
func lookAgain(destroys bool) string {
	if destroys {
		return "destroy again, and check the plan that is shown"
	}
	return "look at a new plan"
}

// resume returns the remedy after a failure or an interrupt. After a destroy it is destroy: an apply would cancel it.
func resume(destroys bool) string { return render.Command(destroys) + " again" }

// isLost reports whether another apply holds the lock.
func isLost(err error) bool { return errors.Is(err, machines.ErrLost) }
