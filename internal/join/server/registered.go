package server

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/hosts"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/specs"
)

// names are the nodes of an environment, with their entries in the host list. A node that the environment calls for has an empty one
// until it is registered.
type names struct {
	environments.HostSettings
	listed map[string]model.Host
	owned  map[netip.Addr]string
}

// readNames reads the nodes of an environment.
func (d *Server) readNames(ctx context.Context, ref model.Ref) (names, error) {
	spec, _, err := specs.In(d.DB).Spec(ctx, ref)
	if err != nil {
		return names{}, err
	}
	if spec == nil {
		spec = &environments.Environment{}
	}
	all := names{HostSettings: spec.Hosts}
	var exports map[string]model.Export
	if all.AddressFact != "" {
		all.listed, exports, err = fleet.In(d.DB).Exports(ctx, ref)
	} else {
		all.listed, _, err = fleet.In(d.DB).HostList(ctx, ref)
	}
	if err != nil {
		return names{}, err
	}
	all.owned = hosts.Owned(all.listed, exports, all.Networks, all.AddressFact)
	for node, p := range d.pending[ref] {
		if slices.Equal(all.listed[node].Addresses, p.Addresses) || d.Now().Sub(p.At).Abs() > requestTime { // it is written, or was not
			delete(d.pending[ref], node)
			continue
		}
		for a := range all.main(p) {
			if all.owned[a] == "" {
				all.owned[a] = node
			}
		}
	}
	for n := range spec.Nodes() {
		if _, listed := all.listed[n.String()]; !listed {
			all.listed[n.String()] = model.Host{}
		}
	}
	for _, role := range spec.Roles {
		for _, member := range role.Members {
			if _, listed := all.listed[member]; !listed {
				all.listed[member] = model.Host{}
			}
		}
	}
	return all, nil
}

// described returns what a machine may say of itself, for the entry of its node in the host list, which the caller writes. The names are read
// again before a refusal, and before a listed node gets another address: another serve may have given it away a moment ago.
func (d *Server) described(ctx context.Context, ref model.Ref, node, role string, m join.Machine, from string) (h model.Host, err error) {
	again := false
	describe := func(all names) {
		was := all.listed[node]
		h = all.describe(node, m, from)
		h.Role = role
		again = len(h.Refused) > 0 || was.Node != "" && !slices.Equal(was.Addresses, h.Addresses)
		d.add(ref, all, h)
	}
	if err = d.names.use(ctx, ref, namesLast, describe); err == nil && again {
		err = d.names.use(ctx, ref, 0, describe)
	}
	return h, err
}

// add adds an entry before it is written, for the next requests. It stays pending until a read finds it. Two nodes that register one address at
// two instances of serve at the same instant may both be accepted: it is then the main one of neither, and doctor names both.
func (d *Server) add(ref model.Ref, all names, h model.Host) {
	all.listed[h.Node] = h
	for a := range all.main(h) {
		all.owned[a] = h.Node
	}
	if d.pending[ref] == nil {
		d.pending[ref] = map[string]model.Host{}
	}
	h.At = d.Now()
	d.pending[ref][h.Node] = h
}

// main returns the addresses that no other node can register because of an entry.
func (all names) main(h model.Host) map[netip.Addr]string {
	return hosts.Owned(map[string]model.Host{h.Node: h}, nil, all.Networks, "")
}

// describe separates what a machine says of itself from what belongs to other nodes. An address that the machine uses now, as its
// connection shows, is its own: DHCP may have given it the address of a node that is off.
func (all names) describe(node string, m join.Machine, from string) model.Host {
	h := model.Host{Node: node, Hostname: m.Hostname, MachineID: m.ID}
	if of := all.named(node, m.Hostname); of != "" {
		h.Hostname, h.Refused = "", append(h.Refused, model.Claim{Value: m.Hostname, Of: of})
	}
	peer, _ := netip.ParseAddr(from)
	for _, text := range m.Addresses {
		if a, _ := netip.ParseAddr(text); a == peer.Unmap() {
			h.Checked = text
		} else if of := all.owned[a]; of != "" && of != node {
			h.Refused = append(h.Refused, model.Claim{Value: text, Of: of})
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
	for name := range all.listed {
		if name != node && is(name) && (of == "" || name < of) {
			of = name
		}
	}
	return of
}
