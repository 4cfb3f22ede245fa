package environments

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"pulley/environments/applications"
	"pulley/internal/model"
)

// Applications are components by application, instance and name. Jobs order nodes by them.
type Applications map[string]map[string]map[string]Component

// Component is a part of an instance of an application, on one node or on all nodes of a role.
type Component struct {
	Node     string   `json:"node,omitempty" form:"member" like:"db1" help:"Node of the component, by name without the stack."`
	Role     string   `json:"role,omitempty" form:"role" like:"web" help:"Role whose nodes all have the component, instead of one node."`
	Produces []string `json:"produces,omitempty" form:"word" like:"sql" help:"Capabilities that the component provides. Their names are valid in all applications."`
	Consumes []string `json:"consumes,omitempty" form:"word" like:"sql" help:"Capabilities that the component needs: a job runs its nodes after those that produce them."`
}

// each calls do for each component, in order, with its path: Lamp.app1.mysql.
func (a Applications) each(do func(path, application, instance, name string, c Component)) {
	for _, application := range slices.Sorted(maps.Keys(a)) {
		for _, instance := range slices.Sorted(maps.Keys(a[application])) {
			for _, name := range slices.Sorted(maps.Keys(a[application][instance])) {
				do(application+"."+instance+"."+name, application, instance, name, a[application][instance][name])
			}
		}
	}
}

// ApplicationNames returns the names of all applications, in order.
func (e *Environment) ApplicationNames() []string { return slices.Sorted(maps.Keys(e.Applications)) }

