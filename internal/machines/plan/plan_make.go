package plan

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"pulley/agent"
	"pulley/environments"
	"pulley/internal/machines"
)

// PlanFormat is the version of plans, shown and stored.
const PlanFormat = 1

// Options says what is asked of a plan beside the environment.
type Options struct {
	Destroy     bool   // nothing is wanted any more: all of it goes
	Place       string // where the provider is asked now, as records have it; "" is unknown
	Moved       bool   // machines that were made at another place are taken for the same where the provider lists them
	Lost        bool   // it is agreed to that most of the machines are gone
	ForgetHosts bool   // Destroy: nodes whose machines are not ours are taken off the list, too
}

// Make finds what has to be done to make w what want says. It is pure: the same arguments give the same plan.
func Make(want *environments.Environment, w machines.World, o Options) Plan {
	p := newPlanner(want, w, o)
	for node := range p.wanted() {
		p.steps = append(p.steps, p.here(node)...)
	}
	p.steps = append(p.steps, p.leaving()...)
	p.guardLost()
	p.steps = append(p.steps, p.strangers...)
	plan := Plan{
		Format: PlanFormat, Fleet: want.Ref(), Driver: p.driver, At: w.Now, Spec: want, Revision: w.OldRevision,
		Steps: p.steps, Changes: environments.Diff(w.Old, want), Changed: !o.Destroy && !SameSpec(w.Old, want),
		Whole: !o.Destroy && machines.Judge(want, w.Hosts, w.Views).Whole, Destroys: o.Destroy,
	}
	plan.Reacting = p.reacting(plan.Steps)
	return plan
}

// planner is what one plan is made with: the arguments, put in order.
type planner struct {
	machines.World
	want, old *environments.Environment // old is never nil
	driver    string
	place     string
	destroy   bool
	options   Options

	machines  map[string][]machines.Machine // of ours, by node
	strangers []Step
	roles     map[string]*plannedRole
	seen      map[string]bool // nodes that are wanted
	steps     []Step

	contradicted int // nodes that speak, and whose machines are not listed
}

// plannedRole is what the nodes of one role have in common.
type plannedRole struct {
	environments.Role
	flavor, image string   // in the provider's words
	networks      []string // likewise
	timeout       time.Duration
	layer, place  int    // of `after`, and in the file
	protected     string // why its machines stay; "" when they may go
	note          string // what of its machines is out of date and stays so; "" for nothing
}

func newPlanner(want *environments.Environment, w machines.World, o Options) *planner {
	p := &planner{World: w, want: want, old: w.Old, driver: want.Driver(), place: o.Place, destroy: o.Destroy, options: o, seen: map[string]bool{}, steps: []Step{}}
	if p.old == nil {
		p.old = &environments.Environment{Name: want.Name, Stack: want.Stack}
	}
	p.plannedRoles()
	p.sortMachines()
	return p
}

// plannedRoles knows the roles of the file and those that only the stored environment has.
func (p *planner) plannedRoles() {
	p.roles = map[string]*plannedRole{}
	for _, e := range []*environments.Environment{p.old, p.want} {
		for layer, names := range e.Layers() {
			for _, name := range names {
				r, _ := e.Role(name)
				p.roles[name] = &plannedRole{
					Role: r, flavor: e.FlavorOf(r), image: e.ImageOf(r), networks: e.NetworksOf(r), timeout: e.TimeoutOf(r), layer: layer,
				}
			}
		}
		for place, r := range e.Roles {
			p.roles[r.Name].place = place
		}
	}
	for name, r := range p.roles {
		was, before := p.old.Role(name)
		now, after := p.want.Role(name)
		switch {
		case after && now.Protected:
			r.protected = name + " is protected\ntake `protected` from it in the file first, and apply that"
		case before && was.Protected && after:
			r.protected = name + " is protected as long as the environment that is stored says so\napply the file without `protected` and with nothing else changed first"
		case before && was.Protected:
			r.protected = name + " is protected, and the file does not have it any more\nput it back without `protected`, apply that, and remove it then"
		}
		if before && after {
			r.note = p.stale(was, now)
		}
	}
}

