package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"pulley/environments"
	"pulley/internal/cli"
	"pulley/internal/facts"
	"pulley/internal/store"
	"pulley/internal/where"
)

// NodeFacts are the published facts of one node; `pulley facts NODE -o json` prints them.
type NodeFacts struct {
	Node string `json:"node"`
	facts.Published
}

// FactsOf reads the published facts of a node.
func FactsOf(ctx context.Context, s *store.Store, ref environments.Ref, node string) (NodeFacts, error) {
	b, err := s.Fleet.FactsOf(ctx, ref, node)
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
	switch near := environments.SuggestName(first, slices.Collect(maps.Keys(n.Facts))); {
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
func Narrow(ctx context.Context, s *store.Store, ref environments.Ref, f store.FleetState, sel Selection, now time.Time) (narrow Selection, notes []string, err error) {
	if sel.Where == nil {
		return sel, nil, nil
	}
	published, err := readFacts(ctx, s, ref, sel)
	if err != nil {
		return sel, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, evaluationTime)
	defer cancel()
	var m matched
	if err := where.Within(ctx, func() { m = sel.match(f, ref, published, now) }); err != nil {
		return sel, nil, err
	}
	sel.matched = m.nodes
	return sel, m.notes(sel.Where), nil
}

// readFacts reads the published facts that a selection may need, as they are stored.
func readFacts(ctx context.Context, s *store.Store, ref environments.Ref, sel Selection) (map[string][]byte, error) {
	published := map[string][]byte{}
	if len(sel.Nodes) == 1 {
		b, err := s.Fleet.FactsOf(ctx, ref, sel.Nodes[0])
		if b != nil {
			published[sel.Nodes[0]] = b
		}
		return published, err
	}
	err := s.Fleet.Facts(ctx, ref, func(node string, b []byte) { published[node] = b })
	return published, err
}

// matched are the results of an expression for a fleet.
type matched struct {
	nodes  map[string]bool // for which it is true
	failed int             // for which it has no value
	first  error           // of them
	silent int             // registered nodes without published facts
	names  map[string]bool // of all facts
	damage []string
}

func (m *matched) add(other matched) {
	maps.Copy(m.nodes, other.nodes)
	maps.Copy(m.names, other.names)
	m.failed, m.silent, m.first, m.damage = m.failed+other.failed, m.silent+other.silent, cmp.Or(m.first, other.first), append(m.damage, other.damage...)
}

// match evaluates the expression for each selected node, on all processors.
func (s Selection) match(f store.FleetState, ref environments.Ref, published map[string][]byte, now time.Time) matched {
	called := map[string]string{}
	if f.Spec != nil {
		called = calledFor(f.Spec)
	}
	names := f.Known()
	for name := range called {
		names[name] = true
	}
	all := slices.Collect(maps.Keys(names))
	workers := max(1, min(runtime.GOMAXPROCS(0), len(all)/100))
	results := make([]matched, workers)
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			one := matched{nodes: map[string]bool{}, names: map[string]bool{}}
			matcher := s.Where.Matcher()
			for i := w; i < len(all); i += workers {
				s.matchNode(matcher, &one, f, ref, all[i], called[all[i]], published[all[i]], now)
			}
			results[w] = one
		})
	}
	done.Wait()
	sum := matched{nodes: map[string]bool{}, names: map[string]bool{}}
	for _, one := range results {
		sum.add(one)
	}
	return sum
}

