package plan

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"pulley/environments"
	"pulley/internal/machines"
)

// refused says why a plan is not carried out at all.
func (p Plan) Refused(agreed []machines.Ref) error {
	is := map[machines.Ref]bool{}
	for _, v := range agreed {
		is[v] = true
	}
	var errs []error
	for _, s := range p.Steps {
		if s.Blocked != "" {
			errs = append(errs, fmt.Errorf("cannot %s %s: %s", s.Verb.Deed(), s.Node, s.Blocked))
		}
		for _, v := range s.Victims {
			if !is[v] && !is[machines.Ref{Name: v.Name}] {
				errs = append(errs, fmt.Errorf("cannot %s %s: nobody agreed to destroy its machine %s", s.Verb.Deed(), s.Node, v))
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
	all, nodes := len(p.Destroyed()), len(p.Removed())
	n := all + nodes
	if n <= most {
		return nil
	}
	what := "it destroys " + machines.Count(all, "machine")
	absent := fmt.Sprintf("takes %s out of the fleet whose machines are not there", machines.Count(nodes, "node"))
	if nodes == 1 {
		absent = "takes 1 node out of the fleet whose machine is not there"
	}
	switch {
	case all == 0:
		what = "it " + absent
	case nodes > 0:
		what += " and " + absent
	}
	return fmt.Errorf("cannot %s %s: %s, and at most %d may go at a time\nlook at the plan, and give --max-retire %d if it is right", machines.Deed(p.Destroys), p.Fleet, what, most, n)
}

// ends reports whether nothing is left of the node when the step is done.
func (s Step) Ends() bool {
	return !s.Makes && (s.Verb == Retire || s.Verb == Broken || s.Verb == Orphan || s.Verb == Replace)
}

// makes reports whether a step of this verb asks for a machine.
func (v Verb) Makes() bool {
	return v == Create || v == Replace || v == Broken || v == Orphan
}

// deed is what a step of this verb does, as sentences say it: "cannot replace compute1: …".
func (v Verb) Deed() string {
	switch v {
	case Broken:
		return "replace"
	case Orphan:
		return "clear away what is left of"
	case Duplicate:
		return "delete the second machine of"
	case Wait:
		return "wait for"
	}
	return string(v)
}

// reactingTo are the nodes that are asked for a run when only these steps are done.
func (p Plan) ReactingTo(steps []Step) (nodes []string) {
	came := map[string]bool{}
	for _, s := range steps {
		came[s.Role] = true
	}
	made := map[string]bool{}
	for _, s := range steps {
		made[s.Node] = true
	}
	for _, node := range p.Reacting {
		role := RoleOf(p.Spec, node)
		if !made[node] && slices.ContainsFunc(role.ReactsTo, func(r string) bool { return came[r] }) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func RoleOf(e *environments.Environment, node string) environments.Role {
	r, _ := e.RoleOf(node)
	return r
}

// goOn is what to do to go on with a plan that was cut off, or of which something failed. To apply would call a destroy off.
func (p Plan) GoOn() string { return machines.Deed(p.Destroys) + " again" }

// anew is what to do where the world is another than a plan was made from.
func (p Plan) Anew() string {
	if p.Destroys {
		return "destroy again, and look at the plan that is shown"
	}
	return "look at a new plan"
}
