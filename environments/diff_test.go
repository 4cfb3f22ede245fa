package environments

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pulley/internal/model"
)

// If a plan omitted a change, an operator would notice it only when machines are gone.
func TestDiff(t *testing.T) {
	env := func(stack string, roles ...Role) *Environment {
		return &Environment{Name: "dev", Stack: stack, Roles: roles}
	}
	web, db := Role{Name: "web", Cardinality: 2, Flavor: "small"}, Role{Name: "db", Cardinality: 1, Flavor: ""}
	for _, c := range []struct {
		sentence string
		old, new *Environment
		lines    string
	}{
		{"nothing changes", env("", web, db), env("", web, db), ""},
		{"the first time everything is new", nil, env("", web, db),
			"web: new, cardinality 2, flavor small (+web1, web2)\ndb: new, cardinality 1 (+db1)"},
		{"another stack is another fleet", env("t41", web), env("t42", web),
			"web: new, cardinality 2, flavor small (+web1_t42, web2_t42)"},
		{"a role grows", env("t42", db, web), env("t42", db, Role{Name: "web", Cardinality: 4, Flavor: "small"}),
			"web: cardinality 2 → 4 (+web3_t42, web4_t42)"},
		{"a role shrinks from its end", env("", Role{Name: "web", Cardinality: 4, Flavor: ""}), env("", Role{Name: "web", Cardinality: 2, Flavor: ""}),
			"web: cardinality 4 → 2 (-web3, web4)"},
		{"many nodes are counted", env("", Role{Name: "web", Cardinality: 3, Flavor: ""}), env("", Role{Name: "web", Cardinality: 8, Flavor: ""}),
			"web: cardinality 3 → 8 (+web4 … web8, 5 nodes)"},
		{"a role goes", env("", web, db), env("", web), "db: removed, had cardinality 1 (-db1)"},
		{"a role without nodes comes", env(""), env("", Role{Name: "web", Cardinality: 0, Flavor: ""}), "web: new, cardinality 0"},
		{"flavor and cardinality change", env("", web), env("", Role{Name: "web", Cardinality: 1, Flavor: ""}),
			"web: cardinality 2 → 1 (-web2)\nweb: flavor small → none"},
		{"only the order changes", env("", web, db), env("", db, web), "the roles are in another order"},
		{"a role in front does not reorder the others", env("", web, db), env("", Role{Name: "lb", Cardinality: 1, Flavor: ""}, web, db),
			"lb: new, cardinality 1 (+lb1)"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got := Diff(c.old, c.new)
			if lines := strings.Join(got.Lines(), "\n"); lines != c.lines {
				t.Errorf("got\n%s\nwant\n%s", lines, c.lines)
			}
		})
	}
}

// The old nodes, less the removed, plus the added, are the new nodes: no machine is forgotten or made twice.
func TestDiffAccountsForEveryNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, new := anyEnvironment.Draw(t, "old"), anyEnvironment.Draw(t, "new")
		old.Name, old.Stack = new.Name, new.Stack
		if len(old.Roles) > 0 && len(new.Roles) > 0 {
			old.Roles[0].Name = new.Roles[len(new.Roles)-1].Name
		}
		seen := map[string]bool{}
		old.Roles = slices.DeleteFunc(old.Roles, func(r Role) bool {
			twice := seen[r.Name]
			seen[r.Name] = true
			return twice
		})
		c := Diff(old, new)
		fleet := map[model.Node]bool{}
		for n := range old.Nodes() {
			fleet[n] = true
		}
		for _, r := range c.Roles {
			var was, is int
			if r.Old != nil {
				was = r.Old.Cardinality
			}
			if r.New != nil {
				is = r.New.Cardinality
			}
			for num := is + 1; num <= was; num++ {
				delete(fleet, model.Node{Role: r.Name, Num: num, Stack: new.Stack})
			}
			for num := was + 1; num <= is; num++ {
				fleet[model.Node{Role: r.Name, Num: num, Stack: new.Stack}] = true
			}
		}
		want := map[model.Node]bool{}
		for n := range new.Nodes() {
			want[n] = true
		}
		if !maps.Equal(fleet, want) {
			t.Fatalf("got %v, want %v", fleet, want)
		}
		if (len(c.Lines()) == 0) != same(old, new) {
			t.Fatalf("the changes from %+v to %+v are %q", old, new, c.Lines())
		}
	})
}

// Scripts read the JSON of a plan.
func TestChangesAsJSON(t *testing.T) {
	c := Diff(&Environment{Name: "dev", Stack: "t42"}, &Environment{Name: "dev", Stack: "t42", Roles: []Role{{Name: "web", Cardinality: 1, Flavor: "small"}}})
	got, err := json.Marshal(c)
	want := `{"environment":"dev@t42","roles":[{"name":"web","old":null,"new":{"name":"web","cardinality":1,"flavor":"small"}}],"reordered":false}`
	if err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
}
