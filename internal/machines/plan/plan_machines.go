package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pulley/environments"
	"pulley/internal/machines"
)

// sortMachines knows which machine is which node's; what has no node's name is a stranger.
func (p *planner) sortMachines() {
	p.machines = map[string][]machines.Machine{}
	for _, m := range p.Machines {
		node, problem := p.nodeOf(m.Name)
		if problem != "" {
			p.strangers = append(p.strangers, Step{Verb: Stranger, Node: machines.Quote(m.Name), Why: fmt.Sprintf("it has the mark of this fleet, and %s; nothing is done to it", problem)})
			continue
		}
		again := func(o machines.Machine) bool { return m.ID != "" && o.ID == m.ID }
		if !slices.ContainsFunc(p.machines[node], again) { // a provider may list one machine twice
			p.machines[node] = append(p.machines[node], m)
		}
	}
	slices.SortFunc(p.strangers, func(a, b Step) int { return strings.Compare(a.Node, b.Node) })
}

// nodeOf is the node that a machine is of by its name, or why it is of none.
func (p *planner) nodeOf(machine string) (node, problem string) {
	n, err := environments.ParseHostname(machine)
	switch {
	case err != nil || n.Hostname() != machine:
		return "", "its name is no node's"
	case n.Stack != p.want.Stack && n.Stack == "":
		return "", "its name is of no stack"
	case n.Stack != p.want.Stack:
		return "", "its name is of another stack, " + n.Stack
	}
	return n.String(), ""
}

// chosen tells a node's machine from others of its name: the one that is registered by its address, else the one in the
// books, else one that is not dead, else the oldest. It is nil when there is none.
func (p *planner) chosen(node string, rec machines.Record) (keeper *machines.Machine, others []machines.Machine) {
	all := slices.Clone(p.machines[node])
	if len(all) == 0 {
		return nil, nil
	}
	rank := func(m machines.Machine) int {
		switch {
		case m.State == machines.Deleting: // the other one stays
			return 4
		// Of two that were made by one order either may have joined, and then only that one is the node.
		case p.RegisteredFrom(node, m):
			return 0
		case rec.ID != "" && m.ID == rec.ID:
			return 1
		case m.State == machines.Running || m.State == machines.Building || m.State == machines.Unknown:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(all, func(a, b machines.Machine) int {
		return cmp.Or(rank(a)-rank(b), older(a, b), strings.Compare(a.ID, b.ID))
	})
	return &all[0], all[1:]
}

// older puts the machine that was made first before the other; one whose time is not known comes last.
func older(a, b machines.Machine) int {
	if a.Created.IsZero() != b.Created.IsZero() {
		if a.Created.IsZero() {
			return 1
		}
		return -1
	}
	return a.Created.Compare(b.Created)
}

// duplicates plans the end of the machines of a node's name that are not the node.
func (p *planner) duplicates(n planned, keeper machines.Machine, others []machines.Machine) []Step {
	var steps []Step
	for _, m := range others {
		s := n.step(Duplicate, fmt.Sprintf("there are %d machines called %s, and %s is the node%s", len(others)+1, n.host, keeper.Ref(), p.proof(n.name, keeper)))
		s.Victims = victims([]machines.Machine{m})
		switch {
		case m.State == machines.Deleting: // its end was asked for already
		case n.role.protected != "":
			s.Blocked = n.role.protected
		}
		if m.ID == "" || keeper.ID == "" {
			s.Blocked, s.Victims = "the provider gives them no ids, so that none can be deleted alone\ndelete one of them at the provider", nil
		}
		steps = append(steps, s)
	}
	return steps
}

// proof says by what a machine was taken for the node.
func (p *planner) proof(node string, m machines.Machine) string {
	switch rec := p.Records[node]; {
	case rec.ID != "" && rec.ID == m.ID:
		return ", by the books"
	case p.RegisteredFrom(node, m):
		return ", by the address that it is registered with"
	}
	return ", as the one of them that came first and is not dead"
}

// victims names machines, each once. Those without an id are all of that name.
func victims(of []machines.Machine) []machines.Ref {
	var all []machines.Ref
	for _, m := range of {
		if v := m.Ref(); !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b machines.Ref) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return all
}
