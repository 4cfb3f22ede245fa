package rollouts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pulley/environments"
	"pulley/environments/applications"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/specs"
)

// JobSelection selects the nodes of a job. Without any part, a job is of all registered nodes.
type JobSelection struct {
	fleet.Selection
	Applications []string // only nodes with their components
	Instances    []string // app1, or Lamp[app1]
	Catalog      *Catalog // its applications instead of those of the environment, and only their nodes
}

// Catalog is an environment catalog of Puppet.
type Catalog struct {
	File string
	Data []byte
}

// JobPlan is the order in which a job runs nodes; `pulley job plan -o json` prints it.
type JobPlan struct {
	Environment  string     `json:"environment"`
	Applications []string   `json:"applications"` // with components on the nodes: Lamp[app1]
	Nodes        int        `json:"nodes"`
	Groups       []JobGroup `json:"groups"`
	Outside      []JobNeed  `json:"outside,omitempty"`   // what the nodes consume from other nodes
	Left         []string   `json:"left,omitempty"`      // of a retry: nodes of earlier groups that did not run, and are not selected
	NotReady     []NotReady `json:"not_ready,omitempty"` // nodes that could not run now
	Takes        JobTime    `json:"takes"`

	Notes []string `json:"-"` // about the selection
	graph *applications.Graph
}

// JobGroup is a group of a job: its nodes need only nodes of earlier groups.
type JobGroup struct {
	Number int       `json:"number"`
	Nodes  []JobNode `json:"nodes"`
}

// JobNode is a node of a job.
type JobNode struct {
	Node    string              `json:"node"`
	Does    []applications.Name `json:"does"`
	LastRun time.Duration       `json:"last_run,omitempty"` // how long it took; 0: unknown

	machine string
}

// JobNeed is what a node consumes from a node that is not in the job.
type JobNeed struct {
	applications.Need
	State model.NodeState `json:"state"` // of that node; missing: it is not registered
}

// Healthy reports whether the producer was applied.
func (n JobNeed) Healthy() bool { return n.State == model.Converged }

// NotReady is a node that could not run now.
type NotReady struct {
	Node  string          `json:"node"`
	State model.NodeState `json:"state"`
	Why   string          `json:"why"` // for people
}

// JobTime is how long a job takes, and no node of it enforces by itself.
type JobTime struct {
	Likely  time.Duration `json:"likely"`  // by the last runs of its nodes
	Unknown int           `json:"unknown"` // nodes without a run, or whose run was not read: the time may be longer
	Batches int           `json:"batches"` // one after the other, also those of --concurrency; nodes with cron begin each at their next tick
	Most    time.Duration `json:"most"`    // by the deadline of each node
}

// PlanJob plans a job over the selected nodes, in groups: by the applications of the environment, or of a catalog, and by the order of
// roles.
func PlanJob(ctx context.Context, s *etcd.DB, ref model.Ref, sel JobSelection, o JobOrder, now time.Time) (p JobPlan, err error) {
	if p, err = planJob(ctx, s, ref, sel, now); err != nil {
		return p, fmt.Errorf("cannot plan a job in %s: %w", ref, err)
	}
	p.Takes = p.takes(o)
	if most := cmp.Or(o.Concurrency, rollout.JobConcurrency); slices.ContainsFunc(p.Groups, func(g JobGroup) bool { return o.batch(len(g.Nodes)) > most }) {
		p.Notes = append(p.Notes, fmt.Sprintf("at most %d nodes run at a time: --concurrency sets this", most))
	}
	return p, nil
}

