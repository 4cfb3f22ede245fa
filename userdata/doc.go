// Package userdata is a node's first boot: the one small shell script that a cloud hands to a bare machine, and that
// ends with `pulley-agent bootstrap`. It owns the script and the first agent.yaml in it.
//
// The script does only what must happen before the agent runs: the machine's name, the agent's settings, the agent
// itself. Installing Puppet, registering the host and the schedule belong to `pulley-agent bootstrap`, where they can
// be tested on their own.
//
// It must never carry a secret (every process on a machine can read its userdata), never put a value into the script
// without quoting it, and never leave a machine in a state from which running the script again does not heal it.
package userdata
