package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pulley/internal/machines"
)

// maxListed is how many nodes of a role are listed that the same is done for and that no machine is destroyed for; more are
// summed up.
const maxListed = 20

// Row is one line of a plan for people. Everything in it is fit for a terminal.
type Row struct {
	Verb    Verb
	Nodes   string // "compute4", or "compute6 … compute40 (35)"
	Destroy string // machines that are deleted: "compute4 (id 77f0)"; "" for none
	Why     string
	Blocked string // why the plan is refused for it, and in a second line what to do; "" when it is not
}

// Rows tells what a plan does, in its order. Nodes that stay are not listed, but for those that something is to be said of.
// Machines that are destroyed are all named, each in a row of its own.
func (p Plan) Rows() []Row {
	groups := map[rowGroup][]Step{}
	for _, s := range p.Steps {
		if g, ok := s.group(); ok {
			groups[g] = append(groups[g], s)
		}
	}
	rows := []Row{}
	for _, s := range p.Steps {
		g, grouped := s.group()
		switch {
		case s.Verb == Keep && s.Note == "" && s.Blocked == "":
		case grouped && len(groups[g]) > maxListed || grouped && s.Verb == Keep:
			if all := groups[g]; all[0].Node == s.Node {
				rows = append(rows, summed(all))
			}
		default:
			rows = append(rows, Row{Verb: s.Verb, Nodes: machines.Clean(s.Node), Destroy: named(s.Victims), Why: machines.Plain(s.Why), Blocked: s.Blocked})
		}
	}
	return rows
}

// A rowGroup is of steps that can be told in one row.
type rowGroup struct {
	verb       Verb
	role, note string
}

func (s Step) group() (rowGroup, bool) {
	return rowGroup{s.Verb, s.Role, s.Note}, len(s.Victims) == 0 && !s.Removes && s.Blocked == "" && s.Verb != Stranger
}

// summed tells many steps in one row.
func summed(all []Step) Row {
	row := Row{Verb: all[0].Verb, Nodes: machines.Clean(all[0].Node), Why: machines.Plain(all[0].Why)}
	if len(all) > 1 {
		row.Nodes = fmt.Sprintf("%s … %s (%d)", machines.Clean(all[0].Node), machines.Clean(all[len(all)-1].Node), len(all))
	}
	switch {
	case all[0].Note != "":
		row.Why = machines.Plain(all[0].Note)
	case slices.ContainsFunc(all, func(s Step) bool { return s.Why != all[0].Why }):
		row.Why = fmt.Sprintf("of %s: %s", machines.Clean(all[0].Node), row.Why)
	}
	return row
}

// Lines tells a plan for people: its rows, in columns, and the summary as the last line.
func (p Plan) Lines() []string {
	rows := p.Rows()
	verbs, nodes := 0, 0
	for _, r := range rows {
		verbs, nodes = max(verbs, len(r.Verb)), max(nodes, min(len([]rune(r.Nodes)), 30))
	}
	var lines []string
	for _, r := range rows {
		line := fmt.Sprintf("%-*s  %-*s  %s", verbs, r.Verb, nodes, r.Nodes, r.Why)
		if r.Destroy != "" {
			line += "; destroys " + r.Destroy
		}
		lines = append(lines, line)
		for hint := range strings.Lines(r.Blocked) {
			lines = append(lines, strings.Repeat(" ", verbs+2)+"blocked: "+strings.TrimSuffix(hint, "\n"))
		}
	}
	return append(lines, p.Summary())
}

// Summary tells a plan in one line: "create 3, replace 1, retire 2 (controller2, controller3), keep 40".
func (p Plan) Summary() string {
	counts := p.Counts()
	var parts []string
	for _, v := range Verbs() {
		if counts[v] == 0 {
			continue
		}
		part := fmt.Sprintf("%s %d", v, counts[v])
		if v == Retire && counts[v] <= maxListed {
			part += " (" + p.nodesOf(v) + ")"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	said := strings.Join(parts, ", ")
	if counts[Keep] == len(p.Steps) && p.Empty() { // what is missing is somebody's to do
		said = "nothing to do: " + said
	}
	return said
}

func (p Plan) nodesOf(v Verb) string {
	var nodes []string
	for _, s := range p.Steps {
		if s.Verb == v {
			nodes = append(nodes, machines.Clean(s.Node))
		}
	}
	slices.SortStableFunc(nodes, func(a, b string) int {
		return cmp.Or(strings.Compare(roleIn(a), roleIn(b)), numOf(a)-numOf(b))
	})
	return strings.Join(nodes, ", ")
}

// roleIn is a node's name without its number, to sort by.
func roleIn(node string) string { return strings.TrimRight(node, "0123456789") }

// named lists machines.
func named(victims []machines.Ref) string {
	var all []string
	for _, v := range victims {
		all = append(all, machines.Clean(v.String()))
	}
	return strings.Join(all, ", ")
}
