package environments

import "maps"

// ExtensionsOf returns the trusted extensions of a node: the node's own, then those of its role, then the environment's.
func (e *Environment) ExtensionsOf(node, role string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, e.Trusted)
	if r, ok := e.Role(role); ok {
		maps.Copy(all, r.Trusted)
	}
	maps.Copy(all, e.ByNode[e.plainName(node)].Trusted)
	return all
}
