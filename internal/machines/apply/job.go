package apply

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/failpoint"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

// job is the work on one step: its state, and the calls of its tasks.
type job struct {
	*engine
	step    plan.Step
	turn    *turn
	role    environments.Role // the zero value for a role that was removed from the file
	record  *machines.Record  // as stored; nil for none
	heard   model.Status      // the node's last report before its machine was made: a removed node keeps its status
	since   number            // later snapshots show the changes of this job
	claimed bool              // this job has claimed the name
	resumes bool              // an earlier apply has claimed the name, and may have ordered the machine
	waiting machines.Reason   // the last reported cause of a wait
}

func (e *engine) job(s plan.Step, t *turn) *job {
	j := &job{engine: e, step: s, turn: t}
	j.role, _ = e.draft.Spec.Role(s.Role)
	if r, ok := e.draft.World.Records[s.Node]; ok {
		j.record = &r
	}
	j.heard = e.draft.World.Statuses[s.Node]
	j.resumes = j.record != nil && j.record.Phase == machines.Making
	j.log = e.log.With("node", s.Node, "verb", string(s.Verb))
	return j
}

// errOrderAgain makes the job repeat its order.
var errOrderAgain = errors.New("the machine is ordered again")

// do runs the tasks of the step. It is the one place for the progress, the log and the crash points of all tasks. On
// failure, at is the task.
func (j *job) do() (at string, err error) {
	tasks := tasksOf(j.step)
	for i := 0; i < len(tasks); i++ {
		t := tasks[i]
		if err := j.over(); err != nil {
			return t.name, j.cutShort(t.name, err)
		}
		j.waiting = machines.Reason{}
		j.event(Event{Task: t.name, State: Begins})
		failpoint.Here("before:" + t.name)
		start := j.a.Now()
		err := j.lost(t.run(j))
		var left *leftError
		j.log.Debug("step", "step", t.name, "took", j.a.Now().Sub(start), "err", err)
		switch {
		case errors.Is(err, errOrderAgain):
			i = slices.IndexFunc(tasks, func(t task) bool { return t.name == "order" }) - 1
		case j.cutOff(err):
			return t.name, j.cutShort(t.name, err)
		case errors.As(err, &left):
			j.event(Event{Task: t.name, State: Notes, Reasons: []machines.Reason{left.why}})
			return t.name, err
		case err != nil:
			j.event(Event{Task: t.name, State: Fails, Err: err})
			return t.name, err
		}
		failpoint.Here("after:" + t.name)
		j.event(Event{Task: t.name, State: Ends})
	}
	j.event(Event{State: Done})
	return "", nil
}

// cutShort reports that the work was stopped, which is not a failure, and returns err.
func (j *job) cutShort(task string, err error) error {
	why := machines.Reason{Code: machines.ApplyInterrupted}
	if !j.interrupted() {
		why = machines.Reason{Code: machines.ApplyStopped, Problem: model.Prose(j.over().Error())}
	}
	j.event(Event{Task: task, State: Notes, Reasons: []machines.Reason{why}})
	return err
}

func (j *job) event(ev Event) {
	ev.Node, ev.Role, ev.Verb = j.step.Node, j.step.Role, j.step.Verb
	j.tell(ev)
}

// waits reports the cause of a wait, if it changed.
func (j *job) waits(task string, r machines.Reason) {
	if !reflect.DeepEqual(r, j.waiting) {
		j.waiting = r
		j.event(Event{Task: task, State: Waits, Reasons: []machines.Reason{r}})
	}
}

// now returns the time for a record, in seconds, as in reports: a report in the second in which a machine was made must
// count as that machine's.
func (j *job) now() time.Time { return j.a.Now().UTC().Truncate(time.Second) }

// view judges a node by its reports since its machine was made. If the job waits for an existing machine, earlier
// reports of this machine count, too.
func (j *job) view(s snapshot) (model.View, bool) {
	st := s.World.Statuses[j.step.Node]
	own := j.step.Verb == plan.Wait && j.record != nil && s.World.Reported(j.step.Node, *j.record)
	if reflect.DeepEqual(st, j.heard) && !own {
		return model.View{}, false
	}
	v, ok := s.World.Views[j.step.Node]
	return v, ok
}

// machine finds the node's machine: the recorded one, else the newest one of its name without those to be deleted.
func (j *job) machine(s snapshot) (found machines.Machine, ok bool) {
	name := j.name()
	for _, m := range s.World.Machines {
		if m.Name != name || j.approvals.has(m.Ref()) {
			continue
		}
		if j.record != nil && j.record.ID != "" && m.ID == j.record.ID {
			return m, true
		}
		if !ok || m.Created.After(found.Created) {
			found, ok = m, true
		}
	}
	return found, ok
}

// name is the name of the node's machine.
func (j *job) name() string {
	switch {
	case j.step.Order != nil:
		return j.step.Order.Name
	case j.record != nil:
		return j.record.Name
	case len(j.step.Deletes) > 0:
		return j.step.Deletes[0].Name
	}
	return strings.ReplaceAll(j.step.Node, "_", "-")
}