func (s Selection) matchNode(matcher *where.Matcher, m *matched, f store.FleetState, ref environments.Ref, node, calledRole string, published []byte, now time.Time) {
	values := map[string]any{"node": node, "environment": ref.Environment, "stack": ref.Stack}
	role := cmp.Or(f.Hosts[node].Role, f.Statuses[node].Role, calledRole)
	if role == "" {
		role = f.RoleOf(node)
	}
	if !s.has(role, node) {
		return
	}
	_, registered := f.Hosts[node]
	if published == nil {
		if registered {
			m.silent++
		}
	} else if err := fill(values, s.Where, published, m.names); err != nil {
		m.damage = append(m.damage, fmt.Sprintf("cannot read the facts of %s: %v", node, err))
	}
	values["role"], values["registered"] = role, registered
	if s.Where.Judged() {
		n := lookAt(f, node, calledRole, now)
		values["state"], values["reason"], values["release"], values["desired"] = string(n.State), string(n.Reason), n.Release, n.Desired
		values["data"], values["outcome"], values["unclassified"], values["agent"] = int(n.Data), string(n.Outcome), n.Unclassified, f.Statuses[node].Version
	}
	is, err := matcher.Matches(values)
	if err != nil {
		m.failed++
		if m.first == nil {
			m.first = fmt.Errorf("%s: %w", node, err)
		}
	}
	if is {
		m.nodes[node] = true
	}
}

// fill adds the facts that an expression reads to the values of a node. It adds the names of all facts to names.
func fill(values map[string]any, e *where.Expression, published []byte, names map[string]bool) error {
	p, err := facts.Decode(published)
	if err != nil {
		return err
	}
	wanted, all := e.Facts()
	for name := range p.Facts {
		names[name] = true
	}
	if all {
		wanted = slices.Collect(maps.Keys(p.Facts))
	}
	own := map[string]any{}
	for _, name := range wanted {
		raw, ok := p.Facts[name]
		if !ok {
			continue
		}
		var v any
		err = errors.Join(err, json.Unmarshal(raw, &v))
		own[name] = v
		if !where.IsVariable(name) { // no fact stands for a variable
			values[name] = v
		}
	}
	var trusted map[string]any
	if p.Trusted != nil {
		err = errors.Join(err, json.Unmarshal(p.Trusted, &trusted))
	}
	values["facts"], values["trusted"] = own, trusted
	return err
}

// maxNotes limits the unreadable facts that are named one by one.
const maxNotes = 3

// notes returns what a user must know about the result.
func (m matched) notes(e *where.Expression) (notes []string) {
	slices.Sort(m.damage)
	notes = slices.Clone(m.damage[:min(len(m.damage), maxNotes)])
	if more := len(m.damage) - maxNotes; more > 0 {
		notes = append(notes, fmt.Sprintf("cannot read the facts of %s", cli.Count(more, "more node")))
	}
	wanted, _ := e.Facts()
	for _, name := range wanted {
		if m.names[name] || len(m.names) == 0 {
			continue
		}
		note := fmt.Sprintf("no selected node has a fact %s: it is nil", quoted(name))
		if near := environments.SuggestName(name, slices.Concat(slices.Collect(maps.Keys(m.names)), where.Names())); near != "" {
			note += "\ndid you mean " + near + "?"
		}
		notes = append(notes, note)
	}
	if len(wanted) > 0 && m.silent > 0 {
		notes = append(notes, fmt.Sprintf("without published facts: %s", cli.Count(m.silent, "registered node")))
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
func GroupFacts(ctx context.Context, s *store.Store, ref environments.Ref, sel Selection, path string, now time.Time) (g Groups, notes []string, err error) {
	f, err := Find(ctx, s, ref, sel)
	if err != nil {
		return g, nil, err
	}
	if sel, notes, err = Narrow(ctx, s, ref, f, sel, now); err != nil {
		return g, notes, err
	}
	published, err := readFacts(ctx, s, ref, sel)
	if err != nil {
		return g, notes, err
	}
	return group(Look(f, ref, sel, now).Nodes, published, path), append(notes, f.Damaged...), nil
}

func group(nodes []Node, published map[string][]byte, path string) Groups {
	by := map[string]*Group{}
	for _, n := range nodes {
		value := "null"
		if p, err := facts.Decode(published[n.Node]); err == nil {
			if found := p.Find(path); found != nil {
				value = string(found)
			}
		}
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
