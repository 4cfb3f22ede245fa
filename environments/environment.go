package environments

import (
	"iter"
	"time"

	"pulley/internal/firstboot"
)

// The limits of an environment. MaxRoles roles with the longest names and flavors fit into maxStored. sizeFlaw limits
// the total of all other values.
const (
	MaxNodes = 1_000_000
	MaxRoles = 1_000
)

// Environment is one fleet: its roles in the order of the file, and the provider of its machines.
type Environment struct {
	Name     string
	Stack    string // "" if the environment has no stacks
	Roles    []Role
	Provider Provider // the zero value: Pulley makes no machines

	// The provider's names for the symbols of roles. A symbol without an entry is the provider's own name.
	Flavors, Images, Networks map[string]string

	Userdata Userdata // of all machines; a role's own settings override it
}

// Role is a group of nodes with the same purpose.
type Role struct {
	Name        string            `json:"name"`
	Cardinality int               `json:"cardinality"`        // number of nodes, from 0 to MaxNodes
	Flavor      string            `json:"flavor,omitempty"`   // kind of machine; "" is the driver's default
	Image       string            `json:"image,omitempty"`    // initial content of the disk
	Networks    []string          `json:"networks,omitempty"` // in this order
	Labels      map[string]string `json:"labels,omitempty"`   // of the machine, at the provider
	// roles whose machines must be converged before these are made
	After []string `json:"after,omitempty"`
	// roles whose added or removed nodes cause a Puppet run on these nodes
	ReactsTo  []string `json:"reacts_to,omitempty"`
	Protected bool     `json:"protected,omitempty"` // its machines are never destroyed
	Rollout   Rollout  `json:"rollout,omitzero"`    // number of machines at a time
	Userdata  Userdata `json:"userdata,omitzero"`   // overrides the environment's
	Members   []string `json:"members,omitempty"`   // existing machines of any name that belong to this role
}

// Rollout limits the changes to a role's machines. A share is a number of machines, or a percentage of the role's
// cardinality with at least one machine: "2", "25%".
type Rollout struct {
	Batch    string   `json:"batch,omitempty"`    // machines that are replaced at a time; "" is 1
	Failures string   `json:"failures,omitempty"` // machines that may fail before no more are ordered; "" is 0
	Timeout  Duration `json:"timeout,omitempty"`  // maximum time until a machine is converged; 0 is DefaultTimeout
}

// DefaultTimeout is the maximum time from the order of a machine until its node is converged.
const DefaultTimeout = 30 * time.Minute

// The drivers that make machines; docs/providers.md describes each.
const (
	DriverNone      = "none"      // Pulley makes no machines
	DriverLocal     = "local"     // copy-on-write views of the machine that pulley runs on
	DriverNspawn    = "nspawn"    // complete systems in systemd-nspawn
	DriverExec      = "exec"      // a command of the operator
	DriverOpenStack = "openstack" // Nova
)

// Provider is the driver of an environment's machines, and its settings. The table in provider.go lists the fields of
// each driver.
type Provider struct {
	Driver string `json:"driver,omitempty"` // "" is DriverNone
	Owner  string `json:"owner,omitempty"`  // identifies Pulley's own machines; "" is this installation's id

	Command []string `json:"command,omitempty"` // exec: program and arguments
	Timeout Duration `json:"timeout,omitempty"` // exec: limit of one request

	Folder   string `json:"folder,omitempty"`   // local, nspawn: folder of the machines
	Agent    string `json:"agent,omitempty"`    // local: pulley-agent on the host; "" is the one beside pulley
	Interval string `json:"interval,omitempty"` // local: schedule of the agent's daemon, such as "@every 10s"
	Bridge   string `json:"bridge,omitempty"`   // nspawn: network bridge of the machines
	Subnet   string `json:"subnet,omitempty"`   // nspawn: "10.77.0.0/16", for the addresses of machines

	// openstack: name in clouds.yaml; the other fields are as in Nova
	Cloud            string   `json:"cloud,omitempty"`
	Region           string   `json:"region,omitempty"`
	AvailabilityZone string   `json:"availability_zone,omitempty"`
	KeyName          string   `json:"key_name,omitempty"`
	ServerGroup      string   `json:"server_group,omitempty"` // name or id
	SecurityGroups   []string `json:"security_groups,omitempty"`
	ConfigDrive      bool     `json:"config_drive,omitempty"`
}

// Userdata is the settings of first boots that have no flag on the command line. A role's settings override the
// environment's; scripts are combined, the environment's first.
type Userdata = firstboot.Settings

// Ref returns the name of the fleet.
func (e *Environment) Ref() Ref { return Ref{Environment: e.Name, Stack: e.Stack} }

// Role returns the role called name.
func (e *Environment) Role(name string) (Role, bool) {
	for i := range e.Roles { // a role is large: copy only the result
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

// Count returns the number of nodes of the environment.
func (e *Environment) Count() int {
	sum := 0
	for _, r := range e.Roles {
		sum += r.Cardinality
	}
	return sum
}

// Nodes yields all nodes of the environment, role by role, in rising order of their numbers.
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

// Has reports whether n is a node of the environment.
func (e *Environment) Has(n Node) bool {
	r, ok := e.Role(n.Role)
	return ok && n.Stack == e.Stack && 1 <= n.Num && n.Num <= r.Cardinality
}
