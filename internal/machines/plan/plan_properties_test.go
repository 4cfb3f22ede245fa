package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

// drawEnvironment draws an environment of three roles, each of which may be missing.
func drawEnvironment(t *rapid.T, label string) *environments.Environment {
	e := &environments.Environment{Name: "dev", Provider: environments.Provider{Driver: rapid.SampledFrom([]string{"local", "local", "local", "nspawn", "none"}).Draw(t, label+"driver")}}
	for i, name := range []string{"db", "web", "compute"} {
		if rapid.IntRange(0, 4).Draw(t, label+"has") == 0 {
			continue
		}
		r := environments.Role{
			Name: name, Cardinality: rapid.IntRange(0, 3).Draw(t, label+"cardinality"),
			Flavor: rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, label+"flavor"), Protected: rapid.IntRange(0, 4).Draw(t, label+"protected") == 0,
		}
		if len(e.Roles) > 0 && rapid.Bool().Draw(t, label+"after") {
			r.After, r.ReactsTo = []string{e.Roles[0].Name}, []string{e.Roles[0].Name}
		}
		if i == 2 && rapid.Bool().Draw(t, label+"member") {
			r.Members = []string{"old.example.com"}
		}
		e.Roles = append(e.Roles, r)
	}
	return e
}

// drawWorld draws any world, including ones that no sequence of events produces.
func drawWorld(t *rapid.T) testWorld {
	w := known()
	if rapid.Bool().Draw(t, "stored") {
		w.Old, w.OldRevision = drawEnvironment(t, "old "), 5
	}
	w.Released = rapid.Bool().Draw(t, "released")
	age := func() time.Time {
		return noon.Add(-time.Duration(rapid.SampledFrom([]int{1, 10, 100, 1000}).Draw(t, "age")) * time.Minute)
	}
	for _, role := range []string{"db", "web", "compute", "gone"} {
		for num := 1; num <= 4; num++ {
			node := fmt.Sprint(role, num)
			for id := range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(t, "machines") {
				m := machines.Machine{Name: node, ID: fmt.Sprint(node, ".", id), State: rapid.SampledFrom([]machines.State{machines.Building, machines.Running, machines.Running, machines.Running, machines.Stopped, machines.Failed, machines.Deleting, machines.Unknown}).Draw(t, "state"), Created: age()}
				m.Flavor = rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, "made as")
				if rapid.IntRange(0, 9).Draw(t, "without id") == 0 {
					m.ID = ""
				}
				w.Machines = append(w.Machines, m)
			}
			if rapid.Bool().Draw(t, "booked") {
				w.Records[node] = machines.Record{
					Node: node, Name: node, ID: rapid.SampledFrom([]string{"", node + ".0", node + ".1", "other"}).Draw(t, "booked as"), By: "ann", At: age(), Tries: rapid.IntRange(0, 1).Draw(t, "tries"),
					Phase: rapid.SampledFrom([]machines.Phase{machines.Making, machines.Made, machines.Made, machines.Retiring}).Draw(t, "phase"), Driver: rapid.SampledFrom([]string{"local", "local", "local", "nspawn"}).Draw(t, "by"),
					Flavor: rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, "ordered as"),
				}
			}
			drawNode(t, &w, node, role)
		}
	}
	drawNode(t, &w, "old.example.com", "compute")
	for range rapid.IntRange(0, 2).Draw(t, "unknown") {
		w.Machines = append(w.Machines, machines.Machine{Name: rapid.SampledFrom([]string{"../db1", "db1-t42", "DB1", ""}).Draw(t, "unknown machine"), ID: rapid.String().Draw(t, "its id"), State: machines.Running})
	}
	return w
}

func drawNode(t *rapid.T, w *testWorld, node, role string) {
	if rapid.Bool().Draw(t, "registered") {
		w.join(node, role)
		switch rapid.IntRange(0, 3).Draw(t, "speaks") {
		case 0:
			delete(w.Statuses, node)
			w.Views[node] = model.View{State: model.Silent}
		case 1:
			w.silence(node)
		}
	}
}

// If one of these properties failed, a plan would destroy machines without a reason, or never reach an end.
func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, w := drawEnvironment(t, "new "), drawWorld(t)
		o := Options{Destroy: rapid.IntRange(0, 9).Draw(t, "destroy") == 0}
		p := Make(want, w.World, o)
		if again := Make(want, w.World, o); brief(again) != brief(p) {
			t.Fatalf("the same world gives another plan:\n%s\n%s", brief(p), brief(again))
		}
		wanted := map[string]bool{}
		if !o.Destroy {
			for _, r := range want.Roles {
				for num := 1; num <= r.Cardinality; num++ {
					wanted[fmt.Sprint(r.Name, num)] = true
				}
				for _, m := range r.Members {
					wanted[m] = true
				}
			}
		}
		checkSteps(t, p, want, w, wanted)
		checkMachines(t, p, want, w)
		checkEnd(t, p, want, w, o)
	})
}

