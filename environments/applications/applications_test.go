package applications

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// lamp returns the components of two applications: a database, and three web servers that consume it.
func lamp() (all []Component) {
	for _, app := range []string{"app2", "app1"} {
		sql := "Sql[" + app + "]"
		all = append(all, Component{Name: Name{"Lamp", app, "Lamp::Mysql[" + app + "]"}, Nodes: []string{"dev1"}, Produces: []string{sql}})
		for i := range 3 {
			all = append(all, Component{
				Name: Name{"Lamp", app, fmt.Sprintf("Lamp::Webapp[%s-%d]", app, i+1)}, Nodes: []string{fmt.Sprintf("dev%d", i+2)}, Consumes: []string{sql},
			})
		}
	}
	return all
}

// of returns components that are written as "name on node: produces > consumes".
func of(texts ...string) (all []Component) {
	for _, text := range texts {
		head, tail, _ := strings.Cut(text, ":")
		name, nodes, _ := strings.Cut(head, " on ")
		produces, consumes, _ := strings.Cut(tail, ">")
		all = append(all, Component{
			Name: Name{"A", "a", name}, Nodes: strings.Fields(nodes), Produces: strings.Fields(produces), Consumes: strings.Fields(consumes),
		})
	}
	return all
}

// A web server that runs before its database takes its site down.
func TestLayers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sentence   string
		components []Component
		roles      []Role
		want       string
	}{
		{"two applications on the same nodes", lamp(), nil, "dev1 | dev2 dev3 dev4"},
		{"nothing is consumed", of("x on n1: a", "y on n2:"), nil, "n1 n2"},
		{"three layers", of("x on n1: a", "y on n2: b > a", "z on n3: > b a"), nil, "n1 | n2 | n3"},
		{"a component consumes its own product, on one node", of("x on n1: a > a"), nil, "n1"},
		{"a component consumes its own product, on several nodes", of("x on n1 n2: a > a"), nil, "n1 n2"},
		{"a component consumes its own product, and another one makes it", of("x on n1: a", "y on n2: a > a"), nil, "n1 | n2"},
		{"two components of one node", of("x on n1: a", "y on n1: > a"), nil, "n1"},
		{"each node has its own producer", of("x on n1 n2: a", "y on n1 n2: > a"), nil, "n1 n2"},
		{"a node of several layers runs once, in the last of them", of("x on n1: a", "y on n2: b > a", "z on n1:", "w on n3: > b", "v on n2:"), nil, "n1 | n2 | n3"},
		{"several producers", of("x on n1 n2: a", "y on n3: a", "z on n4: > a"), nil, "n1 n2 n3 | n4"},
		{"roles", nil, []Role{{"db", []string{"db1"}, nil}, {"web", []string{"web1", "web2"}, []string{"db"}}}, "db1 | web1 web2"},
		{"a role without nodes between two", nil, []Role{{"db", []string{"db1"}, nil}, {"ca", nil, []string{"db"}}, {"web", []string{"web1"}, []string{"ca"}}}, "db1 | web1"},
		{"roles and components", of("x on web1: a", "y on ca1: > a"), []Role{{"db", []string{"db1"}, nil}, {"web", []string{"web1"}, []string{"db"}}, {"ca", []string{"ca1"}, nil}}, "db1 | web1 | ca1"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			g, err := Make(c.components, c.roles)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, nodes := range g.Layers() {
				got = append(got, strings.Join(nodes, " "))
			}
			if got := strings.Join(got, " | "); got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

// Without the names of all its parts, nobody finds a cycle in a file of a thousand lines.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sentence   string
		components []Component
		roles      []Role
		want       string
	}{
		{"a cycle of two", of("x on n1: a > b", "y on n2: b > a"), nil,
			"A[a] -> x on n1 consumes b, which A[a] -> y on n2 produces; A[a] -> y on n2 consumes a, which A[a] -> x on n1 produces | remove one of these dependencies"},
		{"a cycle of components on one node", of("x on n1: a > b", "y on n1: b > a"), nil,
			"A[a] -> y on n1 consumes a, which A[a] -> x on n1 produces; A[a] -> x on n1 consumes b, which A[a] -> y on n1 produces | remove one of these dependencies"},
		{"two nodes need each other through different components", of("x on n1: a", "y on n2: > a", "v on n2: b", "w on n1: > b"), nil,
			"A[a] -> w on n1 consumes b, which A[a] -> v on n2 produces; A[a] -> y on n2 consumes a, which A[a] -> x on n1 produces | " +
				"a node applies all of its components in one run: move one of these components to another node, or remove one of these dependencies"},
		{"components against roles", of("x on web1: a", "y on db1: > a"), []Role{{"db", []string{"db1"}, nil}, {"web", []string{"web1"}, []string{"db"}}},
			"A[a] -> y on db1 consumes a, which A[a] -> x on web1 produces; web1 of role web comes after db1 of role db | " +
				"a node applies all of its components in one run: move one of these components to another node, or remove one of these dependencies"},
		{"nobody produces it", of("x on n1: > a b", "y on n2: b"), nil, "A[a] -> x consumes a, and no component produces it | "},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			_, err := Make(c.components, c.roles)
			got, remedy := fmt.Sprint(err), ""
			if cycle := (*CycleError)(nil); errors.As(err, &cycle) {
				remedy = cycle.Remedy()
			}
			if got += " | " + remedy; got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A selection must not run a web server whose database it left out, unseen.
func TestOutside(t *testing.T) {
	t.Parallel()
	g, err := Make(append(lamp(), of("cache on dev2: c > c", "job on dev3: > c")...), nil)
	if err != nil {
		t.Fatal(err)
	}
	none, err := Make(of("cache on : c", "web on n1: > c", "spare on n2: d", "again on : d", "job on n3: > d"), nil)
	if err != nil {
		t.Fatal(err)
	}
	needs := none.Outside(map[string]bool{"n1": true, "n2": true, "n3": true})
	if len(needs) != 1 || needs[0].Sentence() != "A[a] -> web on n1 consumes c, and A[a] -> cache, which produces it, has no node" {
		t.Errorf("of a component without nodes: %v", needs)
	}
	for _, c := range []struct{ selected, want string }{
		{"dev1", ""},
		{"dev1 dev2 dev3 dev4", ""},
		{"dev2", "Lamp[app1] -> Lamp::Webapp[app1-1] on dev2 consumes Sql[app1], which Lamp[app1] -> Lamp::Mysql[app1] on dev1 produces\n" +
			"Lamp[app2] -> Lamp::Webapp[app2-1] on dev2 consumes Sql[app2], which Lamp[app2] -> Lamp::Mysql[app2] on dev1 produces"},
		{"dev1 dev3", "A[a] -> job on dev3 consumes c, which A[a] -> cache on dev2 produces"},
	} {
		selected := map[string]bool{}
		for _, node := range strings.Fields(c.selected) {
			selected[node] = true
		}
		var got []string
		for _, n := range g.Outside(selected) {
			got = append(got, n.Sentence())
		}
		if got := strings.Join(got, "\n"); got != c.want {
			t.Errorf("%s: %s", c.selected, got)
		}
	}
}

// anyGraph draws components on few nodes, with few capabilities: cycles, self-consumption and several producers are common.
func anyGraph(t *rapid.T) (components []Component, roles []Role) {
	nodes := []string{"web1", "web2", "db1", "db2", "ca1"}
	some := func(what string, of []string, most int) []string {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, most, rapid.ID[string]).Draw(t, what)
	}
	produced := map[string]bool{}
	for i := range rapid.IntRange(0, 7).Draw(t, "components") {
		c := Component{Name: Name{"A", "a", fmt.Sprint(i)}, Nodes: some("nodes", nodes, 2), Produces: some("produces", []string{"a", "b", "c", "d"}, 2)}
		for _, p := range c.Produces {
			produced[p] = true
		}
		c.Consumes = some("consumes", []string{"a", "b", "c", "d"}, 2)
		components = append(components, c)
	}
	for i := range components {
		components[i].Consumes = slices.DeleteFunc(components[i].Consumes, func(p string) bool { return !produced[p] })
	}
	if rapid.Bool().Draw(t, "roles") {
		roles = []Role{{"web", nodes[:2], []string{"db"}}, {"db", some("db", nodes[2:4], 2), some("after", []string{"ca"}, 1)}, {"ca", nodes[4:], nil}}
	}
	return components, roles
}

// needs is the definition: whether a node needs another one, and by which steps.
func needs(components []Component, roles []Role) (all []Step) {
	for _, c := range components {
		for _, capability := range c.Consumes {
			for _, node := range c.Nodes {
				own := slices.ContainsFunc(components, func(p Component) bool {
					return p.Name != c.Name && slices.Contains(p.Nodes, node) && slices.Contains(p.Produces, capability)
				})
				for _, p := range components {
					if p.Name == c.Name || !slices.Contains(p.Produces, capability) {
						continue
					}
					for _, on := range p.Nodes {
						if !own || on == node {
							all = append(all, Step{Need: Need{node, c.Name, capability, p.Name, on}})
						}
					}
				}
			}
		}
	}
	for _, r := range roles {
		for _, before := range roles {
			if !comesAfter(roles, r, before.Name) {
				continue
			}
			for _, node := range r.Nodes {
				for _, on := range before.Nodes {
					all = append(all, Step{Need: Need{Node: node, On: on}, Role: r.Name, After: before.Name})
				}
			}
		}
	}
	return all
}

func comesAfter(roles []Role, r Role, name string) bool {
	return slices.Contains(r.After, name) || slices.ContainsFunc(roles, func(between Role) bool {
		return slices.Contains(r.After, between.Name) && comesAfter(roles, between, name)
	})
}

// Every order satisfies all needs, no order is refused that exists, and each named cycle is one.
func TestGraphs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		components, roles := anyGraph(t)
		g, err := Make(components, roles)
		all := needs(components, roles)
		if err == nil {
			checkLayers(t, g.Layers(), all)
			return
		}
		cycle := (*CycleError)(nil)
		if !errors.As(err, &cycle) || len(cycle.Steps) < 2 {
			t.Fatalf("%v", err)
		}
		for i, s := range cycle.Steps {
			if !slices.ContainsFunc(all, func(real Step) bool { return reflect.DeepEqual(real, s) }) {
				t.Errorf("nobody needs this: %s", s.Sentence())
			}
			if before := cycle.Steps[(i+len(cycle.Steps)-1)%len(cycle.Steps)]; before.Node != s.On {
				t.Errorf("%s does not follow %s", s.Sentence(), before.Sentence())
			}
		}
		if single := !slices.ContainsFunc(cycle.Steps, func(s Step) bool { return s.Node != s.On }); single {
			for i, s := range cycle.Steps { // one node can do it, unless its components really make a cycle
				if before := cycle.Steps[(i+len(cycle.Steps)-1)%len(cycle.Steps)]; before.Consumer != s.Producer {
					t.Errorf("%s does not follow %s", s.Sentence(), before.Sentence())
				}
			}
		}
	})
}

