// Package nodeconfig is the configuration of one node: agent.yaml, the flags and variables that override it, and the
// paths of the agent's files below the root.
//
// It must never read or write anything but the configuration, the identity and the machine's own names, and never
// decide how the agent uses them.
package nodeconfig