// ask calls the provider within a deadline, and retries with growing pauses if the outcome is unknown. known, if given,
// reports before each retry whether the call took effect. If the provider throttles, all jobs wait. If one machine has
// to wait, only this job does.
func (j *job) ask(verb string, call func(context.Context) error, known func() (bool, error)) (done bool, err error) {
	tries, waits := 0, 0
	for {
		if err := j.unthrottled(verb); err != nil {
			return false, err
		}
		err := j.within(callTimeout, call)
		var wait *machines.WaitError
		var later *machines.LaterError
		switch {
		case err == nil:
			return true, nil
		case j.over() != nil:
			return false, j.over()
		case final(err):
			return false, err
		case errors.As(err, &later) && waits < maxWaits:
			waits++
			j.waits(verb, machines.Reason{Code: machines.WaitsForProblem, Problem: problem(err)})
			if !sleep(j.ctx, bounded(later.After)) {
				return false, j.over()
			}
			continue
		case errors.As(err, &wait) && waits < maxWaits:
			waits++
			j.throttle(wait.After)
			continue
		}
		if tries++; tries == maxCalls {
			return false, fmt.Errorf("tried %d times: %w", tries, err)
		}
		j.log.Warn("a request to the provider is retried", "call", verb, "try", tries, "err", err)
		j.waits(verb, machines.Reason{Code: machines.WaitsForRetry, Problem: problem(err)})
		if !sleep(j.ctx, gap(j.step.Node+verb, tries)) {
			return false, j.over()
		}
		if known == nil {
			continue
		}
		if ok, err := known(); ok || err != nil {
			return ok, err
		}
	}
}

// unthrottled waits until the provider may be called.
func (j *job) unthrottled(task string) error {
	for {
		j.throttling.Lock()
		d := j.until.Sub(j.a.Now())
		j.throttling.Unlock()
		if d <= 0 {
			return j.over()
		}
		j.waits(task, machines.Reason{Code: machines.WaitsForProvider, Seconds: int(d.Round(time.Second) / time.Second)})
		if !sleep(j.ctx, d) {
			return j.over()
		}
	}
}

// put writes the node's record.
func (j *job) put(r machines.Record) error {
	err := j.persist(j.step.Node+"put", func(ctx context.Context) error { return j.a.Fleet.Put(ctx, r, j.record) })
	if err != nil {
		return fmt.Errorf("cannot write the record of machine %s: %w", r.Name, err)
	}
	j.record = &r
	return nil
}

// dropRecord deletes the node's record.
func (j *job) dropRecord() error {
	err := j.persist(j.step.Node+"drop", func(ctx context.Context) error { return j.a.Fleet.Drop(ctx, *j.record) })
	if err != nil {
		return fmt.Errorf("cannot delete the record of machine %s: %w", j.record.Name, err)
	}
	j.record = nil
	return nil
}

// note adds an act to the history: before the act itself, or before a record that would prevent a second note.
func (j *job) note(did machines.Did, why []machines.Reason) error {
	act := machines.Act{At: j.a.Now().UTC(), Node: j.step.Node, Did: did, Reasons: why, By: j.a.By}
	err := j.persist(j.step.Node+"note", func(ctx context.Context) error { return j.a.Fleet.Note(ctx, act) })
	if err != nil {
		return fmt.Errorf("cannot write to the history that %s is %s: %w", j.step.Node, did, err)
	}
	return nil
}

// request sends the node a request.
func (j *job) request(q model.Request) error {
	q.By, q.At = j.a.By, j.a.Now().UTC()
	return j.persist(j.step.Node+"ask", func(ctx context.Context) error { return j.a.Fleet.Ask(ctx, j.step.Node, q) })
}

// removeNode removes the node from the fleet.
func (j *job) removeNode(why []machines.Reason) error {
	err := j.persist(j.step.Node+"remove", func(ctx context.Context) error {
		return j.a.Fleet.Remove(ctx, j.step.Node, render.Reasons(why))
	})
	if err != nil {
		return fmt.Errorf("cannot remove it from the fleet: %w", err)
	}
	return nil
}

// look waits for a snapshot that begins after this call.
func (j *job) look() (snapshot, error) { return j.poller.get(j.ctx, j.poller.next()) }

// condition reports whether a wait is over, and else its cause.
type condition func(snapshot) (ok bool, waits machines.Reason, err error)

// await polls until done returns true or an error, or until the deadline. late then makes the error from the last cause.
func (j *job) await(task string, deadline time.Time, late func(cause string) error, done condition) error {
	ctx, cancel := context.WithTimeout(j.ctx, deadline.Sub(j.a.Now()))
	defer cancel()
	from := j.since
	last := machines.Reason{Code: machines.WaitsForNothingSeen}
	for {
		s, err := j.poller.get(ctx, from)
		switch {
		case j.over() != nil:
			return j.over()
		case ctx.Err() != nil:
			return late(render.Reason(last))
		case isLost(err):
			return err
		case err != nil:
			j.waits(task, machines.Reason{Code: machines.WaitsForProblem, Problem: problem(err)})
			continue
		}
		ok, waits, err := done(s)
		if ok || err != nil {
			return err
		}
		last = waits
		j.waits(task, waits)
		from = number{world: s.No.world + 1, list: from.list}
	}
}

// problem returns the first line of an error as prose.
func problem(err error) model.Prose {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return machines.Quote(line)
}
