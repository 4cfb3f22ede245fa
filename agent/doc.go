// Package agent implements one tick of one node: it reads the node's state and the desired state in etcd, decides on an
// action, and carries it out. It owns the domain's types, the decision, the list of steps and the node's own state.
//
// It must never import etcd or start a process. It reads the clock, the environment and the files only through the
// fields of its types and the small interfaces in run.go. reason.go contains the codes. Only words.go turns codes into
// sentences.
package agent
