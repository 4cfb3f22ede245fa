// Package machines holds the types that planning, applying, watching and the drivers share: a machine, the order for one, the
// provider that makes it, the record that Pulley keeps of it, and the codes of the reasons for what is done to it.
//
// Package plan compares an environment with its fleet, package apply carries a plan out, package watch makes dead machines again,
// and package render makes sentences of their codes. This package decides nothing and must never import one of them.
package machines