func planJob(ctx context.Context, s *etcd.DB, ref model.Ref, sel JobSelection, now time.Time) (p JobPlan, err error) {
	spec, err := fleet.FindEnvironment(ctx, specs.In(s), ref)
	if err != nil {
		return p, err
	}
	f, err := fleet.In(s).State(ctx, ref)
	if err != nil {
		return p, err
	}
	if err := sel.Check(spec, f.Known()); err != nil {
		return p, err
	}
	p.Environment = ref.String()
	components, roles := spec.Components(nodesByRole(f))
	if sel.Catalog != nil {
		if components, err = sel.Catalog.read(spec, f); err != nil {
			return p, err
		}
	}
	if p.graph, err = applications.Make(components, lastOnes(roles, f)); err != nil {
		return p, unorderable(err)
	}
	chosen, err := sel.components(components)
	if err != nil {
		return p, err
	}
	sel.Selection, p.Notes, err = fleet.Narrow(ctx, s, ref, f, sel.Selection, now)
	if err != nil {
		return p, err
	}
	var daemons []string
	for _, nodes := range p.graph.Layers() {
		var group []JobNode
		for _, node := range nodes {
			if chosen != nil && !chosen[node] || !sel.Has(f.RoleOf(node), node) {
				continue
			}
			if f.Statuses[node].Enforce == model.EnforceDaemon {
				daemons = append(daemons, node)
				continue
			}
			n := JobNode{Node: node, machine: f.Hosts[node].MachineID, Does: []applications.Name{}}
			for _, c := range p.graph.On(node) {
				n.Does = append(n.Does, c.Name)
			}
			group = append(group, n)
		}
		if len(group) > 0 {
			slices.SortFunc(group, func(a, b JobNode) int { return fleet.CompareNatural(a.Node, b.Node) })
			p.Groups = append(p.Groups, JobGroup{Number: len(p.Groups) + 1, Nodes: group})
		}
	}
	if len(daemons) > 0 {
		slices.SortFunc(daemons, fleet.CompareNatural)
		p.Notes = append(p.Notes, "not in it, because Puppet's own daemon runs there: "+strings.Join(daemons, ", "))
	}
	switch {
	case len(p.Groups) == 0 && len(daemons) > 0:
		return p, fmt.Errorf("each selected node has Puppet's own daemon: %s\nrun Puppet there by hand: `pulley-agent run --force`", strings.Join(daemons, ", "))
	case len(p.Groups) == 0:
		return p, errors.New("the selection has no registered node")
	}
	p.complete(f, now)
	p.needs(f, now)
	return p, p.readRuns(ctx, s, ref, f)
}

// needs fills in what the nodes consume from other nodes.
func (p *JobPlan) needs(f fleet.FleetState, now time.Time) {
	selected := map[string]bool{}
	for n := range p.each() {
		selected[n.Node] = true
	}
	for _, need := range p.graph.Outside(selected) {
		p.Outside = append(p.Outside, JobNeed{need, stateOf(f, need.On, now)})
	}
	slices.SortStableFunc(p.Outside, func(a, b JobNeed) int { return fleet.CompareNatural(a.On, b.On) })
}

// complete fills in what follows from the groups.
func (p *JobPlan) complete(f fleet.FleetState, now time.Time) {
	apps := map[string]bool{}
	for n := range p.each() {
		p.Nodes++
		for _, name := range n.Does {
			apps[name.Of()] = true
		}
	}
	p.Applications = slices.AppendSeq([]string{}, maps.Keys(apps))
	slices.Sort(p.Applications)
	p.NotReady = notReady(f, *p, now)
}

// each yields the nodes of all groups.
func (p JobPlan) each() func(func(*JobNode) bool) {
	return func(yield func(*JobNode) bool) {
		for _, g := range p.Groups {
			for i := range g.Nodes {
				if !yield(&g.Nodes[i]) {
					return
				}
			}
		}
	}
}

// Managed is the number of nodes with a component.
func (p JobPlan) Managed() (n int) {
	for node := range p.each() {
		n += min(len(node.Does), 1)
	}
	return n
}

// nodesByRole returns the registered nodes of each role.
func nodesByRole(f fleet.FleetState) map[string][]string {
	nodes := map[string][]string{}
	for node, h := range f.Hosts {
		nodes[h.Role] = append(nodes[h.Role], node)
	}
	return nodes
}

