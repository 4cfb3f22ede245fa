package machines

import (
	"slices"
	"time"

	"pulley/agent"
	"pulley/environments"
)

// World is all that a plan is made from, besides the environment that is wanted. All of etcd is of one revision, read before the
// provider was asked: a machine that is made in between is never taken for one without a record.
type World struct {
	Revision    int64                     // of etcd
	Old         *environments.Environment // as it is stored; nil for a new one
	OldRevision int64                     // at which Old was stored
	Records     map[string]Record         // by node
	Hosts       map[string]agent.Host
	Views       map[string]agent.View // of all nodes that are registered or that reported
	Statuses    map[string]agent.Status
	Released    bool                  // a release is promoted for this environment: nodes can converge
	Held        map[string]agent.Hold // the strictest hold that a node is under, its role's and everybody's included
	Machines    []Machine             // at the provider
	Now         time.Time             // when the provider had answered
}

// LastReport returns when a node last reported, unless that is long enough ago for it to count as silent. Reports of another
// machine under its name do not count.
func (w World) LastReport(node string) (at time.Time, ok bool) {
	host, registered := w.Hosts[node]
	st, reported := w.Statuses[node]
	v, judged := w.Views[node]
	if !registered || !reported || !judged || v.State == agent.Silent || v.State == agent.Unregistered {
		return time.Time{}, false
	}
	if host.MachineID != "" && st.Machine != "" && host.MachineID != st.Machine {
		return time.Time{}, false
	}
	return st.SeenAt, true
}

// SilentFrom is when a node counts as silent unless it reports again.
func (w World) SilentFrom(node string) time.Time {
	st := w.Statuses[node]
	return st.SilentFrom()
}

// Reported reports whether a node's last report is from the machine in its record, and not from one before it. A machine may
// report before its record says that it was made, where an apply was slow or interrupted: then its id is in the host list.
func (w World) Reported(node string, rec Record) bool {
	st, reported := w.Statuses[node]
	host, registered := w.Hosts[node]
	switch {
	case !reported:
		return false
	case !st.SeenAt.Before(rec.At):
		return true
	}
	return registered && st.Machine != "" && st.Machine == host.MachineID && !st.SeenAt.Before(host.At.Truncate(time.Second))
}

// RegisteredFrom reports whether a node is registered from an address of this machine.
func (w World) RegisteredFrom(node string, m Machine) bool {
	return slices.ContainsFunc(m.Addresses, func(a string) bool { return slices.Contains(w.Hosts[node].Addresses, a) })
}
