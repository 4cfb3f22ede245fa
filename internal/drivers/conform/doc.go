// Package conform checks that a driver does what machines.Provider promises, with real machines or with models, for `pulley
// provider test` and for tests (package conformtest).
//
// It owns the checks, their order and their names. It works in fleets of its own, under a new owner. It must never leave a machine,
// or touch machines that it did not make.
package conform
