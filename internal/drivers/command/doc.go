// Package command makes machines by a command of the user: a program that reads one request as JSON and prints one answer as JSON.
// docs/providers.md has the contract.
//
// It owns the format of requests and answers, and the process of one request. It must never use a part of an answer of which
// another part is wrong, never pass more of this program's environment than the listed variables, and never leave a process of a
// request running.
package command
