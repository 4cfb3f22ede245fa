package firstboot

import "slices"

// Name is the name of a step in the plan, the log, the state and the reports to serve.
type Name string

// The steps, in their order.
const (
	Network  Name = "network"  // a way to the servers, and a clock that can be right
	Lock     Name = "lock"     // a reboot resumes; the node's name is reserved
	Pre      Name = "pre"      // own scripts, before the agent is installed
	Agent    Name = "agent"    // the agent where cron looks for it
	Join     Name = "join"     // a certificate, and the settings
	Hostname Name = "hostname" // the machine's name
	Puppet   Name = "puppet"   // installed
	Register Name = "register" // on the list of hosts that should be alive
	Schedule Name = "schedule" // the first run of Puppet, which only sets up cron
	Enable   Name = "enable"   // cron's ticks may work
	Notify   Name = "notify"   // serve is notified
	Post     Name = "post"     // own scripts, on a node that is ready
	Unlock   Name = "unlock"   // nothing of a first boot is left over
)

var steps = []Name{Network, Lock, Pre, Agent, Join, Hostname, Puppet, Register, Schedule, Enable, Notify, Post, Unlock}

// Names is the list of the steps in their order.
func Names() []Name { return slices.Clone(steps) }

// Crash points: where a build with the tag `failpoint` can be made to die. Those of a join lie between what serve wrote down
// and what the machine did.
const (
	before       = "before:first-boot-"
	after        = "after:first-boot-"
	JoinAnswered = "first-boot-join:answered" // nothing of the answer is on the disk
	JoinKept     = "first-boot-join:kept"     // the identity is, the settings are not
	JoinWritten  = "first-boot-join:written"  // all is, and so is the key that it was asked with
)

// CrashPoints are the places at which a first boot can die, for tests: before and after each step, and in a join.
func CrashPoints() []string {
	points := []string{JoinAnswered, JoinKept, JoinWritten}
	for _, s := range steps {
		points = append(points, before+string(s), after+string(s))
	}
	return points
}
