package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"pulley/environments"
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
	Provider Provider // nil: machines come from elsewhere
	Form     Form
	Fleet    Fleet
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
	Verb  Verb
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
func (a *Applier) Look(ctx context.Context, want *environments.Environment, o Options) (Plan, error) {
	w, err := a.world(ctx)
	if err != nil {
		return Plan{}, err
	}
	if o.Place == "" {
		o.Place = a.Place
	}
	return Make(want, w, o), nil
}

// world reads all that a plan is made from.
func (a *Applier) world(ctx context.Context) (World, error) {
	w, err := a.Fleet.World(ctx)
	if err != nil {
		return World{}, fmt.Errorf("cannot read the fleet of %s: %w", a.Ref, err)
	}
	if a.Provider != nil {
		calling, cancel := context.WithTimeout(ctx, a.callTimeout())
		defer cancel()
		if w.Machines, err = a.Provider.List(calling); err != nil {
			return World{}, fmt.Errorf("cannot list the machines of %s: %w", a.Ref, err)
		}
	}
	w.Now = a.Now()
	return w, nil
}

// Apply carries out a plan that Look has just made. agreed are the machines that may be destroyed: of a plan that was shown
// and agreed to, Destroyed. Nothing is done when a step is blocked or destroys what was not agreed to. The error names each
// machine that failed; the result then tells what was done all the same. When ctx ends, nothing new is asked for and what was
// asked is waited for a little: the next apply goes on.
func (a *Applier) Apply(ctx context.Context, p Plan, agreed []Victim) (Result, error) {
	unprotects := p.Unprotects()
	if err := p.refused(agreed); err != nil && !unprotects {
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

// refused says why a plan is not carried out at all.
func (p Plan) refused(agreed []Victim) error {
	g := newGuard(agreed)
	var errs []error
	for _, s := range p.Steps {
		if s.Blocked != "" {
			errs = append(errs, fmt.Errorf("cannot %s %s: %s", s.Verb.deed(), s.Node, s.Blocked))
		}
		for _, v := range s.Victims {
			if !g.agreed(v) {
				errs = append(errs, fmt.Errorf("cannot %s %s: nobody agreed to destroy its machine %s", s.Verb.deed(), s.Node, v))
			}
		}
	}
	return errors.Join(errs...)
}

// Unprotects reports whether a plan that is blocked only takes protection away. It is applied by storing the environment, and
// by that alone: else what protection blocks would block its end, too.
func (p Plan) Unprotects() bool {
	if len(p.Blocked()) == 0 || len(p.Changes.Roles) == 0 || len(p.Changes.Settings) > 0 || p.Changes.Reordered {
		return false
	}
	for _, c := range p.Changes.Roles {
		if c.Old == nil || c.New == nil || !c.Old.Protected || c.New.Protected {
			return false
		}
		open := *c.Old
		open.Protected = false
		if !reflect.DeepEqual(open, *c.New) {
			return false
		}
	}
	return true
}

// CheckRetire is an error when a plan destroys more machines than most, with nodes that it takes out of the fleet without one: a
// provider that lists too little makes good nodes look like that.
func CheckRetire(p Plan, most int) error {
	machines, nodes := len(p.Destroyed()), len(p.Removed())
	n := machines + nodes
	if n <= most {
		return nil
	}
	what := "it destroys " + count(machines, "machine")
	absent := fmt.Sprintf("takes %s out of the fleet whose machines are not there", count(nodes, "node"))
	if nodes == 1 {
		absent = "takes 1 node out of the fleet whose machine is not there"
	}
	switch {
	case machines == 0:
		what = "it " + absent
	case nodes > 0:
		what += " and " + absent
	}
	return fmt.Errorf("cannot %s %s: %s, and at most %d may go at a time\nlook at the plan, and give --max-retire %d if it is right", Deed(p.Destroys), p.Fleet, what, most, n)
}

func (a *Applier) callTimeout() time.Duration {
	if a.CallTimeout > 0 {
		return a.CallTimeout
	}
	return DefaultCallTimeout
}
