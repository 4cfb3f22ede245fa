package machines

import (
	"slices"
	"time"

	"pulley/agent"
	"pulley/environments"
)

// World is all that a plan is made from, besides the environment that is wanted. Everything of etcd is of one moment, read
// before the provider was asked.
type World struct {
	Old         *environments.Environment // as it is stored; nil for a new one
	OldRevision int64
	Records     map[string]Record // by node
	Hosts       map[string]agent.Host
	Views       map[string]agent.View // of all nodes that are registered or that spoke
	Statuses    map[string]agent.Status
	Released    bool              // a release is promoted for this environment: nodes can converge
	Held        map[string]string // why a node is under a hold, its role's and everybody's included; absent where it is not
	Machines    []Machine         // at the provider
	Now         time.Time
}

// speaks tells when a node was heard of last, if that is not so long ago that it counts as silent. What another machine said
// under its name, or before it was taken off the list of hosts, does not count.
func (w World) LastSpoke(node string) (at time.Time, ok bool) {
	host, registered := w.Hosts[node]
	st, spoke := w.Statuses[node]
	v, judged := w.Views[node]
	if !registered || !spoke || !judged || v.State == agent.Silent || v.State == agent.Unregistered {
		return time.Time{}, false
	}
	if host.MachineID != "" && st.Machine != "" && host.MachineID != st.Machine {
		return time.Time{}, false
	}
	return st.SeenAt, true
}

// silentFrom is when a node counts as silent if it says nothing more.
func (w World) SilentFrom(node string) time.Time {
	st := w.Statuses[node]
	return st.SilentFrom()
}

// ownWord reports whether what a node said last is the word of the machine in the books, and not of one before it. It may have
// spoken before the books had it, where an apply was slow or cut off: then it is the machine on the list, and spoke since it is.
func (w World) ReportedOwn(node string, rec Record) bool {
	st, spoke := w.Statuses[node]
	host, registered := w.Hosts[node]
	switch {
	case !spoke:
		return false
	case !st.SeenAt.Before(rec.At):
		return true
	}
	return registered && st.Machine != "" && st.Machine == host.MachineID && !st.SeenAt.Before(host.At.Truncate(time.Second))
}

// registeredFrom reports whether a node is registered from an address of this machine.
func (w World) RegisteredFrom(node string, m Machine) bool {
	return slices.ContainsFunc(m.Addresses, func(a string) bool { return slices.Contains(w.Hosts[node].Addresses, a) })
}
