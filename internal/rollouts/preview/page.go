package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pulley/internal/cli"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

// Page is the result of a preview; `pulley preview -o json` prints it.
type Page struct {
	Environment string           `json:"environment"`
	Release     string           `json:"release"`
	Data        model.Generation `json:"data"` // 0: each node's own
	Nodes       []NodeResult     `json:"nodes"`
	Failures    []Failure        `json:"failures"` // of complete runs, new ones first
	Changes     []Change         `json:"changes"`  // those of most nodes first; failed resources before all others
	NotChosen   int              `json:"not_chosen"`
}

// State is what became of a node's order.
type State string

// The states.
const (
	Looked  State = "looked"    // its changes are complete, but for Left
	Failed  State = "failed"    // its run failed
	NotRun  State = "not_run"   // it answered why it did not run
	NoReply State = "no_answer" // no answer, or an unreadable one
)

// NodeResult is the result of one node.
type NodeResult struct {
	Node    string        `json:"node"`
	Role    string        `json:"role"`
	State   State         `json:"state"`
	Cause   *model.Cause  `json:"cause,omitempty"`   // why it did not run, or its state without an answer
	Problem model.Problem `json:"problem,omitzero"`  // of a failed run
	Failing bool          `json:"failing,omitempty"` // its last run of the release in place failed, too
	Target  model.Target  `json:"target"`
	Changes int           `json:"changes"`
	Left    int           `json:"left,omitempty"`     // changes that the node left out, because they exceed its limits
	NoDiffs bool          `json:"no_diffs,omitempty"` // its release or data has secrets

	away    bool // nobody waits for it
	changes []model.ResourceEvent
}

func (r NodeResult) answered() bool { return r.State != NoReply || r.Problem != (model.Problem{}) }

// Failure is one cause for which the release does not run.
type Failure struct {
	Problem model.Problem `json:"problem"`
	New     bool          `json:"new"` // on a node whose last run did not fail
	Nodes   []string      `json:"nodes"`
}

// Change is one resource that a run would change, or that fails.
type Change struct {
	Resource string    `json:"resource"`
	Status   string    `json:"status"` // failed, skipped or noop
	New      bool      `json:"new"`    // failed on a node whose last run did not fail
	File     string    `json:"file,omitempty"`
	Line     int       `json:"line,omitempty"`
	Nodes    []string  `json:"nodes"`
	Variants []Variant `json:"variants"` // the one of most nodes first
}

// Variant is a change that is the same on some nodes.
type Variant struct {
	Nodes      []string               `json:"nodes"`
	Properties []model.PropertyChange `json:"properties,omitempty"`
	Messages   []string               `json:"messages,omitempty"`
	Diff       string                 `json:"diff,omitempty"`
	Cut        bool                   `json:"cut,omitempty"`
	Hidden     bool                   `json:"hidden,omitempty"`
}

func silent(n fleet.Node) NodeResult {
	cause := n.View.Cause
	return NodeResult{Node: n.Node, Role: n.Role, State: NoReply, Cause: &cause, away: n.State == model.Silent}
}

func unreadable(n fleet.Node, err error) NodeResult {
	return NodeResult{Node: n.Node, Role: n.Role, State: NoReply, Problem: model.Problem{Code: model.AnswerUnreadable, Text: model.Prose(err.Error())}}
}

func resultOf(n fleet.Node, p model.Preview) NodeResult {
	r := NodeResult{
		Node: n.Node, Role: n.Role, State: Looked, Cause: p.Cause, Problem: p.Problem, Failing: n.Outcome == model.Failed, Target: p.Target,
		Changes: len(p.Changes) + p.Left, Left: p.Left, NoDiffs: p.NoDiffs, changes: p.Changes,
	}
	switch {
	case p.Cause != nil:
		r.State = NotRun
	case p.Problem != (model.Problem{}):
		r.State = Failed
	}
	return r
}

