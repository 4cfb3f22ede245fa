package provision

import (
	"fmt"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
)

// here plans one node that is wanted.
func (p *planner) here(n planned) []Step {
	rec, booked := p.Records[n.name]
	_, registered := p.Hosts[n.name]
	keeper, others := p.chosen(n.name, rec)
	switch {
	case p.driver == environments.DriverNone, n.member:
		return p.elsewhere(n, registered)
	case booked && rec.Driver != p.driver:
		return []Step{p.switched(n.step(Replace, ""), rec)}
	case booked && rec.Phase == Retiring:
		s := n.step(Replace, fmt.Sprintf("its retiring was begun at %s by %s and is not done; it is wanted again", clock(rec.At), clean(rec.By)))
		return []Step{p.again(n, s)}
	case keeper == nil:
		return []Step{p.gone(n, rec, booked, registered)}
	}
	if rec.ID != "" && keeper.ID != "" && rec.ID != keeper.ID { // the books know another machine, which is gone
		booked = false
	}
	s := p.standing(n, *keeper, rec, booked, registered)
	if s.Removes { // the others go with it
		return []Step{p.again(n, s)}
	}
	return append([]Step{s}, p.duplicates(n, *keeper, others)...)
}

// elsewhere plans a node whose machine others make.
func (p *planner) elsewhere(n planned, registered bool) []Step {
	s := p.keeps(n, "")
	if !registered {
		s = n.step(Missing, fmt.Sprintf("it has not joined: make its machine, and hand it what `pulley userdata %s` prints", n.name))
		if n.member {
			s.Why = fmt.Sprintf("it is a member that has not joined: run what `pulley userdata %s --role %s --hostname keep` prints on it", n.name, n.role.Name)
		}
	}
	if ours := p.machines[n.name]; len(ours) > 0 {
		s.Why += fmt.Sprintf("; its machine %s was made by pulley, and stays", ours[0].victim())
	}
	return []Step{s}
}

// switched blocks a step whose machine only another driver sees.
func (p *planner) switched(s Step, rec Record) Step {
	s.Why = fmt.Sprintf("its machine was made by the provider %s, and the file says %s", clean(rec.Driver), p.driver)
	s.Blocked = fmt.Sprintf("%s does not see the machines of %s\nput `provider: %s` back and lower the cardinality, apply that, and change the provider then", p.driver, clean(rec.Driver), clean(rec.Driver))
	return s
}

// gone plans a node that has no machine.
func (p *planner) gone(n planned, rec Record, booked, registered bool) Step {
	made := n.step(Create, "there is no machine of it")
	made.Makes, made.Order = true, n.order()
	switch {
	case !booked && registered:
		return p.keeps(n, "", "it was not made by this provider")
	case !booked:
		return made
	case rec.Phase == Making && !registered:
		made.Why = fmt.Sprintf("it was claimed at %s by %s, and there is no machine of it yet", clock(rec.At), clean(rec.By))
		if rec.Problem != "" {
			made.Why += ": " + clean(rec.Problem)
		}
		return made
	}
	s := n.step(Orphan, fmt.Sprintf("its machine %s, made at %s, is gone", Victim{rec.Name, rec.ID}, clock(rec.At)))
	s.Removes, s.Makes, s.Order, s.Blocked = true, true, n.order(), n.role.protected
	return s
}

// standing plans a node that has a machine.
func (p *planner) standing(n planned, m Machine, rec Record, booked, registered bool) Step {
	begun := m.Created
	if booked {
		begun = rec.At
	}
	late := !begun.IsZero() && p.Now.Sub(begun) > n.role.timeout
	switch {
	case m.State == Deleting:
		return n.step(Wait, fmt.Sprintf("the end of its machine %s was asked for at the provider; once that is gone another is made", m.victim()))
	case m.State == Failed:
		return p.broken(n, "the provider says of its machine: "+clean(m.problem()))
	case m.State == Stopped:
		return p.broken(n, fmt.Sprintf("the provider says that its machine %s is off", m.victim()))
	case booked && late && !registered && m.State != Unknown:
		return p.broken(n, fmt.Sprintf("its machine %s was asked for at %s and has not joined within %s: the provider says that it is %s", m.victim(), clock(begun), span(n.role.timeout), m.State))
	}
	if had, differs := p.differs(n, m, rec, booked); differs != "" {
		s := n.step(Replace, differs)
		s.Had = &had
		return s.destroys()
	}
	switch {
	case !booked:
		return n.step(Adopt, fmt.Sprintf("its machine %s has the mark of this fleet and is not in the books", m.victim()))
	case !registered && late:
		return n.step(Wait, fmt.Sprintf("its machine %s was asked for at %s and has not joined, and the provider does not know how it is%s", m.victim(), clock(begun), because(m.Problem)))
	case !registered:
		return n.step(Wait, fmt.Sprintf("its machine %s was asked for at %s, and is %s; it has not joined yet", m.victim(), clock(begun), m.State))
	case rec.Phase == Making:
		return n.step(Wait, fmt.Sprintf("its machine %s is there and has joined; the books don't say so yet", m.victim()))
	case !late && p.settling(n.name, rec):
		return n.step(Wait, "it has joined, and has not converged yet")
	}
	var more []string
	if n.role.note != "" {
		more = append(more, n.role.note)
	}
	return p.keeps(n, m.State, more...)
}

// keeps plans a node that stays, with a machine in a state that the provider tells: "" where it sees none.
func (p *planner) keeps(n planned, state State, notes ...string) Step {
	silent := p.silent(n.name) != ""
	switch {
	case silent && state != "":
		notes = append([]string{"it is silent, and the provider says that its machine is " + string(state)}, notes...)
	case silent:
		notes = append([]string{"it is silent, and nobody here sees its machine"}, notes...)
	case state == Unknown:
		notes = append([]string{"the provider does not know how its machine is"}, notes...)
	}
	s := n.step(Keep, p.standsAs(n.name))
	if s.Note = strings.Join(notes, "; "); s.Note != "" {
		s.Why += "; " + s.Note
	}
	return s
}

// broken makes a node's machine again, or is blocked.
func (p *planner) broken(n planned, why string) Step {
	if held := p.Held[n.name]; held != "" {
		why += "; it is under a hold: " + clean(held)
	}
	return n.step(Broken, why).destroys()
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
	return s
}

// drains reports whether a node can be asked to run its hooks: it is registered, and a machine of it may be up.
func (p *planner) drains(node string, machines []Machine) bool {
	if _, registered := p.Hosts[node]; !registered {
		return false
	}
	for _, m := range machines {
		if m.State == Running || m.State == Unknown {
			return true
		}
	}
	return false
}

// settling reports whether a registered node has yet to converge for the first time since its machine was made.
func (p *planner) settling(node string, rec Record) bool {
	if !p.Released || p.Held[node] != "" {
		return false
	}
	st, spoke := p.Statuses[node]
	adopted := rec.Tries == 0
	if !spoke || st.SeenAt.Before(rec.At) && !adopted { // what it said before is another machine's word
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
	return fmt.Sprintf("it is registered and %s: %s", v.State, clean(v.Why))
}

// clock is a time as sentences have it.
func clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
