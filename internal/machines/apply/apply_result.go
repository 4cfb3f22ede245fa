package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// Result is what an apply did.
type Result struct {
	Done        []Outcome // steps that were carried out, in the order of the plan
	Failed      []Outcome // steps that were begun and came to nothing
	Cut         []Outcome // steps that were begun and are not done, as all of it was given up
	Left        []Outcome // steps that were not begun, and why
	Notes       []string  // sentences: what else an operator should know
	Stopped     error     // why all of it was given up: the lock was lost, or it was interrupted; nil when it was not
	Interrupted bool      // Stopped because the operator asked for it
	Destroys    bool      // as the plan does
}

// Outcome is what became of one step.
type Outcome struct {
	Verb plan.Verb
	Node string
	Role string
	Step string // where it failed
	Err  error  // why it failed, or was not begun; nil when it is done
}

// Err names everything that failed; nil when nothing did.
func (r Result) Err() error {
	var lines []error
	if r.Stopped != nil {
		hint := "\nwhat was begun is known: " + machines.Deed(r.Destroys) + " again to go on"
		if errors.Is(r.Stopped, machines.ErrLost) {
			hint = "\nthe other one goes on with what was begun; " + r.afterwards() + " when it is done"
		}
		why := r.Stopped
		if r.Interrupted {
			why = errors.New("it was interrupted")
		}
		lines = append(lines, fmt.Errorf("cannot finish: %w%s", why, hint))
	}
	for _, o := range r.Failed {
		lines = append(lines, fmt.Errorf("cannot %s %s: %w", o.Verb.Deed(), o.Node, o.Err))
	}
	lines = append(lines, r.quotas()...)
	if r.Stopped == nil {
		lines = append(lines, r.left()...)
	}
	return errors.Join(lines...)
}

// afterwards is what to do when somebody else who has taken over is done.
func (r Result) afterwards() string {
	if r.Destroys {
		return "destroy again"
	}
	return "look at the plan"
}

// quotas says, of each role that met a quota, how far it got.
func (r Result) quotas() (lines []error) {
	var roles []string
	for _, o := range r.Failed {
		if errors.Is(o.Err, machines.ErrQuota) && !slices.Contains(roles, o.Role) {
			roles = append(roles, o.Role)
		}
	}
	for _, role := range roles {
		made, all := 0, 0
		for _, list := range [][]Outcome{r.Done, r.Failed, r.Cut, r.Left} {
			for _, o := range list {
				if o.Role != role || !o.Verb.Makes() {
					continue
				}
				all++
				if o.Err == nil {
					made++
				}
			}
		}
		lines = append(lines, fmt.Errorf("the provider's quota was reached at machine %d of %d of %s: %d made\nraise the quota, or lower the cardinality of %s, and apply again", made+1, all, role, made, role))
	}
	return lines
}

// left sums up, by reason, what was not begun.
func (r Result) left() (lines []error) {
	var whys []string
	nodes := map[string][]string{}
	for _, o := range r.Left {
		why := o.Err.Error()
		if nodes[why] == nil {
			whys = append(whys, why)
		}
		nodes[why] = append(nodes[why], o.Verb.Deed()+" "+o.Node)
	}
	for _, why := range whys {
		lines = append(lines, fmt.Errorf("not begun, because %s: %s", why, strings.Join(nodes[why], ", ")))
	}
	return lines
}
