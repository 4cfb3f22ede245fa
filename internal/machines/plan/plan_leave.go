package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/internal/machines"
)

// leaving plans the nodes that are not wanted and that something is known of: first those that go, in the order in which
// they go, then those that are not ours.
func (p *planner) leaving() []Step {
	nodes := map[string]bool{}
	for _, known := range [][]string{slices.Collect(maps.Keys(p.Records)), slices.Collect(maps.Keys(p.Hosts)), slices.Collect(maps.Keys(p.machines))} {
		for _, node := range known {
			if !p.seen[node] {
				nodes[node] = true
			}
		}
	}
	var going, extra []Step
	for node := range nodes {
		if s := p.left(node); s.Verb == Extra || s.Verb == Keep {
			extra = append(extra, s)
		} else {
			going = append(going, s)
		}
	}
	p.inRetireOrder(going)
	p.inRetireOrder(extra)
	slices.Reverse(extra)
	return append(going, extra...)
}

// left plans one node that is not wanted.
func (p *planner) left(node string) Step {
	rec, booked := p.Records[node]
	n := planned{name: node, role: p.role(p.roleOf(node))}
	all := p.machines[node]
	s := n.step(Retire, p.unwanted(node, n.role.Name))
	s.Removes, s.Blocked = true, n.role.protected
	s.Victims, s.Drain = victims(all), p.drains(node, all)
	if booked && len(all) == 0 && rec.Driver == p.driver && !rec.Foreign() && !p.elsewherePlaced(rec) {
		if unlisted, ok := p.unlistedLeaving(n, rec, s.Why); ok {
			return unlisted
		}
	}
	switch {
	case booked && rec.Driver != p.driver:
		s.Victims = nil
		s = p.switched(s, rec)
	case p.driver == environments.DriverNone:
		s = n.step(Extra, s.Why+fmt.Sprintf("; machines of this environment come from elsewhere: end its machine, and then `pulley nodes remove %s`", node))
	case booked && p.elsewherePlaced(rec):
		s.Victims = nil
		s = p.moved(n, s, rec)
	case booked && rec.Phase == machines.Retiring:
		s.Why = rec.Begun()
		s.Drain = (s.Drain || rec.Foreign() && p.reachable(node)) && !rec.Drained
	case booked && len(all) == 0:
		s.Verb = Orphan
		gone := fmt.Sprintf("its machine %s is gone", machines.Ref{Name: rec.Name, ID: rec.ID})
		if rec.Phase == machines.Making {
			gone = "there is no machine of it"
		}
		s.Why += ", and " + gone
	case !booked && len(all) == 0 && p.destroy && !p.options.ForgetHosts:
		s = n.step(Extra, "the environment is destroyed; its machine was not made by pulley, and runs on: --forget-hosts forgets it")
	case !booked && len(all) == 0 && p.wasMember(node):
		s.Why = "it is not among the members any more; its machine stays"
		s.Drain = p.reachable(node)
	case !booked && len(all) == 0 && p.destroy:
		s.Why = "the environment is destroyed; its machine was not made by pulley, and stays"
		s.Drain = p.reachable(node)
	case !booked && len(all) == 0:
		s = n.step(Extra, s.Why+fmt.Sprintf("; its machine was not made by pulley: `pulley nodes remove %s` takes it out of the fleet", node))
	}
	if s.Removes {
		s = p.warned(s)
	}
	if silent := p.silent(node); s.Drain && silent != "" {
		s.Why += "; it may not run its hooks: " + silent
	}
	return s
}

// reachable reports whether a node whose machine nobody sees can be expected to answer.
func (p *planner) reachable(node string) bool {
	_, registered := p.Hosts[node]
	_, spoke := p.Statuses[node]
	return registered && spoke && p.silent(node) == ""
}

// roleOf is the role of a node that is not wanted.
func (p *planner) roleOf(node string) string {
	if h, ok := p.Hosts[node]; ok && h.Role != "" {
		if _, known := p.roles[h.Role]; known {
			return h.Role
		}
	}
	for _, r := range p.old.Roles {
		if slices.Contains(r.Members, node) {
			return r.Name
		}
	}
	if n, err := environments.ParseNode(node); err == nil {
		return n.Role
	}
	return p.Hosts[node].Role
}

// wasMember reports whether the stored environment has a node among its members.
func (p *planner) wasMember(node string) bool {
	_, registered := p.Hosts[node]
	return registered && slices.ContainsFunc(p.old.Roles, func(r environments.Role) bool { return slices.Contains(r.Members, node) })
}

// unwanted says why a node is not wanted.
func (p *planner) unwanted(node, role string) string {
	r, ok := p.want.Role(role)
	switch {
	case p.destroy:
		return "the environment is destroyed"
	case !ok && role == "":
		return "nobody knows its role, and the file does not call for it"
	case !ok:
		return fmt.Sprintf("the file has no role %s", machines.Clean(role))
	case strings.HasPrefix(node, role) && numOf(node) > r.Cardinality:
		return fmt.Sprintf("the file calls for %d of %s", r.Cardinality, role)
	}
	return "the file does not call for it"
}
