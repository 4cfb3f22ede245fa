package machines

import (
	"time"

	"pulley/agent"
)

// Phase is how far a node's machine is, by its record.
type Phase string

// The phases. A record without one is damaged.
const (
	Making   Phase = "making"   // its name is claimed; the provider is asked, or will be
	Made     Phase = "made"     // the provider has taken the order
	Retiring Phase = "retiring" // it is drained, removed and deleted
)

// LostAfter is how long a provider may take until it lists a machine that it has taken the order for.
const LostAfter = 2 * time.Minute

// Record is the machine record of a node. It is written before the provider is asked.
type Record struct {
	Node    string      `json:"node"`
	Name    string      `json:"name"`         // at the provider
	ID      string      `json:"id,omitempty"` // at the provider, once that is known
	Phase   Phase       `json:"phase"`
	Driver  string      `json:"driver"`           // another driver does not see this machine
	Place   string      `json:"place,omitempty"`  // by the driver's settings: at another place the machine is not seen
	Flavor  string      `json:"flavor,omitempty"` // as it was ordered, in the provider's words
	Image   string      `json:"image,omitempty"`
	Tries   int         `json:"tries,omitempty"`   // orders since the name was claimed
	Token   string      `json:"token,omitempty"`   // id of the token in its userdata
	Ask     string      `json:"ask,omitempty"`     // id of the last request to the node
	Joined  bool        `json:"joined,omitempty"`  // its node was in the host list since it was made
	Drained bool        `json:"drained,omitempty"` // Retiring: its hooks ran, or were given up
	Problem agent.Prose `json:"problem,omitempty"` // of the last try
	Reasons []Reason    `json:"reasons,omitempty"` // Retiring: why
	Watch   bool        `json:"watch,omitempty"`   // a watch began this phase, and counted it: the next watch resumes it
	By      string      `json:"by"`
	At      time.Time   `json:"at"` // of this phase
}

// OnlyLeaves reports whether a record is only of a node that leaves: Pulley never ordered its machine.
func (r Record) OnlyLeaves() bool { return r.Phase == Retiring && r.ID == "" && r.Tries == 0 }

// Begun are the reasons of a retirement that is not finished.
func (r Record) Begun(more ...Reason) []Reason {
	all := append([]Reason{{Code: RetirementBegun, At: r.At, By: r.By}}, more...)
	return append(all, r.Reasons...)
}

// Act is one thing that was done to a machine, for `pulley env history`.
type Act struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node"`
	Did     Did       `json:"did"`
	Reasons []Reason  `json:"reasons"`
	By      string    `json:"by"`              // an operator, or "pulley env watch"
	Watch   bool      `json:"watch,omitempty"` // a watch did it: it counts against the budget
}

// Did is what was done.
type Did string

// What can be done to a machine.
const (
	Created  Did = "created"
	Deleted  Did = "deleted"
	Replaced Did = "replaced" // deleted and ordered again
	Adopted  Did = "adopted"
	Released Did = "released" // its record and its node are removed; there was no machine to delete
)
