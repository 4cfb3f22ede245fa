package plan

import (
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// leaving plans the known nodes that are not wanted: first those that retire, in their order, then the others.
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
		if s := p.leaves(node); s.Verb == Extra || s.Verb == Keep {
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

// leaves plans one node that is not wanted.
func (p *planner) leaves(node string) Step {
	rec, recorded := p.Records[node]
	n := planned{name: node, role: p.role(p.roleOf(node))}
	all := p.machines[node]
	why := p.notWanted(node, n.role.Name)
	s := n.step(Retire, why)
	s.Removes, s.Blocked = true, n.role.protected
	s.Deletes, s.Drain = refs(all), p.drains(node, all)
	if recorded && len(all) == 0 && rec.Driver == p.driver && !rec.OnlyLeaves() && !p.atOtherPlace(rec) {
		if s, ok := p.unlistedLeaving(n, rec, why); ok {
			return s
		}
	}
	switch {
	case recorded && rec.Driver != p.driver:
		s.Deletes = nil
		s = p.driverChanged(s, rec)
	case p.driver == environments.DriverNone:
		s = n.step(Extra, why, machines.Reason{Code: machines.MadeElsewhere, Node: node, Environment: p.want.Ref().String()})
	case recorded && p.atOtherPlace(rec):
		s.Deletes = nil
		s = p.placeChanged(n, s, rec)
	case recorded && rec.Phase == machines.Retiring:
		s.Reasons = rec.Begun()
		s.Drain = (s.Drain || rec.OnlyLeaves() && p.reachable(node)) && !rec.Drained
	case recorded && len(all) == 0:
		s.Verb = Orphan
		gone := machines.Reason{Code: machines.MachineGone, Machine: machines.Ref{Name: rec.Name, ID: rec.ID}, At: rec.At}
		if rec.Phase == machines.Making {
			gone = because(machines.NoMachine)
		}
		s.Reasons = append(s.Reasons, gone)
	case !recorded && len(all) == 0:
		s = p.leavesWithoutMachine(n, s)
	}
	if s.Removes {
		s = p.warned(s)
	}
	if s.Drain && p.silent(node) {
		s.Reasons = append(s.Reasons, because(machines.HooksUnlikely).WithView(p.Views[node]))
	}
	return s
}

// leavesWithoutMachine plans a registered node that is not wanted, and whose machine Pulley did not make.
func (p *planner) leavesWithoutMachine(n planned, s Step) Step {
	switch {
	case p.options.Destroy && !p.options.ForgetHosts:
		return n.step(Extra, because(machines.HostRemains))
	case p.wasMember(n.name):
		s.Reasons = []machines.Reason{because(machines.NotMember)}
	case p.options.Destroy:
		s.Reasons = []machines.Reason{because(machines.HostForgotten)}
	default:
		return n.step(Extra, append(s.Reasons, machines.Reason{Code: machines.NotMadeByPulley, Node: n.name, Environment: p.want.Ref().String()})...)
	}
	s.Drain = p.reachable(n.name)
	return s
}

// reachable reports whether a node can be expected to answer although no provider lists its machine.
func (p *planner) reachable(node string) bool {
	_, registered := p.Hosts[node]
	_, reported := p.Statuses[node]
	return registered && reported && !p.silent(node)
}

// roleOf returns the role of a node that is not wanted.
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
	if n, err := model.ParseNode(node); err == nil {
		return n.Role
	}
	return p.Hosts[node].Role
}

// wasMember reports whether the stored environment has a node among its members.
func (p *planner) wasMember(node string) bool {
	_, registered := p.Hosts[node]
	return registered && slices.ContainsFunc(p.old.Roles, func(r environments.Role) bool { return slices.Contains(r.Members, node) })
}

// notWanted returns the reason why a node is not wanted.
func (p *planner) notWanted(node, role string) machines.Reason {
	r, ok := p.want.Role(role)
	switch {
	case p.options.Destroy:
		return because(machines.EnvironmentDestroyed)
	case !ok && role == "":
		return because(machines.RoleUnknown)
	case !ok:
		return machines.Reason{Code: machines.RoleRemoved, Role: role}
	case strings.HasPrefix(node, role) && numOf(node) > r.Cardinality:
		return machines.Reason{Code: machines.Surplus, Role: role, Count: r.Cardinality}
	}
	return because(machines.NotWanted)
}

// The list of a provider may be incomplete: the wrong cloud, project or owner, or a lost page. The plan treats an
// unlisted machine as gone only if no other evidence contradicts it.

const (
	maxAhead  = time.Hour // maximum time by which the clock of a record's writer may have been ahead
	leastLost = 3         // minimum number of recorded machines for which a short list is suspicious
)

// unlisted plans a node with a record whose machine the provider does not list, but which may still run: the node
// reports, or the machine was ordered just now.
func (p *planner) unlisted(n planned, rec machines.Record) (s Step, ok bool) {
	if at, reports := p.LastReport(n.name); reports {
		s = n.step(Keep, machines.Reason{Code: machines.UnlistedReporting, Node: n.name, Environment: p.want.Ref().String(), At: at, Until: p.SilentFrom(n.name)})
		s.Notes = []machines.Reason{because(machines.ReportsUnlisted)}
		p.reporting++
		return s, true
	}
	if age := p.Now.Sub(rec.At); rec.Phase == machines.Made && !rec.Joined && age < machines.LostAfter && age > -maxAhead {
		return n.step(Wait, machines.Reason{Code: machines.Unlisted, Machine: machines.Ref{Name: rec.Name, ID: rec.ID}, At: rec.At}), true
	}
	return Step{}, false
}

// unlistedLeaving is unlisted for a node that is not wanted. Such a node is not waited for. A destroy, which deletes
// its record, is blocked. AcceptLost confirms that the machine of a node that joined and no longer reports is gone.
func (p *planner) unlistedLeaving(n planned, rec machines.Record, why machines.Reason) (s Step, ok bool) {
	if s, ok = p.unlisted(n, rec); !ok {
		return s, false
	}
	if !p.options.Destroy {
		s.Verb, s.Reasons = Keep, append([]machines.Reason{why}, s.Reasons...)
		if len(s.Notes) == 0 {
			s.Notes = []machines.Reason{because(machines.ListedLater)}
		}
		return s, true
	}
	s.Verb, s.Removes, s.Notes = Orphan, true, nil
	at, reports := p.LastReport(n.name)
	listedBy := rec.At.Add(machines.LostAfter)
	switch joined := p.joined(n.name, rec); {
	case reports:
		s.Blocked = &machines.Reason{Code: machines.MayStillRun, At: at, Until: p.SilentFrom(n.name)}
	case joined && p.options.AcceptLost:
		return Step{}, false
	case joined:
		s.Blocked = &machines.Reason{Code: machines.MayBeGone, At: rec.At, Until: listedBy}
	default:
		s.Blocked = &machines.Reason{Code: machines.MayBeListed, At: rec.At, Until: listedBy}
	}
	return s, true
}

// blockLost blocks the steps about missing machines if the provider lists less than half of the recorded ones: the
// wrong place, or an incomplete list, is then the more likely cause.
func (p *planner) blockLost() {
	made, gone := 0, p.reporting
	for _, rec := range p.Records {
		if rec.Phase == machines.Made && rec.Driver == p.driver && !p.atOtherPlace(rec) {
			made++
		}
	}
	lost := func(s Step) bool { return s.Verb == Orphan && p.Records[s.Node].Phase == machines.Made }
	for _, s := range p.steps {
		if lost(s) {
			gone++
		}
	}
	if p.options.AcceptLost || made < leastLost || gone*2 <= made {
		return
	}
	for i, s := range p.steps {
		if lost(s) && s.Blocked == nil {
			p.steps[i].Blocked = &machines.Reason{Code: machines.TooFewListed, Count: max(0, made-gone), Of: made}
		}
	}
}

// atOtherPlace reports whether a machine was made at another place than the provider's current one.
func (p *planner) atOtherPlace(rec machines.Record) bool {
	return rec.Place != "" && p.options.Place != "" && rec.Place != p.options.Place
}

// placeChanged plans a node whose machine was made at another place. If the place was only renamed, the listed machine
// is the same one, and its record gets the new name.
func (p *planner) placeChanged(n planned, s Step, rec machines.Record) Step {
	same := func(m machines.Machine) bool { return rec.ID == "" || m.ID == rec.ID }
	if p.options.SamePlace && slices.ContainsFunc(p.machines[n.name], same) {
		return n.step(Adopt, machines.Reason{Code: machines.PlaceRenamed, Was: rec.Place, Now: p.options.Place})
	}
	s.Reasons = []machines.Reason{{Code: machines.PlaceChanged, Was: rec.Place, Now: p.options.Place}}
	s.Blocked = &machines.Reason{Code: machines.PlaceBlind, Was: rec.Place, Now: p.options.Place}
	return s
}