// checkLayers checks that each node is in the first layer after all nodes that it needs.
func checkLayers(t *rapid.T, layers [][]string, all []Step) {
	layer := map[string]int{}
	for i, nodes := range layers {
		for _, node := range nodes {
			if _, twice := layer[node]; twice {
				t.Errorf("%s is in two layers", node)
			}
			layer[node] = i
		}
	}
	first := map[string]int{}
	for _, s := range all {
		if s.Node != s.On {
			first[s.Node] = max(first[s.Node], layer[s.On]+1)
		}
	}
	for node, i := range layer {
		if i != first[node] {
			t.Errorf("%s is in layer %d, not %d", node, i, first[node])
		}
	}
}

// A drawing that its program refuses, or that lacks an arrow, misleads who looks at it.
func TestDrawings(t *testing.T) {
	t.Parallel()
	g, err := Make(lamp(), []Role{{"dev", []string{"dev1", "dev2", "dev3", "dev4"}, nil}, {"ca", []string{"ca1"}, []string{"dev"}}})
	if err != nil {
		t.Fatal(err)
	}
	d := Drawing{Title: "production", Groups: g.Layers(), Graph: g}
	for name, write := range map[string]func(*strings.Builder){
		"lamp.dot": func(b *strings.Builder) { d.DOT(b) }, "lamp.mmd": func(b *strings.Builder) { d.Mermaid(b) },
	} {
		var b strings.Builder
		write(&b)
		want, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s:\n%s", name, b.String())
		}
	}
}
