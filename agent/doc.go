// Package agent is one node's tick: what it observes, what etcd wants of it, what it decides, and how it carries that
// out. It owns the domain's types, the decision, the list of steps and the node's own state.
//
// It must never import etcd or start a process. It reads the clock, the environment and the files only through the fields of its
// types and the small interfaces in run.go. reason.go has the codes; words.go is the only place that makes sentences of them.
package agent
