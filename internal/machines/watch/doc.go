// Package watch makes machines again that died, within a budget, and resumes what it began before.
//
// It must never touch protected roles, nodes under a hold, or anything that the environment does not call for.
package watch
