// Package upgrade replaces the agent by a newer one and goes back from one that is no good. It owns the folder agent/ of the
// node's state, and what two agents of different versions say to each other.
//
// The agent that is in place, the known good one, stays the one that cron starts until the newer one, the candidate, has
// proven itself: it passed its self-test, and then did several ticks under the eyes of the known good one. Only then does
// one rename put it in place. A crash at any point leaves one of the two in place, never none.
//
// It must never decide what a node is to run, fetch anything by itself, or put in place what it has not seen at work.
package upgrade
