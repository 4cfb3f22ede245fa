// Package applications owns the order in which nodes run, from the components that produce and consume capabilities. Make is a
// pure function; ReadCatalog parses Puppet's environment catalog.
//
// It must never read etcd, a file or the clock, and never change what a node runs.
package applications

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Name names a component.
type Name struct {
	Application string `json:"application"` // Lamp
	Instance    string `json:"instance"`    // app1
	Component   string `json:"component"`   // Lamp::Mysql[app1]
}

// Of returns the application with its instance: Lamp[app1].
func (n Name) Of() string { return n.Application + "[" + n.Instance + "]" }

// String returns the complete name: Lamp[app1] -> Lamp::Mysql[app1].
func (n Name) String() string { return n.Of() + " -> " + n.Component }

func (n Name) compare(m Name) int {
	return cmp.Or(strings.Compare(n.Application, m.Application), strings.Compare(n.Instance, m.Instance), strings.Compare(n.Component, m.Component))
}

// Component is a part of an instance of an application. Each of its nodes applies it with the node's one run.
type Component struct {
	Name
	Nodes    []string
	Produces []string // capabilities: names that are valid in all applications
	Consumes []string
}

// Role is a role with its nodes, and the roles whose nodes come before them. The caller excludes cycles in After.
type Role struct {
	Name         string
	Nodes, After []string
}

// Need is what a component on a node consumes, and who produces it.
type Need struct {
	Node       string `json:"node"`
	Consumer   Name   `json:"consumer"`
	Capability string `json:"capability"`
	Producer   Name   `json:"producer"`
	On         string `json:"on,omitempty"` // node of the producer; "": it has none
}

// Sentence is the need for people.
func (n Need) Sentence() string {
	if n.On == "" {
		return fmt.Sprintf("%s on %s consumes %s, and %s, which produces it, has no node", n.Consumer, n.Node, n.Capability, n.Producer)
	}
	return fmt.Sprintf("%s on %s consumes %s, which %s on %s produces", n.Consumer, n.Node, n.Capability, n.Producer, n.On)
}

// Graph is the order of nodes by their components and roles.
//
// A component on a node needs what it consumes from all nodes of all components that produce it, except itself. Where another
// component of the same node produces it, the node's own run provides it. A node runs all of its components in one run: it needs what
// each of them needs.
type Graph struct {
	components []Component
	roles      []Role
	on         map[string][]int // node: its components
	producers  map[string][]int // capability: its components
	vertices   []vertex
	ids        map[vertex]int
	next, last [][]int // edges, in both directions
	levels     []int   // of vertices
}

// vertex is a node, or else a point between nodes: it keeps the number of edges small.
type vertex struct {
	node       string
	capability string
	except     int    // of a capability: a component that consumes its own product, plus 1
	role       string // its nodes lie between its start and its end
	end        bool
}

// Make returns the graph of components and roles. Its error is a *MissingError or a *CycleError.
func Make(components []Component, roles []Role) (*Graph, error) {
	g := &Graph{
		components: slices.Clone(components), roles: roles, on: map[string][]int{}, producers: map[string][]int{}, ids: map[vertex]int{},
	}
	slices.SortFunc(g.components, func(a, b Component) int { return a.compare(b.Name) })
	for i, c := range g.components {
		for _, node := range c.Nodes {
			g.on[node] = append(g.on[node], i)
		}
		for _, capability := range c.Produces {
			g.producers[capability] = append(g.producers[capability], i)
		}
	}
	if missing := g.missing(); missing != nil {
		return nil, missing
	}
	for _, node := range slices.Sorted(maps.Keys(g.on)) {
		if len(g.on[node]) == 1 {
			continue
		}
		if cycle := g.within(node); cycle != nil {
			return nil, cycle
		}
	}
	g.connect()
	if cycle := g.arrange(); cycle != nil {
		return nil, cycle
	}
	return g, nil
}

// MissingError means that no component produces what components consume.
type MissingError struct{ Needs []Need } // without producers

// Error lists what no component produces.
func (e *MissingError) Error() string {
	var all []string
	for _, n := range e.Needs {
		all = append(all, fmt.Sprintf("%s consumes %s, and no component produces it", n.Consumer, n.Capability))
	}
	return strings.Join(all, "\n")
}

func (g *Graph) missing() error {
	var needs []Need
	for _, c := range g.components {
		for _, capability := range c.Consumes {
			if len(g.producers[capability]) == 0 {
				needs = append(needs, Need{Consumer: c.Name, Capability: capability})
			}
		}
	}
	if needs == nil {
		return nil
	}
	return &MissingError{needs}
}

