// Package machines owns the types that planning, applying, watching and the drivers share: a machine, its order, its
// provider, its machine record, and the codes of reasons.
//
// Package plan compares an environment with its fleet. Package apply carries a plan out. Package watch replaces dead
// machines. Package render converts codes to sentences. This package must never decide anything, and never import one
// of them.
package machines
