package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/access"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/model"
)

var (
	now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	dev = model.Ref{Environment: "dev"}
	one = model.Target{Release: "1.0.0", Tree: "t1"}
	two = model.Target{Release: "2.0.0", Tree: "t2", Data: 3}
)

func spec(t *testing.T, text string) *environments.Environment {
	t.Helper()
	e, err := environments.Load(environments.LoadOptions{File: environments.Source{Name: "dev.yaml", Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// reported is the status of a node that enforces a target.
func reported(node string, target model.Target, ago time.Duration) model.Status {
	return model.Status{Node: node, Role: "compute", SeenAt: now.Add(-ago), LastGood: target, Enforcing: target, Outcome: model.Changed, Settings: model.DefaultSettings()}
}

func state(t *testing.T) FleetState {
	f := FleetState{
		Revision: 7, Spec: spec(t, "roles:\n  compute: {cardinality: 10, flavor: bare-metal}\n"),
		Desires:  targets.Desires{Default: two},
		Hosts:    map[string]model.Host{},
		Holds:    map[etcd.Scope]model.Hold{},
		Statuses: map[string]model.Status{"compute10": reported("compute10", two, time.Minute), "compute2": reported("compute2", one, time.Minute), "old1": reported("old1", two, time.Minute)},
	}
	for _, n := range []string{"compute10", "compute2", "compute1"} {
		f.Hosts[n] = model.Host{Node: n, Role: "compute", At: now.Add(-time.Minute)}
	}
	return f
}

// An operator must see every node that is registered or has reported, in an order that people expect.
func TestLookListsEveryNodeWithItsState(t *testing.T) {
	t.Parallel()
	s := Look(state(t), dev, Selection{}, now)
	var got []string
	for _, n := range s.Nodes {
		got = append(got, n.Node+" "+string(n.State)+" "+string(n.Reason))
	}
	want := []string{"compute1 pending not_reported", "compute2 pending target_not_taken"}
	for n := 3; n < 10; n++ {
		want = append(want, fmt.Sprintf("compute%d missing unknown_node", n))
	}
	want = append(want, "compute10 converged up_to_date", "old1 unregistered unregistered")
	if !slices.Equal(got, want) {
		t.Errorf("nodes %q, want %q", got, want)
	}
	if s.Healthy || s.Counts[model.Missing] != 7 || s.Counts[model.Pending] != 2 {
		t.Errorf("healthy %t, counts %v", s.Healthy, s.Counts)
	}
	if text := s.Summary(); !strings.HasPrefix(text, "dev: target 2.0.0 with data 3, epoch 0; 1 converged, 2 pending, 1 unregistered, 7 missing\n") {
		t.Errorf("summary %q", text)
	}
}

func TestLookIsHealthyWhenEveryNodeConverged(t *testing.T) {
	t.Parallel()
	f := state(t)
	f.Spec = spec(t, "roles:\n  compute: {cardinality: 1, flavor: bare-metal}\n")
	f.Statuses["compute1"] = reported("compute1", two, time.Minute)
	if s := Look(f, dev, Selection{}, now); !s.Healthy || s.Counts[model.Missing] != 0 {
		t.Errorf("%+v", s)
	}
	f.Spec = nil // removed a moment ago
	if s := Look(f, dev, Selection{}, now); !s.Healthy || s.Counts[model.Missing] != 0 {
		t.Errorf("without an environment: %+v", s)
	}
}

// Whoever reads status in an incident needs the command that says more, and no other line when all is well.
func TestStatusNamesTheNextCommand(t *testing.T) {
	t.Parallel()
	node := func(name string, state model.NodeState, change func(*Node)) Node {
		n := Node{Node: name, State: state, LastRun: "1", View: model.View{State: state}}
		if change != nil {
			change(&n)
		}
		return n
	}
	failed := func(n *Node) { n.Outcome = model.Failed }
	for _, c := range []struct {
		nodes []Node
		want  string
	}{
		{[]Node{node("web1", model.Converged, nil), node("web2", model.Pending, nil), node("web3", model.Held, nil)}, ""},
		{[]Node{node("web1", model.Converged, nil), node("web2", model.FailedState, failed)}, "pulley runs web2 latest -e dev"},
		{[]Node{node("web1", model.Stuck, func(n *Node) { n.attempt = &model.Attempt{Finished: 5} })}, "pulley runs web1 latest -e dev"},
		{[]Node{node("web1", model.FailedState, nil)}, "pulley explain web1 -e dev"}, // it refuses its target, and its last run was good
		{[]Node{node("web1", model.FailedState, failed), node("web2", model.Silent, failed), node("web3", model.Silent, nil)}, "pulley explain web2 -e dev"},
	} {
		if got := (Status{Environment: "dev", Nodes: c.nodes}).Next(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestNodeShowsDesiredBesideLastGood(t *testing.T) {
	t.Parallel()
	f := state(t)
	for node, want := range map[string][3]string{
		"compute1": {"- → 2.0.0", "0", "the node is registered and has not reported yet"}, "compute2": {"1.0.0 → 2.0.0", "0 → 3", ""}, "compute10": {"2.0.0", "3", ""},
	} {
		n := lookAt(f, node, "", now)
		if n.ReleaseCell() != want[0] || n.DataCell() != want[1] || want[2] != "" && n.Why(now) != want[2] {
			t.Errorf("%s: %q %q %q, want %q", node, n.ReleaseCell(), n.DataCell(), n.Why(now), want)
		}
	}
	if why := lookAt(f, "compute10", "", now).Why(now); why != "" {
		t.Errorf("a converged node has reason %q", why)
	}
	f.Holds[etcd.Scope{Role: "compute"}] = model.Hold{Mode: model.Freeze, Kind: model.OperatorHold, Who: "ann", Why: "kernel bug"}
	if n := lookAt(f, "compute2", "", now); n.State != model.Held || n.Hold == nil || n.Hold.Who != "ann" || !strings.Contains(n.Why(now), "kernel bug") {
		t.Errorf("%+v: %s", n, n.Why(now))
	}
	f.Holds[etcd.Scope{Node: "compute2"}], f.Holds[etcd.Scope{}] = model.Hold{Mode: model.Freeze, Who: "bob"}, model.Hold{Mode: model.Stop, Who: "eve", Why: "fire"}
	if n := lookAt(f, "compute2", "", now); n.Hold == nil || n.Hold.Who != "eve" || !strings.Contains(n.Why(now), "fire") {
		t.Errorf("the strictest hold is not the one that is shown: %+v, %s", n.Hold, n.Why(now))
	}
	delete(f.Holds, etcd.Scope{Node: "compute2"})
	delete(f.Holds, etcd.Scope{})
	f.Assigned = map[string]model.Assignment{"compute2": {Rollout: "r1"}}
	if n := lookAt(f, "compute2", "", now); n.Rollout != "r1" {
		t.Errorf("assigned: %+v", n)
	}
}

// A node without a report may be in a first boot that fails: its cause must not hide behind the node's state.
func TestFirstBootExplainsNodeWithoutReport(t *testing.T) {
	t.Parallel()
	f := state(t)
	boot := &FirstBoot{FirstBoot: access.FirstBoot{Node: "compute1", Step: "server", State: access.BootFailed, Attempts: 3, Heard: now.Add(-time.Minute), Error: "no release\npromote one"}}
	s := Look(f, dev, Selection{}, now)
	s.AddBoots(map[string]*FirstBoot{"compute1": boot, "compute2": boot})
	for _, n := range s.Nodes {
		if want := "first boot: server failed 1m ago (3 attempts): no release; promote one"; (n.Node == "compute1") != (n.Why(now) == want) {
			t.Errorf("%s: %s", n.Node, n.Why(now))
		}
	}
	x := Explain(f, dev, "compute1", now)
	x.FirstBoot = boot
	if !strings.Contains(x.Words(now), "\n  first boot    server failed 1m ago (3 attempts): no release; promote one\n") {
		t.Error(x.Words(now))
	}
}

// Operators and nodes must never disagree on the next tick.
func TestExplainMatchesNodeDecision(t *testing.T) {
	t.Parallel()
	f := state(t)
	x := Explain(f, dev, "compute2", now)
	if x.Action != model.Take || x.Reason != model.ReasonNew || x.Desired != two || x.Has != one || len(x.Ladder) == 0 || x.Status == nil {
		t.Errorf("%+v", x)
	}
	words := x.Words(now)
	for _, want := range []string{"compute2 is pending: ", "  desired       2.0.0 with data 3\n", "  last good     1.0.0\n", "  last report   1m ago", "\nnext tick: take, because "} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, words)
		}
	}
	x.Cause = model.Cause{Reason: model.ReasonBackoff, Params: model.Params{Attempt: &model.Attempt{Problem: model.Problem{Text: "no such unit"}}}}
	if words := x.Words(now); strings.Contains(words, "no such unit") { // the list has it
		t.Errorf("the last line repeats the problem: %s", words)
	}
	if x := Explain(f, dev, "compute1", now); x.Status != nil || x.Action != model.Take || !strings.Contains(x.Words(now), "has not reported yet") {
		t.Errorf("without a report: %+v\n%s", x, x.Words(now))
	}
	if x := Explain(f, dev, "compute99", now); x.Action == model.Take || x.Reason != model.ReasonUnregistered {
		t.Errorf("an unregistered node: %+v", x)
	}
}

// A machine that hangs in its first boot must not disappear behind a healthy one of the same name.
func TestHostsShowsNewestFirstBootAndMachinesWithoutName(t *testing.T) {
	t.Parallel()
	boot := func(machine, node string, heard time.Duration) access.FirstBoot {
		return access.FirstBoot{Machine: machine, Node: node, Role: "compute", Step: "lock", State: access.BootFailed, Attempts: 2, Since: now.Add(-heard), Heard: now.Add(-heard), Error: "etcd is away\nmore"}
	}
	r := HostsRead{
		Spec:  spec(t, "roles:\n  compute: {cardinality: 2, members: [web.example.com], flavor: bare-metal}\n"),
		Hosts: map[string]model.Host{"compute1": {Node: "compute1", Role: "compute", At: now}, "extra5": {Node: "extra5", Role: "extra"}},
		Identities: map[string]access.Identity{
			"compute1": {Node: "compute1", User: "u", Machine: "m1", Duplicate: &access.Duplicate{Machine: "m9", Times: 2, At: now, From: "10.0.0.9"}},
			"compute2": {Node: "compute2", Removed: &access.Removal{At: now.Add(-time.Hour), By: "ann"}},
		},
		FirstBoots: map[string]access.FirstBoot{"a": boot("a", "compute2", time.Hour), "b": boot("b", "compute2", time.Minute), "c": boot("c", "", time.Minute)},
	}
	all := Hosts(r, now)
	var got []string
	for _, h := range all {
		got = append(got, h.Node+"|"+h.Role+"|"+h.FirstBoot.Cell(now)+"|"+h.Note(now))
	}
	want := []string{
		"compute1|compute||duplicate machine used this name 2 times, last 0s ago: machine id m9 from 10.0.0.9",
		"compute2|compute|lock failed 1m ago (2 attempts): etcd is away; more|removed 60m ago by ann",
		"extra5|extra||not called for by the environment",
		"web.example.com|compute||",
		"|compute|lock failed 1m ago (2 attempts): etcd is away; more|has no name yet",
	}
	want[1] = strings.Replace(want[1], "60m", "1h", 1)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if all[0].Joined == nil || all[0].Joined.Machine != "m1" || all[1].Joined != nil || all[1].Hostname == "" {
		t.Errorf("%+v %+v", all[0], all[1])
	}
	r.FirstBoots = map[string]access.FirstBoot{"a": boot("a", "compute2", time.Hour)}
	if h := Hosts(r, now)[1]; !h.FirstBoot.Stalled || !strings.HasPrefix(h.FirstBoot.Cell(now), "lock stalled, last report 1h ago") {
		t.Errorf("%q", h.FirstBoot.Cell(now))
	}
	long := boot("a", "compute2", time.Minute)
	long.Error = model.Prose(strings.Repeat("a long cause ", 30) + "\nwhat to do")
	if cell := (&FirstBoot{FirstBoot: long}).Cell(now); !strings.HasSuffix(cell, "a long cause ; what to do") { // a terminal cuts it, a script must have all
		t.Errorf("%q", cell)
	}
}

// An accusation without a machine ID comes from a stolen key or token: no such machine exists that an operator could look for.
func TestAccusationWithoutAMachineIsNamed(t *testing.T) {
	t.Parallel()
	h := Host{Host: model.Host{Node: "compute1"}, Registered: true, CalledFor: true, Duplicate: &access.Duplicate{Times: 2, At: now, From: "10.0.0.9"}}
	if got, want := h.Note(now), "a machine from 10.0.0.9 used this name 2 times, last 0s ago, and claimed to be the machine of another node"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A node in two lines would look like two machines. An order with circles separates equal names.
func TestHostsListsEachNodeOnce(t *testing.T) {
	t.Parallel()
	r := HostsRead{Spec: spec(t, "roles:\n  web: {cardinality: 2, members: [web12.example.com], flavor: bare-metal}\n"), Hosts: map[string]model.Host{}}
	for _, name := range []string{"web2", "web10", "web12.example.com"} { // an order with a circle: digits, then a dot
		r.Hosts[name] = model.Host{Node: name, Role: "web"}
	}
	for range 200 { // the order of maps is random
		count := map[string]int{}
		for _, h := range Hosts(r, now) {
			if count[h.Node]++; count[h.Node] > 1 {
				t.Fatalf("%s is listed twice", h.Node)
			}
		}
		if len(count) != 4 { // and web1, which the environment needs
			t.Fatalf("%d nodes are listed, not 4: %v", len(count), count)
		}
	}
}

func TestCompareNaturalIsATotalOrder(t *testing.T) {
	t.Parallel()
	names := []string{"web2", "web10", "web12.example.com", "web", "web0", "web01", "web1_b", "web2_b", "web-x1", "db1", ""}
	for _, a := range names {
		for _, b := range names {
			if ab := CompareNatural(a, b); (ab == 0) != (a == b) || ab*CompareNatural(b, a) > 0 {
				t.Errorf("%q and %q compare as %d and %d", a, b, ab, CompareNatural(b, a))
			}
			for _, c := range names {
				if CompareNatural(a, b) < 0 && CompareNatural(b, c) < 0 && CompareNatural(a, c) >= 0 {
					t.Errorf("%q < %q < %q, but not %[1]q < %[3]q", a, b, c)
				}
			}
		}
	}
}

func TestCheckNodeAndRoleSuggestNearNames(t *testing.T) {
	t.Parallel()
	e := spec(t, "roles:\n  compute: {cardinality: 2, flavor: bare-metal}\n")
	for node, want := range map[string]string{"compute2": "", "old1": "", "compute3": "role compute has 2", "compute1_b": `of stack "b"`, "odl1": "did you mean old1?", "zzz": "lists the nodes"} {
		err := CheckNode(e, map[string]bool{"old1": true}, node)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", node, err, want)
		}
	}
	for role, want := range map[string]string{"compute": "", "compte": "did you mean compute?", "zzz": "its roles are compute"} {
		err := CheckRole(e, role)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", role, err, want)
		}
	}
}

// A line with the names of a whole fleet would hide what happened.
func TestForgedRetirementsAreOneLine(t *testing.T) {
	f := FleetState{Unconfirmed: []string{"web10", "web2", "web1", "web3", "web4", "web5", "web6"}}
	all := Contradictions(f, nil, time.Now())
	if len(all) != 1 || all[0].Code != RetirementUnconfirmed || len(all[0].Nodes) != 7 {
		t.Fatalf("contradictions are %+v", all)
	}
	if s, want := all[0].Sentence(), "no administrator confirmed the request to retire web1, web2, web3, web4, web5 and 2 more"; s != want {
		t.Errorf("%q, not %q", s, want)
	}
}

// Operators can write assignments. A node that is assigned another target than its scopes have must not look converged.
func TestAssignmentsAreCompared(t *testing.T) {
	t.Parallel()
	f := FleetState{
		Hosts:    map[string]model.Host{"web1": {Node: "web1", Role: "web"}, "web2": {Node: "web2", Role: "web"}, "web3": {Node: "web3", Role: "web"}},
		Desires:  targets.Desires{Gate: model.Gate{Epoch: 2}, Default: one, Roles: map[string]model.Target{"web": two}},
		Assigned: map[string]model.Assignment{"web1": {Target: one, Epoch: 2}, "web2": {Target: two, Epoch: 2}, "web3": {Target: one, Epoch: 1}},
	}
	history := []targets.Change{{Epoch: 2, Role: "web", After: two}, {Epoch: 1, After: one}}
	all := Contradictions(f, history, time.Now())
	if len(all) != 1 || all[0].Code != AssignmentDiffers || all[0].Sentence() != "web1 is assigned 1.0.0 with data 3, and its target is 2.0.0 with data 3" {
		t.Errorf("contradictions are %+v", all)
	}
}

// A removed node cannot be recovered: nothing would ever end the contradiction.
func TestMarksOfRemovedNodesDoNotCount(t *testing.T) {
	t.Parallel()
	st := model.Status{Signatures: &model.Signatures{State: model.SignaturesChecked, Data: 9}}
	f := FleetState{Hosts: map[string]model.Host{"web1": {Node: "web1"}}, Statuses: map[string]model.Status{"web1": st, "web2": st}}
	if all := Contradictions(f, nil, time.Now()); len(all) != 1 || all[0].Code != MarkAbove || all[0].Node != "web1" {
		t.Errorf("contradictions are %+v", all)
	}
}

// The holder of a stolen key, or somebody who deletes the newest changes, leaves nodes that refuse everything that is signed
// under the next epoch. A report of a number that no change can have is false, or means nothing to the node.
func TestNodesAboveTheHistoryAreNamed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	seen := func(permit, statement model.Epoch) model.Status {
		return model.Status{Signatures: &model.Signatures{State: model.SignaturesChecked, Permit: permit, Statement: statement}}
	}
	f := FleetState{
		Desires: targets.Desires{Gate: model.Gate{Epoch: 7}, Default: one},
		Hosts:   map[string]model.Host{},
		Statuses: map[string]model.Status{
			"web1": seen(7, 7), "web2": seen(0, 8), "web3": seen(8, 0), "web4": seen(2, 500), "web5": seen(1<<63-1, 999_999_999_999), "web6": {},
			"web7": {Cause: model.Cause{Reason: model.ReasonEpochPassed, Params: model.Params{Epoch: 8}}},
			"web8": {Cause: model.Cause{Reason: model.ReasonEpochPassed, Params: model.Params{Epoch: 7}}}, "gone": seen(900, 900),
		},
	}
	for node := range f.Statuses {
		if node != "gone" {
			f.Hosts[node] = model.Host{Node: node}
		}
	}
	all := Contradictions(f, []targets.Change{{Epoch: 7, Kind: targets.Recovered, After: one}}, now)
	if len(all) != 1 || all[0].Code != EpochAbove || all[0].Seen != 500 || strings.Join(all[0].Nodes, " ") != "web3 web4 web7" {
		t.Errorf("contradictions are %+v", all)
	}
}

// A signer signs nothing after a gap in the history. Operators must see it before.
func TestMissingChangesAreNamed(t *testing.T) {
	t.Parallel()
	f := FleetState{Desires: targets.Desires{Gate: model.Gate{Epoch: 7}, Default: one}}
	change := func(epoch model.Epoch, kind targets.ChangeKind) targets.Change {
		return targets.Change{Epoch: epoch, Kind: kind, Before: one, After: one}
	}
	const lost = "somebody deleted changes of the history up to epoch 7, or wrote them again"
	for name, history := range map[string][]targets.Change{
		"":                   {change(7, targets.Promoted), change(6, targets.Promoted), change(5, targets.Promoted), change(4, targets.Promoted), change(3, targets.Promoted), change(2, targets.Promoted), change(1, targets.Promoted)},
		"recovered":          {change(7, targets.Promoted), change(6, targets.Recovered), change(2, targets.Promoted)},
		"one is lost":        {change(7, targets.Promoted), change(5, targets.Promoted), change(4, targets.Recovered)},
		"the oldest is lost": {change(7, targets.Promoted), change(6, targets.Promoted), change(5, targets.Promoted)},
	} {
		want := ""
		if strings.HasSuffix(name, "lost") {
			want = lost
		}
		all := Contradictions(f, history, time.Now())
		if missing := strings.Contains(want, " "); len(all) > 1 || (len(all) == 1) != missing || missing && (all[0].Code != HistoryGap || all[0].Sentence() != want) {
			t.Errorf("%s: contradictions are %+v", want, all)
		}
	}
}

// A silent node has no next tick: "take, because the target is new" sends an operator away from a machine that is off.
func TestExplainOfSilentNodePredictsNothing(t *testing.T) {
	t.Parallel()
	f := state(t)
	f.Statuses["compute2"] = reported("compute2", one, time.Hour)
	text := Explain(f, dev, "compute2", now).Words(now)
	if strings.Contains(text, "next tick: take") || !strings.Contains(text, "next tick: none is expected from a silent node") || !strings.Contains(text, "the node itself does not answer") ||
		!strings.Contains(text, "`pulley-agent status`") || strings.Contains(text, "env plan") {
		t.Error(text)
	}
	f.Spec = &environments.Environment{Name: "dev", Provider: environments.Provider{Driver: environments.DriverLocal}, Roles: []environments.Role{{Name: "compute", Cardinality: 2, Members: []string{"old"}}}}
	f.Statuses["old"] = reported("old", one, time.Hour)
	for node, made := range map[string]bool{"compute2": true, "old": false} {
		if text := Explain(f, dev, node, now).Words(now); strings.Contains(text, "env plan") != made {
			t.Errorf("%s:\n%s", node, text)
		}
	}
}
