// Package cli contains the parts that both commands share at a terminal: a program's environment, its error messages,
// the connection to etcd, and tables.
//
// The rules: results go to standard output, everything else to standard error. An error is one line, "pulley: cannot
// …", and each hint is a line of its own below it. Tables are for people, and -o json is stable. Colour is used only on
// a terminal, and never with NO_COLOR or --no-color. It must never decide anything about a fleet.
package cli
