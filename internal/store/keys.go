package store

import (
	"fmt"
	"strings"

	"pulley/agent"
)

// keys spells every key. Written by: o operator, p publisher, a administrator, n the node itself, s serve, c controller. Where
// etcd knows no users, a node also writes its entry of the list of hosts. Only a prune, which an operator starts, deletes
// what is called immutable.
//
//	releases/<version>                                   p  record of a release, signed; immutable but for its signatures
//	content/<sha256>                                     p  immutable bytes, named by their hash
//	deltas/<line>/<seq>                                  p  immutable; what leads from one release of a line to the next
//	publishing/<id>                                      p  a publish is under way; a lease ends it
//	pruning                                              o  a prune is under way; a lease ends it
//	installation                                         s,a  by which providers know this installation's machines; immutable
//	targets                                              o,c  changes whenever any target or assignment does; a prune compares it
//	environments/<env>/spec                              o  the environment
//	environments/<env>/desired/{default,roles/R,nodes/N} o  targets
//	environments/<env>/gate                              o  epoch and whether anything may start
//	environments/<env>/history/<epoch>                   o  what each epoch changed, for rollback
//	environments/<env>/rollbacks/<epoch>                 o  signed leave to go back, for nodes that stood higher
//	environments/<env>/assigned/<node>                   c  a rollout's word to one node
//	environments/<env>/data/head                         o  number of the newest generation
//	environments/<env>/data/generations/<n>              o  immutable, signed
//	environments/<env>/data/layers/<sha256>              o  immutable
//	environments/<env>/hosts/head                        s,n,o  changes whenever the list of hosts does
//	environments/<env>/hosts/nodes/<node>                s,n,o  the hosts that should be alive
//	environments/<env>/holds/{all,roles/R,nodes/N}       o  holds; a lease ends them
//	environments/<env>/agent                             o  which version of pulley-agent
//	environments/<env>/machines/<node>                   o,s  the machine that pulley had made for a node
//	environments/<env>/applying                          o,s  an apply is under way; a lease ends it
//	environments/<env>/acts/<id>                         o,s  what was done to machines; the newest
//	status/<env>/<node>                                  n
//	runs/<env>/<node>/<id>                               n
//	facts/<env>/<node>                                   n
//	agents/<version>                                     p  record of a release of pulley-agent, signed; immutable
//	tokens/nodes/<id>                                    o,s  who may join as a node; hashed
//	tokens/operators/<id>                                a,s  who may join as an operator; hashed
//	identities/<env>/<node>                              s,a  who holds a node's name, or that it was removed
//	operators/<name>                                     s,a  who holds an operator's name
//	reserve/<env>/<node>                                 s  the etcd user made ahead for a node that is to join
//	firstboots/<env>/<machine>                           s,o  where a machine is in its first boot
//	machines/<env>/<machine>                             s  which node a machine joined as, and that it was removed
//	notices/<id>                                         s  what is to be told, once
//	floods/<env>/<node>                                  s  nodes that write too much
type keys struct {
	prefix string // ends with /pulley/v1/ or <prefix>/v1/
}

// DefaultPrefix is the first part of every key.
const DefaultPrefix = "/pulley"

func newKeys(prefix string) keys {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return keys{prefix: "/" + strings.Trim(prefix, "/") + "/v1/"}
}

func (k keys) releases() string              { return k.prefix + "releases/" }
func (k keys) release(version string) string { return k.releases() + escape(version) }
func (k keys) objects() string               { return k.prefix + "content/" }
func (k keys) object(hash string) string     { return k.objects() + escape(hash) }
func (k keys) deltas() string                { return k.prefix + "deltas/" }
func (k keys) line(line string) string       { return k.deltas() + escape(line) + "/" }
func (k keys) delta(line string, seq int64) string {
	return k.line(line) + fmt.Sprintf("%09d", seq)
}
func (k keys) publishings() string           { return k.prefix + "publishing/" }
func (k keys) publishing(id string) string   { return k.publishings() + escape(id) }
func (k keys) pruning() string               { return k.prefix + "pruning" }
func (k keys) targets() string               { return k.prefix + "targets" }
func (k keys) environments() string          { return k.prefix + "environments/" }
func (k keys) environment(env string) string { return k.environments() + escape(env) + "/" }
func (k keys) spec(env string) string        { return k.environment(env) + "spec" }
func (k keys) gate(env string) string        { return k.environment(env) + "gate" }
func (k keys) desired(env string) string     { return k.environment(env) + "desired/" }
func (k keys) target(env string, s Scope) string {
	return k.desired(env) + s.segment("default")
}
func (k keys) history(env string) string { return k.environment(env) + "history/" }
func (k keys) change(env string, e agent.Epoch) string {
	return k.history(env) + fmt.Sprintf("%012d", e)
}
func (k keys) rollbacks(env string) string { return k.environment(env) + "rollbacks/" }
func (k keys) rollback(env string, e agent.Epoch) string {
	return k.rollbacks(env) + fmt.Sprintf("%012d", e)
}
func (k keys) assigned(env, node string) string {
	return k.environment(env) + "assigned/" + escape(node)
}
func (k keys) dataHead(env string) string    { return k.environment(env) + "data/head" }
func (k keys) generations(env string) string { return k.environment(env) + "data/generations/" }
func (k keys) generation(env string, n agent.Generation) string {
	return k.generations(env) + fmt.Sprintf("%012d", n)
}
func (k keys) layers(env string) string        { return k.environment(env) + "data/layers/" }
func (k keys) layer(env, digest string) string { return k.layers(env) + escape(digest) }
func (k keys) hostsHead(env string) string     { return k.environment(env) + "hosts/head" }
func (k keys) hosts(env string) string         { return k.environment(env) + "hosts/nodes/" }
func (k keys) host(env, node string) string    { return k.hosts(env) + escape(node) }
func (k keys) holds(env string) string         { return k.environment(env) + "holds/" }
func (k keys) hold(env string, s Scope) string { return k.holds(env) + s.segment("all") }
func (k keys) fleets() string                  { return k.prefix + "status/" }
func (k keys) statuses(env string) string      { return k.fleets() + escape(env) + "/" }
func (k keys) status(env, node string) string  { return k.statuses(env) + escape(node) }
func (k keys) runs(env, node string) string {
	return k.prefix + "runs/" + escape(env) + "/" + escape(node) + "/"
}
func (k keys) run(env, node, id string) string { return k.runs(env, node) + escape(id) }

