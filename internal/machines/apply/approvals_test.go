package apply

import (
	"testing"

	"pulley/internal/machines"
)

// Otherwise an approval would count for the next machine of that name, and a healthy machine would be deleted as
// failed.
func TestApprovals(t *testing.T) {
	g := newApprovals([]machines.Ref{{Name: "web1", ID: "a"}, {Name: "web2"}})
	mine := machines.Machine{Name: "web3", ID: "c", State: machines.Running}
	g.addOrdered(mine)
	failed := mine
	failed.State = machines.Failed
	for _, c := range []struct {
		say  string
		got  bool
		want bool
	}{
		{"what was named", g.has(machines.Ref{Name: "web1", ID: "a"}), true},
		{"another of that name", g.has(machines.Ref{Name: "web1", ID: "b"}), false},
		{"all of that name, where one was named", g.has(machines.Ref{Name: "web1", ID: ""}), false},
		{"one of a name, where all were named", g.has(machines.Ref{Name: "web2", ID: "z"}), true},
		{"what was ordered", g.has(mine.Ref()), false},
		{"what was ordered and is well", g.addFailed(mine), false},
		{"what failed and was not ordered", g.addFailed(machines.Machine{Name: "web4", ID: "d", State: machines.Failed}), false},
		{"what was ordered and failed", g.addFailed(failed) && g.has(failed.Ref()), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", c.say, c.got)
		}
	}
	for _, v := range []machines.Ref{{Name: "web1", ID: "a"}, {Name: "web2", ID: ""}, {Name: "web3", ID: "c"}} {
		if g.spend(v); g.has(v) {
			t.Errorf("%s is approved for the next one as well", v)
		}
	}
	if g.addFailed(failed) {
		t.Error("what was ordered is spent, and may be deleted again")
	}
}
