// Package command makes machines by a command of one's own: a program that reads one request as JSON and answers it as JSON.
// docs/providers.md has the contract.
//
// It owns the words of requests and answers, and the process of one request. It must never believe a part of an answer of
// which another part is wrong, never hand the command more of this program's surroundings than what is listed, and never
// leave a process of a request behind.
package command