// lastOnes adds the registered nodes of roles that the environment does not have: they come last.
func lastOnes(roles []applications.Role, f fleet.FleetState) []applications.Role {
	var known []string
	for _, r := range roles {
		known = append(known, r.Name)
	}
	nodes := nodesByRole(f)
	for _, role := range slices.Sorted(maps.Keys(nodes)) {
		if !slices.Contains(known, role) {
			roles = append(roles, applications.Role{Name: role, Nodes: nodes[role], After: known})
		}
	}
	return roles
}

// unorderable is the error of components without an order, with its remedy.
func unorderable(err error) error {
	cycle, missing := (*applications.CycleError)(nil), (*applications.MissingError)(nil)
	switch {
	case errors.As(err, &cycle):
		text := "the applications make a cycle"
		for _, step := range cycle.Steps {
			text += "\n  " + step.Sentence()
		}
		return fmt.Errorf("%s\n%s", text, cycle.Remedy())
	case errors.As(err, &missing):
		return fmt.Errorf("%w\nadd the components that produce it, or remove it from `consumes`", err)
	}
	return err
}

// read returns the components of a catalog. Each of its nodes is registered, or the environment calls for it.
func (c Catalog) read(spec *environments.Environment, f fleet.FleetState) ([]applications.Component, error) {
	environment, components, err := applications.ReadCatalog(c.Data)
	if err != nil {
		return nil, fmt.Errorf("cannot read site catalog %s: %w\ngive the answer of a Puppet server 4 to 6 to GET /puppet/v3/environment/%s", c.File, err, spec.Name)
	}
	if environment != spec.Name {
		return nil, fmt.Errorf("site catalog %s is of environment %q, not of %s\ngive the catalog of this environment", c.File, environment, spec.Name)
	}
	if len(components) == 0 {
		return nil, fmt.Errorf("site catalog %s has no components\ndeclare applications in `site { }` of its Puppet code", c.File)
	}
	known := f.Known()
	for _, component := range components {
		for _, node := range component.Nodes {
			if err := fleet.CheckNode(spec, known, node); err != nil {
				return nil, fmt.Errorf("site catalog %s: %s: %w", c.File, component.Name, err)
			}
		}
	}
	return components, nil
}

// components returns the nodes with the selected components; nil: all nodes.
func (s JobSelection) components(all []applications.Component) (nodes map[string]bool, err error) {
	if s.Catalog == nil && len(s.Applications)+len(s.Instances) == 0 {
		return nil, nil
	}
	nodes = map[string]bool{}
	names, instances := map[string]bool{}, map[string]bool{}
	for _, c := range all {
		names[c.Application], instances[c.Instance], instances[c.Of()] = true, true, true
		if s.hasComponent(c.Name) {
			for _, node := range c.Nodes {
				nodes[node] = true
			}
		}
	}
	for _, one := range []struct {
		kind   string
		wanted []string
		known  map[string]bool
	}{{"application", s.Applications, names}, {"instance", s.Instances, instances}} {
		for _, name := range one.wanted {
			if one.known[name] {
				continue
			}
			known := slices.Sorted(maps.Keys(one.known))
			hint := "they are " + strings.Join(known, ", ")
			if near := model.SuggestName(name, known); near != "" {
				hint = "did you mean " + near + "?"
			} else if len(known) == 0 {
				hint = "list them in `applications:` of the environment file, or give --site-catalog"
			}
			return nil, fmt.Errorf("cannot find %s %q\n%s", one.kind, name, hint)
		}
	}
	return nodes, nil
}

// hasAny reports whether the selection has one of the components of a node.
func (s JobSelection) hasAny(names []applications.Name) bool {
	return len(s.Applications)+len(s.Instances) == 0 || slices.ContainsFunc(names, s.hasComponent)
}

// hasComponent reports whether the selection has a component, by its name.
func (s JobSelection) hasComponent(n applications.Name) bool {
	return (len(s.Applications) == 0 || slices.Contains(s.Applications, n.Application)) &&
		(len(s.Instances) == 0 || slices.Contains(s.Instances, n.Instance) || slices.Contains(s.Instances, n.Of()))
}

