package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/access"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/pki"
	"pulley/internal/rollout"
	"pulley/internal/specs"
)

// Times between the beginnings of two reads of all nodes: a large fleet is read more rarely, and a failing node is seen within a minute.
const (
	fleetInterval = 15 * time.Second
	fleetLongest  = 25 * time.Second
	fleetShortest = 5 * time.Second // pause, after a read that took long
	fleetRest     = 10              // times as long as the read took
)

// fleetPause returns the pause after a read.
func fleetPause(took time.Duration) time.Duration {
	return max(fleetInterval-took, min(fleetRest*took, fleetLongest-took), fleetShortest)
}

// The metrics that a read makes as a whole. They carry no names of nodes.
var (
	nodesMetric        = describe("pulley_nodes", "Nodes by role and state, as pulley status shows them.", "environment", "role", "state")
	healthyMetric      = describe("pulley_environment_healthy", "1: each node of the environment is registered, and converged or only enforcing its target.", "environment")
	oldestMetric       = describe("pulley_oldest_report_timestamp_seconds", "Last report of the registered node that has been silent for the longest time; 0: none has reported.", "environment")
	unclassifiedMetric = describe("pulley_nodes_unclassified", "Nodes whose catalog has no class.", "environment")
	noopMetric         = describe("pulley_nodes_noop_pending", "Nodes with resources that noop in the code keeps out of sync.", "environment")
	holdsMetric        = describe("pulley_holds", "Holds by mode.", "environment", "mode")
	targetMetric       = describe("pulley_target_info", "Always 1. The labels are the target of the nodes that have none of their own.", "environment", "release", "data")
	readMetric         = describe("pulley_fleet_read_timestamp_seconds", "When the nodes of the environment were counted.", "environment")
	tookMetric         = describe("pulley_fleet_read_duration_seconds", "How long that took.", "environment")
	rolloutsMetric     = describe("pulley_rollouts_in_progress", "Rollouts and jobs in progress.", "environment", "kind")
	startedMetric      = describe("pulley_rollout_start_timestamp_seconds", "Start of the rollout or job in progress.", "environment", "kind")
	waitsMetric        = describe("pulley_rollout_waits", "Always 1. The label code is what the rollout or job in progress waits for.", "environment", "kind", "code")
	certificateMetric  = describe("pulley_certificate_expiry_timestamp_seconds", "End of a certificate; of operators, and of the nodes of an environment, the first end.", "kind", "environment")
	backupMetric       = describe("pulley_last_backup_timestamp_seconds", "End of the last pulley backup; 0: there was none.")
	buildMetric        = describe("pulley_build_info", "Always 1. The labels are the version of this program, and of Go.", "version", "goversion")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// instant is a time as Prometheus has it; 0 for none.
func instant(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// board is the metrics of the last reads. A scrape costs etcd nothing.
type board struct {
	mu    sync.Mutex
	shown map[subject][]prometheus.Metric
}

// subject is what a part of a board is about; "" is the environment of what belongs to none.
type subject struct{ of, environment string }

func (b *board) set(s subject, metrics ...prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shown[s] = metrics
}

// keep drops the environments that do not exist any more.
func (b *board) keep(refs []model.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.shown {
		if s.environment != "" && !slices.ContainsFunc(refs, func(ref model.Ref) bool { return ref.String() == s.environment }) {
			delete(b.shown, s)
		}
	}
}

// Describe sends nothing: which metrics there are depends on the fleet.
func (b *board) Describe(chan<- *prometheus.Desc) {}

// Collect sends what the last reads found.
func (b *board) Collect(to chan<- prometheus.Metric) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, metrics := range b.shown {
		for _, m := range metrics {
			to <- m
		}
	}
}

// runs counts the runs of Puppet that nodes report.
type runs struct {
	total, drift *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
}

func newRuns() runs {
	return runs{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pulley_runs_total", Help: "Reported runs of Puppet, by outcome."}, []string{"environment", "outcome"}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pulley_runs_with_drift_total", Help: "Reported runs that changed something although the target was in place."}, []string{"environment"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pulley_run_duration_seconds", Help: "Duration of the reported runs.", Buckets: []float64{5, 15, 30, 60, 120, 300, 900, 3600},
		}, []string{"environment"}),
	}
}

