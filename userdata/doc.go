// Package userdata is a node's first boot: the small payload that a cloud hands to a bare machine, and that ends with
// `pulley-agent bootstrap`. It owns the payload's forms, the script in it and the plan of the first boot.
//
// Every form leaves the same files on the machine and starts the same script. The script does only what must happen
// before the agent runs: it sees to it that it is started again after a power cut, and fetches the agent. Everything else
// is a step of `pulley-agent bootstrap`, where it can be tested on its own.
//
// Userdata must never carry a secret that lasts (every process on a machine can read it): a join token is bound to a node or
// a role and runs out. It must never put a value into a script or a file without quoting it, and never leave a machine in a
// state from which running it again does not heal it.
package userdata
