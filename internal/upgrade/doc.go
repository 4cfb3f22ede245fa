// Package upgrade replaces the agent by a newer version and reverts a version that fails. It owns the folder agent/ of
// the node's state, and the protocol between two agents of different versions.
//
// The agent in place is the known good one, and cron starts it. The newer one, the candidate, must pass its self-test,
// and then run several ticks while the agent in place watches it. Only then does one rename install the candidate. A
// crash at any point leaves one of the two in place.
//
// It must never decide which version a node runs, fetch a program itself, or install a program that has not passed its
// probation.
package upgrade
