package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/etcd"
	"pulley/internal/facts"
	"pulley/internal/model"
	"pulley/internal/where"
)

// narrowed evaluates an expression for registered nodes, of which some have facts.
func narrowed(t *testing.T, text string, published map[string]string, hosts int) (Selection, []string) {
	t.Helper()
	expression, err := where.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	f := FleetState{Hosts: map[string]model.Host{}}
	for i := range hosts {
		name := fmt.Sprintf("web%d", i+1)
		f.Hosts[name] = model.Host{Node: name, Role: "web"}
	}
	e := newEvaluation(t.Context(), Selection{Where: expression}, f, model.Ref{Environment: "dev"}, time.Now())
	for name, text := range published {
		p, err := facts.Source{Facts: map[string]json.RawMessage{"os": json.RawMessage(text)}}.From(nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		e.add(name, b)
	}
	e.add("stranger", []byte("x"))
	e.finish()
	sel := e.Selection
	sel.matched = e.nodes
	return sel, e.notes()
}

// An expression that is true for no node must select none: an empty selection elsewhere means all.
func TestExpressionThatIsTrueForNoNodeSelectsNone(t *testing.T) {
	t.Parallel()
	sel, notes := narrowed(t, `os.family == "Debain"`, map[string]string{"web1": `{"family":"Debian"}`}, 2)
	if !sel.Empty() || sel.All() || sel.Has("web", "web1") || sel.Has("web", "web9") || !slices.Contains(notes, "the expression selects no node") {
		t.Errorf("%+v: %q", sel, notes)
	}
	role := func(string) string { return "web" }
	if sel.Concerns(etcd.Scope{Node: "web1"}, role) || sel.Concerns(etcd.Scope{Role: "web"}, role) || !sel.Concerns(etcd.Scope{}, role) {
		t.Error("a change of a node or role concerns no selected node")
	}
	e := &environments.Environment{Name: "dev", Roles: []environments.Role{{Name: "web", Cardinality: 2}}}
	if roles := sel.only(e).Roles; len(roles) > 0 {
		t.Errorf("the health is judged of %v", roles)
	}
}

// Each node is judged once, by its own facts, on any number of processors.
func TestExpressionsAreEvaluatedForEachNode(t *testing.T) {
	t.Parallel()
	const hosts = 1234
	published := map[string]string{}
	for i := range hosts - 4 {
		published[fmt.Sprintf("web%d", i+1)] = fmt.Sprintf(`{"number":%d}`, i+1)
	}
	sel, notes := narrowed(t, `os.number % 2 == 1`, published, hosts)
	if len(sel.matched) != (hosts-4)/2 {
		t.Errorf("%d nodes are selected", len(sel.matched))
	}
	for i := range hosts - 4 {
		if name := fmt.Sprintf("web%d", i+1); sel.Has("web", name) != (i%2 == 0) {
			t.Fatalf("%s is selected: %t", name, sel.Has("web", name))
		}
	}
	text := strings.Join(notes, "\n")
	if !strings.Contains(text, "without published facts: 4 registered nodes") || !strings.Contains(text, "the expression has no value for 4 nodes") {
		t.Errorf("notes %q", notes)
	}
}
