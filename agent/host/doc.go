// Package host manages the machine around a Puppet run. It restores the agent's schedule and the lists of signers after
// a release that damaged them, and it runs the release's checks and hooks. It must never decide whether Puppet runs.
package host
