package rollout

import "slices"

// begin orders the nodes of the batch up to index to. It reports whether all of them began, or were left out.
func (a *advance) begin(g Group, to int) bool {
	if a.s.Next < to && a.closed() {
		return false
	}
	for a.s.Next < to {
		m := g.Nodes[a.s.Next]
		if a.s.Skipped[m.Node] == SkipOperator { // before its turn
			a.s.Next, a.changed = a.s.Next+1, true
			continue
		}
		n, read := a.o.Nodes[m.Node]
		if !read {
			a.wait = Wait{Code: WaitRead}
			return false
		}
		cause := CannotBegin(n.View)
		treat := a.p.Policy.Treats(cause)
		switch {
		case n.Host == nil || n.Host.MachineID != m.Machine:
			a.s.Skipped[m.Node] = SkipRemoved
		case treat == UnreadySkip && a.mayskip():
			a.s.Skipped[m.Node] = SkipCode(cause)
		case treat != UnreadyWait:
			a.fail(m.Node, Failure{Code: NotReady, Cause: cause})
			a.s.Next++
			a.limits()
			if a.stop != nil {
				return false
			}
			continue
		case len(a.s.Slots) >= a.most(g):
			a.wait = a.waitForNodes()
			return false
		default:
			if !a.takePlaces(m) || !a.passed() { // the gates last: their answers decide at this moment
				return false
			}
			a.order(m, false)
		}
		a.s.Next++
		a.changed = true
	}
	return true
}

// most is the number of a group's nodes that may be in progress.
func (a *advance) most(g Group) int {
	if a.p.Policy.Concurrency > 0 {
		return min(g.Batch, a.p.Policy.Concurrency)
	}
	return g.Batch
}

// again begins the nodes that an operator ordered again, group by group, each in its batches. It reports whether all of them
// ended. They never run beside others: groups never overlap.
func (a *advance) again() bool {
	busy, in := len(a.s.Slots), -1 // the group of the nodes in progress
	for node, slot := range a.s.Slots {
		if slot.Again {
			in = a.member(node).group
			busy--
		}
	}
	switch {
	case in < 0 && len(a.s.Again) == 0:
		return true
	case busy > 0:
		a.wait = a.waitForNodes()
		return false
	case len(a.s.Again) > 0 && a.closed():
		return false
	}
	for len(a.s.Again) > 0 {
		node := a.s.Again[0]
		n, read := a.o.Nodes[node]
		m := a.member(node)
		g, _ := a.s.InOrder(a.p, m.group)
		switch {
		case len(a.s.Slots) > 0 && (m.group != in || len(a.s.Slots) >= g.Batch):
			a.wait = a.waitForNodes()
			return false
		case !read:
			a.wait = Wait{Code: WaitRead}
			return false
		case n.Host == nil || n.Host.MachineID != m.Machine:
			a.s.Skipped[node] = SkipRemoved
		default:
			if !a.takePlaces(m.Member) {
				return false
			}
			a.order(m.Member, true)
			in = m.group
		}
		a.s.Again, a.changed = a.s.Again[1:], true
	}
	if len(a.s.Slots) == 0 {
		return true
	}
	a.wait = a.waitForNodes()
	return false
}

// closed reports whether no window of the policy is open.
func (a *advance) closed() bool {
	opens := a.p.Policy.opens(a.now)
	if opens.Equal(a.now) {
		return false
	}
	a.wait = Wait{Code: WaitWindow, Until: opens}
	return true
}

// later adds the nodes that were registered during the campaign as its last groups, once: one for each role, in the order and with the
// limits of the plan. Then it completes the campaign.
func (a *advance) later() bool {
	if a.p.Kind == Run || a.s.Listed {
		if !a.passed() {
			return false
		}
		a.s.Phase, a.s.Ended, a.changed = Completed, a.now, true
		return false
	}
	if a.o.Hosts == nil { // the next step reads them
		return false
	}
	planned := map[string]string{}
	for _, g := range a.p.Groups {
		for _, m := range g.Nodes {
			planned[m.Node] = m.Machine
		}
	}
	byRole := map[string][]Member{}
	sorted := slices.DeleteFunc(natural(a.o.Hosts), func(c Candidate) bool { return slices.Contains(a.p.Daemons, c.Node) })
	for _, c := range sorted {
		if machine, was := planned[c.Node]; !c.Excluded && (a.p.Role == "" || c.Role == a.p.Role) && (!was || machine != c.Machine) {
			byRole[c.Role] = append(byRole[c.Role], Member{Node: c.Node, Machine: c.Machine, Places: c.Places})
			delete(a.s.Skipped, c.Node) // these were of another machine with this name
			delete(a.s.Failed, c.Node)
		}
	}
	for _, members := range byRole {
		apart(a.p.Policy, members, nil)
	}
	for _, g := range a.p.Policy.groups(Late, a.p.Roles, byRole, sizes(sorted)) {
		members := g.Nodes
		g.Nodes = nil
		a.s.Late = append(a.s.Late, LateGroup{g, members})
	}
	a.s.Listed, a.changed = true, true
	return false // write them before their nodes begin
}
