package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/internal/cli"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/model"
	"pulley/internal/where"
)

// NodeFacts are the published facts of one node; `pulley facts NODE -o json` prints them.
type NodeFacts struct {
	Node string `json:"node"`
	facts.Published
}

// FactsOf reads the published facts of a node.
func FactsOf(ctx context.Context, s *etcd.DB, ref model.Ref, node string) (NodeFacts, error) {
	b, err := In(s).FactsOf(ctx, ref, node)
	if err != nil {
		return NodeFacts{}, err
	}
	if b == nil {
		if _, err := FindNode(ctx, s, ref, node); err != nil {
			return NodeFacts{}, err
		}
		return NodeFacts{}, fmt.Errorf("cannot find facts of %s in %s: the node has published none\nit publishes them with its next run; `pulley explain %[1]s -e %[2]s` shows when", node, ref)
	}
	p, err := facts.Decode(b)
	if err != nil {
		return NodeFacts{}, fmt.Errorf("cannot read the facts of %s: %w", node, err)
	}
	return NodeFacts{node, p}, nil
}

// Part returns the value at a path of a node's facts. Its error suggests a similar name.
func (n NodeFacts) Part(path string) (json.RawMessage, error) {
	if found := n.Find(path); found != nil {
		return found, nil
	}
	hint := "`pulley facts " + n.Node + "` lists its facts"
	first, _, _ := strings.Cut(path, ".")
	switch near := model.SuggestName(first, slices.Collect(maps.Keys(n.Facts))); {
	case slices.Contains(n.Cut, first):
		hint = "the node left it out, because it is too large"
	case near != "" && near != first:
		hint = "did you mean " + near + "?"
	}
	return nil, fmt.Errorf("cannot find fact %s of %s\n%s", quoted(path), n.Node, hint)
}

// evaluationTime limits the evaluation of an expression for all nodes of a fleet.
const evaluationTime = 20 * time.Second

// Narrow evaluates the expression of a selection for the nodes of a fleet, and returns the selection of those for which it is
// true. Without an expression it reads nothing. notes are about the expression, for the user.
func Narrow(ctx context.Context, s *etcd.DB, ref model.Ref, f FleetState, sel Selection, now time.Time) (narrow Selection, notes []string, err error) {
	if sel.Where == nil {
		return sel, nil, nil
	}
	evaluation, end := context.WithCancelCause(ctx)
	defer end(nil)
	e := newEvaluation(evaluation, sel, f, ref, now)
	if err := readFacts(ctx, s, ref, sel, e.add); err != nil {
		end(err)
		e.done.Wait()
		return sel, nil, err
	}
	limit := time.AfterFunc(evaluationTime, func() { end(context.DeadlineExceeded) })
	defer limit.Stop()
	e.finish()
	if evaluation.Err() != nil {
		return sel, nil, fmt.Errorf("cannot evaluate the expression: %w\nsimplify it", context.Cause(evaluation))
	}
	sel.matched = e.nodes
	return sel, e.notes(), nil
}

// readFacts calls each with the published facts that a selection may need, as they are stored.
func readFacts(ctx context.Context, s *etcd.DB, ref model.Ref, sel Selection, each func(node string, b []byte)) error {
	if len(sel.Nodes) == 1 {
		b, err := In(s).FactsOf(ctx, ref, sel.Nodes[0])
		if b != nil {
			each(sel.Nodes[0], b)
		}
		return err
	}
	return In(s).Facts(ctx, ref, each)
}

// evaluation evaluates an expression for the nodes of a fleet, on all processors, while etcd sends the next facts.
type evaluation struct {
	Selection
	ctx   context.Context // ends the evaluation
	fleet FleetState
	ref   model.Ref
	now   time.Time
	roles map[string]string // of the selected nodes without facts so far
	part  []published
	done  sync.WaitGroup

	mu sync.Mutex
	matched
}

// published are the facts of a selected node, as they are stored; nil: none.
type published struct {
	node, role string
	facts      []byte
}

// matched are the results of an expression for some nodes.
type matched struct {
	nodes  map[string]bool // for which it is true
	failed int             // for which it has no value
	first  error           // of them
	silent int             // registered nodes without published facts
	names  map[string]bool // of the facts that it reads and some node has
	sample []byte          // facts of one node, for the suggestion of names
	damage []string        // unreadable facts
}

func newMatched() matched { return matched{nodes: map[string]bool{}, names: map[string]bool{}} }

// evaluatedAtOnce is the number of nodes of one goroutine.
const evaluatedAtOnce = 100

