package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/machines"
	"pulley/internal/model"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// parsed parses the body of an environment called dev.
func parsed(t testing.TB, text string) *environments.Environment {
	t.Helper()
	e, err := environments.Parse("dev.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const twoComputes = `
provider: local
flavors: {small: m1.small, large: m1.large}
roles:
  compute: {cardinality: 2, flavor: small}
`

// testWorld is a World that tests add nodes to.
type testWorld struct{ machines.World }

// known returns an empty world with a promoted release; tests add their nodes.
func known() testWorld {
	return testWorld{machines.World{
		Records: map[string]machines.Record{}, Hosts: map[string]model.Host{}, Views: map[string]model.View{},
		Statuses: map[string]model.Status{}, Held: map[string]model.Hold{}, Released: true, Now: noon,
	}}
}

// machine adds a running, recorded and converged machine, made an hour ago.
func (w *testWorld) machine(node, role, flavor, id string) {
	host := strings.ReplaceAll(node, "_", "-")
	w.Machines = append(w.Machines, machines.Machine{Name: host, ID: id, State: machines.Running, Created: noon.Add(-time.Hour)})
	w.book(node, flavor, id, machines.Made)
	w.join(node, role)
}

func (w *testWorld) book(node, flavor, id string, phase machines.Phase) {
	w.Records[node] = machines.Record{Node: node, Name: strings.ReplaceAll(node, "_", "-"), ID: id, Phase: phase, Driver: "local", Flavor: flavor, Tries: 1, By: "ann", At: noon.Add(-time.Hour)}
}

func (w *testWorld) join(node, role string) {
	w.Hosts[node] = model.Host{Node: node, Role: role, At: noon.Add(-50 * time.Minute)}
	w.Views[node] = model.View{State: model.Converged}
	w.Statuses[node] = model.Status{Node: node, SeenAt: noon.Add(-time.Minute), LastGood: model.Target{Release: "1.0.0"}}
}

// spoke sets the time of a registered node's last report.
func (w *testWorld) spoke(node string, at time.Time) {
	h, st := w.Hosts[node], w.Statuses[node]
	h.MachineID, st.Machine, st.SeenAt = "m-"+node, "m-"+node, at
	w.Hosts[node], w.Statuses[node] = h, st
}

func (w *testWorld) silence(node string) {
	w.Views[node] = model.View{State: model.Silent, Cause: model.Cause{Reason: model.ReasonSilent, Params: model.Params{At: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)}}}
}

// unknown removes a node from etcd, except for its record.
func (w *testWorld) unknown(node string) {
	delete(w.Hosts, node)
	delete(w.Views, node)
	delete(w.Statuses, node)
}

func (w *testWorld) place(node, place string) {
	r := w.Records[node]
	r.Place = place
	w.Records[node] = r
}

// codes returns the reasons of a step, and why it is blocked, as JSON.
func codes(t *testing.T, s Step) string {
	t.Helper()
	b, err := json.Marshal(append(slices.Clone(s.Reasons), s.Notes...))
	if err != nil {
		t.Fatal(err)
	}
	blocked, err := json.Marshal(s.Blocked)
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + string(blocked)
}

// brief returns a plan in short: "keep compute1", "replace compute2 -compute2#b +".
func brief(p Plan) string {
	var parts []string
	for _, s := range p.Steps {
		one := string(s.Verb) + " " + s.Node
		for _, v := range s.Deletes {
			one += " -" + v.Name + "#" + v.ID
		}
		for _, flag := range []struct {
			is   bool
			word string
		}{{s.Removes, "removes"}, {s.Drain, "drains"}, {s.Creates, "makes"}, {s.Blocked != nil, "BLOCKED"}} {
			if flag.is {
				one += " " + flag.word
			}
		}
		parts = append(parts, one)
	}
	return strings.Join(parts, "; ")
}

// If one of these differed, an apply would delete a machine that is needed, or keep one that is not.
func TestPlan(t *testing.T) {
	up := func(w *testWorld) {
		w.machine("compute1", "compute", "m1.small", "a")
		w.machine("compute2", "compute", "m1.small", "b")
	}
	first := func(state machines.State, phase machines.Phase) func(*testWorld) {
		return func(w *testWorld) {
			w.machine("compute2", "compute", "m1.small", "b")
			w.book("compute1", "m1.small", "a", phase)
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "a", State: state, Problem: "No valid host was found"})
			r := w.Records["compute1"]
			r.At = noon.Add(-time.Minute)
			w.Records["compute1"] = r
		}
	}
	const second = "; keep compute2"
	tests := []struct {
		name  string
		spec  string // twoComputes if empty
		old   string // nothing stored if empty
		world func(*testWorld)
		o     Options
		want  string
		why   string // part of the reasons, as JSON, of all steps except keep
	}{
		{name: "no machines", want: "create compute1 makes; create compute2 makes", why: `"code":"no_machine"`},
		{name: "all is well", world: up, want: "keep compute1; keep compute2"},
		{name: "claimed, and nothing there", world: func(w *testWorld) {
			up(w)
			w.Machines = w.Machines[1:]
			delete(w.Hosts, "compute1")
			w.book("compute1", "m1.small", "", machines.Making)
		},
			want: "create compute1 makes" + second, why: `"code":"claimed","at":"2026-11-21T11:00:00Z","by":"ann"`},
		{name: "claimed, and building", world: first(machines.Building, machines.Making), want: "wait compute1" + second, why: `"code":"joining","machine":{"name":"compute1","id":"a"},"state":"building"`},
		{name: "claimed, and running", world: first(machines.Running, machines.Making), want: "wait compute1" + second},
		{name: "claimed, and of unknown state", world: first(machines.Unknown, machines.Making), want: "wait compute1" + second},
		{name: "claimed, and off", world: first(machines.Stopped, machines.Making), want: "broken compute1 -compute1#a removes makes" + second, why: `"code":"machine_off"`},
		{name: "claimed, and failed", world: first(machines.Failed, machines.Making), want: "broken compute1 -compute1#a removes makes" + second, why: `"code":"machine_failed"`},
		{name: "claimed, and on its way out", world: first(machines.Deleting, machines.Making), want: "wait compute1" + second, why: `"code":"machine_deleting"`},
		{name: "made, and building", world: first(machines.Building, machines.Made), want: "wait compute1" + second},
		{name: "made, and failed", world: first(machines.Failed, machines.Made), want: "broken compute1 -compute1#a removes makes" + second},
		{name: "made, and on its way out", world: first(machines.Deleting, machines.Made), want: "wait compute1" + second},
		{name: "never joined", world: func(w *testWorld) { up(w); w.unknown("compute1") },
			want: "broken compute1 -compute1#a removes makes" + second, why: `"seconds":1800`},
		{name: "never joined, and the provider does not know", world: func(w *testWorld) { up(w); w.unknown("compute1"); w.Machines[0].State = machines.Unknown },
			want: "wait compute1" + second, why: `"code":"joining","machine":{"name":"compute1","id":"a"},"state":"unknown"`},
		{name: "gone", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:]; w.silence("compute1") }, want: "orphan compute1 removes makes" + second, why: `"code":"machine_gone","machine":{"name":"compute1","id":"a"}`},
		{name: "not listed, and it reports", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:] }, want: "keep compute1" + second},
		{name: "not listed, and another machine speaks", world: func(w *testWorld) {
			up(w)
			w.Machines = w.Machines[1:]
			w.Hosts["compute1"] = model.Host{Node: "compute1", Role: "compute", MachineID: "new"}
			w.Statuses["compute1"] = model.Status{Node: "compute1", SeenAt: noon, Machine: "old"}
		}, want: "orphan compute1 removes makes" + second},
		{name: "not listed, and joined without a word", world: func(w *testWorld) {
			up(w)
			w.Machines = w.Machines[1:]
			delete(w.Statuses, "compute1")
			w.Views["compute1"] = model.View{State: model.Pending}
		}, want: "orphan compute1 removes makes" + second},
		{name: "not listed yet", world: func(w *testWorld) { first(machines.Running, machines.Made)(w); w.Machines = w.Machines[:1] }, want: "wait compute1" + second, why: `"code":"unlisted"`},
		{name: "not listed yet, and made by a clock that is ahead", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.Machines = w.Machines[:1]
			r := w.Records["compute1"]
			r.At = noon.Add(5 * time.Minute)
			w.Records["compute1"] = r
		}, want: "wait compute1" + second},
		{name: "not listed by far", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.Machines = nil
			w.silence("compute1")
		},
			want: "orphan compute1 removes makes BLOCKED; keep compute2; keep compute3", why: `"code":"too_few_listed","of":3`},
		{name: "not listed by far, confirmed", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.Machines = nil
			w.silence("compute1")
		},
			o: Options{AcceptLost: true}, want: "orphan compute1 removes makes; keep compute2; keep compute3"},
		{name: "not listed, and not wanted", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.Machines = w.Machines[:2]
		},
			want: "keep compute1; keep compute2; keep compute3"},
		{name: "destroyed, not listed, and it reports", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:] }, o: Options{Destroy: true},
			want: "retire compute2 -compute2#b removes drains; orphan compute1 removes BLOCKED", why: `"code":"may_still_run","at":"2026-11-21T11:59:00Z","until":"2026-11-21T12:19:00Z"`},
		{name: "destroyed, not listed, it reports, and its loss is confirmed", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:] }, o: Options{Destroy: true, AcceptLost: true},
			want: "retire compute2 -compute2#b removes drains; orphan compute1 removes BLOCKED", why: `"code":"may_still_run"`},
		{name: "destroyed, and made just now", world: func(w *testWorld) { first(machines.Running, machines.Made)(w); w.Machines = w.Machines[:1] }, o: Options{Destroy: true, AcceptLost: true},
			want: "retire compute2 -compute2#b removes drains; orphan compute1 removes BLOCKED", why: `"code":"may_be_listed","at":"2026-11-21T11:59:00Z","until":"2026-11-21T12:01:00Z"`},
		{name: "destroyed, made just now, and removed from the host list", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.Machines = w.Machines[:1]
			w.Statuses["compute1"] = model.Status{SeenAt: noon.Add(-time.Second)}
		}, o: Options{Destroy: true},
			want: "retire compute2 -compute2#b removes drains; orphan compute1 removes BLOCKED", why: `"code":"may_be_gone","at":"2026-11-21T11:59:00Z","until":"2026-11-21T12:01:00Z"`},
		{name: "destroyed, made just now, removed from the host list, and confirmed", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.Machines = w.Machines[:1]
			w.Statuses["compute1"] = model.Status{SeenAt: noon.Add(-time.Second)}
		}, o: Options{Destroy: true, AcceptLost: true},
			want: "retire compute2 -compute2#b removes drains; orphan compute1 removes"},
		{name: "destroyed, and never made", world: func(w *testWorld) { w.book("compute1", "m1.small", "", machines.Making) }, o: Options{Destroy: true},
			want: "orphan compute1 removes", why: `{"code":"environment_destroyed"},{"code":"no_machine"}`},
		{name: "destroyed at another place", world: func(w *testWorld) { up(w); w.place("compute1", "west") }, o: Options{Destroy: true, Place: "east"},
			want: "retire compute2 -compute2#b removes drains; retire compute1 removes drains BLOCKED", why: `"code":"place_blind"`},
		{name: "destroyed, and of others", world: func(w *testWorld) { up(w); w.join("compute3", "compute") }, o: Options{Destroy: true},
			want: "retire compute2 -compute2#b removes drains; retire compute1 -compute1#a removes drains; extra compute3", why: `"code":"host_remains"`},
		{name: "destroyed with all of others", world: func(w *testWorld) { up(w); w.join("compute3", "compute") }, o: Options{Destroy: true, ForgetHosts: true},
			want: "retire compute3 removes drains; retire compute2 -compute2#b removes drains; retire compute1 -compute1#a removes drains"},
		{name: "at another place", world: func(w *testWorld) { up(w); w.place("compute1", "west") }, o: Options{Place: "east"},
			want: "replace compute1 BLOCKED" + second, why: `"code":"place_changed","was":"west","now":"east"`},
		{name: "at another place, and not wanted", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.place("compute3", "west")
		}, o: Options{Place: "east"},
			want: "keep compute1; keep compute2; retire compute3 removes drains BLOCKED", why: `"code":"place_blind"`},
		{name: "at a place of another name", world: func(w *testWorld) { up(w); w.place("compute1", "west") }, o: Options{Place: "east", SamePlace: true},
			want: "adopt compute1" + second, why: `"code":"place_renamed"`},
		{name: "at a place of another name, and not listed", world: func(w *testWorld) {
			up(w)
			w.place("compute1", "west")
			w.Machines = w.Machines[1:]
			w.silence("compute1")
		},
			o: Options{Place: "east", SamePlace: true}, want: "replace compute1 BLOCKED" + second},
		{name: "at the same place", world: func(w *testWorld) { up(w); w.place("compute1", "west") }, o: Options{Place: "west"}, want: "keep compute1" + second},
		{name: "removed from the host list", world: func(w *testWorld) { up(w); delete(w.Hosts, "compute1") }, want: "keep compute1" + second},
		{name: "removed from the host list, and it never spoke", world: func(w *testWorld) {
			up(w)
			w.unknown("compute1")
			r := w.Records["compute1"]
			r.Joined = true
			w.Records["compute1"] = r
		}, want: "keep compute1" + second},
		{name: "removed from the host list, before its record had the phase made", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "a", machines.Making)
			delete(w.Hosts, "compute1")
		}, want: "keep compute1" + second},
		{name: "not listed, and it reports, and another one has its name", world: func(w *testWorld) {
			up(w)
			w.Machines[0] = machines.Machine{Name: "compute1", ID: "z", State: machines.Running, Flavor: "m1.large", Created: noon.Add(-time.Hour)}
		}, want: "keep compute1" + second},
		{name: "not listed, and it reports from an address, and another one has its name", world: func(w *testWorld) {
			up(w)
			w.Hosts["compute1"] = model.Host{Node: "compute1", Role: "compute", Addresses: []string{"10.0.0.1"}}
			w.Machines[0] = machines.Machine{Name: "compute1", ID: "z", State: machines.Running, Created: noon.Add(-time.Hour), Addresses: []string{"10.0.0.2"}}
		}, want: "keep compute1" + second},
		{name: "made by a slow clock", world: func(w *testWorld) { up(w); w.unknown("compute1"); w.Machines[0].Created = noon.Add(-time.Minute) }, want: "wait compute1" + second},
		{name: "made by a clock that is ahead", world: func(w *testWorld) {
			up(w)
			w.unknown("compute1")
			r := w.Records["compute1"]
			r.At = noon.Add(time.Hour)
			w.Records["compute1"] = r
		}, want: "wait compute1" + second},
		{name: "of another driver, though there is none now", spec: strings.Replace(twoComputes, "local", "none", 1), world: up,
			want: "replace compute1 BLOCKED; replace compute2 BLOCKED", why: `"code":"driver_blind","was":"local","now":"none"`},
		{name: "two of a name, and the node is on its way out", world: func(w *testWorld) {
			up(w)
			w.Machines[0].State = machines.Deleting
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "z", State: machines.Running, Created: noon})
		}, want: "adopt compute1; duplicate compute1 -compute1#a; keep compute2"},
		{name: "gone before it joined", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:]; delete(w.Hosts, "compute1") }, want: "orphan compute1 removes makes" + second},
		{name: "gone, though claimed again, and registered", world: func(w *testWorld) {
			up(w)
			w.Machines = w.Machines[1:]
			w.silence("compute1")
			w.book("compute1", "m1.small", "", machines.Making)
		},
			want: "orphan compute1 removes makes" + second},
		{name: "silent", world: func(w *testWorld) { up(w); w.silence("compute1") }, want: "keep compute1; keep compute2"},
		{name: "silent and off", world: func(w *testWorld) {
			up(w)
			w.silence("compute1")
			w.Machines[0].State = machines.Stopped
			w.Held["compute1"] = model.Hold{Who: "ann", Why: "disk swap"}
		},
			want: "broken compute1 -compute1#a removes makes" + second, why: `"code":"under_hold"`},
		{name: "another flavor", spec: strings.Replace(twoComputes, "flavor: small", "flavor: large", 1), old: twoComputes, world: up,
			want: "replace compute1 -compute1#a removes drains makes; replace compute2 -compute2#b removes drains makes", why: `"code":"flavor_changed","was":"m1.small","now":"m1.large"`},
		{name: "another word for the same flavor", spec: strings.NewReplacer("large: m1.large", "same: m1.small", "flavor: small", "flavor: same").Replace(twoComputes), old: twoComputes, world: up, want: "keep compute1; keep compute2"},
		{name: "adopted, and the provider does not tell its flavor", world: func(w *testWorld) {
			up(w)
			r := w.Records["compute1"]
			r.Flavor, r.Tries = "", 0
			w.Records["compute1"] = r
		}, want: "keep compute1; keep compute2"},
		{name: "without a record", world: func(w *testWorld) { up(w); delete(w.Records, "compute1") }, want: "adopt compute1" + second, why: `"code":"not_recorded"`},
		{name: "without a record, and not what is wanted", world: func(w *testWorld) { up(w); delete(w.Records, "compute1"); w.Machines[0].Flavor = "m1.large" },
			want: "replace compute1 -compute1#a removes drains makes" + second, why: `"code":"flavor_changed","was":"m1.large","now":"m1.small"`},
		{name: "another machine than the recorded one", world: func(w *testWorld) { up(w); w.Machines[0].ID = "z" }, want: "adopt compute1" + second},
		{name: "registered, and of others", world: func(w *testWorld) { up(w); w.Machines = w.Machines[1:]; delete(w.Records, "compute1") }, want: "keep compute1; keep compute2"},
		{name: "joined just now", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.join("compute1", "compute")
			// the machine before reported that
			w.Statuses["compute1"] = model.Status{Node: "compute1", SeenAt: noon.Add(-2 * time.Hour), LastGood: model.Target{Release: "1.0.0"}}
		}, want: "wait compute1" + second, why: `"code":"converging"`},
		{name: "reported before its record had its machine", world: func(w *testWorld) {
			up(w)
			w.spoke("compute1", noon.Add(-40*time.Minute))
			r := w.Records["compute1"]
			r.At = noon.Add(-20 * time.Minute)
			w.Records["compute1"] = r
		}, want: "keep compute1; keep compute2"},
		{name: "reported before it was on the list, with the same machine id", world: func(w *testWorld) {
			up(w)
			w.spoke("compute1", noon.Add(-12*time.Minute))
			h, r := w.Hosts["compute1"], w.Records["compute1"]
			h.At, r.At = noon.Add(-10*time.Minute), noon.Add(-5*time.Minute)
			w.Hosts["compute1"], w.Records["compute1"] = h, r
		}, want: "wait compute1" + second, why: `"code":"converging"`},
		{name: "another one reported before its record had its machine", world: func(w *testWorld) {
			up(w)
			w.spoke("compute1", noon.Add(-40*time.Minute))
			h, r := w.Hosts["compute1"], w.Records["compute1"]
			h.MachineID, r.At = "another", noon.Add(-20*time.Minute)
			w.Hosts["compute1"], w.Records["compute1"] = h, r
		}, want: "wait compute1" + second, why: `"code":"converging"`},
		{name: "joined just now, and nothing is promoted", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.join("compute1", "compute")
			delete(w.Statuses, "compute1")
			w.Released = false
		}, want: "keep compute1; keep compute2"},
		{name: "retiring was begun, and it is wanted again", world: func(w *testWorld) { up(w); w.book("compute1", "m1.small", "a", machines.Retiring) },
			want: "adopt compute1" + second, why: `"code":"retirement_begun","at":"2026-11-21T11:00:00Z","by":"ann"`},
		{name: "retiring was begun, and another one of its name is registered", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "b", machines.Retiring)
			w.Hosts["compute1"] = model.Host{Node: "compute1", Role: "compute", Addresses: []string{"10.0.0.7"}}
			for i, m := range w.Machines {
				if m.ID == "a" {
					w.Machines[i].Addresses = []string{"10.0.0.7"}
					m.ID, m.Addresses = "b", []string{"10.0.0.8"}
					w.Machines = append(w.Machines, m)
				}
			}
		}, want: "adopt compute1; duplicate compute1 -compute1#b" + second},
		{name: "retiring was begun, and another flavor is wanted", world: func(w *testWorld) { up(w); w.book("compute1", "m1.large", "a", machines.Retiring) },
			want: "replace compute1 -compute1#a removes drains makes" + second, why: `"code":"retirement_begun"`},
		{name: "retiring was begun, and it is drained", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "a", machines.Retiring)
			r := w.Records["compute1"]
			r.Drained = true
			w.Records["compute1"] = r
		}, want: "replace compute1 -compute1#a removes drains makes" + second},
		{name: "retiring was begun, and it is off", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "a", machines.Retiring)
			w.Machines[0].State = machines.Stopped
		}, want: "replace compute1 -compute1#a removes makes" + second},
		{name: "retiring of a member was begun", old: twoComputes, world: func(w *testWorld) {
			up(w)
			w.join("old.example.com", "compute")
			w.Records["old.example.com"] = machines.Record{Node: "old.example.com", Name: "old.example.com", Phase: machines.Retiring, Driver: "local", By: "ann", At: noon}
		}, want: "keep compute1; keep compute2; retire old.example.com removes drains", why: `"code":"retirement_begun"`},
		{name: "retiring was begun, and the machine is gone", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "a", machines.Retiring)
			w.Machines = w.Machines[1:]
			w.silence("compute1")
		}, want: "replace compute1 removes makes" + second},
		{name: "retiring was begun, and the machine is not listed, and it reports", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "a", machines.Retiring)
			w.Machines = w.Machines[1:]
		}, want: "keep compute1" + second},
		{name: "retiring was begun, and it is not wanted", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.book("compute3", "m1.small", "c", machines.Retiring)
		},
			want: "keep compute1; keep compute2; retire compute3 -compute3#c removes drains", why: `"code":"retirement_begun"`},
		{name: "fewer", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.machine("compute10", "compute", "m1.small", "d")
		},
			want: "keep compute1; keep compute2; retire compute10 -compute10#d removes drains; retire compute3 -compute3#c removes drains", why: `"code":"surplus","role":"compute","count":2`},
		{name: "none of it", spec: strings.Replace(twoComputes, "cardinality: 2", "cardinality: 0", 1), world: up,
			want: "retire compute2 -compute2#b removes drains; retire compute1 -compute1#a removes drains"},
		{name: "fewer, and it never joined", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			delete(w.Hosts, "compute3")
		},
			want: "keep compute1; keep compute2; retire compute3 -compute3#c removes"},
		{name: "fewer, and it is gone", world: func(w *testWorld) { up(w); w.book("compute3", "m1.small", "c", machines.Made) },
			want: "keep compute1; keep compute2; orphan compute3 removes"},
		{name: "fewer, and it joined by itself", world: func(w *testWorld) { up(w); w.join("compute3", "compute") },
			want: "keep compute1; keep compute2; extra compute3", why: `"code":"not_made_by_pulley","environment":"dev","node":"compute3"`},
		{name: "fewer, and without a record", world: func(w *testWorld) {
			up(w)
			w.Machines = append(w.Machines, machines.Machine{Name: "compute3", ID: "c", State: machines.Deleting})
		},
			want: "keep compute1; keep compute2; retire compute3 -compute3#c removes"},
		{name: "destroyed", world: up, o: Options{Destroy: true}, want: "retire compute2 -compute2#b removes drains; retire compute1 -compute1#a removes drains", why: `"code":"environment_destroyed"`},
		{name: "another provider", spec: strings.Replace(twoComputes, "local", "nspawn", 1), world: func(w *testWorld) { up(w); w.Machines = nil },
			want: "replace compute1 BLOCKED; replace compute2 BLOCKED", why: `"code":"driver_blind","was":"local","now":"nspawn"`},
		{name: "no provider", spec: strings.Replace(twoComputes, "local", "none", 1), world: func(w *testWorld) { w.join("compute2", "compute"); w.join("compute3", "compute") },
			want: "missing compute1; keep compute2; extra compute3", why: `"code":"machine_missing","environment":"dev","node":"compute1"`},
		{name: "two of a name, one with a record", world: func(w *testWorld) {
			up(w)
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "0", State: machines.Running, Created: noon.Add(-9 * time.Hour)})
		}, want: "keep compute1; duplicate compute1 -compute1#0; keep compute2", why: `"by":"inventory"`},
		{name: "two of a name, one by its address", world: func(w *testWorld) {
			up(w)
			r := w.Records["compute1"]
			r.ID = ""
			w.Records["compute1"] = r
			w.Hosts["compute1"] = model.Host{Node: "compute1", Role: "compute", Addresses: []string{"10.0.0.7"}}
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "z", State: machines.Running, Created: noon, Addresses: []string{"10.0.0.7"}})
		}, want: "keep compute1; duplicate compute1 -compute1#a; keep compute2", why: `"by":"address"`},
		{name: "two of a name, the older", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "", machines.Making)
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "0", State: machines.Running, Created: noon})
		}, want: "wait compute1; duplicate compute1 -compute1#0; keep compute2"},
		{name: "two of a name, without ids", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "", machines.Made)
			w.Machines[0].ID = ""
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", State: machines.Running})
		}, want: "keep compute1; duplicate compute1 BLOCKED; keep compute2", why: `"code":"no_machine_ids"`},
		{name: "two of a name, both go", world: func(w *testWorld) {
			up(w)
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "0", State: machines.Running})
			w.Machines[0].State = machines.Failed
		},
			want: "broken compute1 -compute1#0 -compute1#a removes drains makes" + second},
		{name: "two of a name, the older is dead", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "", machines.Made)
			w.Machines[0].State = machines.Failed
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "z", State: machines.Running, Created: noon})
		}, want: "keep compute1; duplicate compute1 -compute1#a; keep compute2"},
		{name: "two of a name, the older is on its way out", world: func(w *testWorld) {
			up(w)
			w.book("compute1", "m1.small", "", machines.Made)
			w.Machines[0].State = machines.Deleting
			w.Machines = append(w.Machines, machines.Machine{Name: "compute1", ID: "z", State: machines.Stopped, Created: noon})
		}, want: "broken compute1 -compute1#a -compute1#z removes makes; keep compute2"},
		{name: "drained already", world: func(w *testWorld) {
			up(w)
			w.machine("compute3", "compute", "m1.small", "c")
			w.book("compute3", "m1.small", "c", machines.Retiring)
			r := w.Records["compute3"]
			r.Drained = true
			w.Records["compute3"] = r
		}, want: "keep compute1; keep compute2; retire compute3 -compute3#c removes"},
		{name: "joined just now, and under a hold", world: func(w *testWorld) {
			first(machines.Running, machines.Made)(w)
			w.join("compute1", "compute")
			delete(w.Statuses, "compute1")
			w.Held["compute1"] = model.Hold{Who: "ann", Why: "disk swap"}
		}, want: "keep compute1; keep compute2"},
		{name: "several that are not ours", world: func(w *testWorld) { up(w); w.join("compute12", "compute"); w.join("compute3", "compute") },
			want: "keep compute1; keep compute2; extra compute3; extra compute12"},
		{name: "one that is listed twice", world: func(w *testWorld) { up(w); w.Machines = append(w.Machines, w.Machines[0]) }, want: "keep compute1; keep compute2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec, w := tt.spec, known()
			if spec == "" {
				spec = twoComputes
			}
			if tt.old != "" {
				w.Old, w.OldRevision = parsed(t, tt.old), 7
			}
			if tt.world != nil {
				tt.world(&w)
			}
			p := Make(parsed(t, spec), w.World, tt.o)
			if got := brief(p); got != tt.want {
				t.Errorf("plan:\n  %s\nwant:\n  %s", got, tt.want)
			}
			said := ""
			for _, s := range p.Steps {
				if s.Verb != Keep {
					said += codes(t, s)
				}
			}
			if !strings.Contains(said, tt.why) {
				t.Errorf("said:\n%s\nwant: %s", said, tt.why)
			}
		})
	}
}

const protectedDB = `
provider: local
roles:
  db: {cardinality: 2, protected: true}
  web: {cardinality: 1, after: [db], reacts_to: [db]}
`

// If one of these passed, the machine of a protected role would be destroyed.
func TestPlanKeepsProtectedMachines(t *testing.T) {
	up := func(w *testWorld) {
		w.machine("db1", "db", "", "a")
		w.machine("db2", "db", "", "b")
		w.machine("web1", "web", "", "c")
	}
	free := strings.Replace(protectedDB, ", protected: true", "", 1)
	tests := []struct {
		name, spec, old string
		world           func(*testWorld)
		o               Options
		want            string
	}{
		{name: "fewer", spec: strings.Replace(protectedDB, "2", "1", 1), old: protectedDB, want: "keep db1; keep web1; retire db2 -db2#b removes drains BLOCKED"},
		{name: "fewer and unprotected at once", spec: strings.Replace(free, "2", "1", 1), old: protectedDB, want: "keep db1; keep web1; retire db2 -db2#b removes drains BLOCKED"},
		{name: "unprotected before", spec: strings.Replace(free, "2", "1", 1), old: free, want: "keep db1; keep web1; retire db2 -db2#b removes drains"},
		{name: "protected from now on", spec: strings.Replace(protectedDB, "2", "1", 1), old: free, want: "keep db1; keep web1; retire db2 -db2#b removes drains BLOCKED"},
		{name: "the role is gone", spec: "provider: local\nroles:\n  web: {cardinality: 1}\n", old: protectedDB,
			want: "keep web1; retire db2 -db2#b removes drains BLOCKED; retire db1 -db1#a removes drains BLOCKED"},
		{name: "another image", spec: strings.Replace(protectedDB, "protected", "image: other, protected", 1), old: protectedDB,
			want: "replace db1 -db1#a removes drains makes BLOCKED; replace db2 -db2#b removes drains makes BLOCKED; keep web1"},
		{name: "failed", spec: protectedDB, old: protectedDB, world: func(w *testWorld) { w.Machines[0].State = machines.Failed }, want: "broken db1 -db1#a removes makes BLOCKED; keep db2; keep web1"},
		{name: "gone", spec: protectedDB, old: protectedDB, world: func(w *testWorld) { w.Machines = w.Machines[1:]; w.silence("db1") }, want: "orphan db1 removes makes BLOCKED; keep db2; keep web1"},
		{name: "destroyed", spec: protectedDB, old: protectedDB, o: Options{Destroy: true},
			want: "retire web1 -web1#c removes drains; retire db2 -db2#b removes drains BLOCKED; retire db1 -db1#a removes drains BLOCKED"},
		{name: "two of a name", spec: protectedDB, old: protectedDB, world: func(w *testWorld) {
			w.Machines = append(w.Machines, machines.Machine{Name: "db1", ID: "z", State: machines.Running})
		},
			want: "keep db1; duplicate db1 -db1#z BLOCKED; keep db2; keep web1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := known()
			up(&w)
			w.Old = parsed(t, tt.old)
			if tt.world != nil {
				tt.world(&w)
			}
			if got := brief(Make(parsed(t, tt.spec), w.World, tt.o)); got != tt.want {
				t.Errorf("plan:\n  %s\nwant:\n  %s", got, tt.want)
			}
		})
	}
}

// In another order, a controller would be gone while its compute nodes still need it.
func TestPlanRetiresInReverse(t *testing.T) {
	w := known()
	w.machine("a1", "a", "", "1")
	w.machine("b1", "b", "", "2")
	w.machine("b2", "b", "", "3")
	w.machine("c1", "c", "", "4")
	spec := "provider: local\nroles:\n  b: {cardinality: 2, after: [a]}\n  a: {cardinality: 1}\n  c: {cardinality: 1, after: [a]}\n"
	w.Old = parsed(t, spec)
	p := Make(w.Old, w.World, Options{Destroy: true})
	var nodes []string
	for _, s := range p.Steps {
		nodes = append(nodes, s.Node)
	}
	if got := strings.Join(nodes, " "); got != "c1 b2 b1 a1" {
		t.Errorf("they go in the order %s", got)
	}
}

// Without the request, nodes would keep outdated data about others.
func TestPlanListsReactingNodes(t *testing.T) {
	w := known()
	w.machine("db1", "db", "", "a")
	w.machine("web1", "web", "", "c")
	if p := Make(parsed(t, protectedDB), w.World, Options{}); strings.Join(p.Reacting, " ") != "web1" {
		t.Errorf("reacting: %v", p.Reacting)
	}
	w.machine("db2", "db", "", "b")
	fewer := strings.NewReplacer("2", "1", ", protected: true", "").Replace(protectedDB)
	if p := Make(parsed(t, fewer), w.World, Options{}); strings.Join(p.Reacting, " ") != "web1" {
		t.Errorf("reacting to one that goes: %v", p.Reacting)
	}
	delete(w.Hosts, "web1")
	if p := Make(parsed(t, fewer), w.World, Options{}); len(p.Reacting) != 0 {
		t.Errorf("one that is not registered reacts: %v", p.Reacting)
	}
	w.join("web1", "web")
	if p := Make(parsed(t, protectedDB), w.World, Options{}); len(p.Reacting) != 0 || !p.Empty() {
		t.Errorf("reacting though nothing comes or goes: %v", p.Reacting)
	}
}

// If members were treated as Pulley's machines, a user's own machine would be destroyed.
func TestPlanOfMembers(t *testing.T) {
	const spec = "provider: nspawn\nroles:\n  compute:\n    cardinality: 0\n    members: [old1.example.com, old2.example.com]\n"
	w := known()
	w.join("old1.example.com", "compute")
	p := Make(parsed(t, spec), w.World, Options{})
	if got := brief(p); got != "keep old1.example.com; missing old2.example.com" {
		t.Errorf("plan: %s", got)
	}
	if why := p.Steps[1].Reasons[0]; why.Code != machines.MachineMissing || why.Node != "old2.example.com" || why.Environment != "dev" || why.Role != "compute" || !why.Member {
		t.Errorf("why: %+v", why)
	}
	w.Old = parsed(t, spec)
	left := parsed(t, strings.Replace(spec, "old1.example.com, ", "", 1))
	if got := brief(Make(left, w.World, Options{})); got != "missing old2.example.com; retire old1.example.com removes drains" {
		t.Errorf("plan: %s", got)
	}
	w.silence("old1.example.com")
	if got := brief(Make(left, w.World, Options{})); got != "missing old2.example.com; retire old1.example.com removes" {
		t.Errorf("plan of a silent one: %s", got)
	}
}

// Without it, a repository with declarations of full names could not be tried before a real machine of such a name runs it.
func TestPlanOfMembersOfATrial(t *testing.T) {
	e := parsed(t, "provider: local\nroles:\n  compute:\n    members: [old1.example.com]\n")
	w := known()
	p := Make(e, w.World, Options{})
	if got := brief(p); got != "create old1.example.com makes" || p.Steps[0].Order.Name != "old1-example-com" {
		t.Fatalf("plan: %s, %+v", got, p.Steps[0].Order)
	}
	w.Old = e
	w.Records = map[string]machines.Record{"old1.example.com": {Node: "old1.example.com", Name: "old1-example-com", ID: "x", Driver: "local", Phase: machines.Made}}
	w.Machines = []machines.Machine{{Name: "old1-example-com", ID: "x", State: machines.Running}}
	if p := Make(parsed(t, "provider: local\nroles: {compute: {cardinality: 0}}\n"), w.World, Options{}); len(p.Steps) != 1 || p.Steps[0].Verb != Retire || len(p.Deleted()) != 1 {
		t.Errorf("plan: %s", brief(p))
	}
}

// If a forged name were accepted, another stack's machine could be destroyed, or control characters reach a terminal.
func TestPlanIgnoresUnknownMachines(t *testing.T) {
	e := parsed(t, "stack: t42\n"+twoComputes)
	for _, name := range []string{
		"compute1", "compute1-t43", "compute1_t42", "Compute1-t42", "../compute1-t42", "compute1-t42.example.com", "compute1-t42\x1b[2J", "compute1-t42\n", "", "compute01-t42",
		"compute0-t42", strings.Repeat("x", 10_000), "compute1-t42\xff", "c\u202eompute1-t42",
	} {
		w := known()
		w.Machines = []machines.Machine{{Name: name, ID: "x", State: machines.Running}}
		p := Make(e, w.World, Options{})
		if len(p.Steps) != 3 || p.Steps[2].Verb != Unknown || len(p.Deleted()) != 0 {
			t.Errorf("%.40q is taken for a node's: %s", name, brief(p))
			continue
		}
	}
	w := known()
	w.Machines = []machines.Machine{{Name: "compute1-t42", ID: "x", State: machines.Failed, Problem: "\x1b]0;own\a\n" + strings.Repeat("y", 10_000)}}
	if p := Make(e, w.World, Options{}); len(p.Steps[0].Reasons[0].Problem) > 400 || strings.ContainsAny(string(p.Steps[0].Reasons[0].Problem), "\x1b\a\n") {
		t.Errorf("why: %.300q", p.Steps[0].Reasons[0].Problem)
	}
}

// If these differed, an operator would wait for a time at which nothing changes.
func TestSilentFromMatchesAgent(t *testing.T) {
	for _, c := range []struct {
		beat  time.Duration
		phase model.Phase
		quiet time.Duration
		set   model.Duration
	}{
		{0, model.Idle, 20 * time.Minute, 0},
		{time.Minute, model.Idle, 20 * time.Minute, 0},
		{10 * time.Minute, model.Idle, 30 * time.Minute, 0},
		{10 * time.Minute, model.Running, 75 * time.Minute, 0},
		{time.Hour, model.Running, 3 * time.Hour, 0},
		{5 * time.Minute, model.Idle, 15 * time.Minute, model.Duration(15 * time.Minute)},
		{10 * time.Minute, model.Idle, 30 * time.Minute, model.Duration(15 * time.Minute)},
		{5 * time.Minute, model.Idle, 2 * time.Hour, model.Duration(2 * time.Hour)},
		{5 * time.Minute, model.Running, 2 * time.Hour, model.Duration(2 * time.Hour)},
	} {
		st := model.Status{SeenAt: noon, Phase: c.phase}
		st.Settings.Heartbeat = c.beat
		w := machines.World{Now: noon, Old: &environments.Environment{Silence: c.set}, Statuses: map[string]model.Status{"web1": st}}
		at, d := w.SilentFrom("web1"), model.Desired{Host: &model.Host{At: noon}, Silence: time.Duration(c.set)}
		if !at.Equal(noon.Add(c.quiet)) {
			t.Errorf("with a heartbeat of %s, %s: it is silent from %s, want after %s", c.beat, c.phase, at, c.quiet)
		}
		if v := model.Look(&st, d, at); v.State == model.Silent {
			t.Errorf("with a heartbeat of %s, %s: it is silent before %s", c.beat, c.phase, at)
		}
		if v := model.Look(&st, d, at.Add(time.Second)); v.State != model.Silent {
			t.Errorf("with a heartbeat of %s, %s: it is %s after %s", c.beat, c.phase, v.State, at)
		}
	}
}

// Advice to add a node again that etcd would refuse sends an operator in a circle.
func TestPlanAdvisesRemovedNodesByTheirWayToJoin(t *testing.T) {
	const servers = "userdata: {servers: [\"https://10.0.0.1:8443\"], ca: [\"sha256:" + "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9" + "\"]}\n"
	for spec, want := range map[string]machines.Code{twoComputes: machines.OffHostListNote, twoComputes + servers: machines.LockedOutNote} {
		w := known()
		w.machine("compute1", "compute", "m1.small", "a")
		w.machine("compute2", "compute", "m1.small", "b")
		delete(w.Hosts, "compute1")
		if said := codes(t, Make(parsed(t, spec), w.World, Options{}).Steps[0]); !strings.Contains(said, string(want)) {
			t.Errorf("%s, want %s", said, want)
		}
	}
}