func (k keys) facts(env, node string) string {
	return k.prefix + "facts/" + escape(env) + "/" + escape(node)
}
func (k keys) agents() string                     { return k.prefix + "agents/" }
func (k keys) agentRelease(version string) string { return k.agents() + escape(version) }
func (k keys) agentWanted(env string) string      { return k.environment(env) + "agent" }
func (k keys) nodeTokens() string                 { return k.prefix + "tokens/nodes/" }
func (k keys) nodeToken(id string) string         { return k.nodeTokens() + escape(id) }
func (k keys) operatorTokens() string             { return k.prefix + "tokens/operators/" }
func (k keys) operatorToken(id string) string     { return k.operatorTokens() + escape(id) }
func (k keys) identities(env string) string       { return k.prefix + "identities/" + escape(env) + "/" }
func (k keys) identity(env, node string) string   { return k.identities(env) + escape(node) }
func (k keys) operators() string                  { return k.prefix + "operators/" }
func (k keys) operator(name string) string        { return k.operators() + escape(name) }
func (k keys) reserves(env string) string         { return k.prefix + "reserve/" + escape(env) + "/" }
func (k keys) reserve(env, node string) string    { return k.reserves(env) + escape(node) }
func (k keys) firstBoots(env string) string       { return k.prefix + "firstboots/" + escape(env) + "/" }
func (k keys) firstBoot(env, machine string) string {
	return k.firstBoots(env) + escape(machine)
}
func (k keys) machine(env, machine string) string {
	return k.prefix + "machines/" + escape(env) + "/" + escape(machine)
}
func (k keys) installation() string           { return k.prefix + "installation" }
func (k keys) records(env string) string      { return k.environment(env) + "machines/" }
func (k keys) record(env, node string) string { return k.records(env) + escape(node) }
func (k keys) applying(env string) string     { return k.environment(env) + "applying" }
func (k keys) acts(env string) string         { return k.environment(env) + "acts/" }
func (k keys) act(env, id string) string      { return k.acts(env) + escape(id) }
func (k keys) notices() string                { return k.prefix + "notices/" }
func (k keys) notice(id string) string        { return k.notices() + escape(id) }
func (k keys) floods(env string) string       { return k.prefix + "floods/" + escape(env) + "/" }
func (k keys) flood(env, node string) string  { return k.floods(env) + escape(node) }
func (k keys) allRuns(env string) string      { return k.prefix + "runs/" + escape(env) + "/" }

// Scope is what a target or a hold is for: one node, one role, or everybody.
type Scope struct{ Role, Node string }

// String is how people and records name a scope: everybody, role compute, node compute1.
func (s Scope) String() string {
	switch {
	case s.Node != "":
		return "node " + s.Node
	case s.Role != "":
		return "role " + s.Role
	}
	return "everybody"
}

func (s Scope) segment(everybody string) string {
	switch {
	case s.Node != "":
		return "nodes/" + escape(s.Node)
	case s.Role != "":
		return "roles/" + escape(s.Role)
	}
	return everybody
}

// scopeOf reads what segment wrote; ok is false for anything else, which must count for nobody.
func scopeOf(segment, everybody string) (s Scope, ok bool) {
	switch kind, name, _ := strings.Cut(segment, "/"); kind {
	case "nodes":
		s.Node = unescape(name)
	case "roles":
		s.Role = unescape(name)
	}
	return s, s.segment(everybody) == segment
}

// unknownKey is how Fleet.Damaged has a key that means nothing.
func unknownKey(key string) string {
	return (&UnreadableError{Key: key, Problem: "it is no key of pulley's: it counts for nobody"}).Error()
}

const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@+"

// escape makes any string one segment of a key: bytes outside of a small set become %XX, so no segment contains a slash.
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

// unescape reads what escape wrote; what escape would not have written comes back as it is.
func unescape(s string) string {
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
