package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/access"
	"pulley/internal/access/fleetca"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/etcd/cluster"
	"pulley/internal/fleet"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/rollout/journal"
	"pulley/internal/serve/control"
	"pulley/internal/specs"
)

const (
	bootsInterval        = time.Minute
	tokensInterval       = time.Hour
	historyInterval      = time.Hour
	notesInterval        = time.Minute
	spaceInterval        = 5 * time.Second
	diskInterval         = 5 * time.Second
	certificatesInterval = 5 * time.Second // a rotation of the CA must reach the servers soon
	rolloutInterval      = 2 * time.Second
	holdsInterval        = 10 * time.Second
	watchPause           = time.Second // before an interrupted watch begins again
)

// TasksConfig is the environment of Tasks.
type TasksConfig struct {
	DB           *etcd.DB
	Certificates *fleetca.Certificates // nil: machines do not join here
	Now          func() time.Time
	Log          *slog.Logger
	Metrics      prometheus.Registerer       // may be nil
	Version      string                      // of this program
	Notify       []string                    // URLs, in the form of shoutrrr
	Gates        string                      // file with the gates of rollouts; "": none
	Puppet       string                      // folder with the credentials at the CA of Puppet servers; "": none
	EtcdDir      string                      // data of an etcd in this process: serve makes room in it, and watches its disk; "": none
	Hostname     string                      // of this machine, for the record of that disk
	Past         string                      // file that remembers how far etcd was; "": only this process does
	Clock        func(context.Context) error // refuses a clock that is wrong; nil accepts any
}

// Tasks are the background tasks of serve: they pre-create users, watch for floods, duplicate machines and stalled
// first boots, send notices, and renew certificates. Several serves may run each task at once.
type Tasks struct {
	TasksConfig
	Notifier *notify.Notifier

	watcher    *watcher
	events     *prometheus.CounterVec
	precreated *prometheus.GaugeVec
	runs       runs
	board      *board

	presigning *presigning // nil: this serve may not use the CA of Puppet servers

	disk disk // for checkDisk alone
	past past

	mu     sync.Mutex
	drifts drifts
	queued map[string]time.Time // notices of once: until when each is known
	last   map[string]string    // the last error of each task: the log contains each once
}

// NewTasks returns the background tasks. An invalid URL is an error.
func NewTasks(c TasksConfig) (*Tasks, error) {
	t := &Tasks{
		TasksConfig: c, watcher: newWatcher(c.Now, c.Log), runs: newRuns(), board: newBoard(c.Version), drifts: drifts{}, queued: map[string]time.Time{}, last: map[string]string{},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulley_serve_events_total", Help: "Events that serve noticed or caused: flood, duplicate, sent.",
		}, []string{"event"}),
		precreated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pulley_precreated_users", Help: "Users of etcd that wait for their nodes.",
		}, []string{"environment"}),
	}
	if c.Metrics != nil {
		c.Metrics.MustRegister(t.events, t.precreated, t.runs.total, t.runs.drift, t.runs.seconds, t.board)
	}
	var err error
	t.Notifier, err = notify.New(notify.Config{Notices: notify.NoticesIn(c.DB), URLs: c.Notify, Now: c.Now, Log: c.Log, Sent: t.events.WithLabelValues("sent")})
	return t, err
}

// duplicateRefused counts a duplicate machine that requested a node's name, and sends a notice. It never blocks.
func (t *Tasks) duplicateRefused(ref model.Ref, node string, c access.Duplicate) {
	t.events.WithLabelValues("duplicate").Inc()
	t.Notifier.DuplicateRefused(ref, node, c)
}

// duty is a row of what serve does in the background.
type duty struct {
	problem string        // of its errors, in the log
	every   time.Duration // 0: do runs until the context ends, and returns nil
	do      func(context.Context) error
}

