// Package cli is what both commands share at a terminal: the surroundings of a program, how it says that something went
// wrong, how it reaches etcd, and how it prints tables.
//
// The rules: results go to standard output, everything else to standard error. An error is one line, "pulley: cannot …",
// each hint a line of its own below it. Tables are for people; -o json is stable. Colour only on a terminal, and never
// with NO_COLOR or --no-color. It must never decide anything about a fleet.
package cli
