// Package userdata makes the userdata of a new machine: the small payload that a cloud passes to it, and that runs
// `pulley-agent bootstrap`. It owns the forms of the payload, its script and the files that it writes.
//
// Every form writes the same files and starts the same script. The script does only the work that must precede the
// agent: it makes itself restart after a power cut, and downloads the agent. `pulley-agent bootstrap` does all other
// steps, and tests run each of them separately.
//
// Userdata must never contain a secret that lasts, because every process on a machine can read it: a join token is
// bound to a node or a role, and expires. It must never put a value into a script or a file without quoting. It must
// never leave a machine in a state that another run does not repair.
package userdata
