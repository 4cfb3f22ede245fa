package machines

import (
	"slices"
	"time"

	"pulley/agent"
	"pulley/environments"
)

// World contains the inputs of a plan, besides the wanted environment. All of etcd is of one revision, read before the
// provider: a machine that is made in between always has its record.
type World struct {
	Revision    int64                     // of etcd
	Old         *environments.Environment // as stored; nil for a new one
	OldRevision int64                     // revision at which Old was stored
	Records     map[string]Record         // by node
	Hosts       map[string]agent.Host
	Views       map[string]agent.View // of all registered nodes and all that reported
	Statuses    map[string]agent.Status
	Released    bool                  // a release is promoted for this environment, so nodes can converge
	Held        map[string]agent.Hold // the strictest hold of a node, including those of its role and of all nodes
	Machines    []Machine             // at the provider
	Now         time.Time             // time of the provider's answer
}

// LastReport returns the time of a node's last report, unless the node counts as silent. It ignores reports of another
// machine under its name.
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

// SilentFrom returns the time from which a node counts as silent unless it reports again.
func (w World) SilentFrom(node string) time.Time {
	st := w.Statuses[node]
	return st.SilentFrom()
}

// Reported reports whether a node's last report is from the machine in its record, and not from an earlier one. A
// machine may report before its record has the phase Made, if an apply was slow or interrupted: then its id is in the
// host list.
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
