package plan

import (
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
)

// Verb is what a plan does about one node or machine.
type Verb string

// The verbs.
const (
	Keep      Verb = "keep"      // nothing
	Wait      Verb = "wait"      // its machine is being made, booting, joining or converging
	Create    Verb = "create"    // it has no machine: one is ordered
	Replace   Verb = "replace"   // its flavor or image changed: deleted and ordered again
	Broken    Verb = "broken"    // its machine failed, is off, or never joined: deleted and ordered again
	Orphan    Verb = "orphan"    // its machine is gone: the node is removed, and ordered again if it is wanted
	Adopt     Verb = "adopt"     // a machine with our mark that has no record gets one
	Retire    Verb = "retire"    // not wanted any more: drained, removed and deleted
	Duplicate Verb = "duplicate" // a second machine of one name is deleted
	Missing   Verb = "missing"   // wanted, and others make its machine: nothing is done
	Extra     Verb = "extra"     // registered, not wanted, and not ours to delete: nothing is done
	Unknown   Verb = "unknown"   // a machine with our mark whose name is no node's: nothing is done
)

// Verbs lists all verbs, those that change most first.
func Verbs() []Verb {
	return []Verb{Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate, Wait, Missing, Extra, Unknown, Keep}
}

// Creates reports whether a step of this verb may order a machine.
func (v Verb) Creates() bool { return v == Create || v == Replace || v == Broken || v == Orphan }

// Step is what a plan does about one node, and why.
type Step struct {
	Verb    Verb              `json:"verb"`
	Node    string            `json:"node"` // of an unknown machine, its name in quotes
	Role    string            `json:"role,omitempty"`
	Reasons []machines.Reason `json:"reasons"`
	Notes   []machines.Reason `json:"notes,omitempty"`   // of a node that stays: what an operator should know
	Blocked *machines.Reason  `json:"blocked,omitempty"` // a plan with a blocked step is refused
	Creates bool              `json:"creates,omitempty"` // a machine is ordered
	Deletes []machines.Ref    `json:"deletes,omitempty"`
	Removes bool              `json:"removes,omitempty"` // the node leaves the fleet: its certificate, its entry in the host list
	Drain   bool              `json:"drain,omitempty"`   // its retire hooks run first
	Order   *machines.Order   `json:"order,omitempty"`   // without userdata; where Creates
	Had     *Shape            `json:"had,omitempty"`     // of a machine that is replaced
	Layer   int               `json:"layer"`             // by `after`: machines of layer 0 are made first, and retired last
}

// Shape is what a machine is made as, in the provider's words.
type Shape struct {
	Flavor string `json:"flavor,omitempty"`
	Image  string `json:"image,omitempty"`
}

// Acts reports whether a step does something to a machine, or to its record.
func (s Step) Acts() bool {
	switch s.Verb {
	case Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate:
		return true
	}
	return s.Blocked != nil
}

// Works reports whether an apply works on a step, if only by waiting.
func (s Step) Works() bool {
	switch s.Verb {
	case Keep, Missing, Extra, Unknown:
		return false
	}
	return true
}

// Ends reports whether nothing is left of the node after the step.
func (s Step) Ends() bool {
	return !s.Creates && (s.Verb == Retire || s.Verb == Broken || s.Verb == Orphan || s.Verb == Replace)
}

// Plan is what applying an environment would do now.
type Plan struct {
	Format   int                       `json:"v"`
	Fleet    environments.Ref          `json:"environment"`
	Driver   string                    `json:"provider"`
	At       time.Time                 `json:"at"`
	Spec     *environments.Environment `json:"-"`                  // stored beside: environments.Encode
	Revision int64                     `json:"revision"`           // at which the environment was stored; 0 for a new one
	Steps    []Step                    `json:"steps"`              // nodes in the order of the file; those that are not in it last
	Changes  environments.Changes      `json:"-"`                  // of the file
	Changed  bool                      `json:"changed"`            // the file differs from the stored environment
	Healthy  bool                      `json:"healthy"`            // all nodes are registered and converged
	Reacting []string                  `json:"reacting,omitempty"` // nodes that are asked for a run afterwards
	Destroys bool                      `json:"-"`                  // nothing is wanted any more
}

// Counts is how many steps each verb has.
func (p Plan) Counts() map[Verb]int {
	counts := map[Verb]int{}
	for _, s := range p.Steps {
		counts[s.Verb]++
	}
	return counts
}

// Deleted lists the machines that the plan deletes, in its order, each once.
func (p Plan) Deleted() []machines.Ref {
	var all []machines.Ref
	known := map[machines.Ref]bool{}
	for _, s := range p.Steps {
		for _, m := range s.Deletes {
			if !known[m] {
				known[m] = true
				all = append(all, m)
			}
		}
	}
	return all
}

// Removed lists the nodes that leave the fleet without a machine that is deleted.
func (p Plan) Removed() []string {
	return p.nodes(func(s Step) bool { return s.Removes && len(s.Deletes) == 0 })
}

// Created lists the nodes that machines are ordered for.
func (p Plan) Created() []string { return p.nodes(func(s Step) bool { return s.Creates }) }

func (p Plan) nodes(is func(Step) bool) (nodes []string) {
	for _, s := range p.Steps {
		if is(s) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Blocked lists the steps for which the plan is refused.
func (p Plan) Blocked() []Step {
	return slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Blocked == nil })
}

// Empty reports whether no machine is changed or waited for. The file may have to be stored all the same: Changed.
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Steps, Step.Acts) && p.Counts()[Wait] == 0
}

// ReactingTo are the nodes that are asked for a run if only these steps are done.
func (p Plan) ReactingTo(steps []Step) (nodes []string) {
	roles, done := map[string]bool{}, map[string]bool{}
	for _, s := range steps {
		roles[s.Role], done[s.Node] = true, true
	}
	for _, node := range p.Reacting {
		role, _ := p.Spec.RoleOf(node)
		if !done[node] && slices.ContainsFunc(role.ReactsTo, func(r string) bool { return roles[r] }) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
