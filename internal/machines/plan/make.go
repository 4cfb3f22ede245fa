package plan

import (
	"bytes"
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/internal/fleet"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// format is the version of plans, printed and stored.
const format = 1

// Options change what is planned.
type Options struct {
	Destroy     bool     // no nodes are wanted
	Place       string   // current place of the provider, as in records; "" is unknown
	SamePlace   bool     // machines that were made at another place are those that the provider lists here
	AcceptLost  bool     // confirms that most of the machines are gone
	ForgetHosts bool     // Destroy: also remove nodes whose machines are not Pulley's
	Replace     []string // nodes whose machines are replaced, whatever their state
}

// Make plans the changes from w to want.
func Make(want *environments.Environment, w machines.World, o Options) Plan {
	p := newPlanner(want, w, o)
	for node := range p.wanted() {
		p.steps = append(p.steps, p.node(node)...)
	}
	p.steps = append(p.steps, p.leaving()...)
	p.blockLost()
	for i, s := range p.steps {
		if why := MayRetire(want, w, s.Node, nil); why != nil && s.Yields() && !o.Destroy {
			p.steps[i].Notes = append(s.Notes, *why)
		}
	}
	p.steps = append(p.steps, p.unknown...)
	return Plan{
		Format: format, Fleet: want.Ref(), Driver: p.driver, At: w.Now, Spec: want, Revision: w.OldRevision,
		Steps: p.steps, Changes: environments.Diff(w.Old, want), Changed: !o.Destroy && !SameSpec(w.Old, want),
		Healthy: !o.Destroy && fleet.Judge(want, w.Hosts, w.Views).Healthy, Destroys: o.Destroy, Reacting: p.reacting(),
	}
}

// planner contains the arguments of Make, prepared, and the steps.
type planner struct {
	machines.World
	options   Options
	want, old *environments.Environment // old is never nil
	driver    string

	machines map[string][]machines.Machine // with the fleet's mark, by node
	unknown  []Step                        // machines whose names are not nodes' names
	roles    map[string]*plannedRole
	seen     map[string]bool // nodes that are wanted
	steps    []Step

	reporting int // nodes that report, and whose machines are not listed
}

// plannedRole contains the values that the nodes of one role share.
type plannedRole struct {
	environments.Role
	flavor, image string   // as the provider names them
	networks      []string // as the provider names them
	timeout       time.Duration
	layer, place  int              // by `after`, and in the file
	protected     *machines.Reason // the reason for protection; nil if its machines may be deleted
	kept          []string         // changed settings that existing machines do not get
}

func newPlanner(want *environments.Environment, w machines.World, o Options) *planner {
	p := &planner{World: w, want: want, old: w.Old, driver: want.Driver(), options: o, seen: map[string]bool{}, steps: []Step{}, roles: map[string]*plannedRole{}}
	if p.old == nil {
		p.old = &environments.Environment{Name: want.Name, Stack: want.Stack}
	}
	p.planRoles()
	p.sortMachines()
	return p
}

// planRoles prepares the roles of the file and those that only the stored environment has.
func (p *planner) planRoles() {
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
			r.protected = &machines.Reason{Code: machines.ProtectedRole, Role: name}
		case before && was.Protected && after:
			r.protected = &machines.Reason{Code: machines.ProtectedStored, Role: name}
		case before && was.Protected:
			r.protected = &machines.Reason{Code: machines.ProtectedRemoved, Role: name}
		}
		if before && after {
			r.kept = p.kept(was, now)
		}
	}
}

// kept lists the settings that a file changes and that existing machines do not get.
func (p *planner) kept(was, now environments.Role) (settings []string) {
	if !slices.Equal(p.old.NetworksOf(was), p.want.NetworksOf(now)) {
		settings = append(settings, "networks")
	}
	if !maps.Equal(was.Labels, now.Labels) {
		settings = append(settings, "labels")
	}
	if !reflect.DeepEqual(p.old.UserdataOf(was), p.want.UserdataOf(now)) {
		settings = append(settings, "userdata")
	}
	return settings
}

// role returns a role; a role that is in neither file has only a name.
func (p *planner) role(name string) *plannedRole {
	r, ok := p.roles[name]
	if !ok {
		r = &plannedRole{Role: environments.Role{Name: name}, timeout: environments.DefaultTimeout, place: -1}
		p.roles[name] = r
	}
	return r
}

// A planned node is one of the file, or one that leaves.
type planned struct {
	name   string // "compute1_t42"
	host   string // "compute1-t42", its machine's name
	role   *plannedRole
	member bool // its machine is not Pulley's
}

// wanted yields the nodes in the order of the file: of each role the numbered ones, then the members.
func (p *planner) wanted() func(yield func(planned) bool) {
	return func(yield func(planned) bool) {
		if p.options.Destroy {
			return
		}
		for _, r := range p.want.Roles {
			role := p.role(r.Name)
			for num := 1; num <= r.Cardinality; num++ {
				n := model.Node{Role: r.Name, Num: num, Stack: p.want.Stack}
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
				if !yield(planned{name: name, host: model.MachineName(name), role: role, member: p.driver != environments.DriverLocal}) {
					return
				}
			}
		}
	}
}

// step begins a step for a node.
func (n planned) step(v Verb, why ...machines.Reason) Step {
	return Step{Verb: v, Node: n.name, Role: n.role.Name, Layer: n.role.layer, Reasons: why}
}

// order returns the order of the node's machine.
func (n planned) order() *machines.Order {
	return &machines.Order{Name: n.host, Node: n.name, Role: n.role.Name, Flavor: n.role.flavor, Image: n.role.image, Networks: n.role.networks, Labels: n.role.Labels}
}

// because returns a reason without parameters.
func because(c machines.Code) machines.Reason { return machines.Reason{Code: c} }

// SameSpec reports whether two environments have the same stored form.
func SameSpec(a, b *environments.Environment) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, errX := environments.Encode(a)
	y, errY := environments.Encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// reacting lists the remaining nodes that react to a role with added or removed nodes.
func (p *planner) reacting() (nodes []string) {
	moved := map[string]bool{}
	for _, s := range p.steps {
		if s.Creates || s.Removes {
			moved[s.Role] = true
		}
	}
	if len(moved) == 0 {
		return nil
	}
	for _, s := range p.steps {
		_, registered := p.Hosts[s.Node]
		stays := s.Verb == Keep || s.Verb == Wait || s.Verb == Adopt
		if registered && stays && p.seen[s.Node] && slices.ContainsFunc(p.role(s.Role).ReactsTo, func(r string) bool { return moved[r] }) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// silent reports whether a registered node is known to be silent.
func (p *planner) silent(node string) bool {
	v, ok := p.Views[node]
	return ok && v.State == model.Silent
}

// inRetireOrder sorts steps into the order of retirement: last layers first, within them the roles of the file
// backwards, highest numbers first.
func (p *planner) inRetireOrder(steps []Step) {
	slices.SortStableFunc(steps, func(a, b Step) int {
		return cmp.Or(b.Layer-a.Layer, p.role(b.Role).place-p.role(a.Role).place, strings.Compare(a.Role, b.Role), cmp.Compare(numOf(b.Node), numOf(a.Node)), strings.Compare(a.Node, b.Node))
	})
}

// numOf returns a node's number; 0 if it has none.
func numOf(node string) int {
	n, err := model.ParseNode(node)
	if err != nil {
		return 0
	}
	return n.Num
}
