package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/clip"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// sortMachines sorts the listed machines by node. A machine whose name is not a node's name is unknown.
func (p *planner) sortMachines() {
	p.machines = map[string][]machines.Machine{}
	members := map[string]string{} // of trials with the driver local, by machine
	for node, rec := range p.Records {
		if _, err := model.ParseNode(node); err != nil {
			members[rec.Name] = node
		}
	}
	for _, m := range p.Machines {
		node, problem := p.nodeOf(m.Name)
		if member, ok := members[m.Name]; ok {
			node, problem = member, ""
		}
		if problem != "" {
			p.unknown = append(p.unknown, Step{Verb: Unknown, Node: quoted(m.Name), Reasons: []machines.Reason{because(problem)}})
			continue
		}
		again := func(o machines.Machine) bool { return m.ID != "" && o.ID == m.ID }
		if !slices.ContainsFunc(p.machines[node], again) { // a provider may list one machine twice
			p.machines[node] = append(p.machines[node], m)
		}
	}
	slices.SortFunc(p.unknown, func(a, b Step) int { return strings.Compare(a.Node, b.Node) })
}

// quoted returns a name from an untrusted source, in quotes.
func quoted(name string) string { return strconv.Quote(clip.Text(name, 80)) }

// nodeOf returns the node of a machine by its name, or the reason why it has none.
func (p *planner) nodeOf(machine string) (node string, problem machines.Code) {
	n, err := model.ParseHostname(machine)
	switch {
	case err != nil || n.Hostname() != machine:
		return "", machines.NameNotNode
	case n.Stack != p.want.Stack:
		return "", machines.NameOtherStack
	}
	return n.String(), ""
}

// ownMachine finds a node's own machine among those of its name: the one that it is registered from, else the recorded
// one, else one that is alive, else the oldest. It is nil if there is none.
func (p *planner) ownMachine(node string, rec machines.Record) (own *machines.Machine, others []machines.Machine) {
	all := slices.Clone(p.machines[node])
	if len(all) == 0 {
		return nil, nil
	}
	rank := func(m machines.Machine) int {
		switch {
		case m.State == machines.Deleting: // the other one stays
			return 4
		// One order may have made two machines. The one that joined is the node.
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

// older sorts by age; a machine of unknown age comes last.
func older(a, b machines.Machine) int {
	switch {
	case a.Created.IsZero() == b.Created.IsZero():
		return a.Created.Compare(b.Created)
	case a.Created.IsZero():
		return 1
	}
	return -1
}

// duplicates plans the deletion of the machines of a node's name that are not the node's own.
func (p *planner) duplicates(n planned, own machines.Machine, others []machines.Machine) []Step {
	var steps []Step
	for _, m := range others {
		s := n.step(Duplicate, machines.Reason{Code: machines.DuplicateMachine, Count: len(others) + 1, Machine: own.Ref(), By: string(p.evidence(n.name, own))})
		s.Deletes = refs([]machines.Machine{m})
		if m.State != machines.Deleting {
			s.Blocked = n.role.protected
		}
		if m.ID == "" || own.ID == "" {
			s.Blocked, s.Deletes = &machines.Reason{Code: machines.NoMachineIDs}, nil
		}
		steps = append(steps, s)
	}
	return steps
}

// evidence returns the property by which a machine was chosen as the node's own.
func (p *planner) evidence(node string, m machines.Machine) machines.Evidence {
	switch rec := p.Records[node]; {
	case rec.ID != "" && rec.ID == m.ID:
		return machines.ByInventory
	case p.RegisteredFrom(node, m):
		return machines.ByAddress
	}
	return machines.ByAge
}

// onlyNamesake reports whether a listed machine only has the name of a node whose recorded machine is not listed: the
// node is registered from another address. Without addresses the machine counts as the node's, unless the node would be
// removed.
func (p *planner) onlyNamesake(node string, m machines.Machine, rec machines.Record, removes bool) bool {
	own := func(m machines.Machine) bool { return m.ID == "" || m.ID == rec.ID }
	if rec.ID == "" || slices.ContainsFunc(p.machines[node], own) {
		return false
	}
	if len(p.Hosts[node].Addresses) == 0 || len(m.Addresses) == 0 {
		return removes
	}
	return !p.RegisteredFrom(node, m)
}

// refs returns the refs of machines without duplicates. A ref without an id means all machines of that name.
func refs(of []machines.Machine) (all []machines.Ref) {
	for _, m := range of {
		if r := m.Ref(); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b machines.Ref) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return all
}
