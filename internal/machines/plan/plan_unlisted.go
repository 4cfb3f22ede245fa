package plan

import (
	"fmt"
	"slices"
	"time"

	"pulley/internal/machines"
)

// A provider may list too little: another cloud or project was asked, another owner's machines, or a page was lost. What it does
// not list is gone only where nothing speaks against that.

// lateList is how long a provider may take until it lists what it has just made.
const lateList = machines.LostAfter

// maxAhead is by how much the clock that a record was written by may have been ahead of this one.
const maxAhead = time.Hour

// leastLost is of how many machines on a list can be told that it lacks too many.
const leastLost = 3

// unlisted plans a node in the books whose machine the provider does not list, where that does not mean that it is gone: it
// speaks, or the machine was asked for just now. It is told by ok.
func (p *planner) unlisted(n planned, rec machines.Record) (s Step, ok bool) {
	if at, speaks := p.LastSpoke(n.name); speaks {
		s = n.step(Keep, fmt.Sprintf("the provider has no machine of it, yet it spoke at %s: nothing is done until it is silent, which it is from %s; `pulley nodes remove %s` where its machine is gone for good", machines.Clock(at), machines.Clock(p.SilentFrom(n.name)), n.name))
		s.Note = "the provider has no machine of it, yet it speaks: nothing is done until it is silent, or off the list of hosts"
		p.contradicted++
		return s, true
	}
	if p.mayCome(rec) {
		return n.step(Wait, fmt.Sprintf("its machine %s was asked for at %s, and the provider does not list it yet", machines.Ref{Name: rec.Name, ID: rec.ID}, machines.Clock(rec.At))), true
	}
	return Step{}, false
}

// namesake reports whether a machine that is listed is only called like a node's, whose own in the books is not listed: what it is
// registered from is another's address. Where no addresses are known it is believed to be the node, unless that would be removed.
func (p *planner) namesake(node string, m machines.Machine, rec machines.Record, removes bool) bool {
	own := func(m machines.Machine) bool { return m.ID == "" || m.ID == rec.ID }
	if rec.ID == "" || slices.ContainsFunc(p.machines[node], own) {
		return false
	}
	host := p.Hosts[node].Addresses
	if len(host) == 0 || len(m.Addresses) == 0 {
		return removes
	}
	return !slices.ContainsFunc(m.Addresses, func(a string) bool { return slices.Contains(host, a) })
}

// mayCome reports whether a machine was asked for so lately that a provider may not list it yet.
func (p *planner) mayCome(rec machines.Record) bool {
	age := p.Now.Sub(rec.At)
	return rec.Phase == machines.Made && !rec.Joined && age < lateList && age > -maxAhead
}

// unlistedLeaving is unlisted for a node that is not wanted: nobody waits for it, and a destroy, which forgets what it does not
// see, is blocked. One that has joined and does not speak any more is no machine that is still to come: --lost agrees that it is gone.
func (p *planner) unlistedLeaving(n planned, rec machines.Record, why string) (s Step, ok bool) {
	if s, ok = p.unlisted(n, rec); !ok {
		return s, false
	}
	if !p.destroy {
		s.Verb, s.Why = Keep, why+"; "+s.Why
		if s.Note == "" {
			s.Note = "the provider does not list its machine yet: apply again in a while"
		}
		return s, true
	}
	s.Verb, s.Removes, s.Note = Orphan, true, ""
	at, speaks := p.LastSpoke(n.name)
	came := p.joined(n.name, rec)
	until := machines.Clock(rec.At.Add(lateList))
	const look = "look whether that is the right provider, place and owner"
	switch {
	case speaks:
		s.Blocked = fmt.Sprintf("the provider does not list its machine, which may run on: it spoke at %s, and counts as silent from %s\n%s; destroy again when it is silent, or after `pulley nodes remove` where its machine is gone for good", machines.Clock(at), machines.Clock(p.SilentFrom(n.name)), look)
	case came && p.options.Lost:
		return Step{}, false
	case came:
		s.Blocked = fmt.Sprintf("the provider does not list its machine, which was asked for at %s, and counts as gone from %s\n%s; destroy again then, or --lost agrees to it that it is gone", machines.Clock(rec.At), until, look)
	default:
		s.Blocked = fmt.Sprintf("the provider does not list its machine, which was asked for at %s, and may be listed until %s\n%s, and destroy again after that time", machines.Clock(rec.At), until, look)
	}
	return s, true
}

// guardLost blocks what would be done about machines that are gone where the provider lists less than half of those that it
// should: that is rather another place, or a list that is not whole.
func (p *planner) guardLost() {
	made, gone := 0, 0
	for _, rec := range p.Records {
		if rec.Phase == machines.Made && rec.Driver == p.driver && !p.elsewherePlaced(rec) {
			made++
		}
	}
	lost := func(s Step) bool { return s.Verb == Orphan && p.Records[s.Node].Phase == machines.Made }
	for _, s := range p.steps {
		if lost(s) {
			gone++
		}
	}
	gone += p.contradicted
	if p.options.Lost || made < leastLost || gone*2 <= made {
		return
	}
	for i, s := range p.steps {
		if lost(s) && s.Blocked == "" {
			p.steps[i].Blocked = fmt.Sprintf("the provider lists %d of %d machines\nlook whether that is the right provider, place and owner; --lost agrees to it that the others are gone", max(0, made-gone), made)
		}
	}
}

// elsewherePlaced reports whether a machine was made at another place than the provider is asked at now.
func (p *planner) elsewherePlaced(rec machines.Record) bool {
	return rec.Place != "" && p.place != "" && rec.Place != p.place
}

// moved plans a node whose machine was made at another place. Where it is agreed that the place has only another name now, a
// machine that is listed here is the same, and the books get the new name.
func (p *planner) moved(n planned, s Step, rec machines.Record) Step {
	why := fmt.Sprintf("its machine was made at %s, and asked is %s now", machines.Clean(rec.Place), machines.Clean(p.place))
	same := func(m machines.Machine) bool { return rec.ID == "" || m.ID == rec.ID }
	if p.options.Moved && slices.ContainsFunc(p.machines[n.name], same) {
		return n.step(Adopt, why+": it is listed there")
	}
	s.Why = why
	s.Blocked = "machines that were made at another place are not seen at this one\n" + machines.Deed(p.destroy) + " with the cloud, provider and owner of before, or give --moved where these are the same machines"
	return s
}

// impostor says that a node may be another machine than the one of its name at the provider: none of the addresses that either is
// known by is the other's. "" where nothing tells.
func (p *planner) impostor(node string) string {
	host := p.Hosts[node].Addresses
	var theirs []string
	for _, m := range p.machines[node] {
		theirs = append(theirs, m.Addresses...)
	}
	if len(host) == 0 || len(theirs) == 0 || slices.ContainsFunc(host, func(a string) bool { return slices.Contains(theirs, a) }) {
		return ""
	}
	return fmt.Sprintf("it is registered from %s, and its machine has %s: that may be another machine", machines.Clean(host[0]), machines.Clean(theirs[0]))
}
