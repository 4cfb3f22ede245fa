// Package machines makes environments into machines: what a plan is and how it is found, how it is carried out, and what a
// provider of machines has to be able to do.
//
// Planning is a pure function of what is wanted, what is known and what the provider has. Applying is level-triggered: each
// step reads what is, claims a node's name before the provider is asked for a machine of that name, and may be repeated, so
// that whoever comes after a crash goes on.
//
// It must never destroy a machine that was not named and agreed to, never touch one that does not bear the fleet's mark,
// never ask for a machine whose name is not claimed, and never wait without a deadline. Drivers live in packages of their own
// below this one; what is stored is internal/store's.
package machines
