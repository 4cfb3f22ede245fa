// Package plan compares an environment with its fleet, and decides the change of each machine.
//
// It is pure: the same arguments give the same plan. It must never read a clock, etcd or a provider.
package plan

import (
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// Verb is the action of a step.
type Verb string

// The verbs.
const (
	Keep      Verb = "keep"      // no action
	Wait      Verb = "wait"      // wait: its machine is being made, booting, joining or converging
	Create    Verb = "create"    // order a machine: it has none
	Replace   Verb = "replace"   // its flavor or image changed: delete and order again
	Broken    Verb = "broken"    // its machine failed, is off, or never joined: delete and order again
	Orphan    Verb = "orphan"    // its machine is gone: remove the node, and order again if it is wanted
	Adopt     Verb = "adopt"     // record a machine with the fleet's mark that has no record
	Retire    Verb = "retire"    // not wanted any more: drain, remove and delete
	Duplicate Verb = "duplicate" // delete a second machine of one name
	Missing   Verb = "missing"   // no action: it is wanted, and Pulley does not make its machine
	Extra     Verb = "extra"     // no action: registered, not wanted, and its machine is not Pulley's
	Unknown   Verb = "unknown"   // no action: a machine with the fleet's mark whose name is not a node's
)

// Verbs returns all verbs, those with the largest changes first.
func Verbs() []Verb {
	return []Verb{Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate, Wait, Missing, Extra, Unknown, Keep}
}

// Creates reports whether a step of this verb may order a machine.
func (v Verb) Creates() bool { return v == Create || v == Replace || v == Broken || v == Orphan }

// Step is the action for one node, and its reasons.
type Step struct {
	Verb    Verb              `json:"verb"`
	Node    string            `json:"node"` // of an unknown machine, its name in quotes
	Role    string            `json:"role,omitempty"`
	Reasons []machines.Reason `json:"reasons"`
	Notes   []machines.Reason `json:"notes,omitempty"`   // of a node that stays, and why a retirement waits
	Blocked *machines.Reason  `json:"blocked,omitempty"` // a plan with a blocked step is refused
	Creates bool              `json:"creates,omitempty"` // a machine is ordered
	Deletes []machines.Ref    `json:"deletes,omitempty"`
	Removes bool              `json:"removes,omitempty"` // the node leaves the fleet: certificate, host list entry
	Drain   bool              `json:"drain,omitempty"`   // its retire hooks run first
	Order   *machines.Order   `json:"order,omitempty"`   // without userdata; set if Creates
	Had     *Shape            `json:"had,omitempty"`     // of a machine that is replaced
	Layer   int               `json:"layer"`             // by `after`: layer 0 is made first, and retired last
}

// Shape is the flavor and image of a machine, as the provider names them.
type Shape struct {
	Flavor string `json:"flavor,omitempty"`
	Image  string `json:"image,omitempty"`
}

// Acts reports whether a step changes a machine or its record.
func (s Step) Acts() bool {
	switch s.Verb {
	case Create, Replace, Broken, Orphan, Adopt, Retire, Duplicate:
		return true
	}
	return s.Blocked != nil
}

// Works reports whether an apply works on a step, or waits for it.
func (s Step) Works() bool {
	switch s.Verb {
	case Keep, Missing, Extra, Unknown:
		return false
	}
	return true
}

// Ends reports whether the step removes the node completely.
func (s Step) Ends() bool {
	return !s.Creates && (s.Verb == Retire || s.Verb == Broken || s.Verb == Orphan || s.Verb == Replace)
}

// Plan is the list of changes that an apply would make now.
type Plan struct {
	Format   int                       `json:"v"`
	Fleet    model.Ref                 `json:"environment"`
	Driver   string                    `json:"provider"`
	At       time.Time                 `json:"at"`
	Spec     *environments.Environment `json:"-"`                  // stored separately: environments.Encode
	Revision int64                     `json:"revision"`           // at which the environment was stored; 0 for a new one
	Steps    []Step                    `json:"steps"`              // in the order of the file, then nodes that are not in it
	Changes  environments.Changes      `json:"-"`                  // of the file
	Changed  bool                      `json:"changed"`            // the file differs from the stored environment
	Healthy  bool                      `json:"healthy"`            // all nodes are registered and converged
	Reacting []string                  `json:"reacting,omitempty"` // nodes that are requested to run afterwards
	Destroys bool                      `json:"-"`                  // the plan destroys the environment
}

// Counts returns the number of steps of each verb.
func (p Plan) Counts() map[Verb]int {
	counts := map[Verb]int{}
	for _, s := range p.Steps {
		counts[s.Verb]++
	}
	return counts
}

// Remaining lists the nodes that are registered, not wanted, and stay.
func (p Plan) Remaining() (nodes []string) {
	for _, s := range p.Steps {
		if s.Verb == Extra {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Deleted lists the machines that the plan deletes, in its order, without duplicates.
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

// Removed lists the nodes that are removed without the deletion of a machine.
func (p Plan) Removed() []string {
	return p.nodes(func(s Step) bool { return s.Removes && len(s.Deletes) == 0 })
}

// Created lists the nodes whose machines are ordered.
func (p Plan) Created() []string { return p.nodes(func(s Step) bool { return s.Creates }) }

func (p Plan) nodes(is func(Step) bool) (nodes []string) {
	for _, s := range p.Steps {
		if is(s) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// Blocked lists the blocked steps, for which the plan is refused.
func (p Plan) Blocked() []Step {
	return slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Blocked == nil })
}

// Empty reports whether the plan changes no machine and waits for none. The file may still have to be stored: Changed.
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Steps, Step.Acts) && p.Counts()[Wait] == 0
}

// ReactingTo returns the nodes that are requested to run if only these steps are done.
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
