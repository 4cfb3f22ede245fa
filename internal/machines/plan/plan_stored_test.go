package plan

import (
	"cmp"
	"reflect"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
)

func somePlan(t testing.TB) (Plan, testWorld) {
	w := known()
	w.machine("compute1", "compute", "m1.large", "a")
	w.machine("compute3", "compute", "m1.small", "c")
	w.machine("compute4", "compute", "m1.small", "d")
	w.Machines = append(w.Machines, machines.Machine{Name: "../x", State: machines.Running})
	w.Old, w.OldRevision = parsed(t, twoComputes), 7
	return Make(w.Old, w.World, Options{}), w
}

// If a stored plan changed when it is read, an apply would differ from the reviewed plan.
func TestStoredPlan(t *testing.T) {
	p, _ := somePlan(t)
	b, err := Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	p.Changes = got.Changes
	if !reflect.DeepEqual(got, p) {
		t.Errorf("read:\n%+v\nwritten:\n%+v", got, p)
	}
	if said := Differences(got, p); len(said) > 0 {
		t.Errorf("a stored plan differs from itself: %+v", said)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"v": 1`, `"v": 2`, "newer Pulley"},
		{`"v": 1`, `"v": 0`, "no format version"},
		{`"environment": "dev"`, `"environment": "../dev"`, "cannot use environment"},
		{`"healthy": false`, `"healthy": false, "holy": true`, "unknown field"},
		{"\n}\n", "\n} {}", "damaged"},
		{`{`, ``, "damaged"},
	} {
		bad := strings.Replace(string(b), tt.old, tt.new, 1)
		if bad == string(b) {
			t.Fatalf("no %s in %s", tt.old, b)
		}
		if _, err := Decode([]byte(bad)); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "cannot read the stored plan: ") {
			t.Errorf("%s for %s: %v", tt.new, tt.old, err)
		}
	}
	for _, tt := range []struct{ old, new string }{ // edited plans
		{`"verb": "retire"`, `"verb": "bury"`},
		{`"environment": "dev"`, `"environment": "prod"`},
		{`"provider": "local"`, `"provider": "nspawn"`},
		{`"creates": true,`, ``},
		{`"removes": true,`, `"removes": true, "verb": "keep",`},
	} {
		edited, err := Decode([]byte(strings.Replace(string(b), tt.old, tt.new, 1)))
		if err != nil || len(Differences(edited, p)) == 0 {
			t.Errorf("%s for %s is no difference: %v", tt.new, tt.old, err)
		}
	}
}

// If a change went unnoticed, an apply would destroy a machine without approval. If time alone counted, no stored plan
// could ever be applied.
func TestDifferences(t *testing.T) {
	later := func(w *testWorld) { w.Now = w.Now.Add(5 * time.Minute) }
	for _, tt := range []struct {
		name, spec string
		change     func(*testWorld)
		want       string // "" if equal
	}{
		{name: "later", change: later},
		{name: "another unknown machine", change: func(w *testWorld) { w.Machines = append(w.Machines, machines.Machine{Name: "../y"}) }},
		{name: "a node fell silent", change: func(w *testWorld) { w.silence("compute3") }},
		{name: "a deleted machine is gone", change: func(w *testWorld) { w.silence("compute4"); w.Machines = append(w.Machines[:2:2], w.Machines[3:]...) }, want: "other_verb compute4"},
		{name: "a deleted machine and its record are gone", change: func(w *testWorld) {
			w.Machines = append(w.Machines[:2:2], w.Machines[3:]...)
			delete(w.Records, "compute4")
			delete(w.Hosts, "compute4")
		}, want: "step_dropped compute4"},
		{name: "a deleted machine is another", change: func(w *testWorld) { w.Machines[2].ID = "e" }, want: "other_machines_deleted compute4"},
		{name: "one more is deleted", change: func(w *testWorld) { w.machine("compute5", "compute", "", "z") }, want: "step_added compute5"},
		{name: "another program made it", change: func(w *testWorld) { w.machine("compute2", "compute", "m1.small", "b") }, want: "step_dropped compute2"},
		{name: "another program stored", change: func(w *testWorld) { w.OldRevision++ }, want: "environment_stored"},
		{name: "another provider", spec: strings.Replace(twoComputes, "local", "nspawn", 1), want: "other_provider"},
		{name: "it is protected now", change: func(w *testWorld) {
			w.Old = parsed(t, strings.Replace(twoComputes, "small}", "small, protected: true}", 2))
		},
			want: "details_changed compute1"},
		{name: "the file was edited", spec: strings.Replace(twoComputes, "m1.large", "m1.huge", 1), want: "file_changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, w := somePlan(t)
			if tt.change != nil {
				tt.change(&w)
			}
			want := p.Spec
			if tt.spec != "" {
				want = parsed(t, tt.spec)
			}
			var kinds []string
			for _, d := range Differences(p, Make(want, w.World, Options{})) {
				kinds = append(kinds, strings.TrimSpace(string(d.Kind)+" "+cmp.Or(d.Is.Node, d.Was.Node)))
			}
			if said := strings.Join(kinds, ", "); tt.want == "" && said != "" || !strings.Contains(said, tt.want) {
				t.Errorf("differences: %q, want %q", said, tt.want)
			}
		})
	}
}

// If Decode panicked, or accepted other encodings of a plan, a file could cause changes that were never planned.
func FuzzDecode(f *testing.F) {
	p, _ := somePlan(f)
	b, err := Encode(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"v":1}`))
	f.Add([]byte(`{"v":1,"environment":"dev","provider":"none","steps":null,"spec":{"v":1,"name":"dev","roles":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data)
		if err != nil {
			return
		}
		b, err := Encode(p)
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := Decode(b)
		if err != nil {
			t.Fatalf("what was written can't be read: %v\n%s", err, b)
		}
		if said := Differences(p, again); len(said) > 0 {
			t.Fatalf("it reads as another: %+v", said)
		}
	})
}
