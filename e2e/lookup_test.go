//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// lookups are questions to Hiera: a key, and for some a merge strategy. Each costs two compilations: CI asks the first ones.
var lookups = [][]string{
	{"deep", "hash", "unique", "first", "knocked", "sorted", "deep --merge unique", "deep --merge hash", "hash --merge deep", "unique --merge first", "first --merge unique", "hash --merge first", "deep.map.both", "deep.list.0", "hash.role"},
	{"by_tier", "by_zone", "zone_all", "by_scope", "by_role", "by_os", "pulley_role", "trusted_zone", "globbed", "only_b", "from_json", "from_json.list.0", "site::only_last"},
	{"live_merged", "live_node", "live_role", "live_common", "live_only", "pulley::hosts", "live_only.a.0", "live_converted"},
	{"secret_user", "secret", "secret_map", "secret_map.password", "to_integer", "to_array"},
	{"mixed", "integer", "negative", "large", "octal", "float", "exponent", "boolean", "no_word", "no_text", "null_value", "empty_text", "empty_list", "empty_hash", "number_text", "date_text", "unicode", "lines", "percent", "literal", "symbol_like"},
	{"nested_fact", "interpolated", "scoped", "legacy_fact", "no_such_fact", "by_lookup", "by_hiera", "by_alias", "alias_list", "by_two", "nested.a.b.c.1.d", "nested.'dotted.key'"},
	{"site::from_module", "site::kernel", "site::only_module", "site::only_module.deep.list.1", "site::greeting", "site::number", "nowhere", "nested.z", "site::nowhere"},
}

// An operator's lookup must give the value that the node's own Puppet sees. PULLEY_TEST_LOOKUPS=all asks every question.
func TestLookupIsThatOfTheNode(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pulley("publish", "testdata/lookup", "--version", "2.0.0")
	f.pulley("promote", "2.0.0")
	f.pulley("data", "set", "live_node", "{from: node}", "--node", "compute1")
	f.pulley("data", "set", "live_role", "[1, '%{trusted.certname}']", "--role", "compute")
	f.pulley("data", "set", "live_common", "7", "--common")
	f.pulley("data", "set", "live_merged", "[live]")
	f.pulley("data", "set", "live_only", "{a: ['%{facts.site_shape.form}']}")
	f.pulley("data", "set", "live_converted", "'12'")
	f.pulley("data", "set", "lookup_options", "{live_converted: {convert_to: Integer}}")
	f.machine("compute1")
	contains(t, f.agent("compute1", 0, "run"), "changed")
	for i, group := range lookups {
		if os.Getenv("PULLEY_TEST_LOOKUPS") != "all" {
			group = group[:max(0, min(1, 4-i))]
		}
		for _, question := range group {
			t.Run(question, func(t *testing.T) {
				f := &testFleet{t: t, endpoint: f.endpoint, dir: f.dir, machines: f.machines}
				f.sameAnswer("compute1", strings.Fields(question))
			})
		}
	}
	out := f.pulley("data", "lookup", "secret_map", "--node", "compute1", "--explain")
	contains(t, out, "data/common.yaml")
	if strings.Contains(out, "hunter") {
		t.Errorf("the explanation shows a Sensitive:\n%s", out)
	}
}

// sameAnswer asks a node's Puppet and `pulley data lookup` the same question.
func (f *testFleet) sameAnswer(node string, question []string) {
	f.t.Helper()
	ours, err := f.try(append([]string{"data", "lookup", "--node", node, "-o", "json"}, question...)...)
	var answer struct {
		Found bool
		Value any
	}
	if i := strings.Index(ours, "\n}"); i >= 0 {
		ours = ours[:i+2] // the error message follows
	}
	if json.Unmarshal([]byte(ours), &answer) != nil || answer.Found != (err == nil) {
		f.t.Fatalf("%v\n%s", err, ours)
	}
	code := 0
	if !answer.Found {
		code = 1
	}
	theirs := f.agent(node, code, append([]string{"puppet", "--", "lookup", "--compile", "--render-as", "json", "--log_level", "err"}, question...)...)
	var value any
	if answer.Found {
		if err := json.Unmarshal([]byte(lastLine(theirs)), &value); err != nil {
			f.t.Fatalf("%v\n%s", err, theirs)
		}
	}
	if !reflect.DeepEqual(value, answer.Value) {
		f.t.Errorf("the node's Puppet has %v, and pulley %v", value, answer.Value)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
