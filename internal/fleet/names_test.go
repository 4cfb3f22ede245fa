package fleet_test

import (
	"slices"
	"testing"

	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/testbed/fleettest"
)

// A shell completes what all suggestions have in common. If the names that are left out differ earlier, it would complete a
// name that the user did not mean.
func TestSomeNamesHaveThePrefixOfAll(t *testing.T) {
	t.Parallel()
	st := fleettest.Open(t, fleettest.Shared.Keyspace(t), "")
	for _, node := range []string{"compute1", "compute10", "compute100", "compute2", "web1"} {
		if err := fleet.In(st).Register(t.Context(), "dev", model.Host{Node: node, Role: "compute"}); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string][]string{
		"": {"compute1", "compute10", "compute2", "web1"}, "compute": {"compute1", "compute10", "compute2"}, "compute1": {"compute1", "compute10"}, "web": {"web1"},
	} {
		if got, err := fleet.In(st).HostNames(t.Context(), fleettest.Dev, prefix, 2); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v; %v", prefix, got, want, err)
		}
	}
}
