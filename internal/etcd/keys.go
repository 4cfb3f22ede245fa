package etcd

import (
	"errors"
	"fmt"
	"strings"

	"pulley/internal/model"
)

// Keys spells every key. Writers: o operator, p publisher, a administrator, n the node itself, s serve, c controller.
// Without etcd authentication, a node also writes its entry of the host list. Only a prune, which an operator starts,
// deletes immutable keys.
//
//	releases/<version>                                   p  record of a release, signed; immutable except its signatures
//	withdrawn/<version>                                  p  a release that no constraint and no promotion picks
//	content/<sha256>                                     p  immutable bytes, named by their hash
//	deltas/<line>/<seq>                                  p  immutable; from one release of a line to the next
//	publishing/<id>                                      p  a publish in progress; a lease ends it
//	pruning                                              o  a prune in progress; a lease ends it
//	installation                                         s,a  marks this installation's machines at providers; immutable
//	disk                                                 s  the nearly full disk of an embedded etcd; a lease ends it
//	backup                                               a  when `pulley backup` last wrote a backup
//	targets                                              o,c  changes with any target or assignment; a prune compares it
//	environments/<env>/spec                              o  the environment
//	environments/<env>/desired/{default,roles/R,nodes/N} o  targets
//	environments/<env>/gate                              o  epoch and whether anything may start
//	environments/<env>/statement                         o,s  the targets in force until an end, signed
//	environments/<env>/history/<epoch>                   o  the change of each epoch, for rollback; serve deletes old ones
//	environments/<env>/rollbacks/<epoch>                 o  signed rollback permit for nodes at a higher release
//	environments/<env>/assigned/<node>                   c  a rollout's assignment of one node
//	environments/<env>/job                               o  the job in progress; serve renews its lease, which ends it
//	environments/<env>/previews/<node>                   o  an order to show what a target would change; a lease ends it
//	environments/<env>/campaigns/<id>/plan               o  a staged rollout as it was started; immutable; serve deletes old ones
//	environments/<env>/campaigns/<id>/nodes/<nonce>/<n>  o  a part of the nodes of the plan with this nonce; a lease ends those of a start that failed
//	environments/<env>/campaigns/<id>/state              o,s  its progress
//	environments/<env>/campaigns/<id>/endings            o  signed documents of its end; serve publishes them
//	environments/<env>/data/head                         o  number of the newest generation
//	environments/<env>/data/generations/<n>              o  immutable, signed
//	environments/<env>/data/layers/<sha256>              o  immutable
//	environments/<env>/hosts/head                        s,n,o  changes whenever the host list or an export does
//	environments/<env>/hosts/exports/<node>              n,o  facts of the node's machine that others may see, and its sign of life
//	environments/<env>/hosts/nodes/<node>                s,n,o  the host list
//	environments/<env>/holds/{all,roles/R,nodes/N}       o  holds; a lease ends them
//	environments/<env>/agent                             o  wanted versions of pulley-agent
//	environments/<env>/machines/<node>                   o,s  machine record: the machine that Pulley created for a node
//	environments/<env>/applying                          o,s  an apply in progress; a lease ends it
//	environments/<env>/acts/<id>                         o,s  the newest actions on machines
//	environments/<env>/provisioning                      o,s  the queue of new machines for Puppet servers: its pause and its last turn
//	environments/<env>/former                            o  CAs and PuppetDBs that the environment named before, and that may still have nodes
//	destroyed/<env>                                      a  how far an environment of this name was when it was destroyed; also while it is
//	retirements/<env>/<node>                             a,s  confirms a request to retire a node
//	status/<env>/<node>                                  n
//	runs/<env>/<node>/<id>                               n
//	runs/<env>/<node>/preview                            n  the answer to a preview order, until the order ends
//	facts/<env>/<node>                                   n  facts of the node's machine (package internal/facts)
//	agents/<version>                                     p  record of a release of pulley-agent, signed; immutable
//	tokens/nodes/<id>                                    o,s  join tokens of nodes; hashed
//	tokens/operators/<id>                                a,s  join tokens of operators; hashed
//	identities/<env>/<node>                              s,a  the holder of a node's name, or its removal
//	operators/<name>                                     s,a  the holder of an operator's name
//	precreated/<env>/<node>                              s  the etcd user that is pre-created for a joining node
//	cleanups/<env>/<node>                                a,s  what Puppet servers still have of a removed node; serve deletes it
//	presigned/<env>/<node>                               s  a certificate of Puppet's CA with its key, until its node has it; encrypted
//	certificates/<name>                                  s  work on a certname at Puppet's CAs; a lease ends it
//	firstboots/<env>/<machine>                           s,o  progress of a machine's first boot
//	machines/<env>/<machine>                             s  the node that a machine joined as, and its removal
//	recipients/<env>/<name>                              s  the recipients of an environment's secrets, certified
//	notices/<id>                                         s  notices to send once
//	floods/<env>/<node>                                  s  nodes that write too much
//	lockouts/<env>/<node>                                s  nodes whose certificates etcd refuses
type Keys struct {
	prefix string // ends with /pulley/v1/ or <prefix>/v1/
}

