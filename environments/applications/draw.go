package applications

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Drawing is a graph with its nodes in the groups of a plan, for a program that draws it.
type Drawing struct {
	Title  string
	Groups [][]string // nodes
	*Graph
}

// arrows calls each for the edges between the drawn nodes and the capabilities and roles between them.
func (d Drawing) arrows(each func(from, to vertex)) {
	drawn := map[string]bool{}
	for _, node := range slices.Concat(d.Groups...) {
		drawn[node] = true
	}
	nodes := func(ids []int) (all []vertex) {
		for _, i := range ids {
			if v := d.vertices[i]; drawn[v.node] {
				all = append(all, v)
			}
		}
		return all
	}
	for i, v := range d.vertices {
		if v.capability == "" && !v.end {
			continue
		}
		from, to := nodes(d.last[i]), nodes(d.next[i])
		if v.end { // the starts of later roles follow
			for _, start := range d.next[i] {
				to = append(to, nodes(d.next[start])...)
			}
		}
		if len(from) == 0 || len(to) == 0 {
			continue
		}
		for _, node := range from {
			each(node, v)
		}
		for _, node := range to {
			each(v, node)
		}
	}
}

func (v vertex) label() string {
	if v.capability != "" {
		return v.capability
	}
	return "role " + v.role
}

// DOT writes the drawing in the language of Graphviz.
func (d Drawing) DOT(w io.Writer) {
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
	}
	id := func(v vertex) string {
		if v.node != "" {
			return quote(v.node)
		}
		return quote(fmt.Sprintf("%s %d", v.label(), v.except)) // a space is in no node
	}
	fmt.Fprintf(w, "digraph %s {\n  rankdir=LR\n  node [shape=box]\n", quote(d.Title))
	for i, nodes := range d.Groups {
		fmt.Fprintf(w, "  subgraph cluster_%d {\n    label=%s\n", i+1, quote(fmt.Sprintf("group %d", i+1)))
		for _, node := range nodes {
			fmt.Fprintf(w, "    %s [label=%s]\n", quote(node), quote(d.text(node)))
		}
		fmt.Fprintln(w, "  }")
	}
	between := map[vertex]bool{}
	d.arrows(func(from, to vertex) {
		for _, v := range []vertex{from, to} {
			if v.node == "" && !between[v] {
				between[v] = true
				fmt.Fprintf(w, "  %s [shape=ellipse label=%s]\n", id(v), quote(v.label()))
			}
		}
		fmt.Fprintf(w, "  %s -> %s\n", id(from), id(to))
	})
	fmt.Fprintln(w, "}")
}

// Mermaid writes the drawing in the language of Mermaid.
func (d Drawing) Mermaid(w io.Writer) {
	quote := func(s string) string {
		return `"` + strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", "&", "#amp;", "\n", "<br>").Replace(s) + `"`
	}
	ids := map[vertex]string{}
	fmt.Fprintln(w, "flowchart LR")
	for i, nodes := range d.Groups {
		fmt.Fprintf(w, "  subgraph group%d[%s]\n", i+1, quote(fmt.Sprintf("group %d", i+1)))
		for _, node := range nodes {
			ids[vertex{node: node}] = fmt.Sprintf("n%d", len(ids)+1)
			fmt.Fprintf(w, "    %s[%s]\n", ids[vertex{node: node}], quote(d.text(node)))
		}
		fmt.Fprintln(w, "  end")
	}
	d.arrows(func(from, to vertex) {
		for _, v := range []vertex{from, to} {
			if ids[v] == "" {
				ids[v] = fmt.Sprintf("n%d", len(ids)+1)
				fmt.Fprintf(w, "  %s([%s])\n", ids[v], quote(v.label()))
			}
		}
		fmt.Fprintf(w, "  %s --> %s\n", ids[from], ids[to])
	})
}

// text is a node with its components.
func (d Drawing) text(node string) string {
	text := node
	for _, c := range d.On(node) {
		text += "\n" + c.String()
	}
	return text
}
