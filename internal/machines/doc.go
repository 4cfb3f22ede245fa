// Package machines owns the types that planning, applying, watching and the drivers share: a machine, its order, its
// provider, its machine record, and the codes of reasons.
//
// Package plan compares an environment with its fleet, package apply carries a plan out, package watch replaces dead
// machines, and package render converts codes to sentences. This package must never decide anything, and never import
// one of them.
package machines
