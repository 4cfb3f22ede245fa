package render

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// maxListed is how many nodes of a role are listed one by one, if they have the same action and no machine is deleted.
// More share one row.
const maxListed = 20

// Row is one line of a plan.
type Row struct {
	Verb    plan.Verb
	Nodes   string // "compute4", or "compute6 … compute40 (35)"
	Deletes string // machines: "compute4 (id 77f0)"; "" for none
	Why     string
	Blocked []string // why the plan is refused because of it, and the remedy
}

// Rows returns the lines of a plan, in its order. A node that stays is listed only if it has notes. Each deleted
// machine has its own row.
func Rows(p plan.Plan) []Row {
	groups := map[rowGroup][]plan.Step{}
	for _, s := range p.Steps {
		if g, ok := groupOf(s); ok {
			groups[g] = append(groups[g], s)
		}
	}
	rows := []Row{}
	for _, s := range p.Steps {
		g, grouped := groupOf(s)
		switch {
		case s.Verb == plan.Keep && len(s.Notes) == 0 && s.Blocked == nil:
		case grouped && len(groups[g]) > maxListed || grouped && s.Verb == plan.Keep:
			if all := groups[g]; all[0].Node == s.Node {
				rows = append(rows, summed(all))
			}
		default:
			rows = append(rows, Row{Verb: s.Verb, Nodes: clean(s.Node), Deletes: Machines(s.Deletes), Why: Reasons(s.Reasons), Blocked: blockedLines(s, p.Destroys)})
		}
	}
	return rows
}

func blockedLines(s plan.Step, destroys bool) []string {
	if s.Blocked == nil {
		return nil
	}
	why, remedy := Blocked(*s.Blocked, destroys)
	return []string{why, remedy}
}

// A rowGroup contains steps that can share a row.
type rowGroup struct {
	verb        plan.Verb
	role, notes string // the notes as JSON
}

func groupOf(s plan.Step) (rowGroup, bool) {
	notes, _ := json.Marshal(s.Notes) // its type cannot fail
	return rowGroup{s.Verb, s.Role, string(notes)}, len(s.Deletes) == 0 && !s.Removes && s.Blocked == nil && s.Verb != plan.Unknown
}

// summed returns one row for many steps.
func summed(all []plan.Step) Row {
	first := all[0]
	row := Row{Verb: first.Verb, Nodes: clean(first.Node), Why: Reasons(first.Reasons)}
	if len(all) > 1 {
		row.Nodes = fmt.Sprintf("%s … %s (%d)", clean(first.Node), clean(all[len(all)-1].Node), len(all))
	}
	switch {
	case len(first.Notes) > 0:
		row.Why = Reasons(first.Notes)
	case slices.ContainsFunc(all, func(s plan.Step) bool { return !reflect.DeepEqual(s.Reasons, first.Reasons) }):
		row.Why = fmt.Sprintf("of %s: %s", clean(first.Node), row.Why)
	}
	return row
}

// Plan returns the rows of a plan in columns, and its summary as the last line.
func Plan(p plan.Plan) []string {
	rows := Rows(p)
	verbs, nodes := 0, 0
	for _, r := range rows {
		verbs, nodes = max(verbs, len(r.Verb)), max(nodes, min(len([]rune(r.Nodes)), 30))
	}
	var lines []string
	for _, r := range rows {
		line := fmt.Sprintf("%-*s  %-*s  %s", verbs, r.Verb, nodes, r.Nodes, r.Why)
		if r.Deletes != "" {
			line += "; deletes " + r.Deletes
		}
		lines = append(lines, line)
		for _, hint := range r.Blocked {
			lines = append(lines, strings.Repeat(" ", verbs+2)+"blocked: "+hint)
		}
	}
	return append(lines, Summary(p))
}

