package machines_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/machines/apply"
)

// scene is a situation in which an apply has work to do.
type scene struct {
	say    string
	was    *environments.Environment
	want   *environments.Environment
	happen func(*sim) // before the apply
}

func scenes() []scene {
	web := func(n int, more ...func(*environments.Role)) *environments.Environment {
		return fleetOf(role("db", 1), role("web", n, append(more, after("db"), batch("2"))...))
	}
	kill := func(state machines.State) func(*sim) {
		return func(s *sim) {
			for _, m := range s.machines() {
				if m.Name == "web1" {
					s.kill(m.ID, state)
				}
			}
		}
	}
	lose := func(s *sim) {
		kill("")(s)
		pass(30 * time.Minute) // until then it counts as alive
	}
	return []scene{
		{"a new fleet", nil, web(2), nil},
		{"nodes retire", web(3), web(1), nil},
		{"a role goes", web(2), fleetOf(role("db", 1)), nil},
		{"another flavor", web(2), web(2, flavor("large")), nil},
		{"a machine is off", web(2), web(2), kill(machines.Stopped)},
		{"a machine is lost", web(2), web(2), lose},
		{"a lost machine is not wanted any more", web(2), web(0), lose},
		{"a retirement is cancelled", web(2), web(2), func(s *sim) { s.retiring("web2") }},
		{"a machine without a machine record", web(2), web(2), func(s *sim) { s.forget("web1") }},
		{"two machines of one name", web(2), web(2), func(s *sim) { s.plant("web1", s.mark()) }},
	}
}

// set returns an operator in the scene.
func (sc scene) set(t *testing.T) *operator {
	o := newOperator(t)
	o.site.plant("web9", machines.Mark{Owner: "another", Fleet: "dev"})
	o.site.plant("web1", machines.Mark{Owner: "another", Fleet: "dev"})
	if sc.was != nil {
		if _, err := o.apply(sc.was); err != nil {
			t.Fatal(err)
		}
	}
	if sc.happen != nil {
		sc.happen(o.site)
	}
	return o
}

// endOf returns the final state as text, without times and ids, which may depend on crashes.
func endOf(o *operator) string {
	lines := map[string]bool{}
	line := func(format string, args ...any) { lines[fmt.Sprintf(format, args...)] = true }
	names := map[machines.Ref]int{}
	for _, m := range o.site.machines() {
		id := machines.Ref{Name: m.Name, ID: m.Mark.String()}
		names[id]++
		line("machine %s of %s: %s %s, joined %v, %d", m.Name, m.Mark, m.State, m.Flavor, m.Joined, names[id])
	}
	for _, r := range o.site.Records() {
		there := slices.ContainsFunc(o.site.machines(), func(m seen) bool { return m.ID == r.ID && m.Name == r.Name })
		line("record %s: %s %s %s %s, machine exists %v, problem %q", r.Node, r.Name, r.Phase, r.Driver, r.Flavor, there, r.Problem)
	}
	for node, h := range o.site.Hosts() {
		line("host %s: %s, its machine is the recorded one %v", node, h.Role, h.MachineID == o.site.Records()[node].ID)
	}
	for token, node := range o.site.Tokens() {
		line("token of %s: its record has it %v", node, o.site.Records()[node].Token == token)
	}
	for _, a := range o.site.Acts() {
		line("act: %s %s by %s", a.Node, a.Did, a.By)
	}
	spec, _ := environments.Encode(o.site.Spec())
	line("spec %s", spec)
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n")
}

// again applies once more and compares the final states.
func (sc scene) again(t *testing.T, o *operator, calm string) {
	t.Helper()
	o.dies, o.site.Trouble = nil, nil
	if _, err := o.apply(sc.want); err != nil {
		t.Fatalf("the apply after the crash: %v", err)
	}
	if got := endOf(o); got != calm {
		t.Errorf("after a crash and another apply:\n%s\n\nwithout the crash:\n%s", got, calm)
	}
	if p := o.plan(sc.want); !p.Empty() {
		t.Errorf("the plan is not empty: %s", text(p.Plan))
	}
	o.noViolations()
}

// A crash in the middle of an apply must not leave duplicate or unknown machines, or unfinished nodes. For a crash before and after
// the effect of every call to etcd and the provider, the next apply has the same result as one without a crash.
func TestApplyResumesAfterCrash(t *testing.T) {
	crashes, tasks := 0, map[string]bool{}
	for _, sc := range scenes() {
		t.Run(sc.say, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := sc.set(t)
				calls := 0
				o.events = nil
				o.site.Trouble = func(string) fault { calls++; return none }
				if _, err := o.apply(sc.want); err != nil {
					t.Fatal(err)
				}
				o.noViolations()
				calm := endOf(o)
				for _, e := range o.events {
					tasks[e.Task] = true
				}
				for k := 1; k <= calls; k++ {
					for _, how := range []fault{crashBefore, crashAfter} {
						n, reads := 0, false
						crash := sc.set(t)
						crash.site.Trouble = func(call string) fault {
							if n++; n == k {
								reads = call == "world" || call == "list"
								return how
							}
							return none
						}
						_, _ = crash.apply(sc.want)
						crashes++
						sc.again(t, crash, calm)
						if t.Failed() {
							t.Fatalf("the crash was at call %d: %s", k, how)
						}
						if reads {
							break // without effect
						}
					}
				}
			})
		})
	}
	for _, name := range apply.Tasks() {
		if !tasks[name] && name != "settle" { // for an order that a crash leaves behind: no scene begins with one
			t.Errorf("no scene has the task %s", name)
		}
	}
	t.Logf("%d crashes", crashes)
}
