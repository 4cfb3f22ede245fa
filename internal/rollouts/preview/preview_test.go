package preview

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/environments"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/release"
	"pulley/internal/release/content"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

func node(name, role string, state model.NodeState) fleet.Node {
	return fleet.Node{Node: name, Role: role, State: state, View: model.View{State: state, Cause: model.Cause{Reason: model.ReasonUpToDate}}}
}

// A sample of silent nodes would answer nothing, and a sample of one role would hide the others.
func TestSampleTakesNodesThatCanAnswer(t *testing.T) {
	t.Parallel()
	nodes := []fleet.Node{
		node("web1", "web", model.Silent), node("web2", "web", model.Stuck), node("web3", "web", model.Held), node("web10", "web", model.Converged),
		node("web4", "web", model.Converged), node("db1", "db", model.Silent),
	}
	for _, c := range []struct {
		sample int
		want   string
		left   int
	}{{0, "db1 web1 web2 web3 web4 web10", 0}, {2, "db1 web4 web10", 3}, {3, "db1 web2 web4 web10", 2}} {
		chosen, left := choose(nodes, c.sample)
		var got []string
		for _, n := range chosen {
			got = append(got, n.Node)
		}
		if strings.Join(got, " ") != c.want || left != c.left {
			t.Errorf("a sample of %d: %v, %d left; want %s, %d", c.sample, got, left, c.want, c.left)
		}
	}
}

// results are those of a fleet in which each part of the page has something to show.
func results() []NodeResult {
	diff := "--- /etc/motd\n+++ /etc/motd\n@@ -1 +1 @@\n-one\n+two"
	motd := func(diff string) model.ResourceEvent {
		return model.ResourceEvent{Resource: "File[/etc/motd]", Status: "noop", File: "manifests/site.pp", Line: 3, Diff: diff,
			Properties: []model.PropertyChange{{Property: "content", Old: "{sha256}" + strings.Repeat("a", 64), New: "{sha256}" + strings.Repeat("b", 64)}}}
	}
	reload := model.ResourceEvent{Resource: "Exec[reload]", Status: "noop", Messages: []string{"Would have triggered 'refresh' from 1 event"}}
	key := model.ResourceEvent{Resource: "File[/etc/key]", Status: "noop", Hidden: true, Properties: []model.PropertyChange{{Property: "mode", Old: "0600", New: "0640"}}}
	failed := model.ResourceEvent{Resource: "Package[nginx]", Status: "failed", Messages: []string{"no candidate"}}
	broken := model.Problem{Code: model.ResourcesFailed, Number: 1}
	compile := func(node string) model.Problem {
		return model.Problem{Code: model.CatalogRefused, Text: model.Prose("Syntax error on node " + node)}
	}
	already := node("old1", "old", model.FailedState)
	already.Outcome = model.Failed
	return []NodeResult{
		resultOf(node("web1", "web", model.Converged), model.Preview{Changes: []model.ResourceEvent{motd(diff), reload}}),
		resultOf(node("web2", "web", model.Converged), model.Preview{Changes: []model.ResourceEvent{motd(diff), key}, Left: 7}),
		resultOf(node("web3", "web", model.Converged), model.Preview{Changes: []model.ResourceEvent{motd(strings.Replace(diff, "-one", "-other", 1))}, NoDiffs: true}),
		resultOf(node("web4", "web", model.Converged), model.Preview{}),
		resultOf(node("db1", "db", model.Converged), model.Preview{Problem: compile("db1")}),
		resultOf(node("db2", "db", model.Converged), model.Preview{Problem: compile("db2")}),
		resultOf(already, model.Preview{Problem: model.Problem{Code: model.ReleaseUnusable, Text: "no such module"}}),
		resultOf(node("app1", "app", model.Converged), model.Preview{Problem: broken, Changes: []model.ResourceEvent{failed}}),
		resultOf(node("app2", "app", model.Held), model.Preview{Cause: &model.Cause{Reason: model.ReasonStopped, Params: model.Params{Hold: &model.Hold{Mode: model.Stop, Scope: "all"}}}}),
		silent(node("app3", "app", model.Converged)),
	}
}

// Operators decide by the page: it must show failures first, each change once, and what it lacks.
func TestPageGroupsAlikeChanges(t *testing.T) {
	t.Parallel()
	p := pageOf(model.Ref{Environment: "production"}, model.Target{Release: "1.5.0", Data: 12}, results(), 5)
	var b bytes.Buffer
	p.Print(&b, 3, 15*time.Minute)
	want, err := os.ReadFile("testdata/page.txt")
	if err != nil || b.String() != string(want) {
		t.Errorf("%v\n%s", err, b.String())
	}
	var all bytes.Buffer
	p.Print(&all, 0, time.Minute)
	if strings.Contains(all.String(), "--limit") || !strings.Contains(all.String(), "Exec[reload]") {
		t.Errorf("without a limit:\n%s", all.String())
	}
}

