package provision

import "testing"

// What was agreed to once would count for the next machine of that name, and a machine that is well for one that failed.
func TestGuard(t *testing.T) {
	g := newGuard([]Victim{{Name: "web1", ID: "a"}, {Name: "web2"}})
	mine := Machine{Name: "web3", ID: "c", State: Running}
	g.order(mine)
	failed := mine
	failed.State = Failed
	for _, c := range []struct {
		say  string
		got  bool
		want bool
	}{
		{"what was named", g.agreed(Victim{"web1", "a"}), true},
		{"another of that name", g.agreed(Victim{"web1", "b"}), false},
		{"all of that name, where one was named", g.agreed(Victim{"web1", ""}), false},
		{"one of a name, where all were named", g.agreed(Victim{"web2", "z"}), true},
		{"what was ordered", g.agreed(mine.victim()), false},
		{"what was ordered and is well", g.fail(mine), false},
		{"what failed and was not ordered", g.fail(Machine{Name: "web4", ID: "d", State: Failed}), false},
		{"what was ordered and failed", g.fail(failed) && g.agreed(failed.victim()), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", c.say, c.got)
		}
	}
	for _, v := range []Victim{{"web1", "a"}, {"web2", ""}, {"web3", "c"}} {
		if g.spend(v); g.agreed(v) {
			t.Errorf("%s is agreed to for the next one as well", v)
		}
	}
	if g.fail(failed) {
		t.Error("what was ordered is spent, and may be deleted again")
	}
}