// list returns the tasks of this serve, besides the watch of machines that its configuration may bring.
func (t *Tasks) list() []duty {
	forever := func(do func(context.Context)) duty {
		return duty{do: func(ctx context.Context) error { do(ctx); return nil }}
	}
	h := &holds{Tasks: t, seen: map[model.Ref]map[etcd.Scope]model.Hold{}}
	r := &rollouts{Tasks: t, controllers: map[model.Ref]*control.Controller{}, waits: map[model.Ref]told{}, told: map[model.Ref]map[string]bool{}}
	c, cleanupEvery := &cleanups{Tasks: t, dir: t.Puppet, failed: pauses{}}, cleanupInterval
	if t.Puppet == "" {
		cleanupEvery = unreadInterval
	}
	all := []duty{
		forever(t.watchNodes), forever(t.countNodes), forever(t.Notifier.Run),
		{"cannot check first boots", bootsInterval, t.each(t.checkBoots)},
		{"cannot watch holds", holdsInterval, h.look},
		{"cannot advance a rollout", rolloutInterval, t.unlessBehind(r.advance)},
		{"cannot remove nodes from Puppet servers", cleanupEvery, t.unlessBehind(c.work)},
		{"cannot delete notes about nodes", notesInterval, t.each(t.forget)},
		{"cannot shorten histories", historyInterval, t.each(t.pruneHistories)},
	}
	if t.presigning != nil {
		all = append(all, duty{"cannot get certificates before machines boot", cleanupInterval, t.unlessBehind(t.presigning.work)})
	}
	if t.EtcdDir != "" {
		all = append(all, duty{"etcd stops when its disk is full", diskInterval, t.checkDisk}, duty{"etcd is full", spaceInterval, t.makeRoom})
	}
	if t.Certificates != nil {
		all = append(all, forever(t.precreateUsers), duty{"cannot look at certificates", bootsInterval, t.showCertificates},
			duty{"cannot delete old tokens", tokensInterval, func(ctx context.Context) error { return access.TokensIn(t.DB).DeleteEnded(ctx, t.Now()) }},
			duty{"cannot renew certificates", certificatesInterval, func(ctx context.Context) error {
				return errors.Join(t.Certificates.Renew(), t.Certificates.RecordRenewal(ctx, t.DB))
			}})
	}
	return all
}

// Run runs the tasks until ctx ends.
func (t *Tasks) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, one := range t.list() {
		running.Go(func() {
			if one.every == 0 {
				_ = one.do(ctx)
				return
			}
			t.every(ctx, one.every, one.problem, one.do)
		})
	}
	running.Wait()
	if err := t.past.remember(t.Past, t.Now()); err != nil {
		t.Log.Warn("cannot remember how far etcd is", "error", err)
	}
}

// each returns a task that does something for each environment that any key names.
func (t *Tasks) each(do func(context.Context, model.Ref) error) func(context.Context) error {
	return func(ctx context.Context) error {
		refs, err := specs.In(t.DB).Named(ctx)
		problems := []error{err}
		for _, ref := range refs {
			problems = append(problems, do(ctx, ref))
		}
		return errors.Join(problems...)
	}
}

// every repeats a task until ctx ends, and logs each new error. With a wrong clock it does nothing.
func (t *Tasks) every(ctx context.Context, interval time.Duration, problem string, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if t.Clock == nil || t.Clock(ctx) == nil {
			t.complain(ctx, problem, do(ctx))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// complain logs an error unless it repeats the last one of its problem. The end of serve is no error.
func (t *Tasks) complain(ctx context.Context, problem string, err error, more ...any) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	same := t.last[problem] == text
	t.last[problem] = text
	t.mu.Unlock()
	if err != nil && !same && ctx.Err() == nil {
		t.Log.Warn("a background task failed", append([]any{"problem", problem, "error", err}, more...)...)
	}
}

// pruneHistories deletes the oldest changes and the oldest ended rollouts of a long history.
func (t *Tasks) pruneHistories(ctx context.Context, ref model.Ref) error {
	changes, err := targets.In(t.DB).PruneHistory(ctx, ref.String(), targets.HistoryKept, t.Now())
	rollouts, other := journal.In(t.DB).Prune(ctx, ref, journal.CampaignsKept)
	if changes+rollouts > 0 {
		t.Log.Info("deleted the oldest of the history", "env", ref, "changes", changes, "rollouts", rollouts)
	}
	return errors.Join(err, other)
}

// forget deletes notes about nodes that are old, or whose subject ended.
func (t *Tasks) forget(ctx context.Context, ref model.Ref) error {
	before := t.Now().Add(-notesKept)
	return errors.Join(fleet.In(t.DB).ForgetFloods(ctx, ref, before), fleet.In(t.DB).EndRetirements(ctx, ref), access.IdentitiesIn(t.DB).ForgetLockouts(ctx, ref, before))
}

// makeRoom lets a full etcd accept writes again, if compaction and defragmentation free enough space.
func (t *Tasks) makeRoom(ctx context.Context) error {
	freed, healed, err := cluster.In(t.DB).Heal(ctx, cluster.RoomyPercent)
	if healed {
		t.Log.Warn("etcd was full; it was compacted and defragmented, and accepts writes again", "freed", freed)
	}
	return err
}

// checkBoots sends notices of first boots that are silent.
func (t *Tasks) checkBoots(ctx context.Context, ref model.Ref) error {
	stored, err := specs.In(t.DB).HasSpec(ctx, ref.String())
	if err != nil || !stored { // an environment that is being destroyed needs no notice
		return err
	}
	boots, _, err := access.FirstBootsIn(t.DB).List(ctx, ref)
	for _, b := range boots {
		if b.Stands(t.Now()) && b.Unlocked == nil {
			t.Notifier.Stalled(ref, b)
		}
	}
	return err
}