// DefaultPrefix is the first part of every key.
const DefaultPrefix = "/pulley"

// NewKeys returns the keys below prefix, or below DefaultPrefix if prefix is empty.
func NewKeys(prefix string) Keys {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return Keys{"/" + strings.Trim(prefix, "/") + "/v1/"}
}

// Prefix returns the first part of every key, without surrounding slashes. Names of users and roles begin with it.
func (k Keys) Prefix() string { return strings.Trim(strings.TrimSuffix(k.prefix, "v1/"), "/") }

// Root returns the prefix of all keys.
func (k Keys) Root() string { return k.prefix }

// Keys of the fleet. A plural is the prefix of the keys that its singular spells.

func (k Keys) Releases() string                    { return k.prefix + "releases/" }
func (k Keys) Release(version string) string       { return k.Releases() + escape(version) }
func (k Keys) Withdrawals() string                 { return k.prefix + "withdrawn/" }
func (k Keys) Withdrawal(version string) string    { return k.Withdrawals() + escape(version) }
func (k Keys) Objects() string                     { return k.prefix + "content/" }
func (k Keys) Object(hash string) string           { return k.Objects() + escape(hash) }
func (k Keys) Deltas() string                      { return k.prefix + "deltas/" }
func (k Keys) Line(line string) string             { return k.Deltas() + escape(line) + "/" }
func (k Keys) Delta(line string, seq int64) string { return k.Line(line) + fmt.Sprintf("%09d", seq) }
func (k Keys) Publishings() string                 { return k.prefix + "publishing/" }
func (k Keys) Publishing(id string) string         { return k.Publishings() + escape(id) }
func (k Keys) Pruning() string                     { return k.prefix + "pruning" }
func (k Keys) Disk() string                        { return k.prefix + "disk" }
func (k Keys) Backup() string                      { return k.prefix + "backup" }
func (k Keys) Targets() string                     { return k.prefix + "targets" }
func (k Keys) Environments() string                { return k.prefix + "environments/" }
func (k Keys) AgentReleases() string               { return k.prefix + "agents/" }
func (k Keys) AgentRelease(version string) string  { return k.AgentReleases() + escape(version) }
func (k Keys) NodeTokens() string                  { return k.prefix + "tokens/nodes/" }
func (k Keys) NodeToken(id string) string          { return k.NodeTokens() + escape(id) }
func (k Keys) OperatorTokens() string              { return k.prefix + "tokens/operators/" }
func (k Keys) OperatorToken(id string) string      { return k.OperatorTokens() + escape(id) }
func (k Keys) Operators() string                   { return k.prefix + "operators/" }
func (k Keys) Operator(name string) string         { return k.Operators() + escape(name) }
func (k Keys) Installation() string                { return k.prefix + "installation" }
func (k Keys) Notices() string                     { return k.prefix + "notices/" }
func (k Keys) Notice(id string) string             { return k.Notices() + escape(id) }
func (k Keys) AllStatuses() string                 { return k.prefix + "status/" }
func (k Keys) AllRuns() string                     { return k.prefix + "runs/" }
func (k Keys) AllFacts() string                    { return k.prefix + "facts/" }
func (k Keys) AllIdentities() string               { return k.prefix + "identities/" }
func (k Keys) AllPrecreated() string               { return k.prefix + "precreated/" }
func (k Keys) AllCleanups() string                 { return k.prefix + "cleanups/" }
func (k Keys) Certificate(certname string) string {
	return k.prefix + "certificates/" + escape(certname)
}
func (k Keys) AllFirstBoots() string { return k.prefix + "firstboots/" }
func (k Keys) AllDestroyed() string  { return k.prefix + "destroyed/" }

