// Package nodeconfig is the configuration of one node: agent.yaml, the flags and variables above it, and the places of the
// agent's files below the root.
//
// It must never read or write anything but the configuration, the identity and the machine's own names, and never decide
// what the agent does with them.
package nodeconfig
