// Package apply carries plans out: it claims names, orders machines, waits for nodes, retires nodes and deletes
// machines.
//
// Every task reads the current state and can run again: the next apply resumes interrupted work. The package must never
// delete a machine without an approval, never order one whose name is not claimed, and never wait without a deadline.
package apply