// InstanceNames returns the names of all instances of applications, in order.
func (e *Environment) InstanceNames() (names []string) {
	for _, instances := range e.Applications {
		names = slices.AppendSeq(names, maps.Keys(instances))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tidy removes empty applications, instances and lists.
func (a Applications) tidy() Applications {
	var tidied Applications
	a.each(func(_, application, instance, name string, c Component) {
		tidy(fieldsOf(&c))
		tidied = tidied.with(application, instance, name, c)
	})
	return tidied
}

func (a Applications) with(application, instance, name string, c Component) Applications {
	if a == nil {
		a = Applications{}
	}
	if a[application] == nil {
		a[application] = map[string]map[string]Component{}
	}
	if a[application][instance] == nil {
		a[application][instance] = map[string]Component{}
	}
	a[application][instance][name] = c
	return a
}

// applications reads the components of all applications.
func (s scope) applications(n *yaml.Node, what string, into *Applications) {
	s.p.mapping(n, what, nil, func(key, value *yaml.Node) {
		application, at := key.Value, what+"."+key.Value
		s.p.places[spot{s.role, at}] = key
		s.p.mapping(value, at, nil, func(key, value *yaml.Node) {
			var all map[string]Component
			at := at + "." + key.Value
			s.p.places[spot{s.role, at}] = key
			each(s, value, at, "component", &all)
			for name, c := range all {
				*into = into.with(application, key.Value, name, c)
			}
		})
	})
}

// checkApplications checks the components, and that they have an order.
func (c checker) checkApplications() {
	known, produced := map[string]bool{}, map[string]bool{}
	for _, r := range c.Roles {
		known[r.Name] = true
	}
	c.Applications.each(func(_, _, _, _ string, of Component) {
		for _, capability := range of.Produces {
			produced[capability] = true
		}
	})
	complete := true
	add := func(at, hint, format string, args ...any) {
		complete = false
		c.add(spot{noRole, at}, hint, format, args...)
	}
	c.Applications.each(func(path, application, instance, name string, of Component) {
		at := "applications." + path
		for _, part := range []string{application, instance, name} {
			if flaw := formFlaw("word", "Lamp", part); flaw != nil {
				add(at, flaw.Advice, "applications: name %s: %s", model.Quoted(part), flaw.Problem)
			}
		}
		if strings.ContainsAny(application, "[]") {
			add(at, "write the instance below it", "applications: name %s: it has brackets", model.Quoted(application))
		}
		c.checkValues(noRole, at+".", fieldsOf(&of))
		switch {
		case of.Node != "" && of.Role != "":
			add(at, "keep one of them; two nodes are two components", "component %s has a node and a role", model.Quoted(name))
		case of.Role != "" && !known[of.Role]:
			add(at+".role", noRoleHint(of.Role, c.RoleNames()), "component %s is of role %s, and there is no such role", model.Quoted(name), model.Quoted(of.Role))
		case of.Node != "":
			if flaw := c.unknownNode(of.Node); flaw != nil {
				add(at+".node", flaw.Advice, "node %s: %s", model.Quoted(of.Node), flaw.Problem)
			}
		case of.Role == "":
			add(at, "write `node: web1` or `role: web`", "component %s has neither a node nor a role", model.Quoted(name))
		}
		for i, capability := range of.Consumes {
			if !produced[capability] {
				add(at+".consumes."+strconv.Itoa(i), producerHint(capability, produced), "component %s consumes %s, and no component produces it", model.Quoted(name), model.Quoted(capability))
			}
		}
	})
	if !complete || len(c.Applications) == 0 || !c.ordered(known) {
		return
	}
	_, err := applications.Make(c.Components(c.some()))
	if cycle := (*applications.CycleError)(nil); errors.As(err, &cycle) {
		first := cycle.Steps[slices.IndexFunc(cycle.Steps, func(s applications.Step) bool { return s.Role == "" })].Consumer // roles alone have an order
		c.add(spot{noRole, "applications." + first.Application + "." + first.Instance + "." + first.Component}, cycle.Remedy(), "applications make a cycle: %s", cycle)
	}
}

// ordered reports whether `after` of the roles gives an order.
func (c checker) ordered(known map[string]bool) bool {
	after := map[string][]string{}
	for _, r := range c.Roles {
		if after[r.Name] = r.After; slices.ContainsFunc(r.After, func(name string) bool { return !known[name] || name == r.Name }) {
			return false
		}
	}
	return len(cycles(after)) == 0
}

func producerHint(capability string, produced map[string]bool) string {
	names := slices.Sorted(maps.Keys(produced))
	if near := model.SuggestName(capability, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "write `produces: [" + capability + "]` for the component that provides it"
}

// some returns nodes by role, enough to find each cycle: those that components name, and one other of each role. All others
// of a role have the same components and dependencies as that one.
func (c checker) some() map[string][]string {
	named, nodes := map[string]bool{}, map[string][]string{}
	c.Applications.each(func(_, _, _, _ string, of Component) {
		if of.Node == "" || named[of.Node] {
			return
		}
		named[of.Node] = true
		name := c.nodeName(of.Node)
		if r, ok := c.RoleOf(name); ok {
			nodes[r.Name] = append(nodes[r.Name], name)
		}
	})
	for _, r := range c.Roles {
		other := slices.IndexFunc(r.Members, func(name string) bool { return !named[name] })
		for num := 1; num <= r.Cardinality; num++ {
			if !named[model.Node{Role: r.Name, Num: num}.String()] {
				nodes[r.Name] = append(nodes[r.Name], model.Node{Role: r.Name, Num: num, Stack: c.Stack}.String())
				other = -1
				break
			}
		}
		if other >= 0 {
			nodes[r.Name] = append(nodes[r.Name], r.Members[other])
		}
	}
	return nodes
}

// nodeName returns the name of a node that the file names without the stack.
func (e *Environment) nodeName(name string) string {
	for _, r := range e.Roles {
		if slices.Contains(r.Members, name) {
			return name
		}
	}
	if n, err := model.ParseNode(name); err == nil {
		n.Stack = e.Stack
		return n.String()
	}
	return name
}

// Components returns the components of all applications and the order of the roles, for package applications. nodes are the
// nodes of each role.
func (e *Environment) Components(nodes map[string][]string) (all []applications.Component, roles []applications.Role) {
	e.Applications.each(func(_, application, instance, name string, of Component) {
		c := applications.Component{Name: applications.Name{Application: application, Instance: instance, Component: name}, Nodes: nodes[of.Role], Produces: of.Produces, Consumes: of.Consumes}
		if of.Node != "" {
			c.Nodes = []string{e.nodeName(of.Node)}
		}
		all = append(all, c)
	})
	for _, r := range e.Roles {
		roles = append(roles, applications.Role{Name: r.Name, Nodes: nodes[r.Name], After: r.After})
	}
	return all, roles
}
