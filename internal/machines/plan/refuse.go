package plan

import (
	"reflect"
	"slices"

	"pulley/internal/machines"
)

// Refusal is a reason why a plan is not carried out.
type Refusal struct {
	Step    Step
	Machine machines.Ref // the machine without approval; zero if the step is blocked
}

// Refused lists the reasons why a plan is not carried out if these machines are approved for deletion; none if it is.
func (p Plan) Refused(approved []machines.Ref) (all []Refusal) {
	for _, s := range p.Steps {
		if s.Blocked != nil {
			all = append(all, Refusal{Step: s})
		}
		for _, m := range s.Deletes {
			if !slices.Contains(approved, m) && !slices.Contains(approved, machines.Ref{Name: m.Name}) {
				all = append(all, Refusal{Step: s, Machine: m})
			}
		}
	}
	return all
}

// Unprotects reports whether a blocked plan only removes protection. Then only the environment is stored: protection
// must not block its own removal.
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

// Difference is a difference between a stored or approved plan and one made now.
type Difference struct {
	Kind DifferenceKind
	Was  Step // zero if Kind concerns the plan itself, or is Added
	Is   Step // zero if Kind concerns the plan itself, or if the node has no step now
	From string
	To   string
}

// DifferenceKind is the kind of a difference.
type DifferenceKind string

// The kinds of differences.
const (
	OtherFleet    DifferenceKind = "other_fleet"
	OtherDriver   DifferenceKind = "other_provider"
	OtherRevision DifferenceKind = "environment_stored" // by another program
	OtherSpec     DifferenceKind = "file_changed"
	Dropped       DifferenceKind = "step_dropped"
	Added         DifferenceKind = "step_added"
	OtherVerb     DifferenceKind = "other_verb"
	OtherDeletes  DifferenceKind = "other_machines_deleted"
	OtherDetails  DifferenceKind = "details_changed" // the order, the removal of the node, or the block
)

// Differences compares a stored plan with one made now; none if both have the same changes. It ignores times, the
// progress of machines that are waited for, and nodes without an action.
func Differences(stored, now Plan) (all []Difference) {
	if stored.Fleet != now.Fleet {
		return []Difference{{Kind: OtherFleet, From: stored.Fleet.String(), To: now.Fleet.String()}}
	}
	if stored.Driver != now.Driver {
		all = append(all, Difference{Kind: OtherDriver, From: stored.Driver, To: now.Driver})
	}
	if stored.Revision != now.Revision {
		all = append(all, Difference{Kind: OtherRevision, To: now.Fleet.String()})
	}
	if !SameSpec(stored.Spec, now.Spec) {
		all = append(all, Difference{Kind: OtherSpec})
	}
	before, after := stored.active(), now.active()
	compared := map[stepKey]bool{}
	for _, s := range slices.Concat(stored.Steps, now.Steps) {
		was, planned := before[s.key()]
		is, needed := after[s.key()]
		if compared[s.key()] || !planned && !needed {
			continue
		}
		compared[s.key()] = true
		kind := was.differs(is)
		switch {
		case !needed:
			kind, is = Dropped, now.stepOf(was.Node)
		case !planned:
			kind = Added
		}
		if kind != "" {
			all = append(all, Difference{Kind: kind, Was: was, Is: is})
		}
	}
	return all
}

// stepKey identifies a step in a plan: a node has one, and one for each duplicate.
type stepKey struct {
	node      string
	duplicate machines.Ref
}

func (s Step) key() stepKey {
	if s.Verb == Duplicate && len(s.Deletes) > 0 {
		return stepKey{s.Node, s.Deletes[0]}
	}
	return stepKey{node: s.Node}
}

// active returns the steps that have an effect, or would have one if they were not blocked.
func (p Plan) active() map[stepKey]Step {
	steps := map[stepKey]Step{}
	for _, s := range p.Steps {
		if s.Acts() {
			steps[s.key()] = s
		}
	}
	return steps
}

// stepOf returns the first step of a node.
func (p Plan) stepOf(node string) (first Step) {
	if i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Node == node }); i >= 0 {
		first = p.Steps[i]
	}
	return first
}

func (s Step) differs(now Step) DifferenceKind {
	switch {
	case s.Verb != now.Verb:
		return OtherVerb
	case !slices.Equal(s.Deletes, now.Deletes):
		return OtherDeletes
	case s.Creates != now.Creates, !reflect.DeepEqual(s.Order, now.Order), s.Removes != now.Removes, (s.Blocked == nil) != (now.Blocked == nil):
		return OtherDetails
	}
	return ""
}
