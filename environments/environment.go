package environments

import (
	"embed"
	"io/fs"
	"iter"
	"time"

	"pulley/environments/settings"
	"pulley/internal/firstboot"
	"pulley/internal/model"
)

// The limits of an environment. maxRoles roles with the longest names and flavors fit into maxStored. sizeFlaw limits
// the total of all other values.
const (
	maxNodes = 1_000_000
	maxRoles = 1_000
)

// A field with the tag `help` is a key of the environment file. The parser, the checks, --set, the schemas, Diff and the
// test of the reference (docs/environments.md) read the tags. A new key is one field:
//
//	json     its name, also in the stored form
//	help     its description, in the schema
//	form     the form of its values, in forms; of a table, the form of its keys
//	like     an example of a value
//	drivers  of a Provider: the drivers that have it; absent for all
//	long     "true": a text of many lines, which no message repeats

// Environment is one fleet: its roles in the order of the file, and the provider of its machines.
type Environment struct {
	Name     string   `json:"name"`
	Stack    string   `json:"stack,omitempty" form:"stack" like:"t42" help:"One of several fleets of this environment; part of each node's name."`
	Provider Provider `json:"provider,omitzero" help:"Driver that creates the machines: its name, or a mapping with its settings. Without it, Pulley creates no machines."`

	// A symbol without a table is the provider's own name.
	Flavors  map[string]string `json:"flavors,omitempty" form:"symbol" like:"small=m1.small" help:"The provider's names for the roles' flavors. A table needs an entry for each flavor; without a table, the roles use the provider's names."`
	Images   map[string]string `json:"images,omitempty" form:"symbol" like:"debian=debian-12" help:"The provider's names for the roles' images."`
	Networks map[string]string `json:"networks,omitempty" form:"symbol" like:"front=5c1f6a1e-0d4f-4f0e-9a0e-1d2c3b4a5f60" help:"The provider's names for the roles' networks."`

	Signatures string `json:"signatures,omitempty" form:"signatures" like:"required" help:"required: nodes without allowed signers take no new target. Without it, they take unsigned targets."`

	Statement model.Duration `json:"statement,omitempty" like:"24h" help:"How long a signed statement of the targets is valid, at most 720h. Nodes that verified one take no target without it. Without it, nodes need none."`

	Silence model.Duration `json:"silence,omitempty" like:"1h" help:"How long a node may report nothing before it counts as silent, from 15m to 720h, and at least three of its heartbeats (default: 20m)."`

	Rollout RolloutPolicy `json:"rollout,omitzero" help:"How staged rollouts of this environment proceed."`

	// The agent reads the trusted extensions from the file in the release (internal/puppet/trusted.go), and ignores stored ones.
	Trusted map[string]string `json:"trusted,omitempty" form:"extension" like:"pp_environment=production" help:"Trusted extensions of all nodes, for Puppet's $trusted['extensions']. Nodes take them from this file in the release."`
	// The agent reads the layers and the attributes from the file in the release, too (hieradata/hierarchy.go).
	DataLayers []string `json:"layers,omitempty" form:"datalayer" like:"node" help:"Order of the layers of live data, the highest first: node, role, environment, common and names of attributes (default: these four, in this order). Nodes take it from this file in the release."`

	ByNode map[string]NodeSettings `json:"nodes,omitempty" help:"Settings of single nodes, by name without the stack. They override those of the role."`

	ENC Classification `json:"enc,omitzero" form:"class" like:"ntp" help:"Classes and parameters of all nodes, which the external node classifier of Puppet servers answers."`

	Puppet settings.PuppetSettings `json:"puppet,omitzero" help:"Settings of Puppet on all nodes. Nodes take them from this file in the release."`

	Hosts HostSettings `json:"hosts,omitzero" help:"Settings of the nodes that roles see. Nodes take them from this file in the release."`

	Applications Applications `json:"applications,omitempty" help:"Applications: their instances, and the components of each. Jobs run the nodes of components after those that produce what they consume."`

	Userdata Userdata `json:"userdata,omitzero" help:"Settings of the first boots of all machines."`
	Roles    []Role   `json:"roles" help:"The roles by name. Puppet finds a node's role by its name."`

	// Given has the settings of Userdata that no file has: flags of an apply set them. Later applies of the file keep them.
	Given Userdata `json:"given,omitzero"`
}

