package environments

import (
	"iter"
	"time"

	"pulley/internal/firstboot"
)

// The limits of an environment. MaxRoles roles of the longest names and flavors fit into maxStored; what else they have is
// bounded together.
const (
	MaxNodes = 1_000_000
	MaxRoles = 1_000
)

// Environment is one fleet: its roles in the order of the file, and who makes its machines.
type Environment struct {
	Name     string
	Stack    string // "" when the environment has no stacks
	Roles    []Role
	Provider Provider // the zero value: machines come from elsewhere

	// What a role's flavor, image and networks stand for at the provider. What has no entry is the provider's own word.
	Flavors, Images, Networks map[string]string

	Userdata Userdata // of all machines; a role's own adds to it
}

// Role is what some of an environment's nodes are for.
type Role struct {
	Name        string            `json:"name"`
	Cardinality int               `json:"cardinality"`         // how many nodes, from 0 to MaxNodes
	Flavor      string            `json:"flavor,omitempty"`    // which kind of machine; "" leaves it to whoever makes them
	Image       string            `json:"image,omitempty"`     // what is on its disk at first
	Networks    []string          `json:"networks,omitempty"`  // in this order
	Labels      map[string]string `json:"labels,omitempty"`    // on the machine, at the provider
	After       []string          `json:"after,omitempty"`     // roles whose machines are made, and converged, before these
	ReactsTo    []string          `json:"reacts_to,omitempty"` // roles whose coming and going asks these nodes for a Puppet run
	Protected   bool              `json:"protected,omitempty"` // its machines are never destroyed
	Rollout     Rollout           `json:"rollout,omitzero"`    // how many at a time
	Userdata    Userdata          `json:"userdata,omitzero"`   // beside the environment's
	Members     []string          `json:"members,omitempty"`   // machines of any name that exist already, and are of this role
}

// Rollout bounds what happens to a role's machines at a time. A share is a number of machines, or a percentage of the
// role's cardinality with at least one machine: "2", "25%".
type Rollout struct {
	Batch    string   `json:"batch,omitempty"`    // how many are replaced at a time; "" is 1
	Failures string   `json:"failures,omitempty"` // how many may fail before no more are asked for; "" is 0
	Timeout  Duration `json:"timeout,omitempty"`  // how long a machine may take until it is converged; 0 is DefaultTimeout
}

// DefaultTimeout is how long a machine may take from being asked for until it is converged.
const DefaultTimeout = 30 * time.Minute

// Drivers are what makes machines; each is documented in docs/providers.md.
const (
	DriverNone      = "none"      // machines come from elsewhere
	DriverLocal     = "local"     // copy-on-write views of the machine that pulley runs on
	DriverNspawn    = "nspawn"    // whole systems in systemd-nspawn
	DriverExec      = "exec"      // a command of one's own
	DriverOpenStack = "openstack" // Nova
)

// Provider says who makes an environment's machines. Which of the fields a driver has is in its table in provider.go.
type Provider struct {
	Driver string `json:"driver,omitempty"` // "" is DriverNone
	Owner  string `json:"owner,omitempty"`  // by which machines are known as ours; "" is this installation's id

	Command []string `json:"command,omitempty"` // exec: program and arguments
	Timeout Duration `json:"timeout,omitempty"` // exec: of one request

	Folder   string `json:"folder,omitempty"`   // local, nspawn: where machines are kept
	Agent    string `json:"agent,omitempty"`    // local: pulley-agent on the host; "" is the one beside pulley
	Interval string `json:"interval,omitempty"` // local: what the agent's daemon is started with, as "@every 10s"
	Bridge   string `json:"bridge,omitempty"`   // nspawn: the bridge that machines are on
	Subnet   string `json:"subnet,omitempty"`   // nspawn: "10.77.0.0/16", of which machines get addresses

	Cloud            string   `json:"cloud,omitempty"` // openstack: name in clouds.yaml; the rest as Nova has it
	Region           string   `json:"region,omitempty"`
	AvailabilityZone string   `json:"availability_zone,omitempty"`
	KeyName          string   `json:"key_name,omitempty"`
	ServerGroup      string   `json:"server_group,omitempty"` // name or id
	SecurityGroups   []string `json:"security_groups,omitempty"`
	ConfigDrive      bool     `json:"config_drive,omitempty"`
}

// Userdata is what first boots are told beside what the command line says. A role's settings stand for the environment's; of
// scripts the environment's come first.
type Userdata = firstboot.Settings

// Ref returns the name of the fleet.
func (e *Environment) Ref() Ref { return Ref{Environment: e.Name, Stack: e.Stack} }

// Role returns the role called name.
func (e *Environment) Role(name string) (Role, bool) {
	for i := range e.Roles { // a role is large: only the one that is meant is copied
		if e.Roles[i].Name == name {
			return e.Roles[i], true
		}
	}
	return Role{}, false
}

// RoleNames returns the names of all roles, in the order of the file.
func (e *Environment) RoleNames() []string {
	names := make([]string, len(e.Roles))
	for i, r := range e.Roles {
		names[i] = r.Name
	}
	return names
}

// Count returns how many nodes the environment calls for.
func (e *Environment) Count() int {
	sum := 0
	for _, r := range e.Roles {
		sum += r.Cardinality
	}
	return sum
}

// Nodes yields all nodes that the environment calls for: role by role, numbers going up.
func (e *Environment) Nodes() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, r := range e.Roles {
			for num := 1; num <= r.Cardinality; num++ {
				if !yield(Node{Role: r.Name, Num: num, Stack: e.Stack}) {
					return
				}
			}
		}
	}
}

// Has reports whether the environment calls for n.
func (e *Environment) Has(n Node) bool {
	r, ok := e.Role(n.Role)
	return ok && n.Stack == e.Stack && 1 <= n.Num && n.Num <= r.Cardinality
}
