package machines

import (
	"fmt"
	"time"
)

// Phase is where a node's machine stands in Pulley's own books.
type Phase string

// The phases. A record without one is damaged.
const (
	Making   Phase = "making"   // its name is claimed; the provider is asked, or will be
	Made     Phase = "made"     // the provider has taken the order
	Retiring Phase = "retiring" // it is drained, removed and deleted
)

// Record is what Pulley remembers of the machine that it had made for a node; it is written before the provider is asked.
type Record struct {
	Node    string    `json:"node"`
	Name    string    `json:"name"`         // at the provider
	ID      string    `json:"id,omitempty"` // at the provider, once that is known
	Phase   Phase     `json:"phase"`
	Driver  string    `json:"driver"`           // who was asked; another driver's machines are not looked for
	Place   string    `json:"place,omitempty"`  // where, as the driver's settings say it: another place does not see the machine
	Flavor  string    `json:"flavor,omitempty"` // as it was ordered, in the provider's words
	Image   string    `json:"image,omitempty"`
	Tries   int       `json:"tries,omitempty"`   // orders since the name was claimed
	Token   string    `json:"token,omitempty"`   // id of the token that its userdata has
	Ask     string    `json:"ask,omitempty"`     // id of what the node was last asked for
	Joined  bool      `json:"joined,omitempty"`  // its node was seen on the list of hosts since it was made
	Drained bool      `json:"drained,omitempty"` // Retiring: its hooks are done, or were given up
	Problem string    `json:"problem,omitempty"` // of the last try
	Why     string    `json:"why,omitempty"`     // Retiring: why, as the plan said that began it
	Watch   bool      `json:"watch,omitempty"`   // this phase was begun by a watch, which counted it: the next one goes on with it
	By      string    `json:"by"`
	At      time.Time `json:"at"` // of this phase
}

// Act is one thing that was done to a machine, for `pulley env history`.
type Act struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node"`
	Did     Did       `json:"did"`
	Why     string    `json:"why"`               // a sentence
	By      string    `json:"by"`                // who: an operator, or "pulley env watch"
	Watch   bool      `json:"watch,omitempty"`   // done by itself: it counts against the budget
	Problem string    `json:"problem,omitempty"` // why it came to nothing
}

// Did is what was done.
type Did string

// What can be done to a machine.
const (
	Created  Did = "created"
	Deleted  Did = "deleted"
	Replaced Did = "replaced" // deleted and asked for again
	Adopted  Did = "adopted"
	Released Did = "released" // taken off the books and the list of hosts; there was no machine to delete
)

// foreign reports whether a record is only of a node that leaves: its machine was never asked for here.
func (r Record) Foreign() bool { return r.Phase == Retiring && r.ID == "" && r.Tries == 0 }

// begun says since when a node is being retired, by whom and why.
func (r Record) Begun() string {
	return fmt.Sprintf("its retiring was begun at %s by %s and is not done%s", Clock(r.At), Clean(r.By), Because(r.Why))
}

// lostAfter is how long a machine that was ordered may stay unlisted until it counts as lost.
const LostAfter = 2 * time.Minute
