package plan

import (
	"reflect"
	"slices"

	"pulley/internal/machines"
)

// Refusal is why a plan is not carried out.
type Refusal struct {
	Step     Step
	Machine  machines.Ref // whose deletion nobody approved; zero where the step is blocked
	Destroys bool
}

// Refused lists why a plan is not carried out with these machines approved for deletion; nothing where it is.
func (p Plan) Refused(approved []machines.Ref) (all []Refusal) {
	for _, s := range p.Steps {
		if s.Blocked != nil {
			all = append(all, Refusal{Step: s, Destroys: p.Destroys})
		}
		for _, m := range s.Deletes {
			if !slices.Contains(approved, m) && !slices.Contains(approved, machines.Ref{Name: m.Name}) {
				all = append(all, Refusal{Step: s, Machine: m, Destroys: p.Destroys})
			}
		}
	}
	return all
}

// Unprotects reports whether a blocked plan only takes protection away. Then only the environment is stored. Otherwise protection
// would block its own end.
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

// Difference is something that a plan made now does otherwise than a plan that was stored or approved.
type Difference struct {
	Kind DifferenceKind
	Was  Step // zero where Kind is about the whole plan, or Added
	Is   Step // zero where Kind is about the whole plan, or where nothing is planned for the node
	From string
	To   string
}

// DifferenceKind is what differs.
type DifferenceKind string

// What may differ.
const (
	OtherFleet    DifferenceKind = "other_fleet"
	OtherDriver   DifferenceKind = "other_provider"
	OtherRevision DifferenceKind = "environment_stored" // by somebody else
	OtherSpec     DifferenceKind = "file_changed"
	Dropped       DifferenceKind = "step_dropped"
	Added         DifferenceKind = "step_added"
	OtherVerb     DifferenceKind = "other_verb"
	OtherDeletes  DifferenceKind = "other_machines_deleted"
	OtherOrder    DifferenceKind = "other_machine_ordered"
	OtherRemoval  DifferenceKind = "removal_changed"
	OtherBlock    DifferenceKind = "block_changed"
)

// Differences compares a plan that was stored with one that was made now; nothing if both do the same. Times, the progress of
// machines that are waited for, and nodes that nothing is done to do not count.
func Differences(stored, now Plan) (all []Difference) {
	add := func(d Difference) { all = append(all, d) }
	if stored.Fleet != now.Fleet {
		return []Difference{{Kind: OtherFleet, From: stored.Fleet.String(), To: now.Fleet.String()}}
	}
	if stored.Driver != now.Driver {
		add(Difference{Kind: OtherDriver, From: stored.Driver, To: now.Driver})
	}
	if stored.Revision != now.Revision {
		add(Difference{Kind: OtherRevision, To: now.Fleet.String()})
	}
	if !SameSpec(stored.Spec, now.Spec) {
		add(Difference{Kind: OtherSpec})
	}
	before, after := stored.active(), now.active()
	for _, s := range stored.Steps {
		was, ok := before[s.key()]
		if !ok {
			continue
		}
		if is, ok := after[s.key()]; !ok {
			add(Difference{Kind: Dropped, Was: was, Is: now.stepOf(was.Node)})
		} else if kind := was.differs(is); kind != "" {
			add(Difference{Kind: kind, Was: was, Is: is})
		}
	}
	for _, s := range now.Steps {
		if is, ok := after[s.key()]; ok {
			if _, ok := before[s.key()]; !ok {
				add(Difference{Kind: Added, Is: is})
			}
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

// active are the steps that do something, or that would if they were not blocked.
func (p Plan) active() map[stepKey]Step {
	steps := map[stepKey]Step{}
	for _, s := range p.Steps {
		if s.Acts() {
			steps[s.key()] = s
		}
	}
	return steps
}

// stepOf is the first step of a node.
func (p Plan) stepOf(node string) Step {
	for _, s := range p.Steps {
		if s.Node == node {
			return s
		}
	}
	return Step{}
}

func (s Step) differs(now Step) DifferenceKind {
	switch {
	case s.Verb != now.Verb:
		return OtherVerb
	case !slices.Equal(s.Deletes, now.Deletes):
		return OtherDeletes
	case s.Creates != now.Creates || !reflect.DeepEqual(s.Order, now.Order):
		return OtherOrder
	case s.Removes != now.Removes:
		return OtherRemoval
	case (s.Blocked == nil) != (now.Blocked == nil):
		return OtherBlock
	}
	return ""
}
