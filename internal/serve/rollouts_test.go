package serve

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/rollout"
	"pulley/internal/testbed/etcdtest"
	"pulley/internal/testbed/observe"
)

// A rollout that waits for a lost node, or for a gate, may stand still for hours. Somebody must hear of it at once, and once.
func TestLostNodesAndBlockingGatesAreAnnouncedAtOnce(t *testing.T) {
	t.Parallel()
	server, ctx, log := etcdtest.Start(t), t.Context(), &observe.Log{}
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(hook.Close)
	n, err := notify.New(notify.Config{Notices: notify.NoticesIn(s), URLs: []string{"generic+" + hook.URL + "/?disabletls=yes"}, Now: time.Now, Log: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	go n.Run(ctx)
	plan, again := &rollout.Plan{ID: "r2", Nonce: "a", Kind: rollout.Take}, &rollout.Plan{ID: "r2", Nonce: "b", Kind: rollout.Take}
	r := &rollouts{
		Tasks: &Tasks{TasksConfig: TasksConfig{DB: s, Now: time.Now, Log: log.Logger()}, Notifier: n},
		told:  map[model.Ref]map[string]bool{}, waits: map[model.Ref]told{},
	}
	until := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lost := func(nodes ...string) rollout.Wait { return rollout.Wait{Code: rollout.WaitNodes, Lost: nodes} }
	gates := func(code rollout.AnswerCode) rollout.Wait {
		return rollout.Wait{Code: rollout.WaitAnswers, Until: until, Answers: map[string]rollout.Answer{"smoke": {Code: code, Text: "503"}}}
	}
	for _, wait := range []rollout.Wait{
		lost(), lost("web1"), lost("web1"), lost("web1", "web2"), lost("web2"),

		{Code: rollout.WaitHeld, Nodes: []string{"web3"}}, {Code: rollout.WaitHeld, Nodes: []string{"web3"}, Overdue: []string{"web3"}},
		{Code: rollout.WaitPlace, Node: "web4", Place: "rack=r1", Overdue: []string{"web3", "web4"}},
		gates(""), gates(rollout.GateRefused), gates(rollout.GateUnanswered), lost(),
	} {
		r.warn(dev, plan, wait)
	}
	approval := func(node string) rollout.Wait { return rollout.Wait{Code: rollout.WaitApproval, Node: node} }
	for _, wait := range []rollout.Wait{approval("web1"), approval("web1"), lost(), approval("web2")} { // each batch
		r.tell(ctx, dev, plan, wait)
	}
	r.tell(ctx, dev, again, approval("web2")) // the environment was destroyed, and made again
	r.warn(dev, again, lost("web1"))
	want := []string{
		"rollout_blocked: it waits for its gates, until 2026-03-01T12:00:00Z: gate smoke refuses: 503",
		"rollout_lost: web1 began, did not answer before its deadline, and may still run",
		"rollout_lost: web1 began, did not answer before its deadline, and may still run",
		"rollout_lost: web2 began, did not answer before its deadline, and may still run",
		"rollout_stalled: it waits before web4: too many nodes of rack=r1 are unavailable",
		"rollout_stalled: web3 is held beyond its deadline, and the rollout waits for it until an operator ends the hold or skips it",
		"rollout_waits: " + approval("").Sentence(), "rollout_waits: " + approval("").Sentence(), "rollout_waits: " + approval("").Sentence(),
	}
	var got []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all, _, err := notify.NoticesIn(s).List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, one := range all {
			if one.State == notify.NoticeSent {
				got = append(got, string(one.Kind)+": "+string(one.Problem))
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			break
		}
	}
	if !slices.Equal(got, want) || strings.Count(log.String(), "a gate blocks a rollout") != 1 || strings.Count(log.String(), "a rollout or job lost a node") != 3 {
		t.Errorf("got  %q\nwant %q\n%s", got, want, log)
	}
}
