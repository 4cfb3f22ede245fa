// Package node assembles a node's agent from its configuration: the lock, etcd, mirrors and Puppet. It runs the ticks,
// renews the node's certificate, tests itself and upgrades the agent. A turn is a tick by this agent, or by a newer
// agent that this one watches. It must never decide which target a node runs: package agent decides.
package node