// Env returns the keys of one environment.
func (k Keys) Env(env string) EnvKeys { return EnvKeys{k, escape(env) + "/"} }

// EnvKeys spells the keys of one environment.
type EnvKeys struct {
	of  Keys
	env string // ends with a slash
}

func (k EnvKeys) Root() string                  { return k.of.Environments() + k.env }
func (k EnvKeys) Spec() string                  { return k.Root() + "spec" }
func (k EnvKeys) Gate() string                  { return k.Root() + "gate" }
func (k EnvKeys) Desired() string               { return k.Root() + "desired/" }
func (k EnvKeys) Target(s Scope) string         { return k.Desired() + s.Segment("default") }
func (k EnvKeys) History() string               { return k.Root() + "history/" }
func (k EnvKeys) Change(e model.Epoch) string   { return k.History() + fmt.Sprintf("%012d", e) }
func (k EnvKeys) Permits() string               { return k.Root() + "rollbacks/" }
func (k EnvKeys) Permit(e model.Epoch) string   { return k.Permits() + fmt.Sprintf("%012d", e) }
func (k EnvKeys) Statement() string             { return k.Root() + "statement" }
func (k EnvKeys) Assignment(node string) string { return k.Root() + "assigned/" + escape(node) }
func (k EnvKeys) Job() string                   { return k.Root() + "job" }
func (k EnvKeys) PreviewOrders() string         { return k.Root() + "previews/" }
func (k EnvKeys) PreviewOrder(node string) string {
	return k.PreviewOrders() + escape(node)
}
func (k EnvKeys) Campaigns() string { return k.Root() + "campaigns/" }
func (k EnvKeys) CampaignKeys(id string) string {
	return k.Campaigns() + escape(id) + "/"
}
func (k EnvKeys) Campaign(id string) string        { return k.CampaignKeys(id) + "plan" }
func (k EnvKeys) CampaignState(id string) string   { return k.CampaignKeys(id) + "state" }
func (k EnvKeys) CampaignEndings(id string) string { return k.CampaignKeys(id) + "endings" }
func (k EnvKeys) CampaignMembers(id, nonce string) string {
	return k.CampaignKeys(id) + "nodes/" + escape(nonce) + "/"
}
func (k EnvKeys) CampaignNodes(id, nonce string, n int) string {
	return k.CampaignMembers(id, nonce) + fmt.Sprintf("%012d", n)
}
func (k EnvKeys) DataHead() string    { return k.Root() + "data/head" }
func (k EnvKeys) Generations() string { return k.Root() + "data/generations/" }
func (k EnvKeys) Generation(n model.Generation) string {
	return k.Generations() + fmt.Sprintf("%012d", n)
}
func (k EnvKeys) Layers() string                   { return k.Root() + "data/layers/" }
func (k EnvKeys) Layer(digest string) string       { return k.Layers() + escape(digest) }
func (k EnvKeys) HostsHead() string                { return k.Root() + "hosts/head" }
func (k EnvKeys) Hosts() string                    { return k.Root() + "hosts/nodes/" }
func (k EnvKeys) Host(node string) string          { return k.Hosts() + escape(node) }
func (k EnvKeys) Exports() string                  { return k.Root() + "hosts/exports/" }
func (k EnvKeys) Export(node string) string        { return k.Exports() + escape(node) }
func (k EnvKeys) Holds() string                    { return k.Root() + "holds/" }
func (k EnvKeys) Hold(s Scope) string              { return k.Holds() + s.Segment("all") }
func (k EnvKeys) AgentChoice() string              { return k.Root() + "agent" }
func (k EnvKeys) MachineRecords() string           { return k.Root() + "machines/" }
func (k EnvKeys) MachineRecord(node string) string { return k.MachineRecords() + escape(node) }
func (k EnvKeys) Applying() string                 { return k.Root() + "applying" }
func (k EnvKeys) Acts() string                     { return k.Root() + "acts/" }
func (k EnvKeys) Act(id string) string             { return k.Acts() + escape(id) }
func (k EnvKeys) Provisioning() string             { return k.Root() + "provisioning" }
func (k EnvKeys) Former() string                   { return k.Root() + "former" }
func (k EnvKeys) Destroyed() string                { return k.of.AllDestroyed() + strings.TrimSuffix(k.env, "/") }
func (k EnvKeys) Retirement(node string) string {
	return k.of.prefix + "retirements/" + k.env + escape(node)
}
func (k EnvKeys) Statuses() string              { return k.of.AllStatuses() + k.env }
func (k EnvKeys) Status(node string) string     { return k.Statuses() + escape(node) }
func (k EnvKeys) NodesRuns() string             { return k.of.AllRuns() + k.env }
func (k EnvKeys) Runs(node string) string       { return k.NodesRuns() + escape(node) + "/" }
func (k EnvKeys) Run(node, id string) string    { return k.Runs(node) + escape(id) }
func (k EnvKeys) Preview(node string) string    { return k.Run(node, model.PreviewRun) }
func (k EnvKeys) NodesFacts() string            { return k.of.AllFacts() + k.env }
func (k EnvKeys) Facts(node string) string      { return k.NodesFacts() + escape(node) }
func (k EnvKeys) Identities() string            { return k.of.AllIdentities() + k.env }
func (k EnvKeys) Identity(node string) string   { return k.Identities() + escape(node) }
func (k EnvKeys) Precreated(node string) string { return k.of.AllPrecreated() + k.env + escape(node) }
func (k EnvKeys) Cleanup(node string) string    { return k.of.AllCleanups() + k.env + escape(node) }
func (k EnvKeys) Presigned(node string) string {
	return k.of.prefix + "presigned/" + k.env + escape(node)
}
func (k EnvKeys) FirstBoots() string          { return k.of.AllFirstBoots() + k.env }
func (k EnvKeys) FirstBoot(key string) string { return k.FirstBoots() + escape(key) }
func (k EnvKeys) Past(machine string) string {
	return k.of.prefix + "machines/" + k.env + escape(machine)
}
func (k EnvKeys) Recipients() string           { return k.of.prefix + "recipients/" + k.env }
func (k EnvKeys) Recipient(name string) string { return k.Recipients() + escape(name) }
func (k EnvKeys) Flood(node string) string     { return k.of.prefix + "floods/" + k.env + escape(node) }
func (k EnvKeys) Lockout(node string) string   { return k.of.prefix + "lockouts/" + k.env + escape(node) }

