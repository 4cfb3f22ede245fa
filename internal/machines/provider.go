package machines

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Provider makes machines of one fleet. All three calls can be repeated, also after one of unknown outcome. Each
// returns when ctx ends. A machine is identified by the fleet's mark and its name. A machine without the mark must
// never be returned, changed or deleted.
type Provider interface {
	// List returns all machines with the fleet's mark, in any state. If two have the same name, it returns both.
	List(ctx context.Context) ([]Machine, error)
	// Create orders a machine and returns when the provider has accepted the order, not when the machine runs. If a
	// machine of that name exists, Create returns it and makes nothing. If the name belongs to a machine without the mark,
	// the error is a *TakenError.
	Create(ctx context.Context, o Order) (Machine, error)
	// Delete deletes one machine and returns when the provider has accepted the request, not when the machine is gone. A
	// missing machine is no error. With an ID, only the machine with this ID and name is deleted; without one, all
	// machines of that name with the mark.
	Delete(ctx context.Context, m Ref) error
}

// State is the state of a machine at its provider.
type State string

// The states.
const (
	Building State = "building" // ordered, and not running yet
	Running  State = "running"
	Stopped  State = "stopped"  // its power is off
	Failed   State = "failed"   // the provider could not make it, or lost it; Problem has the cause
	Deleting State = "deleting" // its deletion has begun
	Unknown  State = "unknown"  // the provider does not know it, or reports a state that the driver does not know
)

// States returns all states.
func States() []State { return []State{Building, Running, Stopped, Failed, Deleting, Unknown} }

// Machine is a machine at a provider.
type Machine struct {
	Name      string    `json:"name"`         // as it was ordered: Order.Name
	ID        string    `json:"id,omitempty"` // the provider's id
	State     State     `json:"state"`        //
	Problem   string    `json:"problem,omitempty"`
	Flavor    string    `json:"flavor,omitempty"` // as in the order, if the provider reports it; else ""
	Image     string    `json:"image,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`
	Created   time.Time `json:"created,omitzero"`
}

// Hostname matches one label of a hostname (RFC 1123, 2.1), in lower case.
var Hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Order is an order for one machine.
type Order struct {
	Name     string            `json:"name"`               // hostname of the node, one label: "compute1-t42"
	Node     string            `json:"node"`               // "compute1_t42"
	Role     string            `json:"role"`               //
	Flavor   string            `json:"flavor,omitempty"`   // as the provider names it; "" is the driver's default
	Image    string            `json:"image,omitempty"`    //
	Networks []string          `json:"networks,omitempty"` //
	Labels   map[string]string `json:"labels,omitempty"`   // of the role, in addition to the mark
	Userdata []byte            `json:"-"`
}

// Ref names a machine of a fleet. Without an ID it means every machine of that name with the fleet's mark.
type Ref struct {
	Name string `json:"name"`
	ID   string `json:"id,omitempty"`
}

// Mark identifies the machines of a fleet at a provider. A driver puts it on each machine as a tag, a label, metadata
// or a folder.
type Mark struct {
	Owner string // id of one installation of pulley, or the value of `owner:`
	Fleet string // "dev", "dev@t42"
}

// String returns <owner>/<fleet>, for providers with one field for it.
func (m Mark) String() string { return m.Owner + "/" + m.Fleet }

// Errors of providers that callers branch on. The outcome of any other error is unknown: the call is retried.
var (
	ErrQuota    = errors.New("the provider's quota is used up")  // permanent
	ErrRefused  = errors.New("the provider refuses the request") // permanent
	ErrThrottle = errors.New("the provider throttles requests")  // a *WaitError contains the time to wait

	// Errors of a Fleet.
	ErrLost       = errors.New("another apply has the lock of the environment")
	ErrChanged    = errors.New("another program changed it meanwhile")
	ErrDestroying = errors.New("an earlier environment of this name is not completely destroyed")

	ErrTokenTaken = errors.New("another token has this id")
)

// WaitError is an ErrThrottle with the time to wait.
type WaitError struct {
	After time.Duration
	Err   error
}

func (e *WaitError) Error() string   { return e.Err.Error() }
func (e *WaitError) Unwrap() []error { return []error{ErrThrottle, e.Err} }

// LaterError delays one machine, for example while another of its name is being deleted. It does not delay other calls.
type LaterError struct {
	After time.Duration
	Err   error
}

func (e *LaterError) Error() string { return e.Err.Error() }
func (e *LaterError) Unwrap() error { return e.Err }

// TakenError means that a name belongs to a machine of another fleet.
type TakenError struct{ Name string }

func (e *TakenError) Error() string {
	return "the name " + e.Name + " belongs to a machine of another fleet at the provider"
}

// Ref returns the ref of the machine.
func (m Machine) Ref() Ref { return Ref{Name: m.Name, ID: m.ID} }

// Is reports whether a Ref means this machine.
func (m Machine) Is(r Ref) bool { return m.Name == r.Name && (r.ID == "" || m.ID == r.ID) }

// String formats a ref for people: "compute5 (id 77f0)".
func (r Ref) String() string {
	if r.ID == "" {
		return r.Name
	}
	return fmt.Sprintf("%s (id %s)", strings.ToValidUTF8(r.Name, "?"), r.ID)
}
