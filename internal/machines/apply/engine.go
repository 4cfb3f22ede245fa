package apply

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// A part is one part of the work for a node. Each looks at what is, may be repeated, and may be cut off anywhere: the next
// apply plans from what is there then, and ends where this one would have.
type part struct {
	name string
	run  func(*job) error
}

// The work, top to bottom. A name is claimed before the provider is asked for a machine of it, and is free again only when
// the machine is seen to be gone.
var (
	retiring = []part{
		{"retire", (*job).retire},
		{"hold", (*job).hold},
		{"ask", (*job).askToRetire},
		{"drain", (*job).drain},
		{"remove", (*job).remove},
		{"delete", (*job).deleteAll},
		{"gone", (*job).gone},
		{"forget", (*job).forget},
	}
	making = []part{
		{"claim", (*job).claim},
		{"order", (*job).order},
		{"register", (*job).register},
		{"converge", (*job).converge},
	}
	adopting = []part{
		{"adopt", (*job).adopt},
		{"register", (*job).register},
		{"converge", (*job).converge},
	}
	awaiting = []part{
		{"settle", (*job).settle},
		{"register", (*job).register},
		{"converge", (*job).converge},
	}
	clearing = []part{
		{"spare", (*job).spare},
		{"clear", (*job).deleteAll},
		{"cleared", (*job).cleared},
	}
)

// partsOf is the work that a step takes; nil when nothing is to be done.
func partsOf(s plan.Step) []part {
	switch s.Verb {
	case plan.Create:
		return making
	case plan.Replace, plan.Broken, plan.Orphan, plan.Retire:
		if s.Makes {
			return slices.Concat(retiring, making)
		}
		return retiring
	case plan.Adopt:
		return adopting
	case plan.Wait:
		return awaiting
	case plan.Duplicate:
		return clearing
	}
	return nil
}

// Parts names the parts of the work in the order of their lists; crash tests are generated from it.
func Parts() (names []string) {
	for _, list := range [][]part{clearing, adopting, awaiting, retiring, making} {
		for _, p := range list {
			if !slices.Contains(names, p.name) {
				names = append(names, p.name)
			}
		}
	}
	return names
}

// engine carries one plan out.
type engine struct {
	a     *Applier
	plan  plan.Plan
	guard *guard
	eyes  *eyes
	slots chan struct{}
	log   *slog.Logger

	ctx    context.Context // ends when nothing new may be begun
	calls  context.Context // ends when what was asked must end, too
	give   context.CancelCauseFunc
	cut    context.CancelCauseFunc // ends calls
	caller context.Context         // who ends it interrupts
	ending func()
	before sight // when the apply began

	slowly    sync.Mutex // guards until
	until     time.Time  // the provider asked to wait so long
	telling   sync.Mutex
	recording sync.Mutex      // guards outcomes and marks
	outcomes  map[int]Outcome // by the step's place in the plan
	marks     []string        // notes, in their order
}

// grace is how long calls in flight may go on after an interrupt.
const grace = 30 * time.Second

func (a *Applier) engine(ctx context.Context, p plan.Plan, agreed []machines.Ref) *engine {
	e := &engine{a: a, plan: p, guard: newGuard(agreed), log: a.Log, caller: ctx, outcomes: map[int]Outcome{}}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	parallel := a.Parallel
	if parallel < 1 {
		parallel = DefaultParallel
	}
	e.slots = make(chan struct{}, parallel)
	e.ctx, e.give = context.WithCancelCause(ctx)
	calls, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	e.calls, e.cut = calls, cut
	unbind := context.AfterFunc(e.ctx, func() {
		if errors.Is(context.Cause(e.ctx), machines.ErrLost) {
			cut(machines.ErrLost)
			return
		}
		select {
		case <-time.After(grace):
		case <-calls.Done():
		}
		cut(context.Cause(e.ctx))
	})
	unlock := func() bool { return true }
	if a.Lock != nil { // it may be lost after an interrupt, too, whose cause stays what it is
		unlock = context.AfterFunc(a.Lock, func() { _ = e.lost(machines.ErrLost) })
	}
	watched := make(chan struct{})
	e.eyes = newEyes(e.readWorld, e.readMachines, a.Now)
	go func() {
		defer close(watched)
		e.eyes.run(e.ctx)
	}()
	e.ending = func() {
		unlock()
		unbind()
		e.give(nil)
		cut(nil)
		<-watched
	}
	return e
}

func (e *engine) stop() { e.ending() }

// lost gives everything up when err says that somebody else has taken over: calls in flight, too, as every moment counts.
func (e *engine) lost(err error) error {
	if errors.Is(err, machines.ErrLost) {
		e.give(machines.ErrLost)
		e.cut(machines.ErrLost)
	}
	return err
}

// over is why nothing new may be begun; nil while it may.
func (e *engine) over() error {
	if e.ctx.Err() == nil {
		return nil
	}
	return context.Cause(e.ctx)
}

// cutOff reports whether an error only says that all of it was given up.
func (e *engine) cutOff(err error) bool {
	why := e.over()
	return err != nil && why != nil && (errors.Is(err, why) || errors.Is(err, context.Canceled))
}

// interrupted reports whether the caller had it stop.
func (e *engine) interrupted() bool {
	return e.caller.Err() != nil && !errors.Is(context.Cause(e.caller), machines.ErrLost)
}
