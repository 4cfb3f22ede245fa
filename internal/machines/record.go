package machines

import (
	"time"

	"pulley/internal/model"
)

// Phase is the state of a node's machine in its record.
type Phase string

// The phases. A record without one is damaged.
const (
	Making   Phase = "making"   // its name is claimed; the order was sent, or will be
	Made     Phase = "made"     // the provider has accepted the order
	Retiring Phase = "retiring" // it is drained, removed and deleted
)

// LostAfter is the time within which a provider lists a machine whose order it has accepted.
const LostAfter = 2 * time.Minute

// Record is the machine record of a node. It is written before the order is sent.
type Record struct {
	Node   string `json:"node"`
	Name   string `json:"name"`         // at the provider
	ID     string `json:"id,omitempty"` // at the provider, once known
	Phase  Phase  `json:"phase"`
	Driver string `json:"driver"` // another driver cannot list this machine
	// by the driver's settings: at another place the machine is not listed
	Place   string      `json:"place,omitempty"`
	Flavor  string      `json:"flavor,omitempty"` // as in the order, in the provider's names
	Image   string      `json:"image,omitempty"`
	Tries   int         `json:"tries,omitempty"`   // orders since the name was claimed
	Token   string      `json:"token,omitempty"`   // id of the token in its userdata
	Ask     string      `json:"ask,omitempty"`     // id of the last request to the node
	Joined  bool        `json:"joined,omitempty"`  // its node was in the host list since it was made
	Drained bool        `json:"drained,omitempty"` // Retiring: its hooks ran, or were skipped
	Problem model.Prose `json:"problem,omitempty"` // error of the last try
	Reasons []Reason    `json:"reasons,omitempty"` // Retiring: the reasons
	// that the policy for rollouts limits, of a node that leaves or whose machine is replaced: the next apply counts it in them
	Places []string `json:"places,omitempty"`
	// a watch began this phase, and its budget has counted it: the next watch resumes it
	Watch bool      `json:"watch,omitempty"`
	By    string    `json:"by"`
	At    time.Time `json:"at"` // of this phase
}

// OnlyLeaves reports whether a record only tracks a node that leaves: Pulley never ordered its machine.
func (r Record) OnlyLeaves() bool { return r.Phase == Retiring && r.ID == "" && r.Tries == 0 }

// Away reports whether the record is that of a machine which leaves, or which is replaced and whose node did not join yet. No host entry
// shows such a node.
func (r Record) Away() bool { return len(r.Places) > 0 && !(r.Phase == Made && r.Joined) }

// Begun returns the reasons of a retirement that is not finished.
func (r Record) Begun(more ...Reason) []Reason {
	all := append([]Reason{{Code: RetirementBegun, At: r.At, By: r.By}}, more...)
	return append(all, r.Reasons...)
}

// Act is one change of a machine, for `pulley env history`.
type Act struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node"`
	Did     Did       `json:"did"`
	Reasons []Reason  `json:"reasons"`
	By      string    `json:"by"`              // an operator, or "pulley env watch"
	Watch   bool      `json:"watch,omitempty"` // by a watch: it counts against the budget
}

// Did is the kind of an act.
type Did string

// The kinds of acts.
const (
	Created  Did = "created"
	Deleted  Did = "deleted"
	Replaced Did = "replaced" // deleted and ordered again
	Adopted  Did = "adopted"
	Released Did = "released" // its record and its node were removed; there was no machine to delete
)