func newEvaluation(ctx context.Context, sel Selection, f FleetState, ref model.Ref, now time.Time) *evaluation {
	e := &evaluation{Selection: sel, ctx: ctx, fleet: f, ref: ref, now: now, roles: map[string]string{}, matched: newMatched()}
	called := map[string]string{}
	if f.Spec != nil {
		called = calledFor(f.Spec)
	}
	names := f.Known()
	for name := range called {
		names[name] = true
	}
	for name := range names {
		if role := roleOf(f, name, called[name]); sel.Has(role, name) {
			e.roles[name] = role
		}
	}
	return e
}

// add evaluates the expression for a node that has facts.
func (e *evaluation) add(node string, facts []byte) {
	role, selected := e.roles[node]
	if !selected {
		return
	}
	delete(e.roles, node)
	if e.part = append(e.part, published{node, role, facts}); len(e.part) == evaluatedAtOnce {
		e.evaluate()
	}
}

// finish evaluates the expression for all other nodes, and waits for the results.
func (e *evaluation) finish() {
	for node, role := range e.roles {
		e.part = append(e.part, published{node, role, nil})
	}
	e.evaluate()
	e.done.Wait()
}

// evaluate evaluates the expression for the nodes that were added.
func (e *evaluation) evaluate() {
	part := e.part
	e.part = nil
	e.done.Go(func() {
		m, matcher := newMatched(), e.Where.Matcher()
		for _, p := range part {
			e.evaluateNode(matcher, &m, p)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.merge(m)
	})
}

func (m *matched) merge(other matched) {
	maps.Copy(m.nodes, other.nodes)
	maps.Copy(m.names, other.names)
	m.failed, m.silent, m.first, m.damage = m.failed+other.failed, m.silent+other.silent, cmp.Or(m.first, other.first), append(m.damage, other.damage...)
	if m.sample == nil {
		m.sample = other.sample
	}
}

func (e *evaluation) evaluateNode(matcher *where.Matcher, m *matched, p published) {
	_, registered := e.fleet.Hosts[p.node]
	values := map[string]any{"node": p.node, "role": p.role, "environment": e.ref.Environment, "stack": e.ref.Stack, "registered": registered}
	switch {
	case p.facts != nil:
		m.sample = p.facts
		if err := fill(values, e.Where, p.facts, m.names); err != nil {
			m.damage = append(m.damage, fmt.Sprintf("cannot read the facts of %s: %v", p.node, err))
		}
	case registered:
		m.silent++
	}
	e.addAttributes(values, m, p)
	if e.Where.Judged() {
		n := lookAt(e.fleet, p.node, p.role, e.now)
		values["state"], values["reason"], values["release"], values["desired"] = string(n.State), string(n.Reason), n.Release, n.Desired
		values["data"], values["outcome"], values["unclassified"], values["agent"] = int(n.Data), string(n.Outcome), n.Unclassified, e.fleet.Statuses[p.node].Version
	}
	is, err := matcher.Matches(e.ctx, values)
	if err != nil {
		m.failed++
		if m.first == nil {
			m.first = fmt.Errorf("%s: %w", p.node, err)
		}
	}
	if is {
		m.nodes[p.node] = true
	}
}

// addAttributes adds those attributes of the node in the environment file that the expression names and no fact has. A new machine
// has attributes before it has facts.
func (e *evaluation) addAttributes(values map[string]any, m *matched, p published) {
	if e.fleet.Spec == nil {
		return
	}
	names, _ := e.Where.Facts()
	for _, name := range names {
		if _, has := values[name]; has || !e.fleet.Spec.HasAttribute(name) {
			continue
		}
		if m.names[name] = true; e.fleet.Spec.AttributeOf(p.role, p.node, name) != "" {
			values[name] = e.fleet.Spec.AttributeOf(p.role, p.node, name)
		}
	}
}

// fill adds the facts that an expression reads to the values of a node. It adds their names to names.
func fill(values map[string]any, e *where.Expression, published []byte, names map[string]bool) error {
	wanted, all := e.Facts()
	var found map[string]json.RawMessage
	var trusted json.RawMessage
	var err error
	if all {
		var p facts.Published
		p, err = facts.Decode(published)
		found, trusted = p.Facts, p.Trusted
	} else {
		found, trusted, err = facts.Pick(published, wanted)
	}
	own := map[string]any{}
	for name, raw := range found {
		v, unreadable := facts.Value(raw)
		err = errors.Join(err, unreadable)
		own[name], names[name] = v, true
		if !where.IsVariable(name) { // no fact stands for a variable
			values[name] = v
		}
	}
	for _, path := range e.Paths() {
		if name := strings.Join(path, "."); !names[name] && hasPart(own, path) {
			names[name] = true
		}
	}
	var of map[string]any
	if trusted != nil {
		err = errors.Join(err, json.Unmarshal(trusted, &of))
	}
	values["facts"], values["trusted"] = own, of
	return err
}

// hasPart reports whether values have a part, such as {os, family}.
func hasPart(values map[string]any, path []string) bool {
	var at any = values
	for _, name := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return false
		}
		if at, ok = m[name]; !ok {
			return false
		}
	}
	return true
}