// Role is a group of nodes with the same purpose.
type Role struct {
	Name        string            `json:"name"`
	Cardinality int               `json:"cardinality" help:"Number of nodes: <role>1, <role>2 and so on."` // from 0 to maxNodes
	Flavor      string            `json:"flavor,omitempty" form:"symbol" help:"Kind of machine; the default is the driver's."`
	Image       string            `json:"image,omitempty" form:"symbol" help:"Initial content of the disk; the default is the driver's."`
	Networks    []string          `json:"networks,omitempty" form:"symbol" like:"front" help:"Networks, in this order."`
	Labels      map[string]string `json:"labels,omitempty" form:"label" like:"team=core" help:"Labels of the machine, at the provider."`
	After       []string          `json:"after,omitempty" form:"role" like:"controller" help:"Roles whose machines must have converged before these are created."`
	ReactsTo    []string          `json:"reacts_to,omitempty" form:"role" like:"controller" help:"Roles whose added or removed nodes cause a Puppet run on these nodes."`
	Sees        []string          `json:"sees,omitempty" form:"seen" like:"controller" help:"Roles whose nodes these nodes find in pulley::hosts; all means every role. Nodes take them from this file in the release."`
	Protected   bool              `json:"protected,omitempty" help:"Machines of this role are never deleted."`
	Replace     replace           `json:"replace,omitzero" help:"Number of machines that are replaced at a time."`
	Userdata    Userdata          `json:"userdata,omitzero" help:"Settings of first boots of this role. They override the environment's; scripts run after the environment's."`
	Trusted     map[string]string `json:"trusted,omitempty" form:"extension" like:"pp_role=web" help:"Trusted extensions of the role's nodes. They override the environment's."`
	Attributes  map[string]string `json:"attributes,omitempty" form:"attribute" like:"site=ams" help:"Attributes of the role's nodes, which select layers of live data. Each is one of the environment's layers."`
	ENC         Classification    `json:"enc,omitzero" form:"class" like:"role::web" help:"Classes and parameters of the role's nodes for Puppet servers. They override the environment's, parameter by parameter."`
	Members     []string          `json:"members,omitempty" form:"member" like:"old1.example.com" help:"Existing machines of any name that belong to this role."`
}

// NodeSettings are the settings of one node.
type NodeSettings struct {
	Trusted    map[string]string `json:"trusted,omitempty" form:"extension" like:"pp_zone=east" help:"Trusted extensions of the node. They override the role's."`
	Attributes map[string]string `json:"attributes,omitempty" form:"attribute" like:"rack=r12" help:"Attributes of the node. They override the role's."`
	ENC        Classification    `json:"enc,omitzero" form:"class" like:"ntp" help:"Classes and parameters of the node for Puppet servers. They override the role's."`
}

// HostSettings are the settings of pulley::hosts, read by the agent (package internal/hosts), as Trusted.
type HostSettings struct {
	Networks []string       `json:"networks,omitempty" form:"network" like:"10.0.0.0/8" help:"Networks of the nodes' main addresses, the preferred one first. Without them, it is the address that pulley serve saw, else the first one."`
	Settle   model.Duration `json:"settle,omitempty" like:"1m" help:"How long a node waits for further changes before it runs Puppet for changed nodes that it sees, at most 24h (default: 1m)."`
	Exports  []string       `json:"exports,omitempty" form:"export" like:"ssh.ed25519.key" help:"Published facts that nodes show to the nodes that see them: names with dots."`

	AddressFact string `json:"address_fact,omitempty" form:"export" like:"networking.interfaces.eth1.ip" help:"The fact with a node's main address. Without a usable value, networks decide."`

	Alive model.Duration `json:"alive,omitempty" like:"1h" help:"The nodes that a node sees have the value alive: whether they reported within this time, from 15m to 720h. Without it, they have none."`
}