// Leaving lists the keys of a node that a removal deletes. Its identity, status, runs and machine record stay, and what is left to do about it.
func (k EnvKeys) Leaving(node string) []string {
	self := Scope{Node: node}
	return []string{
		k.Host(node), k.Precreated(node), k.Presigned(node), k.Hold(self), k.Target(self), k.Assignment(node), k.Retirement(node), k.Flood(node), k.Lockout(node),
		k.Facts(node), k.Export(node), k.PreviewOrder(node), k.Preview(node),
	}
}

// Elsewhere lists the prefixes of keys of the environment that are not below its root, without those of who is in the fleet.
func (k EnvKeys) Elsewhere() []string {
	return []string{k.Statuses(), k.NodesRuns(), k.NodesFacts(), k.FirstBoots(), k.Past(""), k.Flood(""), k.Lockout(""), k.Retirement(""), k.Recipients(), k.Presigned("")}
}

// maxOfNode is the most bytes of a value that a node writes: twice what an honest one does.
const maxOfNode = 64 << 10

// limit returns the most bytes of the value of a key; 0 for a key that no node writes.
func (k Keys) limit(key string) int {
	kind, below, _ := strings.Cut(strings.TrimPrefix(key, k.prefix), "/")
	switch _, below, _ = strings.Cut(below, "/"); {
	case kind == "status", kind == "runs", kind == "facts", kind == "environments" && strings.HasPrefix(below, "hosts/exports/"):
		return maxOfNode
	}
	return 0
}

