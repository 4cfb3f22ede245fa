package plan

import (
	"fmt"
	"strings"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
)

// here plans one node that is wanted.
func (p *planner) here(n planned) []Step {
	rec, booked := p.Records[n.name]
	_, registered := p.Hosts[n.name]
	keeper, others := p.chosen(n.name, rec)
	switch {
	case n.member:
		return p.elsewhere(n, registered)
	case booked && rec.Driver != p.driver:
		return []Step{p.switched(n.step(Replace, ""), rec)}
	case p.driver == environments.DriverNone:
		return p.elsewhere(n, registered)
	case booked && p.elsewherePlaced(rec):
		return []Step{p.moved(n, n.step(Replace, ""), rec)}
	case booked && rec.Phase == machines.Retiring:
		s := p.retiring(n, rec, keeper)
		if s.Verb == Adopt {
			return append([]Step{s}, p.duplicates(n, *keeper, others)...)
		}
		return []Step{s}
	case keeper == nil:
		return []Step{p.gone(n, rec, booked, registered)}
	}
	if rec.ID != "" && keeper.ID != "" && rec.ID != keeper.ID { // the books know another machine, which is gone
		booked = false
	}
	s := p.standing(n, *keeper, rec, booked, registered)
	if p.namesake(n.name, *keeper, rec, s.Removes) {
		if s, ok := p.unlisted(n, rec); ok {
			return []Step{s}
		}
	}
	if s.Removes { // the others go with it
		return []Step{p.again(n, s)}
	}
	return append([]Step{s}, p.duplicates(n, *keeper, others)...)
}

// retiring plans a node that is wanted and whose retiring was begun. As long as nothing was taken down, and its machine is what is
// wanted, that is taken back.
func (p *planner) retiring(n planned, rec machines.Record, keeper *machines.Machine) Step {
	begun := rec.Begun() + "; it is wanted again"
	if keeper == nil {
		if s, ok := p.unlisted(n, rec); ok {
			return s
		}
		return p.again(n, n.step(Replace, begun))
	}
	_, registered := p.Hosts[n.name]
	_, differs := p.differs(n, *keeper, rec, true)
	lives := keeper.State == machines.Running || keeper.State == machines.Unknown
	is := rec.ID == "" || rec.ID == keeper.ID || p.RegisteredFrom(n.name, *keeper)
	if registered && lives && !rec.Drained && differs == "" && is {
		return n.step(Adopt, begun+", and nothing was taken down yet: its retirement is called off")
	}
	return p.again(n, n.step(Replace, begun))
}

// elsewhere plans a node whose machine others make.
func (p *planner) elsewhere(n planned, registered bool) []Step {
	s := p.keeps(n, "")
	if !registered {
		call := fmt.Sprintf("pulley userdata %s -e %s", n.name, p.want.Ref())
		if n.member {
			call += fmt.Sprintf(" --role %s --hostname keep", n.role.Name)
		}
		joins := ", with `--servers URL --new-token` where machines join"
		if len(p.want.UserdataOf(n.role.Role).Servers) > 0 { // the command finds them where they are stored
			call, joins = call+" --new-token", ""
		}
		s = n.step(Missing, fmt.Sprintf("it has not joined: make its machine, and hand it what `%s` prints%s", call, joins))
		if n.member {
			s.Why = fmt.Sprintf("it is a member that has not joined: run on it what `%s` prints%s", call, joins)
		}
	}
	if ours := p.machines[n.name]; len(ours) > 0 {
		s.Why += fmt.Sprintf("; its machine %s was made by pulley, and stays", ours[0].Ref())
	}
	return []Step{s}
}

