package openstack

import (
	"strings"

	"pulley/internal/machines"
)

// states are what Nova's statuses mean (Compute API guide, "Server concepts"). What somebody does to a server on purpose,
// such as suspending it, is Unknown and not Stopped: it is no reason to make the machine again.
var states = map[string]machines.State{
	"ACTIVE":        machines.Running,
	"BUILD":         machines.Building,
	"REBUILD":       machines.Building,
	"REBOOT":        machines.Running,
	"HARD_REBOOT":   machines.Running,
	"PASSWORD":      machines.Running,
	"RESIZE":        machines.Running,
	"REVERT_RESIZE": machines.Running,
	"VERIFY_RESIZE": machines.Running,
	"MIGRATING":     machines.Running,

	"SHUTOFF": machines.Stopped,
	"ERROR":   machines.Failed,

	"PAUSED":            machines.Unknown,
	"SUSPENDED":         machines.Unknown,
	"RESCUE":            machines.Unknown,
	"SHELVED":           machines.Unknown,
	"SHELVED_OFFLOADED": machines.Unknown,
	"UNKNOWN":           machines.Unknown,

	"DELETED":      machines.Deleting,
	"SOFT_DELETED": machines.Deleting,
}

// gone reports whether a server is listed only because the cloud keeps what was deleted for a while.
func gone(s server) bool { return s.Status == "DELETED" || s.Status == "SOFT_DELETED" }

// state says what a server is doing, and why where it is not running.
func state(s server) (machines.State, string) {
	if strings.Contains(s.Task, "deleting") { // deleting, soft-deleting
		return machines.Deleting, ""
	}
	state, known := states[s.Status]
	switch {
	case !known:
		return machines.Unknown, "the cloud has a word for its state that is not known: " + clean(s.Status)
	case state == machines.Failed:
		if s.Fault.Message == "" {
			return state, "the cloud says ERROR and not why"
		}
		return state, clean(s.Fault.Message)
	case state == machines.Unknown:
		return state, "the cloud says " + s.Status
	}
	return state, ""
}
