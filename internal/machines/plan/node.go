package plan

import (
	"slices"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// node plans one node that is wanted.
func (p *planner) node(n planned) []Step {
	rec, recorded := p.Records[n.name]
	_, registered := p.Hosts[n.name]
	own, others := p.ownMachine(n.name, rec)
	switch {
	case n.member:
		return p.madeByOthers(n, registered)
	case recorded && rec.Driver != p.driver:
		return []Step{p.driverChanged(n.step(Replace), rec)}
	case p.driver == environments.DriverNone:
		return p.madeByOthers(n, registered)
	case recorded && p.atOtherPlace(rec):
		return []Step{p.placeChanged(n, n.step(Replace), rec)}
	case recorded && rec.Phase == machines.Retiring:
		s := p.wantedAgain(n, rec, own)
		if s.Verb == Adopt {
			return append([]Step{s}, p.duplicates(n, *own, others)...)
		}
		return []Step{s}
	case own == nil:
		return []Step{p.withoutMachine(n, rec, recorded, registered)}
	}
	if rec.ID != "" && own.ID != "" && rec.ID != own.ID { // the record is of another machine, which is gone
		recorded = false
	}
	s := p.withMachine(n, *own, rec, recorded, registered)
	if slices.Contains(p.options.Replace, n.name) && !s.Removes && own.State != machines.Deleting {
		s = n.step(Replace, machines.Reason{Code: machines.ReplaceRequested, Machine: own.Ref(), State: own.State}).replaced()
		had, _ := p.changedShape(n, *own, rec, recorded)
		s.Had = &had
	}
	if p.onlyNamesake(n.name, *own, rec, s.Removes) {
		if s, ok := p.unlisted(n, rec); ok {
			return []Step{s}
		}
	}
	if s.Removes { // the others are removed with it
		return []Step{p.made(n, s)}
	}
	return append([]Step{s}, p.duplicates(n, *own, others)...)
}

// wantedAgain plans a wanted node whose retirement has begun. If nothing was removed yet, and its machine is the right
// one, the retirement is cancelled.
func (p *planner) wantedAgain(n planned, rec machines.Record, own *machines.Machine) Step {
	begun := func(c machines.Code) []machines.Reason { return rec.Begun(because(c)) }
	if own == nil {
		if s, ok := p.unlisted(n, rec); ok {
			return s
		}
		return p.made(n, n.step(Replace, begun(machines.WantedAgain)...))
	}
	_, registered := p.Hosts[n.name]
	_, changed := p.changedShape(n, *own, rec, true)
	lives := own.State == machines.Running || own.State == machines.Unknown
	is := rec.ID == "" || rec.ID == own.ID || p.RegisteredFrom(n.name, *own)
	if registered && lives && !rec.Drained && len(changed) == 0 && is {
		return n.step(Adopt, begun(machines.RetirementCancelled)...)
	}
	return p.made(n, n.step(Replace, begun(machines.WantedAgain)...))
}

// madeByOthers plans a node whose machine Pulley does not make.
func (p *planner) madeByOthers(n planned, registered bool) []Step {
	s := p.keeps(n, "")
	if !registered {
		s = n.step(Missing, machines.Reason{
			Code: machines.MachineMissing, Node: n.name, Environment: p.want.Ref().String(), Role: n.role.Name, Member: n.member,
			Servers: len(p.want.UserdataOf(n.role.Role).Servers) > 0, // stored servers need no flag
		})
	}
	if ours := p.machines[n.name]; len(ours) > 0 {
		s.Reasons = append(s.Reasons, machines.Reason{Code: machines.MachineStays, Machine: ours[0].Ref()})
	}
	return []Step{s}
}

// driverChanged blocks a step whose machine only another driver can list.
func (p *planner) driverChanged(s Step, rec machines.Record) Step {
	s.Reasons = []machines.Reason{{Code: machines.DriverChanged, Was: rec.Driver, Now: p.driver}}
	s.Blocked = &machines.Reason{Code: machines.DriverBlind, Was: rec.Driver, Now: p.driver}
	return s
}

// withoutMachine plans a node that has no machine.
func (p *planner) withoutMachine(n planned, rec machines.Record, recorded, registered bool) Step {
	create := n.step(Create, because(machines.NoMachine))
	create.Creates, create.Order = true, n.order()
	switch {
	case !recorded && registered:
		return p.keeps(n, "", because(machines.NotOurs))
	case !recorded:
		return create
	case rec.Phase == machines.Making && !registered:
		create.Reasons = []machines.Reason{{Code: machines.Claimed, At: rec.At, By: rec.By, Problem: rec.Problem}}
		return create
	}
	if s, ok := p.unlisted(n, rec); ok {
		return s
	}
	s := n.step(Orphan, machines.Reason{Code: machines.MachineGone, Machine: machines.Ref{Name: rec.Name, ID: rec.ID}, At: rec.At})
	s.Removes, s.Creates, s.Order, s.Blocked = true, true, n.order(), n.role.protected
	return s
}

// withMachine plans a node that has a machine.
func (p *planner) withMachine(n planned, m machines.Machine, rec machines.Record, recorded, registered bool) Step {
	begun := m.Created
	// the two clocks may differ: with the later time, the machine is never judged older than it is
	if recorded && rec.At.After(begun) {
		begun = rec.At
	}
	late := !begun.IsZero() && p.Now.Sub(begun) > n.role.timeout
	why := machines.Reason{Machine: m.Ref(), State: m.State, At: begun}
	of := func(c machines.Code) machines.Reason { why.Code = c; return why }
	switch {
	case m.State == machines.Deleting:
		return n.step(Wait, of(machines.MachineDeleting))
	case m.State == machines.Failed:
		why.Problem = machines.Quote(m.Problem)
		return n.step(Broken, of(machines.MachineFailed)).replaced()
	case m.State == machines.Stopped:
		return n.step(Broken, of(machines.MachineOff)).replaced()
	case recorded && !registered && p.joined(n.name, rec):
		why.Node = n.name
		s := n.step(Keep, of(machines.OffHostList))
		note := machines.Reason{Code: machines.OffHostListNote, Node: n.name, Environment: p.want.Ref().String()}
		if len(p.want.Userdata.Servers)+len(p.want.Given.Servers) > 0 {
			note.Code = machines.LockedOutNote
		}
		s.Notes = []machines.Reason{note}
		return s
	case recorded && late && !registered && m.State != machines.Unknown:
		why.Seconds = int(n.role.timeout / time.Second)
		return n.step(Broken, of(machines.NeverJoined)).replaced()
	}
	if had, changed := p.changedShape(n, m, rec, recorded); len(changed) > 0 {
		s := n.step(Replace, changed...)
		s.Had = &had
		return s.replaced()
	}
	settling := settling(p.World, n.name, rec)
	switch {
	case !recorded:
		return n.step(Adopt, of(machines.NotRecorded))
	case !registered:
		why.Problem = machines.Quote(m.Problem)
		return n.step(Wait, of(machines.Joining))
	case rec.Phase == machines.Making:
		return n.step(Wait, of(machines.JoinedUnrecorded))
	case !late && settling:
		return n.step(Wait, because(machines.Converging))
	}
	var notes []machines.Reason
	if settling && !p.silent(n.name) {
		notes = append(notes, machines.Reason{Code: machines.NeverConverged, Role: n.role.Name})
	}
	if was, now, differ := p.otherAddress(n.name); differ {
		notes = append(notes, machines.Reason{Code: machines.AddressDiffers, Was: was, Now: now})
	}
	if len(n.role.kept) > 0 {
		notes = append(notes, machines.Reason{Code: machines.SettingsKept, Settings: n.role.kept})
	}
	return p.keeps(n, m.State, notes...)
}

// changedShape returns the original shape of a machine, and the reasons for a replacement.
func (p *planner) changedShape(n planned, m machines.Machine, rec machines.Record, recorded bool) (had Shape, changed []machines.Reason) {
	had = Shape{Flavor: m.Flavor, Image: m.Image}
	if recorded {
		had = Shape{Flavor: rec.Flavor, Image: rec.Image}
	}
	// An adopted machine is known only as far as the provider reports it: an empty value is no change.
	ordered := recorded && rec.Tries > 0
	for _, one := range []struct {
		code      machines.Code
		had, want string
	}{{machines.FlavorChanged, had.Flavor, n.role.flavor}, {machines.ImageChanged, had.Image, n.role.image}} {
		if one.had != one.want && (ordered || one.had != "" && one.want != "") {
			changed = append(changed, machines.Reason{Code: one.code, Was: one.had, Now: one.want})
		}
	}
	return had, changed
}

// keeps plans a node that stays, with the state of its machine at the provider; "" if no provider lists one.
func (p *planner) keeps(n planned, state machines.State, notes ...machines.Reason) Step {
	s := n.step(Keep, because(machines.NodeState).WithView(p.Views[n.name]))
	switch silent := p.silent(n.name); {
	case silent && p.Views[n.name].Reason == model.ReasonLockedOut:
		s.Notes = s.Reasons
	case silent && state != "":
		s.Notes = []machines.Reason{{Code: machines.SilentMachine, State: state}}
	case silent:
		s.Notes = []machines.Reason{because(machines.SilentUnseen)}
	case state == machines.Unknown:
		s.Notes = []machines.Reason{because(machines.StateUnknown)}
	}
	s.Notes = append(s.Notes, notes...)
	return s
}

// joined reports whether a node was in the host list since its recorded machine was made.
func (p *planner) joined(node string, rec machines.Record) bool {
	st, reported := p.Statuses[node]
	return rec.Joined || rec.Tries > 0 && reported && st.SeenAt.After(rec.At)
}

// replaced marks a step whose machine is deleted and ordered again; made completes it.
func (s Step) replaced() Step {
	s.Removes = true
	return s
}

// made completes a step that deletes a node's machines and orders a new one, or is blocked.
func (p *planner) made(n planned, s Step) Step {
	s.Removes, s.Creates, s.Order, s.Blocked = true, true, n.order(), n.role.protected
	s.Deletes = refs(p.machines[n.name])
	s.Drain = p.drains(n.name, p.machines[n.name])
	return p.warned(s)
}

// warned adds warnings to the reasons of a node's end: its hold, unless the retirement set it, and a different address.
func (p *planner) warned(s Step) Step {
	if held, is := p.Held[s.Node]; is && p.Records[s.Node].Phase != machines.Retiring {
		s.Reasons = append(s.Reasons, machines.Reason{Code: machines.UnderHold, Hold: &held})
	}
	if was, now, differ := p.otherAddress(s.Node); differ {
		s.Reasons = append(s.Reasons, machines.Reason{Code: machines.AddressDiffers, Was: was, Now: now})
	}
	return s
}

// drains reports whether a node can run its hooks: it is registered, and one of its machines may be running.
func (p *planner) drains(node string, all []machines.Machine) bool {
	_, registered := p.Hosts[node]
	return registered && slices.ContainsFunc(all, func(m machines.Machine) bool {
		return m.State == machines.Running || m.State == machines.Unknown
	})
}

// settling reports whether a registered node has not converged yet since its machine was made.
func settling(w machines.World, node string, rec machines.Record) bool {
	if _, held := w.Held[node]; held || !w.Released {
		return false
	}
	st, reported := w.Statuses[node]
	adopted := rec.Tries == 0
	if !reported || !adopted && !w.Reported(node, rec) {
		return true
	}
	return st.LastGood.IsZero() && !w.Views[node].Settled()
}

// otherAddress reports whether the node and the machine of its name share no address: they may be different machines.
func (p *planner) otherAddress(node string) (was, now string, differ bool) {
	host := p.Hosts[node].Addresses
	var theirs []string
	for _, m := range p.machines[node] {
		theirs = append(theirs, m.Addresses...)
	}
	if len(host) == 0 || len(theirs) == 0 || slices.ContainsFunc(host, func(a string) bool { return slices.Contains(theirs, a) }) {
		return "", "", false
	}
	return host[0], theirs[0], true
}
