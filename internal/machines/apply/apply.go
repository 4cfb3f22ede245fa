package apply

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// Waiting is what a machine that was asked for is waited for.
type Waiting string

// What is waited for. Roles that come after others wait at least until these are registered.
const (
	WaitConverged  Waiting = "converged"  // the node is on its target; registered, where nothing is promoted
	WaitRegistered Waiting = "registered" // the node has joined
	WaitNone       Waiting = "none"       // the provider has taken the order
)

// The limits that an Applier has where it is told none.
const (
	DefaultParallel     = 10
	DefaultDrainTimeout = 10 * time.Minute
	DefaultCallTimeout  = 5 * time.Minute
)

// Applier carries plans out, for one fleet, while the caller holds that fleet's lock. Provider, Form, Fleet, Ref, Driver, By
// and Now have to be given.
type Applier struct {
	Provider machines.Provider // nil: machines come from elsewhere
	Form     machines.Form
	Fleet    machines.Fleet
	Ref      environments.Ref
	Driver   string // as it is written into records
	Place    string // likewise; "" is unknown
	By       string
	Now      func() time.Time
	Log      *slog.Logger

	Parallel     int             // machines that are worked on at a time; 0 is DefaultParallel
	Wait         Waiting         // "" is WaitConverged
	DrainTimeout time.Duration   // of a node's retire hooks; 0 is DefaultDrainTimeout
	NoDrain      bool            // hooks are not run before a machine is retired
	CallTimeout  time.Duration   // of one call of the provider; 0 is DefaultCallTimeout
	Lock         context.Context // ends when the fleet's lock is lost; nil: what ctx ends with has to say so
	Watch        bool            // a Watcher has it done, and has counted it
	Progress     func(Event)     // is told of everything, from several goroutines, one call at a time; nil: nobody watches
}

// Event is progress of one machine. A step of the work begins, and then ends or fails; in between it tells what it waits for.
type Event struct {
	At    time.Time
	Node  string
	Role  string
	Verb  plan.Verb
	Step  string // as Steps names them: "order", "converge"
	State EventState
	Text  string // a sentence: what is waited for, or what went wrong
}

// EventState is what an Event tells.
type EventState string

// What events tell.
const (
	Begins EventState = "begins" // this step begins
	Waits  EventState = "waits"  // it goes on; Text says what is waited for, when that changes
	Notes  EventState = "notes"  // something worth knowing, in Text
	Ends   EventState = "ends"   // this step is done
	Fails  EventState = "fails"  // this step failed, and with it what is done for this node
	Done   EventState = "done"   // all that the plan says of this node is done; Step is ""
)

// Look plans: it reads etcd first and then asks the provider, so that a machine that is made in between is never taken for
// one that the books lost.
func (a *Applier) Look(ctx context.Context, want *environments.Environment, o plan.Options) (plan.Plan, error) {
	w, err := a.World(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	if o.Place == "" {
		o.Place = a.Place
	}
	return plan.Make(want, w, o), nil
}

// world reads all that a plan is made from.
func (a *Applier) World(ctx context.Context) (machines.World, error) {
	w, err := a.Fleet.World(ctx)
	if err != nil {
		return machines.World{}, fmt.Errorf("cannot read the fleet of %s: %w", a.Ref, err)
	}
	if a.Provider != nil {
		calling, cancel := context.WithTimeout(ctx, a.callTimeout())
		defer cancel()
		if w.Machines, err = a.Provider.List(calling); err != nil {
			return machines.World{}, fmt.Errorf("cannot list the machines of %s: %w", a.Ref, err)
		}
	}
	w.Now = a.Now()
	return w, nil
}

// Apply carries out a plan that Look has just made. agreed are the machines that may be destroyed: of a plan that was shown
// and agreed to, Destroyed. Nothing is done when a step is blocked or destroys what was not agreed to. The error names each
// machine that failed; the result then tells what was done all the same. When ctx ends, nothing new is asked for and what was
// asked is waited for a little: the next apply goes on.
func (a *Applier) Apply(ctx context.Context, p plan.Plan, agreed []machines.Ref) (Result, error) {
	unprotects := p.Unprotects()
	if err := p.Refused(agreed); err != nil && !unprotects {
		return Result{}, err
	}
	e := a.engine(ctx, p, agreed)
	defer e.stop()
	if e.over() != nil { // nobody waits for it any more: nothing is stored either
		r := e.result()
		return r, r.Err()
	}
	if err := e.putSpec(p); err != nil {
		return Result{}, err
	}
	if unprotects {
		e.remark("protection is taken away, and nothing else was done: apply again")
		return e.result(), nil
	}
	e.carryOut(p)
	e.react(p)
	r := e.result()
	return r, r.Err()
}

func (a *Applier) callTimeout() time.Duration {
	if a.CallTimeout > 0 {
		return a.CallTimeout
	}
	return DefaultCallTimeout
}
