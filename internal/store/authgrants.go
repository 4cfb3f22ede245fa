package store

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Grant is one permission of a role: on a key (end is empty) or on all keys of a range.
type Grant struct {
	Key, End string
	May      clientv3.PermissionType
}

// NodesRole is what all nodes of an environment share, and nodeRole what one node has of its own.
func (s *Access) NodesRole(env string) string { return s.db.Prefix() + "/nodes/" + env }
func (s *Access) NodeRole(env, node string) string {
	return s.db.Prefix() + "/node/" + env + "/" + node
}

// OperatorRole is etcd's name of an operator's role; an admin has etcd's own.
func (s *Access) OperatorRole(r OperatorRole) string {
	if r == RoleAdmin {
		return rootRole
	}
	return s.db.Prefix() + "/" + string(r)
}

// NodesGrants is what a node reads: its environment, and content, which is named by hash and the same for all. Nothing of
// it is a single key that is made later, so that a new key of an environment needs no new grant.
func (s *Access) NodesGrants(env string) []Grant {
	var all []Grant
	for _, prefix := range []string{s.db.Keys.Env(env).Root(), s.db.Keys.Releases(), s.db.Keys.Objects(), s.db.Keys.Deltas(), s.db.Keys.AgentReleases()} {
		all = append(all, below(prefix, clientv3.PermRead))
	}
	return all
}

// NodeGrants is what a node writes: what it says of itself.
func (s *Access) NodeGrants(env, node string) []Grant {
	return []Grant{
		{s.db.Keys.Env(env).Status(node), "", clientv3.PermissionType(clientv3.PermReadWrite)},
		below(s.db.Keys.Env(env).Runs(node), clientv3.PermReadWrite),
	}
}

// OperatorGrants is what a viewer or an operator may. Operators write what operators and publishers write (the table of
// keys); they make no operators, nothing in the name of a node or of serve, and not the installation's id: with another one's
// they would have that one's machines taken for theirs.
func (s *Access) OperatorGrants(r OperatorRole) []Grant {
	all := []Grant{below(s.db.Keys.Root(), clientv3.PermRead)}
	if r != RoleOperator {
		return all
	}
	for _, prefix := range []string{
		s.db.Keys.Environments(), s.db.Keys.Releases(), s.db.Keys.Objects(), s.db.Keys.Deltas(), s.db.Keys.AgentReleases(), s.db.Keys.Publishings(),
		s.db.Keys.NodeTokens(), s.db.Keys.AllFirstBoots(),
	} {
		all = append(all, below(prefix, clientv3.PermReadWrite))
	}
	for _, key := range []string{s.db.Keys.Pruning(), s.db.Keys.Targets()} {
		all = append(all, Grant{key, "", clientv3.PermissionType(clientv3.PermReadWrite)})
	}
	return all
}

// below grants all keys that begin with a prefix.
func below[P ~int32](prefix string, may P) Grant {
	return Grant{prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(may)}
}