// id returns the number of a vertex.
func (g *Graph) id(v vertex) int {
	i, known := g.ids[v]
	if !known {
		i = len(g.vertices)
		g.ids[v] = i
		g.vertices, g.next, g.last = append(g.vertices, v), append(g.next, nil), append(g.last, nil)
	}
	return i
}

func (g *Graph) edge(from, to vertex) {
	a, b := g.id(from), g.id(to)
	g.next[a], g.last[b] = append(g.next[a], b), append(g.last[b], a)
}

// connect adds the nodes, and all edges between them.
func (g *Graph) connect() {
	for _, node := range slices.Sorted(maps.Keys(g.on)) {
		g.id(vertex{node: node})
	}
	for i, c := range g.components {
		for _, capability := range c.Consumes {
			from := vertex{capability: capability}
			if slices.Contains(c.Produces, capability) {
				from.except = i + 1
			}
			for _, node := range c.Nodes {
				if !g.local(i, node, capability) {
					g.supply(from)
					g.edge(from, vertex{node: node})
				}
			}
		}
	}
	for _, r := range g.roles {
		start, end := vertex{role: r.Name}, vertex{role: r.Name, end: true}
		g.edge(start, end)
		for _, node := range r.Nodes {
			g.edge(start, vertex{node: node})
			g.edge(vertex{node: node}, end)
		}
		for _, other := range r.After {
			g.edge(vertex{role: other, end: true}, start)
		}
	}
}

// supply adds the nodes that produce a capability, once.
func (g *Graph) supply(to vertex) {
	if _, known := g.ids[to]; known {
		return
	}
	g.id(to)
	for _, i := range g.producers[to.capability] {
		if i+1 == to.except {
			continue
		}
		for _, node := range g.components[i].Nodes {
			g.edge(vertex{node: node}, to)
		}
	}
}

// local reports whether a node's own run provides what a component of it consumes.
func (g *Graph) local(consumer int, node, capability string) bool {
	return slices.ContainsFunc(g.on[node], func(i int) bool { return i != consumer && slices.Contains(g.components[i].Produces, capability) })
}

// arrange gives each vertex its level: that of a node is one above the highest node that it needs.
func (g *Graph) arrange() error {
	g.levels = make([]int, len(g.vertices))
	open, ready := make([]int, len(g.vertices)), []int(nil)
	for i := range g.vertices {
		g.levels[i] = -1
		if open[i] = len(g.last[i]); open[i] == 0 {
			ready = append(ready, i)
		}
	}
	done := 0
	for ; len(ready) > 0; done++ {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		if g.vertices[i].node != "" {
			g.levels[i]++
		}
		for _, to := range g.next[i] {
			g.levels[to] = max(g.levels[to], g.levels[i])
			if open[to]--; open[to] == 0 {
				ready = append(ready, to)
			}
		}
	}
	if done == len(g.vertices) {
		return nil
	}
	return g.cycle(open)
}

// Layers returns all nodes in layers: each node needs only nodes of earlier ones. Within a layer, they have the order of their names
// as texts.
func (g *Graph) Layers() (layers [][]string) {
	for i, v := range g.vertices {
		if v.node == "" {
			continue
		}
		for len(layers) <= g.levels[i] {
			layers = append(layers, nil)
		}
		layers[g.levels[i]] = append(layers[g.levels[i]], v.node)
	}
	for _, nodes := range layers {
		slices.Sort(nodes)
	}
	return layers
}

// On returns the components of a node, in order.
func (g *Graph) On(node string) (all []Component) {
	for _, i := range g.on[node] {
		all = append(all, g.components[i])
	}
	return all
}

// Outside returns what selected nodes consume from nodes that are not selected: one need for each capability and node of a producer; and
// one for each producer of a capability of which no producer has a node.
func (g *Graph) Outside(selected map[string]bool) (needs []Need) {
	type from struct {
		producer   int
		capability string
	}
	seen := map[from]bool{}
	for c, consumer := range g.components {
		for _, capability := range consumer.Consumes {
			at := slices.IndexFunc(consumer.Nodes, func(node string) bool { return selected[node] && !g.local(c, node, capability) })
			if at < 0 {
				continue
			}
			nodes := 0
			for _, i := range g.producers[capability] {
				nodes += len(g.components[i].Nodes)
			}
			for _, i := range g.producers[capability] {
				if i == c || seen[from{i, capability}] {
					continue
				}
				seen[from{i, capability}] = true
				need := Need{consumer.Nodes[at], consumer.Name, capability, g.components[i].Name, ""}
				if nodes == 0 {
					needs = append(needs, need)
				}
				for _, node := range g.components[i].Nodes {
					need.On = node
					if !selected[need.On] {
						needs = append(needs, need)
					}
				}
			}
		}
	}
	return needs
}
