// Package host is the machine around Puppet's run: it restores the agent's schedule and the lists of signers after a release
// that spoiled them, and runs the checks and hooks that a release brings along. It must never decide whether Puppet runs.
package host
