package environments

import (
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"pulley/internal/model"
)

const classified = `
stack: t42
puppet: {servers: {eu1: {address: 10.0.0.1}}}
layers: [node, role, site, environment, common]
enc:
  classes: {ntp: {servers: [a, b], port: 123}, base: }
  parameters: {datacenter: east, ratio: 1.0}
nodes:
  web2: {enc: {classes: {ntp: {servers: [c]}}, parameters: {datacenter: west}}, attributes: {site: ams}}
roles:
  web: {cardinality: 2, enc: {classes: [role::web]}}
  db: {cardinality: 1, enc: {parameters: {version: "15"}}}
`

// A node must get the classes of its environment, its role and itself, the nearest value of each parameter, and never an environment:
// Puppet would run it there.
func TestClassify(t *testing.T) {
	e, err := Parse("dev.yaml", []byte(classified))
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := Encode(e); err != nil {
		t.Fatal(err)
	} else if e, err = Decode(stored); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ certname, role, want string }{
		{"web1-t42", "web", `classes: {base: {}, ntp: {port: 123, servers: [a, b]}, "role::web": {}}
parameters: {datacenter: east, pulley_environment: dev@t42, pulley_layers: [nodes/web1_t42, roles/web, environment, common], pulley_role: web, ratio: 1.0}`},
		{"web2_t42", "web", `classes: {base: {}, ntp: {port: 123, servers: [c]}, "role::web": {}}
parameters: {datacenter: west, pulley_environment: dev@t42, pulley_layers: [nodes/web2_t42, roles/web, site/ams, environment, common], pulley_role: web, ratio: 1.0}`},
		{"db1-t42", "db", `classes: {base: {}, ntp: {port: 123, servers: [a, b]}}
parameters: {datacenter: east, pulley_environment: dev@t42, pulley_layers: [nodes/db1_t42, roles/db, environment, common], pulley_role: db, ratio: 1.0, version: "15"}`},
		{"old1.example.com", "", `classes: {base: {}, ntp: {port: 123, servers: [a, b]}}
parameters: {datacenter: east, pulley_environment: dev@t42, pulley_layers: [nodes/old1.example.com, environment, common], pulley_role: "", ratio: 1.0}`},
	} {
		got := e.Classify(c.role, model.NodeOf(c.certname)).YAML()
		var is, want any
		if err := yaml.Unmarshal(got, &is); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		a, _ := yaml.Marshal(is)
		b, _ := yaml.Marshal(want)
		if string(a) != string(b) || !strings.HasPrefix(string(got), "---\n") {
			t.Errorf("%s:\n%s\nwant\n%s", c.certname, got, b)
		}
	}
}

// A mistake in classes would otherwise fail the catalog of every node, on the server.
func TestClassificationIsChecked(t *testing.T) {
	const servers = "puppet: {servers: {eu1: {address: 10.0.0.1}}}\nroles: {web: {cardinality: 1}}\n"
	for _, c := range []struct{ yaml, want string }{
		{"enc: {classes: {Ntp: }}\n" + servers, `dev.yaml:1:17: class "Ntp": names of classes may contain small letters, digits, _ and ::, like role::web`},
		{"enc: {classes: [ntp, 1]}\n" + servers, `dev.yaml:1:22: enc.classes has an item that is the integer "1", not text | put quotes around it: "1"`},
		{"enc: {classes: ntp}\n" + servers, `dev.yaml:1:16: enc.classes is the text "ntp", it has to be keys with values`},
		{"enc: {classes: {ntp: [a]}}\n" + servers, `dev.yaml:1:22: enc.classes.ntp is a list, it has to be keys with values`},
		{"enc: {classes: {ntp: {Servers: a}}}\n" + servers, `dev.yaml:1:23: parameter "Servers" of class "ntp": names of parameters begin with a small letter, and may contain letters, digits and _`},
		{"enc: {classes: {ntp: {a: {1: b}}}}\n" + servers, `dev.yaml:1:26: enc.classes.ntp.a: the key 1 is not text (integer) | quote it`},
		{"enc: {parameters: {a: 99999999999999999999}}\n" + servers, `dev.yaml:1:23: enc.parameters.a: `},
		{"enc: {parameters: {a: &x 1, b: *x}}\n" + servers, "dev.yaml:1:23: anchors (\"&x\") are not supported | leave it out\ndev.yaml:1:32: aliases (\"*x\") are not supported | write the values out"},
		{"enc: {parameters: {trusted: x}}\n" + servers, `dev.yaml:1:20: enc.parameters.trusted is a variable that Puppet or Pulley sets itself | give it another name`},
		{"enc: {parameters: {pulley_role: x}}\n" + servers, `dev.yaml:1:20: enc.parameters.pulley_role is a variable that Puppet or Pulley sets itself | give it another name`},
		{"enc: {class: [a]}\n" + servers, `dev.yaml:1:7: enc has no key "class" | did you mean classes?`},
		{"nodes: {web1: {enc: {classes: {Ntp: }}}}\n" + servers, `dev.yaml:1:32: class "Ntp": names of classes may contain small letters, digits, _ and ::, like role::web`},
		{"roles: {web: {cardinality: 1, enc: {classes: [ntp]}}}\n", "dev.yaml:1:36: enc concerns Puppet servers, and the environment has none | add `puppet: {servers: …}`; nodes whose release has a tree read external_nodes/ of the release"},
	} {
		_, err := Parse("dev.yaml", []byte(c.yaml))
		got := ""
		if err != nil {
			got = strings.ReplaceAll(err.Error(), "\n  ", " | ")
		}
		if problems, ok := err.(Errors); ok { //nolint:errorlint // Parse documents the type
			var lines []string
			for _, p := range problems {
				line := p.Error()
				if p.Advice != "" && !strings.Contains(line, p.Advice) {
					line += " | " + p.Advice
				}
				lines = append(lines, line)
			}
			got = strings.Join(lines, "\n")
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s\ngot  %s\nwant %s", c.yaml, got, c.want)
		}
	}
}