// count counts a run. Runs are records that a node wrote: an outcome that this program does not know counts as failed.
func (r runs) count(env string, run model.Run) {
	outcome := run.Outcome
	if !slices.Contains(model.Outcomes(), outcome) {
		outcome = model.Failed
	}
	r.total.WithLabelValues(env, string(outcome)).Inc()
	r.seconds.WithLabelValues(env).Observe(max(run.Duration, 0).Seconds())
	if run.Drift {
		r.drift.WithLabelValues(env).Inc()
	}
}

// begin shows an environment before its first run.
func (r runs) begin(env string) {
	for _, outcome := range model.Outcomes() {
		r.total.WithLabelValues(env, string(outcome))
	}
	r.drift.WithLabelValues(env)
	r.seconds.WithLabelValues(env)
}

func (r runs) forget(env string) {
	of := prometheus.Labels{"environment": env}
	r.total.DeletePartialMatch(of)
	r.drift.DeletePartialMatch(of)
	r.seconds.DeletePartialMatch(of)
}

// countNodes counts the nodes of all environments until ctx ends.
func (t *Tasks) countNodes(ctx context.Context) {
	c := counting{Tasks: t, troubles: &troubles{Tasks: t, of: map[model.Ref]*troubled{}}, known: map[model.Ref]bool{}}
	for {
		began := time.Now()
		if t.Clock == nil || t.Clock(ctx) == nil {
			t.complain(ctx, "cannot count nodes", c.count(ctx))
		}
		took := time.Since(began)
		t.tellDrifts()
		pause := time.NewTimer(fleetPause(took))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// counting is what a count keeps for the next one.
type counting struct {
	*Tasks
	troubles *troubles
	known    map[model.Ref]bool // environments with metrics
}

// count reads each environment once. One that cannot be read keeps its numbers, whose time says how old they are.
func (t counting) count(ctx context.Context) error {
	refs, err := specs.In(t.DB).Named(ctx)
	if err != nil {
		return err
	}
	t.board.keep(refs)
	for ref := range t.known {
		if !slices.Contains(refs, ref) {
			t.runs.forget(ref.String())
			t.troubles.unread(ref)
			delete(t.known, ref)
		}
	}
	backup, err := cluster.In(t.DB).Backup(ctx)
	if err == nil {
		t.board.set(subject{of: "backup"}, gauge(backupMetric, instant(backup)))
	}
	problems := []error{err}
	for _, ref := range refs {
		began := t.Now()
		tally, err := fleet.Count(ctx, t.DB, ref, began)
		if err != nil {
			t.troubles.unread(ref)
			problems = append(problems, fmt.Errorf("environment %s: %w", ref, err))
			continue
		}
		t.known[ref] = true
		t.runs.begin(ref.String())
		t.board.set(subject{"nodes", ref.String()}, countsOf(ref.String(), tally, began, t.Now().Sub(began))...)
		problems = append(problems, t.troubles.look(ctx, ref, tally))
	}
	return errors.Join(problems...)
}

// countsOf shows a tally. States without nodes are 0: an alert on one needs the series before the first node.
func countsOf(env string, tally fleet.Tally, at time.Time, took time.Duration) []prometheus.Metric {
	all := []prometheus.Metric{
		gauge(healthyMetric, flag(tally.Healthy), env), gauge(oldestMetric, instant(tally.Oldest), env), gauge(unclassifiedMetric, float64(tally.Unclassified), env),
		gauge(noopMetric, float64(tally.NoopPending), env),
		gauge(targetMetric, 1, env, tally.Target.Release, fmt.Sprint(tally.Target.Data)), gauge(readMetric, instant(at), env), gauge(tookMetric, took.Seconds(), env),
	}
	for role, counts := range tally.Roles {
		for _, state := range model.NodeStates() {
			all = append(all, gauge(nodesMetric, float64(counts[state]), env, role, string(state)))
		}
	}
	for _, mode := range model.HoldModes() {
		all = append(all, gauge(holdsMetric, float64(tally.Holds[mode]), env, string(mode)))
	}
	return all
}

// showRollout shows what the rollout or job of an environment waits for; without a wait, there is none.
func (b *board) showRollout(env string, plan *rollout.Plan, wait rollout.Wait) {
	var all []prometheus.Metric
	for kind, is := range map[string]bool{"rollout": plan != nil && plan.Kind != rollout.Run, "job": plan != nil && plan.Kind == rollout.Run} {
		is = is && wait.Code != ""
		all = append(all, gauge(rolloutsMetric, flag(is), env, kind))
		if is {
			all = append(all, gauge(startedMetric, instant(plan.At), env, kind), gauge(waitsMetric, 1, env, kind, string(wait.Code)))
		}
	}
	b.set(subject{"rollout", env}, all...)
}

// showCertificates shows the ends of serve's own certificates, and the first end of operators'.
func (t *Tasks) showCertificates(ctx context.Context) error {
	var all []prometheus.Metric
	var ending []notify.Trouble
	end := func(cause, name string) {
		ending = append(ending, notify.Trouble{
			Kind: notify.CertificatesEnd, Cause: cause, Nodes: []string{name}, Count: 1, Text: "Run `pulley doctor`: it names each with its end and its remedy.",
		})
	}
	now := t.Now()
	for _, a := range t.Certificates.CA.Authorities() {
		if left := a.Certificate.NotAfter.Sub(now); a.Part == pki.PartCurrent && left < endsSoon {
			end("ca", "the CA of pulley serve")
		}
		if a.Part == pki.PartCurrent {
			all = append(all, gauge(certificateMetric, instant(a.Certificate.NotAfter), "ca", ""))
		}
	}
	for kind, file := range map[string]string{"server": t.Certificates.Server(), "serve": t.Certificates.Identity()} {
		if id, err := pki.LoadIdentity(file); err == nil {
			all = append(all, gauge(certificateMetric, instant(id.Leaf().NotAfter), kind, ""))
		}
	}
	operators, damaged, err := access.IdentitiesIn(t.DB).Operators(ctx)
	var first time.Time
	for name, o := range operators {
		if !o.Live() {
			continue
		}
		first = earlier(first, o.Until)
		if left := o.Until.Sub(now); !o.Until.IsZero() && left < min(endsSoon, o.Until.Sub(o.Issued)/4) { // as pulley doctor warns
			end("operator "+name, "operator "+name)
		}
	}
	if !first.IsZero() {
		all = append(all, gauge(certificateMetric, instant(first), "operator", ""))
	}
	t.board.set(subject{of: "certificates"}, all...)
	if err != nil {
		return err
	}
	return t.certificatesEnd(ctx, model.Ref{}, ending, len(damaged) > 0)
}

// showIdentities shows the first end of the certificates of an environment's nodes.
func (b *board) showIdentities(env string, identities map[string]access.Identity) {
	var first time.Time
	for _, i := range identities {
		if i.Live() {
			first = earlier(first, i.Until)
		}
	}
	if first.IsZero() {
		b.set(subject{"identities", env})
		return
	}
	b.set(subject{"identities", env}, gauge(certificateMetric, instant(first), "node", env))
}

func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

func newBoard(version string) *board {
	return &board{shown: map[subject][]prometheus.Metric{{of: "build"}: {gauge(buildMetric, 1, version, runtime.Version())}}}
}