func checkSteps(t *rapid.T, p Plan, want *environments.Environment, w testWorld, wanted map[string]bool) {
	nodes := map[string]int{}
	for _, s := range p.Steps {
		switch {
		case !slices.Contains(Verbs(), s.Verb), s.Node == "":
			t.Fatalf("%+v has no node or no verb", s)
		case s.Creates != (s.Order != nil), s.Order != nil && s.Order.Node != s.Node:
			t.Fatalf("%s %s: creates %t, order %+v", s.Verb, s.Node, s.Creates, s.Order)
		case !s.Acts() && (s.Creates || s.Removes || len(s.Deletes) > 0):
			t.Fatalf("%s %s changes something", s.Verb, s.Node)
		case slices.ContainsFunc(s.Deletes, func(m machines.Ref) bool { return m.Name == "" }):
			t.Fatalf("%s %s deletes a machine without a name", s.Verb, s.Node)
		}
		if len(s.Reasons) == 0 {
			t.Fatalf("%s %s has no reason", s.Verb, s.Node)
		}
		if s.Verb != Duplicate && s.Verb != Unknown {
			nodes[s.Node]++
		}
		if s.Creates && (!wanted[s.Node] || strings.Contains(s.Node, ".") && want.Driver() != environments.DriverLocal) {
			t.Fatalf("%s %s makes a machine that is not called for", s.Verb, s.Node)
		}
		if s.Verb == Retire && wanted[s.Node] {
			t.Fatalf("%s is wanted, and goes", s.Node)
		}
		if want.Driver() == environments.DriverNone && s.Acts() && s.Blocked == nil {
			t.Fatalf("%s %s, though others make machines", s.Verb, s.Node)
		}
		for _, v := range s.Deletes {
			if !slices.ContainsFunc(w.Machines, func(m machines.Machine) bool { return m.Ref() == v }) {
				t.Fatalf("%s %s destroys %v, which is not a machine of ours", s.Verb, s.Node, v)
			}
		}
		for _, e := range []*environments.Environment{want, w.Old} {
			if e == nil || len(s.Deletes) == 0 {
				continue
			}
			going := slices.ContainsFunc(w.Machines, func(m machines.Machine) bool { return m.Ref() == s.Deletes[0] && m.State == machines.Deleting })
			if r, ok := e.Role(s.Role); ok && r.Protected && s.Blocked == nil && (s.Verb != Duplicate || !going) {
				t.Fatalf("%s %s is not blocked, though its role is protected", s.Verb, s.Node)
			}
		}
	}
	for _, known := range [][]string{slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(w.Records)), slices.Collect(maps.Keys(w.Hosts))} {
		for _, node := range known {
			if nodes[node] != 1 {
				t.Fatalf("%s has %d steps: %s", node, nodes[node], brief(p))
			}
		}
	}
}

// checkMachines checks that each machine is in one step: that of its node, or its own as a duplicate or unknown
// machine.
func checkMachines(t *rapid.T, p Plan, want *environments.Environment, w testWorld) {
	named := map[machines.Ref]int{}
	for _, s := range p.Steps {
		for _, v := range s.Deletes {
			named[v]++
			if named[v] > 1 {
				t.Fatalf("%v is destroyed twice: %s", v, brief(p))
			}
		}
	}
	unknown := 0
	for _, m := range w.Machines {
		has := func(s Step) bool { return s.Verb != Duplicate && s.Node == m.Name }
		if n, err := model.ParseHostname(m.Name); err != nil || n.Hostname() != m.Name || n.Stack != want.Stack {
			unknown++
		} else if !slices.ContainsFunc(p.Steps, has) {
			t.Fatalf("nothing is said of %v: %s", m, brief(p))
		}
	}
	if p.Counts()[Unknown] != unknown {
		t.Fatalf("%d unknown machines, and %d unknown steps", unknown, p.Counts()[Unknown])
	}
	// One machine remains of a name with several machines.
	if len(p.Blocked()) > 0 || want.Driver() == environments.DriverNone {
		return
	}
	left := map[string]int{}
	for _, m := range w.Machines {
		if named[m.Ref()] == 0 && !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Verb == Unknown && s.Node == quoted(m.Name) }) {
			left[m.Name]++
		}
	}
	for name, n := range left {
		if n > 1 {
			t.Fatalf("%d machines called %s stay: %s", n, name, brief(p))
		}
	}
}