// RolloutPolicy is how staged rollouts proceed. A share is a number of nodes, or a percentage: "2", "25%". Empty values have
// the defaults of package rollout.
type RolloutPolicy struct {
	Canaries      string `json:"canaries,omitempty" form:"failures" like:"5%" help:"Nodes that take a target first: a number, or a percentage of all nodes (default: 1; with canaries_where, all of its nodes)."`
	CanariesWhere string `json:"canaries_where,omitempty" form:"expression" like:"site == 'lab'" help:"Expression that selects the canaries, as in --where."`
	Batch         string `json:"batch,omitempty" form:"batch" like:"10%" help:"Nodes of a role at a time: a number, or a percentage of the role (default: 10%)."`
	Failures      string `json:"failures,omitempty" form:"failures" like:"5%" help:"Nodes that may fail before the rollout pauses: a number, or a percentage of the nodes that ended, at least of sample (default: 0)."`
	BatchFailures string `json:"batch_failures,omitempty" form:"failures" like:"1" help:"Nodes of one batch that may fail before the rollout pauses (default: as many as failures)."`
	Sample        int    `json:"sample,omitempty" help:"Nodes of which a percentage of failures is at least: it is of the nodes that ended, as soon as these are more (default: 100)."`
	Retries       int    `json:"retries,omitempty" help:"Runs after a failed one, before the node counts as failed (default: 0)."`

	Settle   model.Duration `json:"settle,omitempty" like:"5m" help:"How long a node must stay healthy before its slot is free, at most 24h (default: its run decides)."`
	Deadline model.Duration `json:"deadline,omitempty" like:"1h" help:"Time for one node, at most 720h (default: 1h)."`
	Progress model.Duration `json:"progress,omitempty" like:"2h" help:"Time without a node that ends, after which the rollout pauses, at most 720h (default: 2h)."`

	Promote        string         `json:"promote,omitempty" form:"promotion" like:"manual" help:"automatic, manual (an operator approves after the canaries) or batches (an operator approves each batch but the first; default: automatic)."`
	Unready        UnreadyPolicy  `json:"unready,omitzero" help:"wait, skip or fail: what happens to a node that cannot take the target at its turn, for all causes or by cause (default: wait)."`
	Skip           string         `json:"skip,omitempty" form:"failures" like:"5%" help:"Nodes that unready: skip may leave out; further ones fail (default: any number)."`
	MaxUnavailable map[string]int `json:"max_unavailable,omitempty" form:"export" like:"rack=1" help:"Nodes with the same value of an attribute, or of a trusted fact, that may be unavailable at a time."`
	MaxPlaces      map[string]int `json:"max_places,omitempty" form:"export" like:"rack=1" help:"Values of an attribute, or of a trusted fact, that may have unavailable nodes at a time."`
	TrustedFacts   []string       `json:"trusted_facts,omitempty" form:"export" like:"networking.domain" help:"Published facts that max_unavailable and max_places may have beside attributes. Each node chooses its own facts."`
	OnFailure      string         `json:"on_failure,omitempty" form:"on_failure" like:"revert" help:"pause or revert: what a rollout with too many failures does (default: pause)."`
	DirectLimit    string         `json:"direct_limit,omitempty" form:"failures" like:"20" help:"Nodes that a promotion or a change of live data may change at once: a number, or a percentage of the nodes; more need a rollout (default: no limit)."`
	Windows        []string       `json:"windows,omitempty" form:"window" like:"mon-fri 22:00-04:00 Europe/Berlin" help:"Times in which nodes may begin: days, hours and a time zone (default: always)."`
	Gates          []string       `json:"gates,omitempty" form:"gate" like:"errors" help:"Checks between batches, by name. The machine of pulley serve defines them."`

	Preview PreviewPolicy `json:"preview,omitzero" help:"What the start of a rollout demands of a preview of its target."`

	Roles map[string]RoleRollout `json:"roles,omitempty" help:"What roles have differently, by role."`
}

