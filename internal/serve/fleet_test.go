package serve

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/control"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/rollout"
	"pulley/internal/testbed/observe"
)

// encoded is the record of a run as an agent stores it.
func encoded(t *testing.T, run model.Run) model.EncodedRun {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	err := json.NewEncoder(z).Encode(struct {
		V int `json:"v"`
		model.Run
	}{1, run})
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return model.EncodedRun{ID: run.ID, Bytes: b.Bytes()}
}

// scraped returns the metrics as Prometheus gets them.
func scraped(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	answer := httptest.NewRecorder()
	exposed(g).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// A pager alerts on these numbers alone: a node that fails, is silent or missing must be in them, by no name, and in metrics that
// `promtool check metrics` accepts.
func TestMetricsCountNodesRunsAndRollouts(t *testing.T) {
	t.Parallel()
	st, server := backedUp(t)
	ctx, registry := t.Context(), prometheus.NewRegistry()
	now := time.Now().UTC().Truncate(time.Second)
	tasks, err := NewTasks(TasksConfig{DB: st, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler), Metrics: registry, Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = fleet.In(st).Watch(ctx, tasks.saw) }()
	apply(t, st, "roles:\n  web: {cardinality: 4}\n  db: {cardinality: 1}\n")
	for _, node := range []string{"web1", "web2", "web3"} {
		if err := fleet.In(st).Register(ctx, "dev", model.Host{Node: node, Role: "web", At: now}); err != nil {
			t.Fatal(err)
		}
	}
	report := func(node, role string, s model.Status, runs ...model.EncodedRun) {
		t.Helper()
		s.Node, s.Role, s.Settings = node, role, model.DefaultSettings()
		if err := control.In(st).Report(ctx, model.Identity{Node: node, Role: role, Environment: "dev"}, s, runs, nil); err != nil {
			t.Fatal(err)
		}
	}
	target := model.Target{Release: "1.0.0", Tree: strings.Repeat("a", 64)}
	if _, err := server.Client().Put(ctx, "/pulley/v1/environments/dev/desired/default", `{"v":1,"release":"1.0.0","tree":"`+target.Tree+`"}`); err != nil {
		t.Fatal(err)
	}
	attempt := &model.Attempt{Target: target, Started: 1, Finished: 1, Kind: model.Between, Problem: model.Problem{Code: model.ResourcesFailed, Number: 1}}
	report("web1", "web", model.Status{LastGood: target, Enforcing: target, SeenAt: now, Unclassified: true})
	report("web2", "web", model.Status{Enforcing: target, Target: target, SeenAt: now.Add(-time.Minute), Attempt: attempt, Outcome: model.Failed})
	report("web3", "web", model.Status{LastGood: target, Enforcing: target, SeenAt: now.Add(-time.Hour)})
	report("evil", "an invented role", model.Status{SeenAt: now.Add(-100 * time.Hour)})
	if err := cluster.In(st).NoteBackup(ctx, now); err != nil {
		t.Fatal(err)
	}
	runs := 0
	observe.Eventually(t, "a run is counted", func() bool { // a watch that begins a moment later sees only later runs
		runs++
		id := string(rune('a' + runs%26))
		report("web1", "web", model.Status{LastGood: target, Enforcing: target, SeenAt: now, Unclassified: true}, encoded(t, model.Run{
			ID: id, Node: "web1", Drift: true, Duration: 20 * time.Second, Result: model.Result{Outcome: model.Changed},
		}))
		return strings.Contains(scraped(t, registry), `pulley_runs_with_drift_total{environment="dev"}`)
	})
	tasks.board.showRollout("dev", &rollout.Plan{ID: "r1", At: now}, rollout.Wait{Code: rollout.WaitApproval})
	c := counting{Tasks: tasks, troubles: &troubles{Tasks: tasks, of: map[model.Ref]*troubled{}}, known: map[model.Ref]bool{}}
	if err := c.count(ctx); err != nil {
		t.Fatal(err)
	}
	text := scraped(t, registry)
	for _, line := range []string{
		`pulley_build_info{goversion="go`, `,version="1.2.3"} 1`,
		`pulley_nodes{environment="dev",role="web",state="converged"} 1`, `pulley_nodes{environment="dev",role="web",state="failed"} 1`,
		`pulley_nodes{environment="dev",role="web",state="silent"} 1`, `pulley_nodes{environment="dev",role="web",state="missing"} 1`,
		`pulley_nodes{environment="dev",role="db",state="missing"} 1`, `pulley_nodes{environment="dev",role="db",state="stuck"} 0`,
		`pulley_nodes{environment="dev",role="",state="unregistered"} 1`, `pulley_environment_healthy{environment="dev"} 0`, `pulley_nodes_unclassified{environment="dev"} 1`,
		`pulley_target_info{data="0",environment="dev",release="1.0.0"} 1`,
		`pulley_runs_total{environment="dev",outcome="changed"} `, `pulley_runs_total{environment="dev",outcome="failed"} 0`, `pulley_run_duration_seconds_bucket{environment="dev",le="15"} 0`,
		`pulley_rollouts_in_progress{environment="dev",kind="rollout"} 1`, `pulley_rollouts_in_progress{environment="dev",kind="job"} 0`,
		`pulley_rollout_waits{code="approval",environment="dev",kind="rollout"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("there is no %s", line)
		}
	}
	for name, at := range map[string]time.Time{"pulley_oldest_report_timestamp_seconds{environment=\"dev\"}": now.Add(-time.Hour), "pulley_last_backup_timestamp_seconds": now} {
		value, err := json.Marshal(float64(at.Unix()))
		if _, after, has := strings.Cut(text, "\n"+name+" "); err != nil || !has || !sameNumber(after, string(value)) {
			t.Errorf("%s is not %s", name, value)
		}
	}
	for _, node := range []string{"web1", "web2", "web3", "evil", "invented"} {
		if strings.Contains(text, node) {
			t.Errorf("the metrics name %s", node)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promtool would find %v, %v", problems, err)
	}
	if t.Failed() {
		t.Log(text)
	}
	// A destroyed environment is in no metric.
	if _, err := server.Client().Delete(ctx, "/pulley/v1/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if err := c.count(ctx); err != nil {
		t.Fatal(err)
	}
	if text := scraped(t, registry); strings.Contains(text, `environment="dev"`) {
		t.Error("metrics of an environment that is gone stay:", text)
	}
}

// sameNumber reports whether a line begins with a number.
func sameNumber(line, number string) bool {
	var a, b float64
	first, _, _ := strings.Cut(line, "\n")
	return json.Unmarshal([]byte(first), &a) == nil && json.Unmarshal([]byte(number), &b) == nil && a == b
}

// What etcd calls its own metrics is not what promtool accepts: they have a path of their own.
func TestMetricsOfEtcdHaveTheirPath(t *testing.T) {
	t.Parallel()
	one := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	}
	web := Web{Metrics: one("own"), EtcdMetrics: one("etcd")}
	for path, want := range map[string]string{"/metrics": "own", "/metrics/etcd": "etcd"} {
		answer := httptest.NewRecorder()
		web.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if got := answer.Body.String(); got != want {
			t.Errorf("%s answers %q", path, got)
		}
	}
}