// checkEnd carries a plan out and checks that the next one has no work.
func checkEnd(t *rapid.T, p Plan, want *environments.Environment, w testWorld, o Options) {
	if len(p.Blocked()) > 0 {
		return
	}
	for range 2 { // the second plan makes machines again that the first retired
		w = carriedOut(p, w, o)
		p = Make(want, w.World, o)
	}
	w = carriedOut(p, w, o)
	if last := Make(want, w.World, o); !last.Empty() || last.Changed || len(last.Reacting) > 0 {
		t.Fatalf("there is more to do: %s\nafter: %s", brief(last), brief(p))
	}
}

// carriedOut returns the world after a plan without failures, some time later.
func carriedOut(p Plan, w testWorld, o Options) testWorld {
	n := w
	n.Records, n.Hosts, n.Views, n.Statuses = maps.Clone(w.Records), maps.Clone(w.Hosts), maps.Clone(w.Views), maps.Clone(w.Statuses)
	n.Now = w.Now.Add(time.Minute)
	if !o.Destroy {
		n.Old, n.OldRevision = p.Spec, w.OldRevision+1
	}
	victims := p.Deleted()
	n.Machines = nil
	for _, m := range w.Machines {
		if m.State == machines.Deleting || slices.ContainsFunc(victims, m.Is) {
			continue
		}
		if p.Driver != environments.DriverNone && m.State != machines.Stopped && m.State != machines.Failed {
			m.State = machines.Running
		}
		n.Machines = append(n.Machines, m)
	}
	for _, s := range p.Steps {
		if s.Removes {
			delete(n.Records, s.Node)
			delete(n.Hosts, s.Node)
		}
		if s.Creates {
			m := machines.Machine{Name: s.Order.Name, ID: fmt.Sprint("new.", s.Node), State: machines.Running, Created: n.Now}
			n.Machines = append(n.Machines, m)
			n.Records[s.Node] = machines.Record{Node: s.Node, Name: m.Name, ID: m.ID, Phase: machines.Made, Driver: p.Driver, Flavor: s.Order.Flavor, Image: s.Order.Image, Tries: 1, At: n.Now}
		}
		if rec, booked := w.Records[s.Node]; s.Verb == Wait && booked && !slices.ContainsFunc(w.Machines, func(m machines.Machine) bool { return m.Name == model.MachineName(s.Node) }) {
			// listed by now
			n.Machines = append(n.Machines, machines.Machine{Name: rec.Name, ID: rec.ID, State: machines.Running, Created: rec.At})
		}
		i := slices.IndexFunc(n.Machines, func(m machines.Machine) bool { return m.Name == model.MachineName(s.Node) })
		if i < 0 || p.Driver == environments.DriverNone || s.Verb == Keep || s.Verb == Duplicate || s.Verb == Unknown {
			continue
		}
		m := n.Machines[i]
		r := n.Records[s.Node]
		if s.Verb == Adopt {
			r = machines.Record{Node: s.Node, Name: m.Name, Driver: p.Driver, Flavor: m.Flavor, Image: m.Image}
		}
		r.ID, r.Phase, r.At = m.ID, machines.Made, n.Now
		n.Records[s.Node] = r
		n.join(s.Node, s.Role)
		st := n.Statuses[s.Node]
		st.SeenAt = n.Now.Add(time.Second)
		n.Statuses[s.Node] = st
	}
	return n
}

// fiveThousand returns 5,000 nodes of four roles, most of them healthy.
func fiveThousand(tb testing.TB) (*environments.Environment, testWorld) {
	want := parsed(tb, `
provider: openstack
roles:
  a: {cardinality: 1250, flavor: small}
  b: {cardinality: 1250, flavor: small, after: [a], reacts_to: [a]}
  c: {cardinality: 1250, flavor: large, after: [b]}
  d: {cardinality: 1250, flavor: small, after: [b], reacts_to: [a]}
`)
	w := known()
	w.Old = want
	for node := range want.Nodes() {
		w.machine(node.String(), node.Role, "small", fmt.Sprint("id", node))
		r := w.Records[node.String()]
		r.Driver = "openstack"
		w.Records[node.String()] = r
	}
	delete(w.Records, "a7")
	return want, w
}

// BenchmarkPlan measures a plan of 5,000 nodes, a quarter of which is replaced.
func BenchmarkPlan(b *testing.B) {
	want, w := fiveThousand(b)
	for b.Loop() {
		if p := Make(want, w.World, Options{}); p.Counts()[Replace] != 1250 || p.Counts()[Adopt] != 1 || p.Counts()[Keep] != 3749 {
			b.Fatalf("plan: %v", p.Counts())
		}
	}
}

// If a plan of a large fleet took long, operators would skip it.
func TestPlanOfFiveThousandIsQuick(t *testing.T) {
	want, w := fiveThousand(t)
	start := time.Now()
	p := Make(want, w.World, Options{})
	took := time.Since(start)
	if len(p.Steps) != 5000 || took > time.Second {
		t.Errorf("%d steps in %s", len(p.Steps), took)
	}
}
