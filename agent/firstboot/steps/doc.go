// Package steps does the work of a first boot: `pulley-agent bootstrap`. Each group of steps is a type: the network,
// the lock and the restart after a reboot, the machine, the membership of the fleet, the Puppet server, the schedule.
//
// Each step first checks its remaining work, and may be repeated at any point. The package must never decide on the
// order of the steps or on a retry: package firstboot does.
package steps