// A run may fail beside its resources. The page must show why.
func TestPageShowsAFailureBesideChanges(t *testing.T) {
	t.Parallel()
	failed := model.Preview{Problem: model.Problem{Code: model.NoopFailed, Text: "cannot apply the transaction"}, Changes: []model.ResourceEvent{{Resource: "File[/etc/motd]", Status: "noop"}}}
	p := pageOf(model.Ref{Environment: "dev"}, model.Target{Release: "1.5.0"}, []NodeResult{resultOf(node("web1", "web", model.Converged), failed)}, 0)
	var b bytes.Buffer
	p.Print(&b, 0, time.Minute)
	if !strings.Contains(b.String(), "FAILURES\n  new, on 1 node: web1\n") || !strings.Contains(b.String(), "cannot apply the transaction") {
		t.Error(b.String())
	}
}

// A rollout must not begin on a page that shows harm, or nothing.
func TestObjectionsOfAPage(t *testing.T) {
	t.Parallel()
	ref, target := model.Ref{Environment: "production"}, model.Target{Release: "1.5.0"}
	got := strings.Join(pageOf(ref, target, append(results(), silent(node("ns1", "ns", model.Silent))), 0).Objections(8), "\n")
	want := `it fails on 3 nodes, where the last run did not fail: db1, db2, app1
it would change more than 8 resources on 1 node: web2 (9)
no node of role ns ran the preview`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := pageOf(ref, target, results()[:4], 0).Objections(0); got != nil {
		t.Errorf("%q", got)
	}
}

