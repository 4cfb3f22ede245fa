package environments

import (
	"slices"
	"testing"

	"pulley/environments/applications"
)

// A mistake in an application would run its web servers before their database.
func TestApplicationsAreChecked(t *testing.T) {
	const roles = "roles:\n  web: {cardinality: 2, after: [db]}\n  db: {cardinality: 1, members: [old.example.com]}\napplications:\n  Lamp:\n    app1:\n"
	for _, c := range []struct{ sentence, text, want string }{
		{"all is there", roles + "      mysql: {node: db1, produces: [sql]}\n      web: {role: web, consumes: [sql]}\n", ""},
		{"a member", roles + "      mysql: {node: old.example.com, produces: [sql]}\n", ""},
		{"its own product", roles + "      etcd: {role: db, produces: [etcd], consumes: [etcd]}\n", ""},
		{"no mapping", "roles: {}\napplications: [Lamp]\n", `dev.yaml:2:15: applications is a list, it has to be keys with values`},
		{"no component", "roles: {}\napplications: {Lamp: {app1: mysql}}\n", `dev.yaml:2:29: applications.Lamp.app1 is the text "mysql", it has to be keys with values`},
		{"an unknown key", roles + "      mysql: {nodes: [db1]}\n", `dev.yaml:7:7: component "mysql" has neither a node nor a role | write ` + "`node: web1` or `role: web`" + `
dev.yaml:7:15: component "mysql" has no key "nodes" | did you mean node?`},
		{"a node and a role", roles + "      mysql: {node: db1, role: db}\n", `dev.yaml:7:7: component "mysql" has a node and a role | keep one of them; two nodes are two components`},
		{"an unknown node", roles + "      mysql: {node: db2}\n", `dev.yaml:7:21: node "db2": it is neither a node by the cardinalities nor a member of a role | leave it out, or write its name like web1`},
		{"an unknown role", roles + "      mysql: {role: bd}\n", `dev.yaml:7:21: component "mysql" is of role "bd", and there is no such role | did you mean db?`},
		{"nobody produces it", roles + "      mysql: {node: db1, produces: [sql]}\n      web: {role: web, consumes: [sqll]}\n",
			`dev.yaml:8:35: component "web" consumes "sqll", and no component produces it | did you mean sql?`},
		{"brackets", "roles: {db: {cardinality: 1}}\napplications: {'Lamp[a]': {app1: {m: {node: db1}}}}\n", `dev.yaml:2:35: applications: name "Lamp[a]": it has brackets | write the instance below it`},
		{"a cycle", roles + "      a: {node: web1, produces: [x], consumes: [y]}\n      b: {node: web2, produces: [y], consumes: [x]}\n",
			`dev.yaml:7:7: applications make a cycle: Lamp[app1] -> a on web1 consumes y, which Lamp[app1] -> b on web2 produces; ` +
				`Lamp[app1] -> b on web2 consumes x, which Lamp[app1] -> a on web1 produces | remove one of these dependencies`},
		{"a cycle with the order of roles", roles + "      a: {role: web, produces: [x]}\n      b: {node: db1, consumes: [x]}\n",
			`dev.yaml:8:7: applications make a cycle: Lamp[app1] -> b on db1 consumes x, which Lamp[app1] -> a on web1 produces; web1 of role web comes after db1 of role db | ` +
				`a node applies all of its components in one run: move one of these components to another node, or remove one of these dependencies`},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := Parse("dev.yaml", []byte(c.text))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if got := problemLines(t, err); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A node of another stack must never run for this one.
func TestComponentsHaveTheNodesOfTheStack(t *testing.T) {
	e, err := Parse("dev.yaml", []byte("stack: t42\nroles: {db: {cardinality: 1, members: [old.example.com]}, web: {cardinality: 2}}\n"+
		"applications: {A: {a: {x: {node: db1}, y: {node: old.example.com}, z: {role: web}}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := e.Components(map[string][]string{"web": {"web1_t42", "web2_t42"}})
	var nodes []string
	for _, c := range all {
		nodes = append(nodes, c.Nodes...)
	}
	if want := []string{"db1_t42", "old.example.com", "web1_t42", "web2_t42"}; !slices.Equal(nodes, want) {
		t.Errorf("%q", nodes)
	}
	if _, err := applications.Make(all, nil); err != nil {
		t.Error(err)
	}
}
