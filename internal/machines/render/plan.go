package render

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"pulley/internal/machines"
	"pulley/internal/machines/plan"
)

// maxListed is how many nodes of a role are listed one by one, if they have the same action and no machine is deleted.
// More share one row.
const maxListed = 20

// row is one line of a plan.
type row struct {
	verb  plan.Verb
	nodes string // "compute4", or "compute6 … compute40 (35)"
	why   string
	hints []string // why the plan is refused because of it, and the remedy
}

// rows returns the lines of a plan, in its order. A node that stays is listed only if it has notes. Each deleted
// machine has its own row.
func rows(p plan.Plan) (all []row) {
	groups := map[rowGroup][]plan.Step{}
	for _, s := range p.Steps {
		if g, ok := groupOf(s); ok {
			groups[g] = append(groups[g], s)
		}
	}
	for _, s := range p.Steps {
		g, grouped := groupOf(s)
		switch {
		case s.Verb == plan.Keep && len(s.Notes) == 0 && s.Blocked == nil:
		case grouped && (len(groups[g]) > maxListed || s.Verb == plan.Keep):
			if same := groups[g]; same[0].Node == s.Node {
				all = append(all, summed(same))
			}
		default:
			r := row{verb: s.Verb, nodes: clean(s.Node), why: Reasons(s.Reasons)}
			if len(s.Deletes) > 0 {
				r.why += "; deletes " + Machines(s.Deletes)
			}
			if s.Acts() && len(s.Notes) > 0 {
				r.why += "; " + Reasons(s.Notes)
			}
			if s.Blocked != nil {
				r.hints = []string{Reason(*s.Blocked), remedy(*s.Blocked, p.Destroys)}
			}
			all = append(all, r)
		}
	}
	return all
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
func summed(all []plan.Step) row {
	first := all[0]
	r := row{verb: first.Verb, nodes: clean(first.Node), why: Reasons(first.Reasons)}
	if len(all) > 1 {
		r.nodes = fmt.Sprintf("%s … %s (%d)", clean(first.Node), clean(all[len(all)-1].Node), len(all))
	}
	switch {
	case len(first.Notes) > 0:
		r.why = Reasons(first.Notes)
	case slices.ContainsFunc(all, func(s plan.Step) bool { return !reflect.DeepEqual(s.Reasons, first.Reasons) }):
		r.why = fmt.Sprintf("of %s: %s", clean(first.Node), r.why)
	}
	return r
}

// Plan returns the rows of a plan in columns, and its summary as the last line.
func Plan(p plan.Plan) (lines []string) {
	all := rows(p)
	verbs, nodes := 0, 0
	for _, r := range all {
		verbs, nodes = max(verbs, len(r.verb)), max(nodes, min(len([]rune(r.nodes)), 30))
	}
	for _, r := range all {
		lines = append(lines, fmt.Sprintf("%-*s  %-*s  %s", verbs, r.verb, nodes, r.nodes, r.why))
		for _, hint := range r.hints {
			lines = append(lines, strings.Repeat(" ", verbs+2)+"blocked: "+hint)
		}
	}
	return append(lines, summary(p))
}

// summary returns a plan in one line: "create 3, replace 1, retire 2 (controller2, controller3), keep 40".
func summary(p plan.Plan) string {
	counts := p.Counts()
	var parts []string
	for _, v := range plan.Verbs() {
		if counts[v] == 0 {
			continue
		}
		part := fmt.Sprintf("%s %d", v, counts[v])
		if v == plan.Retire && counts[v] <= maxListed {
			var nodes []string
			for _, s := range slices.Backward(p.Steps) { // the last node of a role retires first
				if s.Verb == v {
					nodes = append(nodes, clean(s.Node))
				}
			}
			part += " (" + strings.Join(nodes, ", ") + ")"
		}
		parts = append(parts, part)
	}
	text := cmp.Or(strings.Join(parts, ", "), "nothing to do")
	if len(p.Steps) > 0 && counts[plan.Keep] == len(p.Steps) && p.Empty() { // others still have to make a missing machine
		text = "nothing to do: " + text
	}
	return text
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
	var whys, advices []string
	for _, r := range all {
		why, advice := fmt.Sprintf("the deletion of machine %s is not approved", clean(r.Machine.String())), "look at a new plan"
		if r.Machine == (machines.Ref{}) {
			why, advice = Reason(*r.Step.Blocked), remedy(*r.Step.Blocked, p.Destroys)
		}
		whys = append(whys, fmt.Sprintf("%s %s: %s", r.Step.Verb, clean(r.Step.Node), why))
		if !slices.Contains(advices, advice) {
			advices = append(advices, advice)
		}
	}
	return fmt.Errorf("cannot %s %s: %s\n%s\nnothing was done", Command(p.Destroys), p.Fleet, strings.Join(whys, "; "), strings.Join(advices, "\n"))
}

// Changed returns the differences of a plan from the approved or stored one, as an error; nil without differences.
func Changed(all []plan.Difference) error {
	lines := make([]error, len(all))
	for i, d := range all {
		lines[i] = errors.New("  " + difference(d))
	}
	return errors.Join(lines...)
}

// difference returns the sentence of one difference.
func difference(d plan.Difference) string {
	node := clean(cmp.Or(d.Is.Node, d.Was.Node))
	why := Reasons(d.Is.Reasons)
	switch d.Kind {
	case plan.OtherFleet:
		return fmt.Sprintf("the plan is of %s, and this is %s", clean(d.From), clean(d.To))
	case plan.OtherDriver:
		return fmt.Sprintf("the provider was %s, and is %s now", clean(d.From), clean(d.To))
	case plan.OtherRevision:
		return fmt.Sprintf("another program stored the environment %s", clean(d.To))
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
	case plan.OtherDetails:
		return fmt.Sprintf("%s: the details of %s changed: %s", node, d.Is.Verb, why)
	}
	return clean(string(d.Kind))
}

// NotReplaced reports a node whose machine an operator wants to replace, and that the plan does not replace.
func NotReplaced(p plan.Plan, nodes []string) error {
	for _, node := range nodes {
		i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Node == node && !s.Creates })
		switch {
		case i >= 0:
			return fmt.Errorf("cannot replace the machine of %s: %s", node, Reasons(p.Steps[i].Reasons))
		case !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Node == node }):
			return fmt.Errorf("cannot replace the machine of %q: the environment has no such node\n`pulley nodes -e %s` lists the nodes", node, p.Fleet)
		}
	}
	return nil
}
