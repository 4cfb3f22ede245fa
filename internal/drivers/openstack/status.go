package openstack

import (
	"strings"

	provision "pulley/internal/machines"
)

// states are what Nova's statuses mean (Compute API guide, "Server concepts"). What somebody does to a server on purpose,
// such as suspending it, is Unknown and not Stopped: it is no reason to make the machine again.
var states = map[string]provision.State{
	"ACTIVE":        provision.Running,
	"BUILD":         provision.Building,
	"REBUILD":       provision.Building,
	"REBOOT":        provision.Running,
	"HARD_REBOOT":   provision.Running,
	"PASSWORD":      provision.Running,
	"RESIZE":        provision.Running,
	"REVERT_RESIZE": provision.Running,
	"VERIFY_RESIZE": provision.Running,
	"MIGRATING":     provision.Running,

	"SHUTOFF": provision.Stopped,
	"ERROR":   provision.Failed,

	"PAUSED":            provision.Unknown,
	"SUSPENDED":         provision.Unknown,
	"RESCUE":            provision.Unknown,
	"SHELVED":           provision.Unknown,
	"SHELVED_OFFLOADED": provision.Unknown,
	"UNKNOWN":           provision.Unknown,

	"DELETED":      provision.Deleting,
	"SOFT_DELETED": provision.Deleting,
}

// gone reports whether a server is listed only because the cloud keeps what was deleted for a while.
func gone(s server) bool { return s.Status == "DELETED" || s.Status == "SOFT_DELETED" }

// state says what a server is doing, and why where it is not running.
func state(s server) (provision.State, string) {
	if strings.Contains(s.Task, "deleting") { // deleting, soft-deleting
		return provision.Deleting, ""
	}
	state, known := states[s.Status]
	switch {
	case !known:
		return provision.Unknown, "the cloud has a word for its state that is not known: " + clean(s.Status)
	case state == provision.Failed:
		if s.Fault.Message == "" {
			return state, "the cloud says ERROR and not why"
		}
		return state, clean(s.Fault.Message)
	case state == provision.Unknown:
		return state, "the cloud says " + s.Status
	}
	return state, ""
}
