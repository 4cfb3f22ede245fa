package access

import (
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/etcd"
	"pulley/internal/pki"
)

// Grant is one permission of a role: on a key (end is empty) or on all keys of a range.
type Grant struct {
	Key, End string
	May      clientv3.PermissionType
}

// NodesRole is the role that all nodes of an environment share.
func (s *Access) NodesRole(env string) string { return s.db.Prefix() + "/nodes/" + env }

// NodeRole is the role of one node.
func (s *Access) NodeRole(env, node string) string {
	return s.db.Prefix() + "/node/" + env + "/" + node
}

// OperatorRole returns etcd's name of an operator's role. An admin has etcd's own root role.
func (s *Access) OperatorRole(r OperatorRole) string {
	if r == RoleAdmin {
		return rootRole
	}
	return s.db.Prefix() + "/" + string(r)
}

// NodesGrants lists the reads of a node: its environment with the confirmed retirements, and content, which is named by
// hash and shared. With an export, a node writes the head of the host list: others read the list again. Whoever writes the head
// alone makes them read it once per settle time, and hides nothing: each change of the list gives the head a new revision.
// No read is for a single key that is created later. A new key of an environment therefore needs no
// new grant.
func (s *Access) NodesGrants(env string) []Grant {
	var all []Grant
	for _, prefix := range []string{
		s.db.Keys.Env(env).Root(), s.db.Keys.Env(env).Retirement(""),
		s.db.Keys.Releases(), s.db.Keys.Objects(), s.db.Keys.Deltas(), s.db.Keys.AgentReleases(),
	} {
		all = append(all, below(prefix, clientv3.PermRead))
	}
	return append(all, Grant{s.db.Keys.Env(env).HostsHead(), "", clientv3.PermissionType(clientv3.PermWrite)})
}

// NodeGrants lists the writes of a node: its own reports, facts and exports.
func (s *Access) NodeGrants(env, node string) []Grant {
	return []Grant{
		{s.db.Keys.Env(env).Status(node), "", clientv3.PermissionType(clientv3.PermReadWrite)},
		below(s.db.Keys.Env(env).Runs(node), clientv3.PermReadWrite),
		{s.db.Keys.Env(env).Facts(node), "", clientv3.PermissionType(clientv3.PermReadWrite)},
		{s.db.Keys.Env(env).Export(node), "", clientv3.PermissionType(clientv3.PermReadWrite)},
	}
}

// Bytes of the values that a node writes. Its agent writes less: see agent/report.go, internal/model/record.go, agent/preview.go, internal/facts and internal/hosts.
const (
	statusAtMost, runAtMost, previewAtMost = 16 << 10, 16 << 10, 64 << 10
	factsAtMost, exportAtMost              = 32 << 10, 32 << 10
)

// NodeWrites reports whether a node writes a key, and the most bytes of its value. Only the revision of the head of the host list is read.
func NodeWrites(name pki.Name, key string) (most int, own bool) {
	k := etcd.NewKeys(name.Prefix).Env(name.Environment)
	switch key {
	case k.Status(name.Subject):
		return statusAtMost, true
	case k.Facts(name.Subject):
		return factsAtMost, true
	case k.Export(name.Subject):
		return exportAtMost, true
	case k.Preview(name.Subject):
		return previewAtMost, true
	case k.HostsHead():
		return etcd.TouchBytes, true
	}
	return runAtMost, strings.HasPrefix(key, k.Runs(name.Subject))
}

// OperatorGrants lists the grants of a viewer or an operator. Operators write the keys of operators and publishers
// (see the table of keys). They create no operators and write nothing in the name of a node or of serve. They do not
// write the installation's ID: with a foreign ID, Pulley would take another installation's machines for its own. They
// confirm no retirement: a request in the host list, which they write, then retires no node.
func (s *Access) OperatorGrants(r OperatorRole) []Grant {
	all := []Grant{below(s.db.Keys.Root(), clientv3.PermRead)}
	if r != RoleOperator {
		return all
	}
	for _, prefix := range []string{
		s.db.Keys.Environments(), s.db.Keys.Releases(), s.db.Keys.Withdrawals(), s.db.Keys.Objects(), s.db.Keys.Deltas(), s.db.Keys.AgentReleases(),
		s.db.Keys.Publishings(),
		s.db.Keys.NodeTokens(), s.db.Keys.AllFirstBoots(),
	} {
		all = append(all, below(prefix, clientv3.PermReadWrite))
	}
	for _, key := range []string{s.db.Keys.Pruning(), s.db.Keys.Targets()} {
		all = append(all, Grant{key, "", clientv3.PermissionType(clientv3.PermReadWrite)})
	}
	return all
}

// below returns a grant of all keys that begin with a prefix.
func below[P ~int32](prefix string, may P) Grant {
	return Grant{prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(may)}
}

// String renders a grant, for example "read all below /pulley/v1/releases/".
func (g Grant) String() string {
	what := map[int32]string{0: "read", 1: "write", 2: "read and write"}[int32(g.May)]
	switch {
	case g.End == "":
		return what + " " + g.Key
	case below(g.Key, g.May).End == g.End:
		return what + " all below " + g.Key
	}
	return fmt.Sprintf("%s from %s to %q", what, g.Key, g.End)
}
