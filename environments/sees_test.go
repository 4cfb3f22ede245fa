package environments

import (
	"slices"
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