// pageOf groups the results.
func pageOf(ref model.Ref, target model.Target, results []NodeResult, notChosen int) Page {
	p := Page{Environment: ref.String(), Release: target.Release, Data: target.Data, Nodes: results, Failures: []Failure{}, Changes: []Change{}, NotChosen: notChosen}
	index := map[string]int{} // of Changes
	for _, r := range results {
		if r.State == Failed && !slices.ContainsFunc(r.changes, func(e model.ResourceEvent) bool { return e.Status == "failed" }) {
			p.addFailure(r)
		}
		if r.State == NotRun {
			continue
		}
		for _, e := range r.changes {
			if _, known := headings[e.Status]; !known {
				e.Status = "noop"
			}
			p.addChange(index, r, e)
		}
	}
	slices.SortStableFunc(p.Failures, func(a, b Failure) int {
		return cmp.Or(compareTrue(a.New, b.New), cmp.Compare(len(b.Nodes), len(a.Nodes)))
	})
	for _, c := range p.Changes {
		slices.SortStableFunc(c.Variants, func(a, b Variant) int { return cmp.Compare(len(b.Nodes), len(a.Nodes)) })
	}
	rank := []string{"failed", "skipped", "noop"}
	slices.SortStableFunc(p.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.Status), slices.Index(rank, b.Status)), compareTrue(a.New, b.New),
			cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Resource, b.Resource))
	})
	return p
}

// compareTrue orders true before false.
func compareTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (p *Page) addFailure(r NodeResult) {
	problem := r.Problem
	problem.Text = model.Prose(strings.ReplaceAll(string(problem.Text), r.Node, "NODE")) // Puppet names it in each message
	for i := range p.Failures {
		if f := &p.Failures[i]; f.Problem == problem {
			f.Nodes, f.New = append(f.Nodes, r.Node), f.New || !r.Failing
			return
		}
	}
	p.Failures = append(p.Failures, Failure{problem, !r.Failing, []string{r.Node}})
}

func (p *Page) addChange(index map[string]int, r NodeResult, e model.ResourceEvent) {
	key := e.Status + " " + e.Resource
	i, known := index[key]
	if !known {
		i = len(p.Changes)
		index[key] = i
		p.Changes = append(p.Changes, Change{Resource: e.Resource, Status: e.Status, File: e.File, Line: e.Line})
	}
	c := &p.Changes[i]
	c.Nodes, c.New = append(c.Nodes, r.Node), c.New || e.Status == "failed" && !r.Failing
	for j := range c.Variants {
		if v := &c.Variants[j]; v.same(e) {
			v.Nodes = append(v.Nodes, r.Node)
			return
		}
	}
	c.Variants = append(c.Variants, Variant{[]string{r.Node}, e.Properties, e.Messages, e.Diff, e.Cut, e.Hidden})
}

func (v *Variant) same(e model.ResourceEvent) bool {
	return v.Diff == e.Diff && v.Cut == e.Cut && v.Hidden == e.Hidden && slices.Equal(v.Properties, e.Properties) && slices.Equal(v.Messages, e.Messages)
}

// Count returns the number of nodes in a state.
func (p Page) Count(s State) int {
	n := 0
	for _, r := range p.Nodes {
		if r.State == s {
			n++
		}
	}
	return n
}

// Objections lists why the release should reach no node: nodes on which it fails and whose last run did not fail, nodes on which it
// would change more than most resources (0: any number), and roles of which no node ran it.
func (p Page) Objections(most int) (all []string) {
	var failing, changed []string
	var roles []string
	ran := map[string]bool{}
	for _, r := range p.Nodes {
		if r.State == Failed && !r.Failing {
			failing = append(failing, r.Node)
		}
		if most > 0 && r.Changes > most {
			changed = append(changed, fmt.Sprintf("%s (%d)", r.Node, r.Changes))
		}
		if !slices.Contains(roles, r.Role) {
			roles = append(roles, r.Role)
		}
		ran[r.Role] = ran[r.Role] || r.State == Looked || r.State == Failed
	}
	if len(failing) > 0 {
		all = append(all, fmt.Sprintf("it fails on %s, where the last run did not fail: %s", cli.Count(len(failing), "node"), names(failing)))
	}
	if len(changed) > 0 {
		all = append(all, fmt.Sprintf("it would change more than %s on %s: %s", cli.Count(most, "resource"), cli.Count(len(changed), "node"), names(changed)))
	}
	for _, role := range roles {
		if !ran[role] {
			all = append(all, fmt.Sprintf("no node of role %s ran the preview", role))
		}
	}
	return all
}
