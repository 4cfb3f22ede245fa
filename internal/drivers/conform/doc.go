// Package conform says whether a driver does what machines.Provider promises. Its checks run against real machines as well
// as against models of them, from `pulley provider test` as well as from tests (package conformtest).
//
// It owns the checks, their order and their words. It works in fleets of its own, under an owner that nobody else has, and
// never leaves behind what it had made, nor touches anything else.
package conform
