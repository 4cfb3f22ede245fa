// Package watch replaces dead machines, within a budget, and resumes work that an earlier watch began.
//
// It must never change protected roles, nodes under a hold, or nodes that are not in the environment.
package watch
