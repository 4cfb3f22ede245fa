package environments

import (
	"slices"
	"strings"
)

// cycles returns the shortest cycle of each group of roles that depend on each other in a cycle. It begins with the
// group's first role by name. Each role in it comes after the next one, and the last one after the first.
func (e *Environment) cycles() [][]string {
	after := map[string][]string{}
	for _, r := range e.Roles {
		after[r.Name] = slices.Sorted(slices.Values(r.After))
	}
	var out [][]string
	for _, group := range groups(after) {
		if len(group) > 1 {
			out = append(out, circle(after, group))
		}
	}
	slices.SortFunc(out, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return out
}

// circle returns the shortest path from the first role of a group back to itself.
func circle(after map[string][]string, group []string) []string {
	start := slices.Min(group)
	from, queue := map[string]string{}, []string{start}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		for _, next := range after[name] {
			if next == start && name != start {
				way := []string{name}
				for name != start {
					name = from[name]
					way = append(way, name)
				}
				slices.Reverse(way)
				return way
			}
			if _, seen := from[next]; !seen && next != start && slices.Contains(group, next) {
				from[next] = name
				queue = append(queue, next)
			}
		}
	}
	return []string{start} // unreachable: a group is strongly connected
}

// groups returns the strongly connected components of a graph (Tarjan, 1972).
func groups(edges map[string][]string) [][]string {
	var (
		out      [][]string
		stack    []string
		number   = map[string]int{}
		low      = map[string]int{}
		onStack  = map[string]bool{}
		visit    func(string)
		visiting = func(name string) bool { return number[name] != 0 }
	)
	visit = func(name string) {
		number[name] = len(number) + 1
		low[name] = number[name]
		stack, onStack[name] = append(stack, name), true
		for _, next := range edges[name] {
			if _, known := edges[next]; !known {
				continue
			}
			if !visiting(next) {
				visit(next)
				low[name] = min(low[name], low[next])
			} else if onStack[next] {
				low[name] = min(low[name], number[next])
			}
		}
		if low[name] != number[name] {
			return
		}
		at := slices.Index(stack, name)
		group := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, member := range group {
			onStack[member] = false
		}
		out = append(out, group)
	}
	for name := range edges {
		if !visiting(name) {
			visit(name)
		}
	}
	return out
}
