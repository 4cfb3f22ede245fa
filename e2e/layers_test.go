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
	f.publish("2.0.0", "file { '/etc/winner': content => lookup('winner', default_value => 'none') }\n")
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
	var names []string // of the levels, from the highest
	layers := 0
	for _, level := range shown.Layers {
		names = append(names, "Pulley "+level.Name+" layer")
		if level.Layer == "" { // the node has no zone
			continue
		}
		layers++
		f.agent("compute1", 0, "run")
		if got := f.read("compute1", "/etc/winner"); got != level.Layer {
			t.Fatalf("the node's Puppet reads %s first, and data layers shows %s", got, level.Layer)
		}
		asked, value := f.explained("compute1", "winner")
		if value != level.Layer || !slices.Equal(asked, names) {
			t.Fatalf("the lookup finds %q in the last of %q, and data layers shows %q with %s", value, asked, names, level.Layer)
		}
		f.pulley(append([]string{"data", "unset", "winner"}, flags[level.Layer]...)...)
	}
	if layers != 6 {
		t.Errorf("data layers shows %d layers of the node: %+v", layers, shown)
	}
	f.agent("compute1", 0, "run")
	if got := f.read("compute1", "/etc/winner"); got != "none" {
		t.Errorf("without the layers of the node, its Puppet reads %s", got)
	}
}

// explained returns the levels of live data in which a lookup asked for a key, in its order, and the value.
func (f *fleet) explained(node, key string) (levels []string, value string) {
	f.t.Helper()
	var answer struct {
		Value  string
		Places []struct{ Level, File string }
	}
	if err := json.Unmarshal([]byte(f.pulley("data", "lookup", key, "--node", node, "--explain", "--no-compile", "-o", "json")), &answer); err != nil {
		f.t.Fatal(err)
	}
	for _, p := range answer.Places {
		if strings.HasPrefix(p.Level, "Pulley ") {
			levels = append(levels, p.Level)
		}
	}
	return levels, answer.Value
}