// Scope is one node, one role, or all nodes: the scope of a target or a hold.
type Scope struct{ Role, Node string }

// String renders a scope for people: all nodes, role compute, node compute1.
func (s Scope) String() string {
	switch {
	case s.Node != "":
		return "node " + s.Node
	case s.Role != "":
		return "role " + s.Role
	}
	return "all nodes"
}

// Has reports whether a node belongs to the scope.
func (s Scope) Has(role, node string) bool {
	return s == (Scope{}) || s.Role != "" && s.Role == role || s.Node != "" && s.Node == node
}

// Segment renders a scope as a part of a key, and as a code: nodes/N, roles/R, or all for all nodes.
func (s Scope) Segment(all string) string {
	switch {
	case s.Node != "":
		return "nodes/" + escape(s.Node)
	case s.Role != "":
		return "roles/" + escape(s.Role)
	}
	return all
}

// ScopeOf parses the result of Segment. ok is false for any other segment. Such a segment must apply to no node.
func ScopeOf(segment, all string) (s Scope, ok bool) {
	switch kind, name, _ := strings.Cut(segment, "/"); kind {
	case "nodes":
		s.Node = Unescape(name)
	case "roles":
		s.Role = Unescape(name)
	}
	return s, s.Segment(all) == segment
}

// ErrNotOurs is a key that no kind of value has.
var ErrNotOurs = errors.New("it is not a key of Pulley, and is ignored")

// UnknownKey describes a key of unknown meaning, for FleetState.Damaged.
func UnknownKey(key string) string {
	return (&UnreadableError{Key: key, Problem: ErrNotOurs.Error()}).Error()
}

const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@+"

// escape makes a string one segment of a key: bytes outside a small set become %XX. No segment contains a slash.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(plain, s[i]) >= 0 {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

// Unescape reverses Escape. It returns any other string unchanged.
func Unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		var c byte
		if s[i] == '%' && i+2 < len(s) {
			if _, err := fmt.Sscanf(s[i+1:i+3], "%02X", &c); err == nil {
				b.WriteByte(c)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// IsSegment reports whether a part of a key is what this package makes of a name.
func IsSegment(part string) bool { return part != "" && escape(Unescape(part)) == part }

// KindOf returns the first part of a key, or the first part below its environment.
func KindOf(key string) (env, kind string) {
	_, below, _ := strings.Cut(key, "/v1/")
	kind, below, _ = strings.Cut(below, "/")
	env, below, _ = strings.Cut(below, "/")
	if kind == "environments" {
		kind, _, _ = strings.Cut(below, "/")
	}
	return env, kind
}