// maxNotes limits the unreadable facts that are named one by one.
const maxNotes = 3

// notes returns what a user must know about the result.
func (e *evaluation) notes() (notes []string) {
	m := &e.matched
	slices.Sort(m.damage)
	notes = slices.Clone(m.damage[:min(len(m.damage), maxNotes)])
	if more := len(m.damage) - maxNotes; more > 0 {
		notes = append(notes, fmt.Sprintf("cannot read the facts of %s", cli.Count(more, "more node")))
	}
	wanted, _ := e.Where.Facts()
	some, _ := facts.Decode(m.sample) // for names only
	for _, name := range wanted {
		if m.names[name] || m.sample == nil {
			continue
		}
		note := fmt.Sprintf("no selected node has a fact %s: it is nil", quoted(name))
		if near := model.SuggestName(name, slices.Concat(slices.Collect(maps.Keys(some.Facts)), where.Names())); near != "" {
			note += "\ndid you mean " + near + "?"
		}
		notes = append(notes, note)
	}
	for _, path := range e.Where.Paths() {
		if name := strings.Join(path, "."); m.names[path[0]] && !m.names[name] {
			notes = append(notes, fmt.Sprintf("no selected node has a fact %s: it is nil", quoted(name)))
		}
	}
	if len(wanted) > 0 && m.silent > 0 {
		notes = append(notes, fmt.Sprintf("without published facts: %s", cli.Count(m.silent, "registered node")))
	}
	if len(m.nodes) == 0 {
		notes = append(notes, "the expression selects no node")
	}
	if m.failed > 0 {
		notes = append(notes, fmt.Sprintf("the expression has no value for %s, and selects none of them; the first is %v", cli.Count(m.failed, "node"), m.first))
	}
	return notes
}

// Group are the nodes with one value of a fact.
type Group struct {
	Value json.RawMessage `json:"value"` // null: nodes without the fact
	Nodes int             `json:"nodes"`
	First []string        `json:"first"`
}

// Groups are the nodes of a fleet by the value of a fact; `pulley facts --group PATH -o json` prints them.
type Groups struct {
	Path   string  `json:"path"`
	Groups []Group `json:"groups"`
}

// GroupFacts counts the selected nodes by their value at a path of the facts, the most frequent first.
func GroupFacts(ctx context.Context, s *etcd.DB, ref model.Ref, sel Selection, path string, now time.Time) (g Groups, notes []string, err error) {
	r, err := ReadHosts(ctx, s, ref, sel, now)
	if err != nil {
		return g, nil, err
	}
	values, err := valuesAt(ctx, s, ref, sel, path)
	return group(Hosts(r, now), values, path), slices.Concat(r.Damaged, r.Notes), err
}

// valuesAt reads the value of each node at a path of its facts.
func valuesAt(ctx context.Context, s *etcd.DB, ref model.Ref, sel Selection, path string) (map[string]string, error) {
	values := map[string]string{}
	err := readFacts(ctx, s, ref, sel, func(node string, b []byte) {
		if found := facts.At(b, path); found != nil {
			values[node] = string(found)
		}
	})
	return values, err
}

func group(nodes []Host, values map[string]string, path string) Groups {
	by := map[string]*Group{}
	for _, n := range nodes {
		if n.Node == "" { // a machine without a name
			continue
		}
		value := cmp.Or(values[n.Node], "null")
		g := by[value]
		if g == nil {
			g = &Group{Value: json.RawMessage(value), First: []string{}}
			by[value] = g
		}
		if g.Nodes++; len(g.First) < firstNodes {
			g.First = append(g.First, n.Node)
		}
	}
	all := Groups{Path: path, Groups: []Group{}}
	for _, value := range slices.Sorted(maps.Keys(by)) {
		all.Groups = append(all.Groups, *by[value])
	}
	slices.SortStableFunc(all.Groups, func(a, b Group) int { return b.Nodes - a.Nodes })
	return all
}
