package targets

import (
	"fmt"
	"testing"

	"pulley/internal/model"
	"pulley/internal/release/trust"
)

// Without the right step a node that was offline refuses its target, or a node goes lower than the signed permit
// allows.
func TestPermitCoversEachLowerPart(t *testing.T) {
	t.Parallel()
	tree := func(v string, n model.Generation) model.Target {
		if v == "" && n == 0 {
			return model.Target{}
		}
		return model.Target{Release: v, Tree: "tree of " + v, Data: n, DataDigest: fmt.Sprint("digest of ", n)}
	}
	history := []model.Target{tree("1.0.0", 0), tree("", 2), tree("1.10.0", 3), tree("1.9.0", 1), tree("nonsense", 0)}
	for _, c := range []struct {
		to    model.Target
		named []model.Target
		want  string
	}{
		{tree("1.0.0", 1), nil, "nothing"},
		{tree("1.10.0", 3), history, "nothing"},
		{tree("2.0.0", 4), history, "nothing"},
		{tree("1.9.0", 3), history, "1.10.0 to 1.9.0 (tree of 1.9.0)"},
		{tree("1.10.0-rc1", 4), history, "1.10.0 to 1.10.0-rc1 (tree of 1.10.0-rc1)"},
		{tree("2.0.0", 2), history, "data 3 to 2 (digest of 2)"},
		{tree("1.0.0", 2), history, "1.10.0 to 1.0.0 (tree of 1.0.0), data 3 to 2 (digest of 2)"},
		{model.Target{Release: "2.0.0", Tree: "x"}, history, "data 3 to 0 ()"},
		{model.Target{}, history, "data 3 to 0 ()"}, // roles may have releases of their own, with their data from here
		{model.Target{}, []model.Target{tree("1.0.0", 0)}, "nothing"},
		{tree("1.0.0", 0), []model.Target{{Release: "latest", Tree: "x"}}, "nothing"},
	} {
		p, lower := permitFor(c.to, c.named)
		if got := steps(p); got != c.want || lower != (got != "nothing") {
			t.Errorf("to %s: %s (%v), want %s", c.to, got, lower, c.want)
		}
	}
}

func steps(p trust.Permit) string {
	said := ""
	if r := p.Release; r != nil {
		said = fmt.Sprintf("%s to %s (%s)", r.From, r.To, r.Tree)
	}
	if d := p.Data; d != nil {
		if said != "" {
			said += ", "
		}
		said += fmt.Sprintf("data %d to %d (%s)", d.From, d.To, d.Digest)
	}
	if said == "" {
		return "nothing"
	}
	return said
}

// The target after a change follows the node's own rule: node over role over default.
func TestTargetAfterChangeIsInherited(t *testing.T) {
	t.Parallel()
	d := Desires{
		Default: model.Target{Release: "1.0.0", Tree: "a", Data: 4, DataDigest: "d"},
		Roles:   map[string]model.Target{"compute": {Release: "2.0.0", Tree: "b"}},
		Nodes:   map[string]model.Target{"compute1": {Release: "3.0.0", Tree: "c"}},
	}
	for _, c := range []struct {
		change Change
		want   string
	}{
		{Change{After: model.Target{Release: "0.9.0", Tree: "z"}}, "0.9.0"},
		{Change{Role: "compute"}, "1.0.0 with data 4"},
		{Change{Role: "compute", After: model.Target{Release: "0.9.0", Tree: "z"}}, "0.9.0 with data 4"},
		{Change{Node: "compute1"}, "2.0.0 with data 4"},
		{Change{Node: "compute1", After: model.Target{Data: 2, DataDigest: "e"}}, "2.0.0 with data 2"},
	} {
		if got := d.after(c.change, "compute").String(); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.change.Scope(), c.change.After, got, c.want)
		}
	}
}