// stateOf is the state of a node that a component of the job needs. It is missing unless it is registered.
func stateOf(f fleet.FleetState, node string, now time.Time) model.NodeState {
	if _, registered := f.Hosts[node]; !registered {
		return model.Missing
	}
	return viewOf(f, node, now).State
}

// notReady lists the nodes that could not run now, with their reasons. A node in a run is ready: the job waits for its end.
func notReady(f fleet.FleetState, p JobPlan, now time.Time) (all []NotReady) {
	for n := range p.each() {
		if _, registered := f.Hosts[n.Node]; !registered {
			all = append(all, NotReady{n.Node, model.Missing, "it is not registered"})
			continue
		}
		v := viewOf(f, n.Node, now)
		if v.Wanted.IsZero() || slices.Contains([]model.NodeState{model.Silent, model.Held, model.Missing}, v.State) {
			all = append(all, NotReady{n.Node, v.State, v.Sentence()})
		}
	}
	return all
}

// readMost is the number of nodes whose last runs a plan reads: each has the record of a complete run.
const readMost = 2000

// readRuns reads how long the last runs of the nodes took. Of many nodes it reads some, from all groups.
func (p *JobPlan) readRuns(ctx context.Context, s *etcd.DB, ref model.Ref, f fleet.FleetState) error {
	ids, i := map[string]string{}, 0
	for n := range p.each() {
		if id := f.Statuses[n.Node].LastRun; id != "" && i%(p.Nodes/readMost+1) == 0 {
			ids[n.Node] = id
		}
		i++
	}
	took, err := fleet.In(s).Took(ctx, ref, ids)
	for n := range p.each() {
		n.LastRun = took[n.Node]
	}
	return err
}

// takes returns how long the job takes. Within a batch, the next node begins when one ended.
func (p JobPlan) takes(o JobOrder) (t JobTime) {
	deadline := cmp.Or(o.Deadline, time.Hour)
	t.Most = deadline // until all nodes wait
	for _, g := range p.Groups {
		for batch := range slices.Chunk(g.Nodes, o.batch(len(g.Nodes))) {
			places := make([]time.Duration, min(cmp.Or(o.Concurrency, rollout.JobConcurrency), len(batch))) // when each is free
			for i, n := range batch {
				first := i // all at once
				if len(places) < len(batch) {
					first = slices.Index(places, slices.Min(places))
				}
				places[first] += n.LastRun
				if n.LastRun == 0 {
					t.Unknown++
				}
			}
			rounds := (len(batch) + len(places) - 1) / len(places)
			t.Batches += rounds
			t.Likely += slices.Max(places)
			t.Most += deadline * time.Duration(rounds)
		}
	}
	return t
}

// batch is the number of nodes at a time of a group of this size.
func (o JobOrder) batch(size int) int {
	if o.Batch == "" {
		return size
	}
	return min(size, o.Batch.Of(size, 1))
}

// storedNames limits the components of a node that a job stores.
const storedNames = 50

// layers returns the groups as a campaign stores them.
func (p JobPlan) layers() (layers [][]rollout.Member) {
	for _, g := range p.Groups {
		var members []rollout.Member
		for _, n := range g.Nodes {
			members = append(members, rollout.Member{Node: n.Node, Machine: n.machine, Does: n.Does[:min(len(n.Does), storedNames)]})
		}
		layers = append(layers, members)
	}
	return layers
}

// Drawing returns the plan for a program that draws graphs.
func (p JobPlan) Drawing() applications.Drawing {
	d := applications.Drawing{Title: p.Environment, Graph: p.graph}
	for _, g := range p.Groups {
		var nodes []string
		for _, n := range g.Nodes {
			nodes = append(nodes, n.Node)
		}
		d.Groups = append(d.Groups, nodes)
	}
	return d
}
