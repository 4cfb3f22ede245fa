// Package puppet owns the starter content: the small control repository that `pulley init` writes, and in it the module
// "pulley", which keeps the agent's own schedule and which bootstrap applies before a node has any release.
//
// It holds files and nothing else. The module must never need another module, a resource type that is not part of Puppet
// itself, or data from outside: it is what a bare machine applies first.
package puppet