// role is what is known of a role; one that no file has is known by its name alone.
func (p *planner) role(name string) *plannedRole {
	r, ok := p.roles[name]
	if !ok {
		r = &plannedRole{Role: environments.Role{Name: name}, timeout: environments.DefaultTimeout, place: -1}
		p.roles[name] = r
	}
	return r
}

// A planned node is one that the file calls for.
type planned struct {
	name   string // "compute1_t42"
	host   string // "compute1-t42", its machine's name
	role   *plannedRole
	member bool // it is a machine of somebody else
}

// wanted yields the nodes that are called for in the order of the file, members behind the numbered ones of their role.
func (p *planner) wanted() func(yield func(planned) bool) {
	return func(yield func(planned) bool) {
		if p.destroy {
			return
		}
		for _, r := range p.want.Roles {
			role := p.role(r.Name)
			for num := 1; num <= r.Cardinality; num++ {
				n := environments.Node{Role: r.Name, Num: num, Stack: p.want.Stack}
				node := planned{name: n.String(), host: n.Hostname(), role: role}
				p.seen[node.name] = true
				if !yield(node) {
					return
				}
			}
			for _, name := range r.Members {
				if p.seen[name] {
					continue
				}
				p.seen[name] = true
				if !yield(planned{name: name, host: strings.ReplaceAll(name, "_", "-"), role: role, member: true}) {
					return
				}
			}
		}
	}
}

// step begins a step for a node.
func (n planned) step(v Verb, why string) Step {
	return Step{Verb: v, Node: n.name, Role: n.role.Name, Layer: n.role.layer, Why: why}
}

// order is what the provider is asked for.
func (n planned) order() *machines.Order {
	return &machines.Order{Name: n.host, Node: n.name, Role: n.role.Name, Flavor: n.role.flavor, Image: n.role.image, Networks: n.role.networks, Labels: n.role.Labels}
}

// same reports whether two environments are stored as the same.
func SameSpec(a, b *environments.Environment) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, errX := environments.Encode(a)
	y, errY := environments.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// reacting lists the nodes that are there and react to a role in which something comes or goes.
func (p *planner) reacting(steps []Step) []string {
	moved := map[string]bool{}
	for _, s := range steps {
		if s.Makes || s.Removes {
			moved[s.Role] = true
		}
	}
	if len(moved) == 0 {
		return nil
	}
	var nodes []string
	for _, s := range steps {
		_, registered := p.Hosts[s.Node]
		stays := s.Verb == Keep || s.Verb == Wait || s.Verb == Adopt
		if registered && stays && p.seen[s.Node] && slices.ContainsFunc(p.role(s.Role).ReactsTo, func(r string) bool { return moved[r] }) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// silent is why a registered node is known to be silent; "" when it is not.
func (p *planner) silent(node string) string {
	if v, ok := p.Views[node]; ok && v.State == agent.Silent {
		return machines.Clean(v.Sentence())
	}
	return ""
}

// inRetireOrder sorts steps as machines go: last layers first, within them the roles of the file backwards, highest numbers first.
func (p *planner) inRetireOrder(steps []Step) {
	slices.SortStableFunc(steps, func(a, b Step) int {
		return cmp.Or(b.Layer-a.Layer, p.role(b.Role).place-p.role(a.Role).place, strings.Compare(a.Role, b.Role), cmp.Compare(numOf(b.Node), numOf(a.Node)), strings.Compare(a.Node, b.Node))
	})
}

// numOf is a node's number; 0 of one that has none.
func numOf(node string) int {
	n, err := environments.ParseNode(node)
	if err != nil {
		return 0
	}
	return n.Num
}
