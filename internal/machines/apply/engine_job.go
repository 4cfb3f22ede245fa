package apply

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/failpoint"
	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// job is the work for one step.
type job struct {
	*engine
	step    plan.Step
	role    environments.Role // the zero value of one that is not in the file any more
	record  *machines.Record  // as it is in the books; nil when they have none
	heard   agent.Status      // what the node said last before it was made: its status stays when it is removed
	since   sightNo           // what the node is now is told by sights from here on
	claimed bool              // this job has claimed the name
	resume  bool              // an apply before this one has claimed the name, and may have asked for the machine
	text    string            // what was told last that is waited for
}

func (e *engine) job(s plan.Step) *job {
	j := &job{engine: e, step: s}
	j.role, _ = e.plan.Spec.Role(s.Role)
	if r, ok := e.before.World.Records[s.Node]; ok {
		j.record = &r
	}
	j.heard = e.before.World.Statuses[s.Node]
	j.resume = j.record != nil && j.record.Phase == machines.Making
	j.log = e.log.With("node", s.Node, "verb", string(s.Verb))
	return j
}

// now is the time that a record is given: in whole seconds, as nodes tell theirs, so that what a node says in the second in
// which its machine was made is not taken for another machine's word.
func (j *job) now() time.Time { return j.a.Now().UTC().Truncate(time.Second) }

// errOrderAgain sends the work back to where the machine is asked for.
var errOrderAgain = errors.New("the machine is ordered again")

// do does the work for one step. Progress, the log and crash points are here, once for all parts. Where it fails, part says.
func (j *job) do() (at string, err error) {
	parts := partsOf(j.step)
	for i := 0; i < len(parts); i++ {
		p := parts[i]
		if err := j.over(); err != nil {
			return p.name, j.cutShort(p.name, err)
		}
		j.text = ""
		j.tell(p.name, Begins, "")
		failpoint.Here("before:" + p.name)
		start := j.a.Now()
		err := j.lost(p.run(j))
		j.log.Debug("step", "step", p.name, "took", j.a.Now().Sub(start), "err", err)
		switch {
		case errors.Is(err, errOrderAgain):
			i = slices.IndexFunc(parts, func(p part) bool { return p.name == "order" }) - 1
		case j.cutOff(err):
			return p.name, j.cutShort(p.name, err)
		case err != nil:
			j.tell(p.name, Fails, err.Error())
			return p.name, err
		}
		failpoint.Here("after:" + p.name)
		j.tell(p.name, Ends, "")
	}
	j.tell("", Done, "")
	return "", nil
}

// cutShort tells that the work ends before its end, which is no failure of it, and returns err.
func (j *job) cutShort(step string, err error) error {
	why := "stopped: " + j.over().Error()
	if j.interrupted() {
		why = "interrupted; what was begun is known"
	}
	j.tell(step, Notes, fmt.Sprintf("%s: %s", j.step.Verb, why))
	return err
}

func (j *job) tell(step string, state EventState, text string) {
	j.engine.tell(Event{Node: j.step.Node, Role: j.step.Role, Verb: j.step.Verb, Step: step, State: state, Text: text})
}

// waits tells what is waited for, when that is not what was told last.
func (j *job) waits(step, text string) {
	if text != j.text {
		j.text = text
		j.tell(step, Waits, text)
	}
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

// remark adds a note to the result, once.
func (e *engine) remark(text string) {
	e.recording.Lock()
	defer e.recording.Unlock()
	if !slices.Contains(e.marks, text) {
		e.marks = append(e.marks, text)
	}
}

// view judges a node by what it said since it was made. A machine that is waited for was there before: what it has said by then
// counts, but for the words of another one before it.
func (j *job) view(s sight) (agent.View, bool) {
	st := s.World.Statuses[j.step.Node]
	own := j.step.Verb == plan.Wait && j.record != nil && s.World.ReportedOwn(j.step.Node, *j.record)
	if reflect.DeepEqual(st, j.heard) && !own {
		return agent.View{}, false
	}
	v, ok := s.World.Views[j.step.Node]
	return v, ok
}
