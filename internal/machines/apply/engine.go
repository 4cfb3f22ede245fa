package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/stablehash"
)

// A task is one part of the work on a step. Each reads the current state, can be repeated, and can be interrupted
// anywhere. The next apply plans from the state at that time, and has the same result.
type task struct {
	name string
	run  func(*job) error
}

// The tasks, in order. A name is claimed before the machine is ordered, and freed only after the list shows that the
// machine is gone.
var (
	retireTasks = []task{
		{"retire", retire},
		{"hold", hold},
		{"ask", requestRetirement},
		{"drain", drain},
		{"remove", remove},
		{"delete", deleteAll},
		{"gone", awaitGone},
		{"forget", forget},
	}
	createTasks = []task{
		{"claim", claim},
		{"order", order},
		{"register", register},
		{"converge", converge},
	}
	adoptTasks = []task{
		{"adopt", adopt},
		{"register", register},
		{"converge", converge},
	}
	waitTasks = []task{
		{"settle", settle},
		{"register", register},
		{"converge", converge},
	}
	duplicateTasks = []task{
		{"recheck", recheckDuplicate},
		{"clear", deleteAll},
		{"cleared", awaitCleared},
	}
)

// tasksOf returns the tasks of a step; nil if it does nothing.
func tasksOf(s plan.Step) []task {
	switch s.Verb {
	case plan.Create:
		return createTasks
	case plan.Replace, plan.Broken, plan.Orphan, plan.Retire:
		if s.Creates {
			return slices.Concat(retireTasks, createTasks)
		}
		return retireTasks
	case plan.Adopt:
		return adoptTasks
	case plan.Wait:
		return waitTasks
	case plan.Duplicate:
		return duplicateTasks
	}
	return nil
}

// Tasks returns the names of all tasks. Crash tests are generated from them.
func Tasks() (names []string) {
	for _, list := range [][]task{duplicateTasks, adoptTasks, waitTasks, retireTasks, createTasks} {
		for _, t := range list {
			if !slices.Contains(names, t.name) {
				names = append(names, t.name)
			}
		}
	}
	return names
}

// engine carries one plan out.
type engine struct {
	a         *Applier
	draft     Draft
	approvals *approvals
	poller    *poller
	slots     chan struct{}
	log       *slog.Logger

	ctx    context.Context // ends when nothing new may be begun
	calls  context.Context // ends when calls in flight must end
	give   context.CancelCauseFunc
	cut    context.CancelCauseFunc // ends calls
	ending func()

	retiring sync.Mutex        // guards begun and failed
	begun    map[string]bool   // nodes that this apply made unavailable
	failed   map[string]number // those on which it works no longer, because their step failed: snapshots from this one on tell where they are

	throttling sync.Mutex // guards until
	until      time.Time  // the provider throttles until then
	telling    sync.Mutex
	recording  sync.Mutex      // guards outcomes and notes
	outcomes   map[int]Outcome // by index of the step in the plan
	notes      []machines.Reason
}

// grace is how long calls in flight may continue after an interrupt.
const grace = 30 * time.Second

func (a *Applier) engine(ctx context.Context, d Draft, approved []machines.Ref) *engine {
	e := &engine{a: a, draft: d, approvals: newApprovals(approved), log: a.Log, outcomes: map[int]Outcome{}, begun: map[string]bool{}, failed: map[string]number{}}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.slots = make(chan struct{}, cmp.Or(a.Parallel, DefaultParallel))
	e.ctx, e.give = context.WithCancelCause(ctx)
	calls, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	e.calls, e.cut = calls, cut
	unbind := context.AfterFunc(e.ctx, func() {
		if isLost(context.Cause(e.ctx)) {
			cut(machines.ErrLost)
			return
		}
		select {
		case <-time.After(grace):
		case <-calls.Done():
		}
		cut(context.Cause(e.ctx))
	})
	limit := func() bool { return true }
	if a.Limit > 0 {
		limit = time.AfterFunc(a.Limit, func() { e.give(ErrLate) }).Stop
	}
	unlock := func() bool { return true }
	if a.Lock != nil { // the lock may also be lost after an interrupt, which stays the cause
		unlock = context.AfterFunc(a.Lock, func() { _ = e.lost(machines.ErrLost) })
	}
	polled := make(chan struct{})
	e.poller = newPoller(d.World, e.readWorld, e.readMachines, a.Now)
	go func() {
		defer close(polled)
		e.poller.run(e.ctx)
	}()
	e.ending = func() {
		limit()
		unlock()
		unbind()
		e.give(nil)
		cut(nil)
		<-polled
	}
	return e
}

func (e *engine) stop() { e.ending() }

// lost ends everything, including calls in flight, if err means that another apply holds the lock.
func (e *engine) lost(err error) error {
	if isLost(err) {
		e.give(machines.ErrLost)
		e.cut(machines.ErrLost)
	}
	return err
}

// over returns the reason why nothing new may begin; nil while it may.
func (e *engine) over() error {
	if e.ctx.Err() == nil {
		return nil
	}
	return context.Cause(e.ctx)
}

