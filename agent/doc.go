// Package agent is one node's tick: what it observes, what etcd wants of it, what it decides, and how it carries that
// out. It owns the domain's types, the decision, the list of steps and the node's own state.
//
// It must never import etcd, start a process, or read the clock, the environment or the file system except through the
// fields of its types; what it needs from outside it asks of the small interfaces declared in run.go.
package agent