// Summary returns a plan in one line: "create 3, replace 1, retire 2 (controller2, controller3), keep 40".
func Summary(p plan.Plan) string {
	counts := p.Counts()
	var parts []string
	for _, v := range plan.Verbs() {
		if counts[v] == 0 {
			continue
		}
		part := fmt.Sprintf("%s %d", v, counts[v])
		if v == plan.Retire && counts[v] <= maxListed {
			part += " (" + nodesOf(p, v) + ")"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "nothing to do"
	}
	summary := strings.Join(parts, ", ")
	if counts[plan.Keep] == len(p.Steps) && p.Empty() { // others still have to make a missing machine
		summary = "nothing to do: " + summary
	}
	return summary
}

func nodesOf(p plan.Plan, v plan.Verb) string {
	var nodes []string
	for _, s := range p.Steps {
		if s.Verb == v {
			nodes = append(nodes, clean(s.Node))
		}
	}
	number := func(node string) int {
		n, _ := strconv.Atoi(node[len(strings.TrimRight(node, "0123456789")):])
		return n
	}
	slices.SortStableFunc(nodes, func(a, b string) int {
		return cmp.Or(strings.Compare(strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")), number(a)-number(b))
	})
	return strings.Join(nodes, ", ")
}

// Machines joins the names of machines.
func Machines(refs []machines.Ref) string {
	var all []string
	for _, r := range refs {
		all = append(all, clean(r.String()))
	}
	return strings.Join(all, ", ")
}

// VerbOf returns the verb of a step for errors: "cannot replace compute1: …".
func VerbOf(v plan.Verb) string {
	switch v {
	case plan.Broken:
		return "replace"
	case plan.Orphan:
		return "remove"
	case plan.Duplicate:
		return "delete the second machine of"
	case plan.Wait:
		return "wait for"
	}
	return string(v)
}

// Refused returns the error of a refused plan; nil without refusals. Each remedy is given once.
func Refused(p plan.Plan, all []plan.Refusal) error {
	if len(all) == 0 {
		return nil
	}
	var whys, remedies []string
	for _, r := range all {
		why, remedy := fmt.Sprintf("nobody approved the deletion of machine %s", clean(r.Machine.String())), "look at a new plan"
		if r.Machine == (machines.Ref{}) {
			why, remedy = Blocked(*r.Step.Blocked, p.Destroys)
		}
		whys = append(whys, fmt.Sprintf("%s %s: %s", r.Step.Verb, clean(r.Step.Node), why))
		if !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	return fmt.Errorf("cannot %s %s: %s\n%s\nnothing was done", Deed(p.Destroys), p.Fleet, strings.Join(whys, "; "), strings.Join(remedies, "\n"))
}

// Changed returns the error of a plan that differs from the approved or stored one; nil without differences.
func Changed(p plan.Plan, all []plan.Difference) error {
	if len(all) == 0 {
		return nil
	}
	lines := make([]string, len(all))
	for i, d := range all {
		lines[i] = "  " + Difference(d)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Difference returns the sentence of one difference.
func Difference(d plan.Difference) string {
	node := clean(cmp.Or(d.Is.Node, d.Was.Node))
	why := Reasons(d.Is.Reasons)
	switch d.Kind {
	case plan.OtherFleet:
		return fmt.Sprintf("the plan is of %s, and this is %s", clean(d.From), clean(d.To))
	case plan.OtherDriver:
		return fmt.Sprintf("the provider was %s, and is %s now", clean(d.From), clean(d.To))
	case plan.OtherRevision:
		return fmt.Sprintf("somebody else stored the environment %s", clean(d.To))
	case plan.OtherSpec:
		return "the environment's file changed"
	case plan.Dropped:
		text := fmt.Sprintf("%s of %s was planned, and is no longer needed", d.Was.Verb, node)
		if why != "" {
			text += ": " + why
		}
		return text
	case plan.Added:
		return fmt.Sprintf("%s of %s was not planned: %s", d.Is.Verb, node, why)
	case plan.OtherVerb:
		return fmt.Sprintf("%s: %s was planned, and now it is %s: %s", node, d.Was.Verb, d.Is.Verb, why)
	case plan.OtherDeletes:
		return fmt.Sprintf("%s: %s was to be deleted, and now it is %s", node, cmp.Or(Machines(d.Was.Deletes), "no machine"), cmp.Or(Machines(d.Is.Deletes), "no machine"))
	case plan.OtherOrder:
		return node + ": another machine is ordered now"
	case plan.OtherRemoval:
		return node + ": the decision to remove the node changed"
	case plan.OtherBlock:
		return node + ": the decision to block the step changed"
	}
	return clean(string(d.Kind))
}

// Health returns "healthy", or the lacking nodes: "degraded: compute 3 of 5 converged (compute4 never joined, compute5
// silent)".
func Health(h machines.Health) string {
	if h.Healthy {
		return "healthy"
	}
	var parts []string
	for _, r := range h.Roles {
		if r.Converged == r.Wanted {
			continue
		}
		var lacking []string
		for _, l := range r.Lacking {
			lacking = append(lacking, clean(l.Node)+" "+lack(l))
		}
		if more := r.Wanted - r.Converged - len(lacking); more > 0 {
			lacking = append(lacking, fmt.Sprintf("and %d more", more))
		}
		parts = append(parts, fmt.Sprintf("%s %d of %d converged (%s)", clean(r.Role), r.Converged, r.Wanted, strings.Join(lacking, ", ")))
	}
	return "degraded: " + strings.Join(parts, "; ")
}

func lack(l machines.Lack) string {
	switch l.State {
	case machines.LacksJoin:
		return "never joined"
	case machines.LacksRegistration:
		return "no longer registered"
	case machines.LacksReport:
		return "has not reported"
	}
	return string(l.View)
}
