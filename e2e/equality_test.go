//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pulley/internal/machines/drivers/local"
)

// Puppet must compile the same catalog for a node of Pulley as `puppet apply` does in a plain checkout: the same
// resources, parameters, tags and edges. Otherwise a team cannot trust what it knows about its repository.
func TestCatalogsEqualStockPuppets(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	checkout, err := filepath.Abs("testdata/equality")
	if err != nil {
		t.Fatal(err)
	}
	f.pulley("publish", checkout, "--version", "2.0.0")
	f.pulley("promote", "2.0.0")
	for node, least := range map[string]int{"web1": 30, "db1": 25} {
		t.Run(node, func(t *testing.T) {
			f := &testFleet{t: t, endpoint: f.endpoint, dir: f.dir, machines: f.machines}
			f.machine(node, local.Bind{From: checkout, To: "/srv/checkouts/dev"}) // the name of Pulley's environment
			f.keepCatalogs(node)
			f.in(node, 0, keeper, "apply", "--noop", "--environmentpath", "/srv/checkouts", "--environment", "dev", "--certname", node, "-e", "")
			stock := f.catalog(node)
			contains(t, f.agent(node, 0, "run", "--noop"), "noop")
			ours := f.catalog(node)
			if len(stock) < least {
				t.Errorf("stock Puppet's catalog has only %d parts", len(stock))
			}
			for _, part := range differences(stock, ours) {
				t.Error(part)
			}
		})
	}
}

// keeper is a puppet program that the agent finds first.
const keeper = "/usr/local/sbin/puppet"

// keepCatalogs makes each `puppet apply` of a node's machine keep its catalog, as `puppet agent` does.
func (f *testFleet) keepCatalogs(node string) {
	f.t.Helper()
	f.write(node, keeper, `#!/bin/sh
[ "$1" = apply ] && set -- "$@" --catalog_cache_terminus json --client_datadir /var/tmp/catalogs
exec /usr/bin/puppet "$@"
`)
	f.in(node, 0, "chmod", "755", keeper)
}

// catalog takes the kept catalog of a node's last run: each resource by its reference, and each edge.
func (f *testFleet) catalog(node string) map[string]string {
	f.t.Helper()
	path := filepath.Join("/var/tmp/catalogs/catalog", node+".json")
	var catalog struct {
		Environment string
		Classes     []string
		Edges       []struct{ Source, Target string }
		Resources   []map[string]any
	}
	if err := json.Unmarshal([]byte(f.read(node, path)), &catalog); err != nil {
		f.t.Fatal(err)
	}
	f.in(node, 0, "rm", path) // the next run must compile its own
	slices.Sort(catalog.Classes)
	parts := map[string]string{"environment": catalog.Environment, "classes": strings.Join(catalog.Classes, " ")}
	for _, e := range catalog.Edges {
		parts[e.Source+" -> "+e.Target] = "an edge"
	}
	for _, r := range catalog.Resources {
		delete(r, "file") // the release is another folder than the checkout
		text, err := json.Marshal(r)
		if err != nil {
			f.t.Fatal(err)
		}
		parts[fmt.Sprintf("%s[%s]", r["type"], r["title"])] = string(text)
	}
	return parts
}

// differences returns a line for each part that only one catalog has, or that differs.
func differences(stock, ours map[string]string) (lines []string) {
	for ref, text := range stock {
		if ours[ref] != text {
			lines = append(lines, fmt.Sprintf("%s is\n  %s with puppet apply, and\n  %s with pulley-agent", ref, text, ours[ref]))
		}
	}
	for ref, text := range ours {
		if _, ok := stock[ref]; !ok {
			lines = append(lines, fmt.Sprintf("%s exists only with pulley-agent: %s", ref, text))
		}
	}
	slices.Sort(lines)
	return lines
}
