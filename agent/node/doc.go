// Package node puts a node's own agent together from its configuration: the lock, etcd, mirrors and Puppet; its ticks, the
// renewal of its certificate, its self-test, and the upgrade of the agent itself. A turn is a tick by this agent, or by a newer
// one that this one watches. It must never decide what a node runs: package agent does.
package node