// cutOff reports whether an error only results from the end of the apply.
func (e *engine) cutOff(err error) bool {
	why := e.over()
	return err != nil && why != nil && (errors.Is(err, why) || errors.Is(err, context.Canceled))
}

// interrupted reports whether the caller stopped the apply.
func (e *engine) interrupted() bool {
	return e.over() != nil && !isLost(e.over())
}

func (e *engine) tell(ev Event) {
	if e.a.Progress == nil {
		return
	}
	ev.At = e.a.Now()
	e.telling.Lock()
	defer e.telling.Unlock()
	e.a.Progress(ev)
}

// remark adds a note to the result, once for each code and node.
func (e *engine) remark(r machines.Reason) {
	e.recording.Lock()
	defer e.recording.Unlock()
	same := func(n machines.Reason) bool { return n.Code == r.Code && n.Node == r.Node }
	if !slices.ContainsFunc(e.notes, same) {
		e.notes = append(e.notes, r)
	}
}

// The limits and pauses of retries.
const (
	maxCalls    = 5
	firstGap    = time.Second
	longestGap  = 30 * time.Second
	maxWaits    = 20              // throttled tries of one call
	longestWait = 5 * time.Minute // requested by a provider
	fleetLimit  = time.Minute     // of one call to the fleet
)

// gap returns the pause after a number of tries. It grows up to a limit, and differs between nodes: nodes that failed
// together must not retry together.
func gap(key string, tries int) time.Duration {
	d := longestGap
	if tries < 6 {
		d = min(d, firstGap<<(tries-1))
	}
	return d/2 + time.Duration(stablehash.Fraction(key, strconv.Itoa(tries))*float64(d/2))
}

// final reports whether a retry would fail as well.
func final(err error) bool {
	for _, end := range []error{machines.ErrQuota, machines.ErrRefused, machines.ErrLost, machines.ErrChanged, machines.ErrDestroying, fleet.ErrNotListed, machines.ErrTokenTaken} {
		if errors.Is(err, end) {
			return true
		}
	}
	return errors.As(err, new(*machines.TakenError))
}

// within runs one call under its deadline. After an interrupt the call may continue for the time of grace.
func (e *engine) within(limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(e.calls, limit)
	defer cancel()
	return e.lost(call(ctx))
}

// throttle delays all calls to the provider.
func (e *engine) throttle(d time.Duration) {
	e.throttling.Lock()
	defer e.throttling.Unlock()
	if until := e.a.Now().Add(bounded(d)); until.After(e.until) {
		e.until = until
	}
}

// bounded limits the pause that a provider requests.
func bounded(d time.Duration) time.Duration { return min(max(d, firstGap), longestWait) }

// persist calls the fleet, and retries with growing pauses.
func (e *engine) persist(key string, call func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := e.within(fleetLimit, call)
		if err == nil || final(err) {
			return err
		}
		if tries == maxCalls || !sleep(e.ctx, gap(key, tries)) {
			return err
		}
	}
}

func (e *engine) readWorld(ctx context.Context) (machines.World, error) {
	w, err := e.a.Fleet.World(ctx)
	if err != nil {
		return w, e.lost(fmt.Errorf("cannot read the fleet of %s: %w", e.a.Ref, err))
	}
	w.Places = e.draft.World.Places
	return w, nil
}

func (e *engine) readMachines(ctx context.Context) ([]machines.Machine, error) {
	if e.a.Provider == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := e.a.Provider.List(ctx)
	if err != nil {
		var wait *machines.WaitError
		if errors.As(err, &wait) {
			e.throttle(wait.After)
		}
		return nil, fmt.Errorf("cannot list the machines of %s: %w", e.a.Ref, err)
	}
	return all, nil
}

// keepPlaces records the places of leaving nodes. With the next environment, their attributes leave etcd; and this apply may end before
// their retirement begins.
func (e *engine) keepPlaces(d Draft) error {
	for _, s := range d.Steps {
		was, recorded := d.World.Records[s.Node]
		if places := d.World.Places[s.Node]; d.Changed && recorded && s.Ends() && !slices.Equal(was.Places, places) {
			r := was
			r.Places = places
			if err := e.persist(s.Node+"places", func(ctx context.Context) error { return e.a.Fleet.Put(ctx, r, &was) }); err != nil {
				return fmt.Errorf("cannot write the record of machine %s: %w", r.Name, err)
			}
			d.World.Records[s.Node] = r
		}
	}
	return nil
}

// putSpec stores the environment, unless it is stored already. A destroy does not store it.
func (e *engine) putSpec(p plan.Plan) error {
	if !p.Changed {
		return nil
	}
	return e.persist("spec", func(ctx context.Context) error {
		_, err := e.a.Fleet.PutSpec(ctx, p.Spec, p.Revision)
		if !errors.Is(err, machines.ErrChanged) {
			return err
		}
		// A try whose answer was lost may have stored it.
		if w, e := e.readWorld(ctx); e == nil && plan.SameSpec(w.Old, p.Spec) {
			return nil
		}
		return err
	})
}