// switched blocks a step whose machine only another driver sees.
func (p *planner) switched(s Step, rec machines.Record) Step {
	s.Why = fmt.Sprintf("its machine was made by the provider %s, and the file says %s", machines.Clean(rec.Driver), p.driver)
	if p.destroy {
		s.Blocked = fmt.Sprintf("%s does not see the machines of %s\ndestroy with a file that says `provider: %s`", p.driver, machines.Clean(rec.Driver), machines.Clean(rec.Driver))
		return s
	}
	s.Blocked = fmt.Sprintf("%s does not see the machines of %s\nput `provider: %s` back and lower the cardinality, apply that, and change the provider then", p.driver, machines.Clean(rec.Driver), machines.Clean(rec.Driver))
	return s
}

// gone plans a node that has no machine.
func (p *planner) gone(n planned, rec machines.Record, booked, registered bool) Step {
	made := n.step(Create, "there is no machine of it")
	made.Makes, made.Order = true, n.order()
	switch {
	case !booked && registered:
		return p.keeps(n, "", "it was not made by this provider")
	case !booked:
		return made
	case rec.Phase == machines.Making && !registered:
		made.Why = fmt.Sprintf("it was claimed at %s by %s, and there is no machine of it yet", machines.Clock(rec.At), machines.Clean(rec.By))
		if rec.Problem != "" {
			made.Why += ": " + machines.Clean(rec.Problem)
		}
		return made
	}
	if s, ok := p.unlisted(n, rec); ok {
		return s
	}
	s := n.step(Orphan, fmt.Sprintf("its machine %s, made at %s, is gone", machines.Ref{Name: rec.Name, ID: rec.ID}, machines.Clock(rec.At)))
	s.Removes, s.Makes, s.Order, s.Blocked = true, true, n.order(), n.role.protected
	return s
}

// standing plans a node that has a machine.
func (p *planner) standing(n planned, m machines.Machine, rec machines.Record, booked, registered bool) Step {
	begun := m.Created
	if booked && rec.At.After(begun) { // of two clocks neither makes it older than it is
		begun = rec.At
	}
	late := !begun.IsZero() && p.Now.Sub(begun) > n.role.timeout
	switch {
	case m.State == machines.Deleting:
		return n.step(Wait, fmt.Sprintf("the end of its machine %s was asked for at the provider; once that is gone another is made", m.Ref()))
	case m.State == machines.Failed:
		return p.broken(n, "the provider says of its machine: "+machines.Clean(m.Trouble()))
	case m.State == machines.Stopped:
		return p.broken(n, fmt.Sprintf("the provider says that its machine %s is off", m.Ref()))
	case booked && !registered && p.joined(n.name, rec):
		s := n.step(Keep, fmt.Sprintf("its machine %s is %s, and it was taken off the list of hosts: `pulley nodes add %s` puts it back", m.Ref(), m.State, n.name))
		s.Note = "it was taken off the list of hosts: `pulley nodes add` puts it back; to be rid of it, end its machine at the provider"
		return s
	case booked && late && !registered && m.State != machines.Unknown:
		return p.broken(n, fmt.Sprintf("its machine %s was asked for at %s and has not joined within %s: the provider says that it is %s", m.Ref(), machines.Clock(begun), machines.Span(n.role.timeout), m.State))
	}
	if had, differs := p.differs(n, m, rec, booked); differs != "" {
		s := n.step(Replace, differs)
		s.Had = &had
		return s.destroys()
	}
	switch {
	case !booked:
		return n.step(Adopt, fmt.Sprintf("its machine %s has the mark of this fleet and is not in the books", m.Ref()))
	case !registered && late:
		return n.step(Wait, fmt.Sprintf("its machine %s was asked for at %s and has not joined, and the provider does not know how it is%s", m.Ref(), machines.Clock(begun), machines.Because(m.Problem)))
	case !registered:
		return n.step(Wait, fmt.Sprintf("its machine %s was asked for at %s, and is %s; it has not joined yet", m.Ref(), machines.Clock(begun), m.State))
	case rec.Phase == machines.Making:
		return n.step(Wait, fmt.Sprintf("its machine %s is there and has joined; the books don't say so yet", m.Ref()))
	case !late && p.settling(n.name, rec):
		return n.step(Wait, "it has joined, and has not converged yet")
	}
	var more []string
	if p.settling(n.name, rec) && p.silent(n.name) == "" {
		more = append(more, "it has never converged since its machine was made; roles that come after "+n.role.Name+" do not wait for it any more")
	}
	if other := p.impostor(n.name); other != "" {
		more = append(more, other)
	}
	if n.role.note != "" {
		more = append(more, n.role.note)
	}
	return p.keeps(n, m.State, more...)
}

