package applications

import (
	"fmt"
	"slices"
	"strings"
)

// CycleError names a cycle: the node of each step is the producer of the next one, and that of the last step is that of the first.
type CycleError struct{ Steps []Step }

// Step is a dependency in a cycle: what a node consumes, or its role that comes after another one.
type Step struct {
	Need               // of components
	Role, After string // of roles; then only the nodes of Need are set
}

// Sentence is the step for people.
func (s Step) Sentence() string {
	if s.Role == "" {
		return s.Need.Sentence()
	}
	return fmt.Sprintf("%s of role %s comes after %s of role %s", s.Node, s.Role, s.On, s.After)
}

// Error lists the steps.
func (e *CycleError) Error() string {
	var all []string
	for _, s := range e.Steps {
		all = append(all, s.Sentence())
	}
	return strings.Join(all, "; ")
}

// Remedy is what ends the cycle.
func (e *CycleError) Remedy() string {
	for i, s := range e.Steps {
		from := e.Steps[(i+len(e.Steps)-1)%len(e.Steps)] // its node is the producer of s
		if s.Role != "" || from.Role != "" || s.Producer != from.Consumer {
			return "a node applies all of its components in one run: move one of these components to another node, or remove one of these dependencies"
		}
	}
	return "remove one of these dependencies"
}

// within returns a cycle of components of one node, or nil. The node's one run cannot order them.
func (g *Graph) within(node string) error {
	type link struct { // to a consumer, on the path
		producer   int
		capability string
	}
	const onPath, done = 1, 2
	state, links := map[int]int{}, map[int]link{}
	var steps []Step
	var visit func(p int) bool
	visit = func(p int) bool {
		state[p] = onPath
		for _, c := range g.on[node] {
			at := slices.IndexFunc(g.components[c].Consumes, func(name string) bool { return slices.Contains(g.components[p].Produces, name) })
			if at < 0 || c == p || state[c] == done {
				continue
			}
			again := state[c] == onPath
			links[c] = link{p, g.components[c].Consumes[at]}
			for i := c; again; {
				l := links[i]
				steps = append(steps, Step{Need: Need{node, g.components[i].Name, l.capability, g.components[l.producer].Name, node}})
				if i = l.producer; i == c {
					slices.Reverse(steps)
					return true
				}
			}
			if visit(c) {
				return true
			}
		}
		state[p] = done
		return false
	}
	for _, p := range g.on[node] {
		if state[p] == 0 && visit(p) {
			return &CycleError{steps}
		}
	}
	return nil
}

// cycle returns a cycle among the vertices that could not be arranged. open has the number of their edges from such vertices.
func (g *Graph) cycle(open []int) error {
	at := slices.IndexFunc(open, func(n int) bool { return n > 0 })
	seen := map[int]bool{}
	for !seen[at] { // each of them has such a predecessor: the walk ends in a cycle
		seen[at] = true
		at = g.last[at][slices.IndexFunc(g.last[at], func(i int) bool { return open[i] > 0 })]
	}
	first := at // of the cycle: the first node by name
	for i := at; ; {
		if name := g.vertices[i].node; name != "" && (g.vertices[first].node == "" || name < g.vertices[first].node) {
			first = i
		}
		i = g.last[i][slices.IndexFunc(g.last[i], func(i int) bool { return open[i] > 0 })]
		if i == at {
			break
		}
	}
	return g.describe(g.shortest(first, open))
}

// shortest returns the shortest cycle through a vertex, beginning with it.
func (g *Graph) shortest(start int, open []int) []int {
	from := map[int]int{}
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		for _, to := range g.next[queue[0]] {
			if to == start {
				path := []int{}
				for i := queue[0]; i != start; i = from[i] {
					path = append(path, i)
				}
				path = append(path, start)
				slices.Reverse(path)
				return path
			}
			if _, known := from[to]; !known && open[to] > 0 {
				from[to] = queue[0]
				queue = append(queue, to)
			}
		}
	}
	return []int{start} // impossible: start is in a cycle
}

// describe turns a cycle of vertices into its steps: one for each node.
func (g *Graph) describe(path []int) error {
	at := func(i int) vertex { return g.vertices[path[(i+len(path))%len(path)]] }
	var steps []Step
	for i := range path {
		v, before := at(i), at(i-1)
		if v.node == "" {
			continue
		}
		on := i - 1
		for at(on).node == "" {
			on--
		}
		if before.capability != "" {
			steps = append(steps, Step{Need: g.need(before, v.node, at(on).node)})
		} else {
			steps = append(steps, Step{Need: Need{Node: v.node, On: at(on).node}, Role: before.role, After: at(on + 1).role})
		}
	}
	return &CycleError{steps}
}

// need returns the components of an edge of the graph: from a node over a capability to another node.
func (g *Graph) need(over vertex, node, on string) Need {
	n := Need{Node: node, Capability: over.capability, On: on}
	consumer := slices.IndexFunc(g.on[node], func(i int) bool {
		own := slices.Contains(g.components[i].Produces, over.capability)
		return slices.Contains(g.components[i].Consumes, over.capability) && (own && over.except == i+1 || !own && over.except == 0) && !g.local(i, node, over.capability)
	})
	producer := slices.IndexFunc(g.on[on], func(i int) bool {
		return i+1 != over.except && slices.Contains(g.components[i].Produces, over.capability)
	})
	if consumer >= 0 && producer >= 0 { // always
		n.Consumer, n.Producer = g.components[g.on[node][consumer]].Name, g.components[g.on[on][producer]].Name
	}
	return n
}
