package plan

import (
	"time"

	"pulley/environments"
	"pulley/internal/machines"
)

// Verb is what a plan says of one node or machine.
type Verb string

// The verbs. Those that Destroys are the ones that a person has to agree to.
const (
	Keep      Verb = "keep"      // as it should be
	Wait      Verb = "wait"      // on its way: asked for, booting, joining or converging; nothing to do but wait
	Create    Verb = "create"    // there is no machine: one is asked for
	Replace   Verb = "replace"   // flavor or image changed: deleted, and asked for again
	Broken    Verb = "broken"    // its machine is in error, off, or never joined: deleted, and asked for again
	Orphan    Verb = "orphan"    // its machine is gone: what is left of the node is removed; asked for again where it is wanted
	Adopt     Verb = "adopt"     // there is a machine with our mark that the books don't have: they get it
	Retire    Verb = "retire"    // not wanted any more: drained, removed and deleted
	Duplicate Verb = "duplicate" // a second machine of one name: the one that is not the node is deleted
	Missing   Verb = "missing"   // wanted, and whoever makes machines here has to make it: nothing is done
	Extra     Verb = "extra"     // registered, not wanted, and not ours to delete: nothing is done
	Stranger  Verb = "stranger"  // a machine with our mark whose name is no node's: nothing is done
)

// Step is what a plan says of one node: the state that was found and what is done about it.
type Step struct {
	Verb    Verb            `json:"verb"`
	Node    string          `json:"node"` // of a stranger, the machine's name
	Role    string          `json:"role,omitempty"`
	Why     string          `json:"why"`               // a sentence
	Note    string          `json:"note,omitempty"`    // of a node that stays: what an operator should know all the same
	Blocked string          `json:"blocked,omitempty"` // why it is not done: "db is protected"; a plan with one is refused
	Makes   bool            `json:"makes,omitempty"`   // a machine is asked for
	Victims []machines.Ref  `json:"victims,omitempty"` // machines that are deleted
	Removes bool            `json:"removes,omitempty"` // the node leaves the fleet: its certificate, its entry of the list of hosts
	Drain   bool            `json:"drain,omitempty"`   // its hooks are run before
	Order   *machines.Order `json:"order,omitempty"`   // without userdata; where Makes
	Had     *Shape          `json:"had,omitempty"`     // of a replaced one
	Layer   int             `json:"layer"`             // by `after`: machines of layer 0 come first, and go last
}

// Shape is what a machine is made as, in the provider's words.
type Shape struct {
	Flavor string `json:"flavor,omitempty"`
	Image  string `json:"image,omitempty"`
}

// Plan is what applying an environment would do now.
type Plan struct {
	Format   int                       `json:"v"`
	Fleet    environments.Ref          `json:"environment"`
	Driver   string                    `json:"provider"`
	At       time.Time                 `json:"at"`
	Spec     *environments.Environment `json:"-"`                  // stored beside: environments.Encode
	Revision int64                     `json:"revision"`           // at which the environment was last stored; 0 for a new one
	Steps    []Step                    `json:"steps"`              // nodes in the order of the file; those that are not in it last
	Changes  environments.Changes      `json:"-"`                  // of the file
	Changed  bool                      `json:"changed"`            // the file is not what is stored
	Whole    bool                      `json:"whole"`              // all that should be alive is alive and converged
	Reacting []string                  `json:"reacting,omitempty"` // nodes that are asked for a run afterwards
	Destroys bool                      `json:"-"`                  // nothing is wanted any more: whoever goes on with it destroys again
}