// keeps plans a node that stays, with a machine in a state that the provider tells: "" where it sees none.
func (p *planner) keeps(n planned, state machines.State, notes ...string) Step {
	silent := p.silent(n.name) != ""
	switch {
	case silent && state != "":
		notes = append([]string{"it is silent, and the provider says that its machine is " + string(state)}, notes...)
	case silent:
		notes = append([]string{"it is silent, and nobody here sees its machine"}, notes...)
	case state == machines.Unknown:
		notes = append([]string{"the provider does not know how its machine is"}, notes...)
	}
	s := n.step(Keep, p.standsAs(n.name))
	if s.Note = strings.Join(notes, "; "); s.Note != "" {
		s.Why += "; " + s.Note
	}
	return s
}

// joined reports whether the node of a machine in the books has been on the list of hosts since that was made.
func (p *planner) joined(node string, rec machines.Record) bool {
	st, spoke := p.Statuses[node]
	return rec.Joined || rec.Tries > 0 && spoke && st.SeenAt.After(rec.At)
}

// broken makes a node's machine again, or is blocked.
func (p *planner) broken(n planned, why string) Step { return n.step(Broken, why).destroys() }

// warned adds to why a node's machine goes what an operator should know before.
func (p *planner) warned(s Step) Step {
	if held := p.Held[s.Node]; held != "" && p.Records[s.Node].Phase != machines.Retiring { // whose hold that is, is clear
		s.Why += "; it is under a hold: " + machines.Clean(held)
	}
	if other := p.impostor(s.Node); other != "" {
		s.Why += "; " + other
	}
	return s
}

// destroys marks a step whose machine goes; again tells the rest.
func (s Step) destroys() Step {
	s.Removes = true
	return s
}

// again fills in a step that ends all machines of a node and makes another.
func (p *planner) again(n planned, s Step) Step {
	s.Removes, s.Makes, s.Order, s.Blocked = true, true, n.order(), n.role.protected
	s.Victims = victims(p.machines[n.name])
	s.Drain = p.drains(n.name, p.machines[n.name])
	return p.warned(s)
}

// drains reports whether a node can be asked to run its hooks: it is registered, and a machine of it may be up.
func (p *planner) drains(node string, all []machines.Machine) bool {
	if _, registered := p.Hosts[node]; !registered {
		return false
	}
	for _, m := range all {
		if m.State == machines.Running || m.State == machines.Unknown {
			return true
		}
	}
	return false
}

// settling reports whether a registered node has yet to converge for the first time since its machine was made.
func (p *planner) settling(node string, rec machines.Record) bool {
	if !p.Released || p.Held[node] != "" {
		return false
	}
	st, spoke := p.Statuses[node]
	adopted := rec.Tries == 0
	if !spoke || !adopted && !p.ReportedOwn(node, rec) {
		return true
	}
	return st.LastGood.IsZero() && p.Views[node].State != agent.Converged
}

// standsAs says how a node is that is registered.
func (p *planner) standsAs(node string) string {
	if _, registered := p.Hosts[node]; !registered {
		return "it is not registered"
	}
	v, ok := p.Views[node]
	switch {
	case !ok:
		return "it is registered, and has not spoken yet"
	case v.State == agent.Converged:
		return "it is registered and converged"
	}
	return fmt.Sprintf("it is registered and %s: %s", v.State, machines.Clean(v.Sentence()))
}