// fleetOf starts a fleet of converged nodes with the release 1.5.0.
func fleetOf(t *testing.T, nodes int) (*etcd.DB, *etcdtest.Server, model.Ref) {
	t.Helper()
	server, ctx := etcdtest.Start(t), t.Context()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	e, err := environments.Parse("dev.yaml", fmt.Appendf(nil, "roles: {web: {cardinality: %d}}\n", nodes))
	if err == nil {
		err = specs.In(s).PutSpec(ctx, e, 0)
	}
	for n := range nodes {
		name := fmt.Sprintf("web%d", n+1)
		id := model.Identity{Node: name, Environment: "dev"}
		err = errors.Join(err, fleet.In(s).Register(ctx, "dev", model.Host{Node: name, Role: "web"}),
			control.In(s).Report(ctx, id, model.Status{Node: name, Role: "web", SeenAt: time.Now(), Settings: model.DefaultSettings()}, nil, nil))
	}
	p, beginErr := release.In(s).BeginPublish(ctx, "ann")
	if err = errors.Join(err, beginErr); err != nil {
		t.Fatal(err)
	}
	if _, err := release.In(s).Put(ctx, p, release.Release{Version: "1.5.0", Content: content.Record{Tree: strings.Repeat("a", 64)}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return s, server, e.Ref()
}

// packed packs an answer as a node does, without its limits.
func packed(t *testing.T, p model.Preview) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := json.NewEncoder(z).Encode(struct {
		V int `json:"v"`
		model.Preview
	}{1, p})
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A stolen node must neither control the terminal of an operator, nor hide the other nodes, nor fill the operator's memory.
func TestHostileAnswersAreHarmless(t *testing.T) {
	t.Parallel()
	s, server, ref := fleetOf(t, 20)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const screen = "\x1b[2J\x1b]0;owned\x07\nFAILURES\r\u202e"
	go func() {
		for id := ""; id == "" && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			d, err := control.In(s).Desire(ctx, model.Identity{Node: "web20", Environment: "dev"})
			if err != nil || d.Preview == nil {
				continue
			}
			id = d.Preview.ID
			for n := 1; n <= 20; n++ {
				p := model.Preview{Order: id, Changes: []model.ResourceEvent{{Resource: "File[/etc/motd]", Status: "noop"}}}
				value := packed(t, p)
				switch n {
				case 1:
					p.Changes = []model.ResourceEvent{{Resource: screen, Status: screen, File: screen, Messages: []string{screen}, Diff: screen, Properties: []model.PropertyChange{{Property: screen, Old: screen, New: screen}}}}
					p.Problem = model.Problem{Code: "x" + screen, Text: screen}
					value = packed(t, p)
				case 2:
					p.Changes[0].Diff = strings.Repeat(strings.Repeat("x", 1<<10)+"\n", 900)
					value = packed(t, p)
				case 3:
					p.Changes[0].Messages = []string{strings.Repeat("x", 20<<20)}
					value = packed(t, p)
				case 4:
					value = bytes.Repeat([]byte("x"), 1<<20)
				case 5:
					p.Cause = &model.Cause{Reason: screen, Params: model.Params{Text: screen}}
					value = packed(t, p)
				}
				if _, err := server.Client().Put(ctx, fmt.Sprintf("/pulley/v1/runs/dev/web%d/preview", n), string(value)); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	seen := 0
	page, _, err := Run(ctx, s, ref, Query{Release: "1.5.0", Wait: 30 * time.Second, By: "ann"}, time.Now, func(p Progress) { seen = p.Answered })
	if err != nil || seen != 20 || len(page.Nodes) != 20 {
		t.Fatalf("%d answers: %v", seen, err)
	}
	var b bytes.Buffer
	page.Print(&b, 0, time.Minute)
	text := b.String()
	if regexp.MustCompile(`[\x00-\x09\x0b-\x1f\x{202e}]|(?m:^FAILURES\b.+)`).MatchString(text) || strings.Count(text, "\nFAILURES\n") > 1 || len(text) > 20<<10 {
		t.Errorf("%d bytes:\n%q", len(text), text)
	}
	i := slices.IndexFunc(page.Changes, func(c Change) bool { return c.Resource == "File[/etc/motd]" })
	if i < 0 || len(page.Changes[i].Nodes) != 16 {
		t.Errorf("the honest nodes are hidden:\n%s", text)
	}
	for _, n := range []int{3, 4} {
		if r := page.Nodes[n-1]; r.State != NoReply || r.Problem.Code != model.AnswerUnreadable {
			t.Errorf("%s is %s: %s", r.Node, r.State, r.Problem)
		}
	}
	if len(page.Changes[i].Variants) != 2 || len(page.Changes[i].Variants[1].Diff) > 8<<10 {
		t.Errorf("%d variants", len(page.Changes[i].Variants))
	}
}

// Orders that end before their command would let it wait in vain, and those of a killed command must end.
func TestPreviewKeepsItsOrders(t *testing.T) {
	t.Parallel()
	s, server, ref := fleetOf(t, 1)
	ordered, looks := false, 0
	clock := func() time.Time { // each look at the answers is a minute after the one before
		if !ordered {
			return time.Now()
		}
		looks++
		all, err := server.Client().Leases(t.Context())
		if err != nil || len(all.Leases) != 1 {
			t.Fatalf("%d leases: %v", len(all.Leases), err)
		}
		if looks == 1 {
			left, err := server.Client().TimeToLive(t.Context(), all.Leases[0].ID)
			if err != nil || left.TTL > 60 {
				t.Errorf("the orders of a command that is killed now end after %d s: %v", left.TTL, err)
			}
		} else if _, err := server.Client().Revoke(t.Context(), all.Leases[0].ID); err != nil { // as after a minute without etcd
			t.Error(err)
		}
		return time.Now().Add(time.Duration(looks) * time.Minute)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err := Run(ctx, s, ref, Query{Release: "1.5.0", Wait: 20 * time.Hour, By: "ann"}, clock, func(Progress) { ordered = true })
	if err == nil || !strings.Contains(err.Error(), "its orders cannot be kept: its lease ended") || strings.Contains(err.Error(), "withdraw") {
		t.Errorf("a preview whose orders ended: %v", err)
	}
}

// Two operators at a time would take each other's answers.
func TestNodeHasOnePreviewAtATime(t *testing.T) {
	t.Parallel()
	s, server, ref := fleetOf(t, 2)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ordered := make(chan struct{}, 1)
	go func() {
		_, _, err := Run(ctx, s, ref, Query{Release: "1.5.0", Wait: time.Minute, By: "ann"}, time.Now, func(Progress) { ordered <- struct{}{} })
		ended <- err
	}()
	<-ordered
	_, _, err := Run(t.Context(), s, ref, Query{Release: "1.5.0", Wait: time.Second, By: "bob"}, time.Now, func(Progress) {})
	if !errors.Is(err, etcd.ErrConflict) || !strings.Contains(err.Error(), "ann ordered one at 20") {
		t.Errorf("a second preview: %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one: %v", err)
	}
	for _, key := range server.Keys() {
		if strings.Contains(key, "/previews/") {
			t.Errorf("%s is left", key)
		}
	}
}
