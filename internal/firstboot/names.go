package firstboot

import (
	"slices"
	"strings"
)

// Name is the name of a step in the plan, the log, the state and the reports to serve.
type Name string

// The steps, in their order.
const (
	Network  Name = "network"  // a route to the servers, and a plausible clock
	Lock     Name = "lock"     // a reboot resumes; the node's name is reserved
	Pre      Name = "pre"      // the operator's scripts, before the agent is installed
	Agent    Name = "agent"    // the agent at its path, where cron starts it
	Join     Name = "join"     // a certificate, and the settings
	Hostname Name = "hostname" // the machine's name
	Puppet   Name = "puppet"   // installed
	Register Name = "register" // entry in the host list

	// The steps of a machine whose release names an environment of a Puppet server.
	Server      Name = "server"      // the Puppet server is chosen
	Turn        Name = "turn"        // the machine is among those that are provisioned now
	Hosts       Name = "hosts"       // /etc/hosts names the server
	PuppetConf  Name = "puppet-conf" // settings of Puppet's own agent
	Certificate Name = "certificate" // of the CA of the Puppet servers
	Bootstrap   Name = "bootstrap"   // a run in the bootstrap environment

	Schedule Name = "schedule" // the first run of Puppet, which only sets up cron
	Enable   Name = "enable"   // the ticks of cron may start runs

	FirstRun Name = "first-run" // the promoted target, with a Puppet server
	Daemon   Name = "daemon"    // Puppet's own daemon, instead of the agent's later runs

	Notify Name = "notify" // serve is notified
	Post   Name = "post"   // the operator's scripts, on a node that is ready
	Unlock Name = "unlock" // removal of the files of the first boot
)

var steps = []Name{
	Network, Lock, Pre, Agent, Join, Hostname, Puppet, Register, Server, Turn, Hosts, PuppetConf, Certificate, Bootstrap, Schedule, Enable, FirstRun, Daemon,
	Notify, Post, Unlock,
}

// serverSteps concern only machines with a Puppet server.
var serverSteps = []Name{Server, Turn, Hosts, PuppetConf, Certificate, Bootstrap, FirstRun, Daemon}

// Names returns the steps in their order.
func Names() []Name { return slices.Clone(steps) }

// NameList returns the steps in their order, as text.
func NameList() string { return strings.Join(stepKeys(), ", ") }

func stepKeys() []string {
	keys := make([]string, len(steps))
	for i, name := range steps {
		keys[i] = string(name)
	}
	return keys
}

// Crash points, where a test can kill a build with the tag `failpoint`. Those of a join are between serve's writes and
// the machine's.
const (
	before       = "before:first-boot-"
	after        = "after:first-boot-"
	JoinAnswered = "first-boot-join:answered" // the answer is not on the disk
	JoinKept     = "first-boot-join:kept"     // the identity is on the disk, the settings are not
	JoinWritten  = "first-boot-join:written"  // all is on the disk, also the key of the request

	CertificateAnswered  = "first-boot-certificate:answered"  // the answer is not on the disk
	CertificateWritten   = "first-boot-certificate:written"   // it is on the disk, and serve does not know
	CertificateConfirmed = "first-boot-certificate:confirmed" // serve knows

	Left    = "leave-clean:left" // the fleet; everything is still on the disk
	Cleaned = "leave-clean:"     // and what was removed last
)

// CrashPoints returns the places where a first boot can crash, for tests: before and after each step, and in a join.
func CrashPoints() []string {
	points := []string{JoinAnswered, JoinKept, JoinWritten}
	for _, s := range steps {
		if !slices.Contains(serverSteps, s) {
			points = append(points, before+string(s), after+string(s))
		}
	}
	return points
}

// ServerCrashPoints returns the places where the steps of a machine with a Puppet server can crash, for tests.
func ServerCrashPoints() []string {
	points := []string{CertificateAnswered, CertificateWritten, CertificateConfirmed}
	for _, s := range serverSteps {
		points = append(points, before+string(s), after+string(s))
	}
	return points
}
