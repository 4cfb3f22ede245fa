package server

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/join"
)

// names are the nodes of an environment, with their entries in the host list. A node that the environment calls for has an empty one
// until it is registered.
type names map[string]agent.Host

// readNames reads the nodes of an environment.
func (d *Server) readNames(ctx context.Context, ref environments.Ref) (names, error) {
	all, _, err := d.Store.Fleet.HostList(ctx, ref)
	if err != nil {
		return nil, err
	}
	spec, _, err := d.Store.Environments.Spec(ctx, ref)
	if err != nil || spec == nil {
		return all, err
	}
	for n := range spec.Nodes() {
		if _, listed := all[n.String()]; !listed {
			all[n.String()] = agent.Host{}
		}
	}
	for _, role := range spec.Roles {
		for _, member := range role.Members {
			if _, listed := all[member]; !listed {
				all[member] = agent.Host{}
			}
		}
	}
	return all, nil
}

// described returns what a machine may say of itself, for the entry of its node in the host list. The names are read again before a refusal.
func (d *Server) described(ctx context.Context, ref environments.Ref, node string, m join.Machine, from string) (h agent.Host, err error) {
	err = d.names.use(ctx, ref, namesLast, func(all names) { h = all.describe(node, m, from) })
	if err == nil && len(h.Refused) > 0 {
		err = d.names.use(ctx, ref, 0, func(all names) { h = all.describe(node, m, from) })
	}
	return h, err
}

// describe separates what a machine says of itself from what belongs to other nodes. An address that the machine uses now, as its
// connection shows, is its own: DHCP may have given it the address of a node that is off.
func (all names) describe(node string, m join.Machine, from string) agent.Host {
	h := agent.Host{Node: node, Hostname: m.Hostname, MachineID: m.ID}
	if of := all.named(node, m.Hostname); of != "" {
		h.Hostname, h.Refused = "", append(h.Refused, agent.Claim{Value: m.Hostname, Of: of})
	}
	peer, _ := netip.ParseAddr(from)
	for _, text := range m.Addresses {
		if a, _ := netip.ParseAddr(text); a == peer.Unmap() {
			h.Checked = text
		} else if of := all.at(node, text); of != "" {
			h.Refused = append(h.Refused, agent.Claim{Value: text, Of: of})
			continue
		}
		h.Addresses = append(h.Addresses, text)
	}
	return h
}

// named returns the other node whose name is a hostname, or its first label; "" for none.
func (all names) named(node, hostname string) string {
	hostname = strings.ToLower(strings.TrimSuffix(hostname, "."))
	label, _, _ := strings.Cut(hostname, ".")
	is := func(name string) bool {
		name = strings.ToLower(name)
		plain := strings.ReplaceAll(name, "_", "-") // of a stack
		return slices.Contains([]string{name, plain}, hostname) || slices.Contains([]string{name, plain}, label)
	}
	if hostname == "" || is(node) {
		return ""
	}
	var of string
	for name := range all {
		if name != node && is(name) && (of == "" || name < of) {
			of = name
		}
	}
	return of
}

// at returns the other node that has an address: where serve saw it, else the first of its addresses. Others, such as those of bridges
// for containers, many machines have. It returns "" for none.
func (all names) at(node, address string) string {
	var of string
	for name, h := range all {
		main := h.Checked
		if main == "" && len(h.Addresses) > 0 {
			main = h.Addresses[0]
		}
		if name != node && main == address && (of == "" || name < of) {
			of = name
		}
	}
	return of
}
