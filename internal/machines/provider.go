package machines

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pulley/userdata"
)

// Provider makes machines of one fleet. All three calls may be repeated, also after one of unknown outcome, and each returns
// when ctx ends. A machine is known by the fleet's mark and its name; what does not bear the mark must never be returned,
// changed or deleted.
type Provider interface {
	// List returns all machines that bear the fleet's mark, in any state, those of one name twice where there are two.
	List(ctx context.Context) ([]Machine, error)
	// Create asks for a machine and returns when the provider has taken the order, not when the machine runs. Where a machine
	// of that name is there already, it is returned and nothing is made. A name that is taken by a machine of somebody else is
	// a *TakenError.
	Create(ctx context.Context, o Order) (Machine, error)
	// Delete asks for the end of one machine and returns when the provider has taken that, not when the machine is gone. One
	// that is not there is no error. With an ID only the machine that has it and the name is deleted, else all of that name with
	// the mark.
	Delete(ctx context.Context, m Ref) error
}

// Form is how a driver's machines are handed their userdata.
type Form = userdata.Form

// State is what a provider says of a machine.
type State string

// The states.
const (
	Building State = "building" // asked for, and not there yet
	Running  State = "running"
	Stopped  State = "stopped"  // its power is off
	Failed   State = "failed"   // the provider could not make it, or lost it; Problem says why
	Deleting State = "deleting" // its end was asked for
	Unknown  State = "unknown"  // the provider does not know, or has a word that the driver does not
)

// Machine is a machine at a provider.
type Machine struct {
	Name      string    `json:"name"`         // as it was ordered: Order.Name
	ID        string    `json:"id,omitempty"` // the provider's own name of it
	State     State     `json:"state"`        //
	Problem   string    `json:"problem,omitempty"`
	Flavor    string    `json:"flavor,omitempty"` // as in the order, where the provider can tell; "" where it can't
	Image     string    `json:"image,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	Created   time.Time `json:"created,omitzero"`
}

// Order is a machine to be made.
type Order struct {
	Name     string            `json:"name"`               // hostname of the node, one label: "compute1-t42"
	Node     string            `json:"node"`               // "compute1_t42"
	Role     string            `json:"role"`               //
	Flavor   string            `json:"flavor,omitempty"`   // as the provider calls it; "" is the driver's own default
	Image    string            `json:"image,omitempty"`    //
	Networks []string          `json:"networks,omitempty"` //
	Labels   map[string]string `json:"labels,omitempty"`   // of the role; besides the mark
	Userdata []byte            `json:"-"`
}

// Victim is a machine to be deleted. Without an ID it is every machine of that name that bears the fleet's mark.
type Ref struct {
	Name string `json:"name"`
	ID   string `json:"id,omitempty"`
}

// Mark is what a driver puts on each machine of a fleet, and by which it finds them: a tag, a label, metadata, a folder.
type Mark struct {
	Owner string // of one installation of pulley, or what `owner:` says
	Fleet string // "dev", "dev@t42"
}

// String is <owner>/<fleet>, for providers with one field for it.
func (m Mark) String() string { return m.Owner + "/" + m.Fleet }

// Errors of providers that callers tell apart. An error of any other kind is of unknown outcome: it is tried again.
var (
	ErrQuota    = errors.New("the provider's quota is used up")  // to try again soon is of no use
	ErrRefused  = errors.New("the provider refuses the request") // it is wrong: to try again is of no use
	ErrThrottle = errors.New("the provider asks to wait")        // a *WaitError says how long

	// Of a Fleet.
	ErrLost      = errors.New("somebody else has taken over")
	ErrChanged   = errors.New("it was changed meanwhile")
	ErrNotListed = errors.New("it is not on the list of hosts")

	ErrTokenTaken = errors.New("there is another token of this id")
)

// WaitError is an ErrThrottle that says how long to wait.
type WaitError struct {
	After time.Duration
	Err   error
}

func (e *WaitError) Error() string   { return e.Err.Error() }
func (e *WaitError) Unwrap() []error { return []error{ErrThrottle, e.Err} }

// LaterError says that one machine has to wait, as while another of its name is still being deleted. No other call waits for it.
type LaterError struct {
	After time.Duration
	Err   error
}

func (e *LaterError) Error() string { return e.Err.Error() }
func (e *LaterError) Unwrap() error { return e.Err }

// TakenError says that a name is taken by a machine that is not ours.
type TakenError struct{ Name string }

func (e *TakenError) Error() string {
	return "the name " + e.Name + " is taken at the provider by a machine that is not of this fleet"
}

func (m Machine) Ref() Ref { return Ref{Name: m.Name, ID: m.ID} }

// is reports whether m is meant by v.
func (m Machine) Is(v Ref) bool { return m.Name == v.Name && (v.ID == "" || m.ID == v.ID) }

func (m Machine) Trouble() string {
	if m.Problem == "" {
		return string(m.State)
	}
	return m.Problem
}

// String is how people see a victim: "compute5 (id 77f0)".
func (v Ref) String() string {
	if v.ID == "" {
		return v.Name
	}
	return fmt.Sprintf("%s (id %s)", strings.ToValidUTF8(v.Name, "?"), v.ID)
}
