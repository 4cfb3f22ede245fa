package apply

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
	"pulley/internal/machines/render"
	"pulley/internal/model"
)

// Result is the result of an apply. Its lists are in the order of the plan.
type Result struct {
	Done        []Outcome
	Failed      []Outcome
	Cut         []Outcome // begun and not completed, because the apply stopped
	Left        []Outcome // not begun
	Notes       []machines.Reason
	Stopped     error // why the apply stopped: it lost its lock, or was interrupted; else nil
	Interrupted bool  // the caller stopped the apply
	Destroys    bool  // the plan destroys the environment
}

// Outcome is the outcome of one step.
type Outcome struct {
	Verb plan.Verb
	Node string
	Role string
	Task string           // the task that failed
	Err  error            // why it failed, or was stopped; nil if it is done or was not begun
	Left *machines.Reason // why it was not begun; nil if the apply stopped first
}

// result collects the outcomes.
func (e *engine) result() Result {
	r := Result{Notes: e.notes, Stopped: e.over(), Destroys: e.draft.Destroys}
	r.Interrupted = e.interrupted()
	for i, s := range e.draft.Steps {
		if tasksOf(s) == nil {
			continue
		}
		o, ok := e.outcome(i)
		switch {
		case !ok && r.Stopped != nil:
			r.Left = append(r.Left, Outcome{Verb: s.Verb, Node: s.Node, Role: s.Role})
		case !ok:
		case o.Left != nil:
			r.Left = append(r.Left, o)
		case e.cutOff(o.Err):
			r.Cut = append(r.Cut, o)
		case o.Err != nil:
			r.Failed = append(r.Failed, o)
		default:
			r.Done = append(r.Done, o)
		}
	}
	return r
}

// Err returns an error that names every failure; nil without one.
func (r Result) Err() error {
	var lines []error
	if r.Stopped != nil {
		why, remedy := r.Stopped, "what was begun is recorded: "+resume(r.Destroys)+" to resume"
		switch {
		case errors.Is(r.Stopped, ErrLate):
		case r.Interrupted:
			why = errors.New("it was interrupted")
		case isLost(r.Stopped) && r.Destroys:
			remedy = "the other one resumes what was begun; destroy again when it is done"
		case isLost(r.Stopped):
			remedy = "the other one resumes what was begun; look at the plan when it is done"
		}
		lines = append(lines, fmt.Errorf("cannot finish: %w\n%s", why, remedy))
	}
	for _, o := range r.Failed {
		lines = append(lines, fmt.Errorf("cannot %s %s: %w", render.VerbOf(o.Verb), o.Node, o.Err))
	}
	lines = append(lines, r.quotas()...)
	if r.Stopped == nil {
		lines = append(lines, r.left()...)
		if len(r.Failed) > 0 {
			lines = append(lines, fmt.Errorf("%d done, %d failed, %d not begun\nfix the problem and %s to resume", len(r.Done), len(r.Failed), len(r.Left), resume(r.Destroys)))
		}
	}
	return errors.Join(lines...)
}

// Unreached reports whether the apply failed only because nodes did not reach the state to wait for: their machines were made.
func (r Result) Unreached() bool {
	made := func(o Outcome) bool { return o.Task == "register" || o.Task == "converge" }
	return r.Stopped == nil && len(r.Failed) > 0 && !slices.ContainsFunc(r.Failed, func(o Outcome) bool { return !made(o) })
}

// ErrLate stops an apply at its limit.
var ErrLate = errors.New("its time passed")

// quotas reports, for each role that reached a quota, how many machines were made.
func (r Result) quotas() (lines []error) {
	var roles []string
	for _, o := range r.Failed {
		if errors.Is(o.Err, machines.ErrQuota) && !slices.Contains(roles, o.Role) {
			roles = append(roles, o.Role)
		}
	}
	for _, role := range roles {
		made, all := 0, 0
		for i, list := range [][]Outcome{r.Done, r.Failed, r.Cut, r.Left} {
			for _, o := range list {
				if o.Role != role || !o.Verb.Creates() {
					continue
				}
				all++
				if i == 0 {
					made++
				}
			}
		}
		lines = append(lines, fmt.Errorf("the provider's quota was reached at machine %d of %d of %s: %d made\nraise the quota, or lower the cardinality of %s, and apply again", made+1, all, role, made, role))
	}
	return lines
}

// left lists the steps that were not begun, by reason.
func (r Result) left() (lines []error) {
	var whys []*machines.Reason
	nodes := map[*machines.Reason][]string{}
	for _, o := range r.Left {
		if o.Left == nil {
			continue
		}
		why := o.Left
		i := slices.IndexFunc(whys, func(w *machines.Reason) bool {
			return w.Code == why.Code && w.Node == why.Node && w.Role == why.Role && w.Was == why.Was
		})
		if i < 0 {
			whys = append(whys, why)
		} else {
			why = whys[i]
		}
		nodes[why] = append(nodes[why], render.VerbOf(o.Verb)+" "+o.Node)
	}
	for _, why := range whys {
		lines = append(lines, fmt.Errorf("not begun (%s): %s", strings.Join(nodes[why], ", "), render.Reason(*why)))
	}
	return lines
}

// reactLimit is the time in which nodes that react to others must answer the request for a run.
const reactLimit = 10 * time.Minute

// react requests a run of the nodes that react to joined or removed nodes, and waits for their answers. A missing
// answer is a note, not a failure: these nodes run again by schedule.
func (e *engine) react(p plan.Plan) {
	if len(p.Reacting) == 0 || !e.changed() || e.over() != nil {
		return
	}
	asked := map[string]string{} // ids by node
	for _, node := range p.Reacting {
		j := &job{engine: e, step: plan.Step{Verb: plan.Keep, Node: node}}
		q := model.Request{ID: newID(), Do: model.RequestRun, Why: model.Prose(render.Reason(machines.Reason{Code: machines.DependencyChanged}))}
		if err := j.request(q); err != nil {
			e.remark(machines.Reason{Code: machines.RunNotRequested, Node: node, Problem: problem(err)})
			continue
		}
		asked[node] = q.ID
	}
	j := &job{engine: e, step: plan.Step{Verb: plan.Keep}, since: e.poller.next()}
	late := func(cause string) error { return errors.New(cause) } // a note below
	_ = j.await("react", e.a.Now().Add(reactLimit), late, func(s snapshot) (bool, machines.Reason, error) {
		for node, id := range asked {
			a := s.World.Statuses[node].Answer
			if a == nil || a.ID != id {
				continue
			}
			delete(asked, node)
			if a.Failed() {
				e.remark(machines.Reason{Code: machines.RunFailed, Node: node, Problem: machines.Quote(a.Sentence())})
			}
		}
		return len(asked) == 0, machines.Reason{Code: machines.WaitsForRuns, Count: len(asked)}, nil
	})
	if len(asked) > 0 && e.over() == nil {
		silent := slices.Sorted(maps.Keys(asked))
		e.remark(machines.Reason{Code: machines.RunsUnanswered, Nodes: silent, Seconds: int(reactLimit / time.Second)})
	}
}

// changed reports whether a machine was made or deleted.
func (e *engine) changed() bool {
	for i, s := range e.draft.Steps {
		if o, ok := e.outcome(i); ok && o.Err == nil && o.Left == nil && (s.Creates || s.Ends()) {
			return true
		}
	}
	return false
}