// UnreadyPolicy is what happens to nodes that cannot take a target when their turn comes, by cause. In a file, one word stands for Others.
type UnreadyPolicy struct {
	Silent    string `json:"silent,omitempty" form:"unready" like:"skip" help:"Nodes that do not report."`
	Held      string `json:"held,omitempty" form:"unready" like:"wait" help:"Nodes that a hold of an operator keeps."`
	Disabled  string `json:"disabled,omitempty" form:"unready" like:"skip" help:"Nodes on which the machine itself forbids runs."`
	Retiring  string `json:"retiring,omitempty" form:"unready" like:"skip" help:"Nodes that an apply removes."`
	Stuck     string `json:"stuck,omitempty" form:"unready" like:"fail" help:"Nodes on which too many runs failed."`
	Duplicate string `json:"duplicate,omitempty" form:"unready" like:"fail" help:"Nodes whose name two machines have."`
	Failed    string `json:"failed,omitempty" form:"unready" like:"wait" help:"Nodes whose last run failed, or that refuse their target."`
	Others    string `json:"others,omitempty" form:"unready" like:"wait" help:"Nodes that cannot begin for a cause that is not named here (default: wait)."`
}

// PreviewPolicy is what the start of a staged rollout demands of a preview of its target.
type PreviewPolicy struct {
	Required   bool `json:"required,omitempty" help:"Whether the start runs a preview first, and refuses a target with new failures."`
	MaxChanged int  `json:"max_changed,omitempty" help:"Resources that the target may change on a node (default: no limit)."`
}

// RoleRollout is what a role has differently in staged rollouts.
type RoleRollout struct {
	Batch         string   `json:"batch,omitempty" form:"batch" like:"1" help:"Nodes of the role at a time."`
	BatchFailures string   `json:"batch_failures,omitempty" form:"failures" like:"0" help:"Nodes of one batch of the role that may fail."`
	After         []string `json:"after,omitempty" form:"role" like:"controller" help:"Roles whose nodes take the target before those of this role."`
}

// replace limits the changes to a role's machines. A share is a number of machines, or a percentage of the role's
// cardinality with at least one machine: "2", "25%".
type replace struct {
	Batch    string         `json:"batch,omitempty" form:"batch" like:"25%" help:"Machines that are replaced at a time: a number, or a percentage of the role (default: 1)."`
	Failures string         `json:"failures,omitempty" form:"failures" like:"25%" help:"Machines that may fail before no more are ordered (default: 0)."`
	Timeout  model.Duration `json:"timeout,omitempty" like:"30m" help:"Maximum time from the order of a machine until it has converged, at most 24h (default: 30m)."`
}

// DefaultTimeout is the maximum time from the order of a machine until its node is converged.
const DefaultTimeout = 30 * time.Minute

// Userdata is the settings of first boots that have no flag on the command line. A role's settings override the
// environment's; scripts are combined, the environment's first.
type Userdata = firstboot.Settings

// Ref returns the name of the fleet.
func (e *Environment) Ref() model.Ref { return model.Ref{Environment: e.Name, Stack: e.Stack} }

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

// Count returns the number of nodes of the environment, with the members of its roles.
func (e *Environment) Count() int {
	sum := 0
	for _, r := range e.Roles {
		sum += r.Cardinality + len(r.Members)
	}
	return sum
}

// Nodes yields all nodes of the environment, role by role, in rising order of their numbers.
func (e *Environment) Nodes() iter.Seq[model.Node] {
	return func(yield func(model.Node) bool) {
		for _, r := range e.Roles {
			for num := 1; num <= r.Cardinality; num++ {
				if !yield(model.Node{Role: r.Name, Num: num, Stack: e.Stack}) {
					return
				}
			}
		}
	}
}

// Has reports whether n is a node of the environment.
func (e *Environment) Has(n model.Node) bool {
	r, ok := e.Role(n.Role)
	return ok && n.Stack == e.Stack && 1 <= n.Num && n.Num <= r.Cardinality
}

//go:embed samples
var samples embed.FS

// Samples holds the environments and the cloud of a new control repository: environments/dev.yaml, environments/production.yaml and
// clouds/openstack.yaml.
func Samples() fs.FS {
	sub, err := fs.Sub(samples, "samples")
	if err != nil {
		return samples // impossible: the name is a valid path
	}
	return sub
}
