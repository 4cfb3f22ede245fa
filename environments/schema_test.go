package environments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"
	"pgregory.net/rapid"
)

func compiled(t testing.TB, text string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("s.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("s.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// onlyParser are the rules that no schema can express: relations between parts of the file, sizes in bytes, and
// networks.
var onlyParser = regexp.MustCompile(strings.Join([]string{
	`comes after`, `reacts to`, `makes a cycle`, `has no entry in`, `there is no such role`, `would match its nodes`, `would be \d+ bytes long`,
	`ends before it begins`, `no year has such a day`, `^userdata.allowed_signers: (line|it names)`, `no server to join at`,
	`has more than 1000000 nodes`, `it is neither a node by`, `^member "`, `^members of `, `provider exec has no command`, `without agent_sha256`,
	`must be longer than zero`, `at most 24h0m0s are allowed`, `^provider\.subnet`, `it is not a URL`, `it is not a network`,
	`rollout\.roles has`, `takes targets after`, `at most 720h0m0s are allowed`, `has the layer`, `there is no time zone`, `it ends when it begins`, `limits a preview that`, `waits for an approval after the canaries`, `is too large: Puppet's integers`,
	`^puppet\.servers\.\S+ "`, `concerns Puppet servers`, `no server has this attribute`, `there is no such server`, `^puppet.choose has .* twice`, `would give rights`,
	`^puppet\.(ca\.(url|also)|puppetdb) .*it is not a URL`, `and no component produces it`,
	`not written as a decimal integer`, `the decimal number "\d+\.0*"`, // 2.0 is an integer in JSON Schema
}, "|"))

// agree compares the results of the schema and the parser for a document.
func agree(schema *jsonschema.Schema, data []byte, parse func([]byte) error) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	wrong, problem := schema.Validate(doc), parse(data)
	switch {
	case wrong != nil && problem == nil:
		return fmt.Errorf("the parser takes what the schema refuses: %w\n%s", wrong, data)
	case wrong == nil && problem != nil:
		var several Errors
		if !errors.As(problem, &several) {
			return problem
		}
		for _, e := range several {
			if !onlyParser.MatchString(e.Problem) {
				return fmt.Errorf("the schema takes what the parser refuses: %w\n%s", e, data)
			}
		}
	}
	return nil
}

func parseEnvironment(data []byte) error {
	_, err := Parse("dev.yaml", data)
	return err
}

func parseCloud(data []byte) error { return ParseCloud("west.yaml", data) }

// Users stop trusting an editor that marks valid files, or accepts invalid ones.
func TestSchemaTakesEveryEnvironment(t *testing.T) {
	schema := compiled(t, Schema())
	rapid.Check(t, func(t *rapid.T) {
		data := render(anyEnvironment.Draw(t, "environment"))
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err == nil {
			err = schema.Validate(doc)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
	})
}

// The schema and the parser must agree on files with mistakes.
func TestSchemaAgreesWithTheParser(t *testing.T) {
	schema := compiled(t, Schema())
	rapid.Check(t, func(t *rapid.T) {
		if err := agree(schema, mutated(t, render(anyEnvironment.Draw(t, "environment"))), parseEnvironment); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloudSchemaAgreesWithTheParser(t *testing.T) {
	schema := compiled(t, CloudSchema())
	rapid.Check(t, func(t *rapid.T) {
		data := render(anyEnvironment.Draw(t, "environment"))
		var doc map[string]any
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		delete(doc, "roles")
		delete(doc, "stack")
		if data = []byte(asJSON(doc)); len(doc) == 0 || rapid.Bool().Draw(t, "mutate") {
			data = mutated(t, data)
		}
		if err := agree(schema, data, parseCloud); err != nil {
			t.Fatal(err)
		}
	})
}

// junk are values of all types, valid in some places and invalid in most.
var junk = []any{
	nil, true, false, 0, 1, 2, -1, 1.5, 1000000, 1000001, "", "a", "A", "x y", " x", "x\n", "\x01", "web1", "db", "a-1", "-", "#!", "#!/bin/sh\n", "off", "/", "/x", "/x/y z",
	"none", "local", "exec", "openstack", "vmware", "0", "2", "007", "0%", "5%", "100%", "101%", "30m", "30", "1h0m", "1m1h", "h", "25h", "0s", "2d", "10.77.0.0/16", "10.77.0.1/16", "fe80::/64",
	"https://x", "https://x:8443/a", "http://x", "https://u:p@x", "https://x?y", "sha256:00", "sha256:" + strings.Repeat("0", 64), strings.Repeat("0", 64), "host:1", "host", "deb x y", "deb u:p@x",
	"* * * * *", "@every 10s", "@every", "old.example.com", "Old.example.com", "compute_3", strings.Repeat("f", 64), strings.Repeat("f", 129), strings.Repeat("f", 256), strings.Repeat("/f", 1030), "\ufffd", "é x", "\u00a0",
	[]any{}, []any{"a"}, []any{"a", "a"}, []any{1}, []any{nil}, []any{""}, []any{"#!/bin/sh"}, map[string]any{}, map[string]any{"a": "b"}, map[string]any{"pulley-x": "b"},
	map[string]any{"a": ""}, map[string]any{"A b": "c"}, map[string]any{"driver": "exec"}, map[string]any{"driver": "none", "owner": "x"}, map[string]any{"driver": "local", "bridge": "b"},
	map[string]any{"address": "10.0.0.1"}, map[string]any{"address": "10.0.0.1:8140"}, map[string]any{"server": "x"}, map[string]any{"region": "no"}, "daemon", "csr", "eu1", "region", 8140, 70000,
	map[string]any{"cardinality": 1}, map[string]any{"members": []any{}}, map[string]any{"flavor": "x"}, map[string]any{"amd64": strings.Repeat("0", 64)}, map[string]any{"puppet": "off"},
}

// mutated makes one to three changes in a document: of a value, an existing key, or a new one.
func mutated(t *rapid.T, data []byte) []byte {
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	for range rapid.IntRange(1, 3).Draw(t, "mutations") {
		doc = mutate(t, doc)
	}
	return []byte(asJSON(doc))
}

var keysEverywhere = []string{
	"stack", "roles", "provider", "driver", "owner", "command", "timeout", "folder", "agent", "interval", "bridge", "subnet", "cloud", "region", "availability_zone", "key_name",
	"server_group", "security_groups", "config_drive", "flavors", "images", "networks", "userdata", "cardinality", "flavor", "image", "labels", "after", "reacts_to", "protected", "rollout", "replace", "canaries", "retries", "max_unavailable", "promote", "settle", "preview", "required", "max_changed",
	"batch", "failures", "members", "servers", "ca", "endpoints", "allowed_signers", "mirrors", "agent_urls", "agent_sha256", "amd64", "puppet_package", "puppet_version", "package_repo",
	"address", "port", "name", "attributes", "choose", "fallback", "failover", "url", "how", "also", "bootstrap", "settings", "enforce", "provision", "sleeptime", "turn", "where", "puppetdb", "eu1",
	"proxy", "schedule", "pre", "post", "steps", "puppet", "colour", "Web", "web", "web1", "a b", "pulley", "PULLEY.x", "x",
}

// drawJunk draws a copy: later mutations must not change junk itself.
func drawJunk(t *rapid.T) any {
	var v any
	if err := json.Unmarshal([]byte(asJSON(junk[rapid.IntRange(0, len(junk)-1).Draw(t, "junk")])), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func mutate(t *rapid.T, v any) any {
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		switch act := rapid.IntRange(0, 9).Draw(t, "act"); {
		case act == 0:
			return drawJunk(t)
		case act <= 2 || len(keys) == 0:
			v[rapid.SampledFrom(keysEverywhere).Draw(t, "key")] = drawJunk(t)
		case act == 3:
			delete(v, rapid.SampledFrom(keys).Draw(t, "gone"))
		default:
			key := rapid.SampledFrom(keys).Draw(t, "into")
			v[key] = mutate(t, v[key])
		}
		return v
	case []any:
		if len(v) > 0 && rapid.Bool().Draw(t, "item") {
			i := rapid.IntRange(0, len(v)-1).Draw(t, "which")
			v[i] = mutate(t, v[i])
			return v
		}
	}
	return drawJunk(t)
}

// A wrong example in the schema would teach users a mistake.
func TestSchemaExamplesAreRight(t *testing.T) {
	var doc any
	if err := json.Unmarshal([]byte(Schema()), &doc); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			if examples, ok := node["examples"].([]any); ok {
				schema := compiled(t, asJSON(node))
				for _, e := range examples {
					seen++
					if err := schema.Validate(e); err != nil {
						t.Errorf("example %v: %v", e, err)
					}
				}
			}
			for _, child := range node {
				walk(child)
			}
		case []any:
			for _, child := range node {
				walk(child)
			}
		}
	}
	walk(doc)
	if seen < 30 {
		t.Errorf("only %d examples", seen)
	}
}

// Editors show the samples of a new control repository first.
func TestSchemaTakesTheSamples(t *testing.T) {
	schema := compiled(t, Schema())
	for _, name := range []string{"dev.yaml", "production.yaml"} {
		data, err := fs.ReadFile(Samples(), "environments/"+name)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := yaml.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
