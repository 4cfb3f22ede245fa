package environments

import (
	"slices"
	"strings"
	"testing"
)

// The agent reads `sees: all`: an environment file with it must not be refused, and another word must.
func TestSeesAllIsAWord(t *testing.T) {
	for _, text := range []string{"all", "[all]", `"all"`} {
		e, err := Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1, sees: "+text+"}\n"))
		if err != nil || !slices.Equal(e.Roles[0].Sees, []string{AllRoles}) {
			t.Errorf("sees: %s: %v", text, err)
		}
	}
	if _, err := Parse("dev.yaml", []byte("roles:\n  web: {cardinality: 1, sees: web}\n")); err == nil {
		t.Error("a role is accepted in the place of a list")
	}
}

// A time that the agents refuse would end the runs of all nodes.
func TestAliveIsBounded(t *testing.T) {
	for value, want := range map[string]string{
		"15m": "", "720h": "", "1h30m": "", "14m59s": "at least 15m0s are needed", "721h": "at most 720h0m0s are allowed", "-1h": "hosts.alive", "soon": "hosts.alive", "[1h]": "hosts.alive",
	} {
		_, err := Parse("dev.yaml", []byte("hosts: {alive: "+value+"}\nroles: {web: {cardinality: 1}}\n"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("alive: %s: %v", value, err)
		}
	}
}
