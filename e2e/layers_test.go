//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// A node whose Puppet reads the layers in another order than the operator's commands show gets a value that nobody expects.
func TestLayersAreReadInTheShownOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.spec(`layers: [rack, node, common, zone, role, site, environment]
roles:
  compute: {cardinality: 2, attributes: {site: ams, rack: r1}}
  controller: {cardinality: 1, attributes: {site: fra, zone: z1}}
nodes:
  compute1: {attributes: {rack: r2}}
`)
	f.publish("2.0.0", "file { '/etc/winners': content => lookup('winner', { merge => unique }).join(' ') }\n")
	f.pulley("promote", "2.0.0")
	f.machine("compute1")

	var shown struct {
		Layers []struct{ Name, Layer string }
	}
	if err := json.Unmarshal([]byte(f.pulley("data", "layers", "--node", "compute1", "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	flags := map[string][]string{
		"rack/r2": {"--attribute", "rack=r2"}, "nodes/compute1": {"--node", "compute1"}, "common": {"--common"}, "roles/compute": {"--role", "compute"},
		"site/ams": {"--attribute", "site=ams"}, "environment": {}, // the node's, in all
		"rack/r1": {"--attribute", "rack=r1"}, "zone/z1": {"--attribute", "zone=z1"}, "site/fra": {"--attribute", "site=fra"}, "roles/controller": {"--role", "controller"},
	}
	for layer, of := range flags {
		f.pulley(append([]string{"data", "set", "winner", layer}, of...)...)
	}
	var names, layers []string // of the levels, and of the layers that the node has, from the highest
	for _, level := range shown.Layers {
		names = append(names, "Pulley "+level.Name+" layer")
		if level.Layer != "" { // the node has no zone
			layers = append(layers, level.Layer)
		}
	}
	if len(layers) != 6 {
		t.Errorf("data layers shows %d layers of the node: %+v", len(layers), shown)
	}
	f.agent("compute1", 0, "run")
	if got := strings.Fields(f.read("compute1", "/etc/winners")); !slices.Equal(got, layers) {
		t.Errorf("the node's Puppet reads %q, and data layers shows %q", got, layers)
	}
	if asked, found := f.explained("compute1", "winner"); !slices.Equal(found, layers) || !slices.Equal(asked, names) {
		t.Errorf("the lookup finds %q in %q, and data layers shows %q in %q", found, asked, layers, names)
	}
}

// explained returns the levels of live data in which a lookup of all values asked for a key, in its order, and the values.
func (f *testFleet) explained(node, key string) (levels, values []string) {
	f.t.Helper()
	var answer struct {
		Value  []string
		Places []struct{ Level, File string }
	}
	if err := json.Unmarshal([]byte(f.pulley("data", "lookup", key, "--merge", "unique", "--node", node, "--explain", "--no-compile", "-o", "json")), &answer); err != nil {
		f.t.Fatal(err)
	}
	for _, p := range answer.Places {
		if strings.HasPrefix(p.Level, "Pulley ") {
			levels = append(levels, p.Level)
		}
	}
	return levels, answer.Value
}
