package hosts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// One stolen node could change its export for ever, and run Puppet on every node that sees it once per settle time.
func TestNodesThatChangeAgainAndAgainAreKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(1_000_000, 0)
		list := []Node{{Name: "web1"}, {Name: "web2"}}
		var changes []time.Time
		for range rapid.IntRange(1, 200).Draw(t, "reads") {
			at = at.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
			now := []Node{{Name: "web1", Exports: map[string]json.RawMessage{"f": fmt.Appendf(nil, "%d", rapid.IntRange(0, 3).Draw(t, "value"))}}, {Name: "web2"}}
			wanted := now[0]
			kept := Calm(list, now, at)
			if !now[1].Until.IsZero() || len(now[1].Changed) > 0 {
				t.Fatal("a quiet node is kept")
			}
			held := !now[0].Until.IsZero()
			if held != (len(kept) == 1) || held == sameValues(wanted, now[0]) {
				t.Fatalf("kept %v: %+v instead of %+v", kept, now[0], wanted)
			}
			if later := slices.Clone(now[:1]); held {
				if later[0].Exports = wanted.Exports; len(Calm(now, later, now[0].Until.Add(-1))) != 1 {
					t.Fatal("the values are not kept until the time that Calm returns")
				}
				if later[0].Exports = wanted.Exports; len(Calm(now, later, now[0].Until)) != 0 {
					t.Fatal("the newest values do not arrive at the time that Calm returns")
				}
			}
			if !sameValues(list[0], now[0]) {
				changes = append(changes, at)
			}
			list = now
		}
		for i := range changes {
			if i >= mostChanges && changes[i].Sub(changes[i-mostChanges]) < changesWithin {
				t.Fatalf("%d changes within %s", mostChanges+1, changes[i].Sub(changes[i-mostChanges]))
			}
		}
	})
	list := []Node{{Name: "web1", Checked: netip.MustParseAddr("10.0.0.1"), Changed: make([]time.Time, mostChanges)}}
	other := netip.MustParseAddr("10.0.0.2")
	at := time.Unix(1_000_000, 0)
	for i := range list[0].Changed {
		list[0].Changed[i] = at
	}
	if now := []Node{{Name: "web1", Checked: other}}; len(Calm(list, now, at.Add(time.Minute))) != 1 {
		t.Error("the seventh change within an hour is shown")
	}
	if now := []Node{{Name: "web1", Checked: other}}; len(Calm(list, now, at.Add(time.Hour))) != 0 || now[0].Checked != other {
		t.Error("a change is kept back for ever")
	}
}
