package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/access/fleetca"
	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/serve/control"
	"pulley/internal/store"
)

const (
	bootsInterval        = time.Minute
	tokensInterval       = time.Hour
	historyInterval      = time.Hour
	spaceInterval        = 5 * time.Second
	diskInterval         = 5 * time.Second
	certificatesInterval = 5 * time.Second // a rotation of the CA must reach the servers soon
	rolloutInterval      = 2 * time.Second
	holdsInterval        = 10 * time.Second
	watchPause           = time.Second // before an interrupted watch begins again
)

// TasksConfig is the environment of Tasks.
type TasksConfig struct {
	Store        *store.Store
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
	t.Notifier, err = notify.New(notify.Config{Notices: c.Store.Notices, URLs: c.Notify, Now: c.Now, Log: c.Log, Sent: t.events.WithLabelValues("sent")})
	return t, err
}

// duplicateRefused counts a duplicate machine that requested a node's name, and sends a notice. It never blocks.
func (t *Tasks) duplicateRefused(ref model.Ref, node string, c store.Duplicate) {
	t.events.WithLabelValues("duplicate").Inc()
	t.Notifier.DuplicateRefused(ref, node, c)
}

// Run runs the tasks until ctx ends.
func (t *Tasks) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { t.watchNodes(ctx) })
	tasks.Go(func() { t.countNodes(ctx) })
	tasks.Go(func() { t.every(ctx, bootsInterval, "cannot check first boots", t.checkBoots) })
	tasks.Go(func() { t.every(ctx, historyInterval, "cannot shorten histories", t.pruneHistories) })
	tasks.Go(func() { t.Notifier.Run(ctx) })
	h := &holds{Tasks: t, seen: map[model.Ref]map[store.Scope]model.Hold{}}
	tasks.Go(func() { t.every(ctx, holdsInterval, "cannot watch holds", h.look) })
	r := &rollouts{Tasks: t, controllers: map[model.Ref]*control.Controller{}, waits: map[model.Ref]told{}, told: map[model.Ref]map[string]bool{}}
	tasks.Go(func() { t.every(ctx, rolloutInterval, "cannot advance a rollout", t.unlessBehind(r.advance)) })
	c, cleanupEvery := &cleanups{Tasks: t, dir: t.Puppet, failed: pauses{}}, cleanupInterval
	if t.Puppet == "" {
		cleanupEvery = unreadInterval
	}
	tasks.Go(func() { t.every(ctx, cleanupEvery, "cannot remove nodes from Puppet servers", t.unlessBehind(c.work)) })
	if t.presigning != nil {
		tasks.Go(func() {
			t.every(ctx, cleanupInterval, "cannot get certificates before machines boot", t.unlessBehind(t.presigning.work))
		})
	}
	if t.EtcdDir != "" {
		tasks.Go(func() { t.every(ctx, diskInterval, "etcd stops when its disk is full", t.checkDisk) })
		tasks.Go(func() { t.every(ctx, spaceInterval, "etcd is full", t.makeRoom) })
	}
	if t.Certificates != nil {
		tasks.Go(func() { t.precreateUsers(ctx) })
		tasks.Go(func() { t.every(ctx, bootsInterval, "cannot look at certificates", t.showCertificates) })
		tasks.Go(func() {
			t.every(ctx, tokensInterval, "cannot delete old tokens", func(ctx context.Context) error { return t.Store.Tokens.DeleteEnded(ctx, t.Now()) })
		})
		tasks.Go(func() {
			t.every(ctx, certificatesInterval, "cannot renew certificates", func(ctx context.Context) error {
				return errors.Join(t.Certificates.Renew(), t.Certificates.RecordRenewal(ctx, t.Store))
			})
		})
	}
	tasks.Wait()
	if err := t.past.remember(t.Past, t.Now()); err != nil {
		t.Log.Warn("cannot remember how far etcd is", "error", err)
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

// pruneHistories deletes the oldest changes and the oldest ended rollouts of long histories.
func (t *Tasks) pruneHistories(ctx context.Context) error {
	refs, err := t.Store.Environments.Named(ctx)
	for _, ref := range refs {
		deleted, one := t.Store.Targets.PruneHistory(ctx, ref.String(), store.HistoryKept, t.Now())
		if deleted > 0 {
			t.Log.Info("deleted the oldest changes of the history", "env", ref, "changes", deleted)
		}
		campaigns, other := t.Store.Campaigns.Prune(ctx, ref, store.CampaignsKept)
		if campaigns > 0 {
			t.Log.Info("deleted the oldest rollouts that ended", "env", ref, "rollouts", campaigns)
		}
		err = errors.Join(err, one, other)
	}
	return err
}

// makeRoom lets a full etcd accept writes again, if compaction and defragmentation free enough space.
func (t *Tasks) makeRoom(ctx context.Context) error {
	freed, healed, err := t.Store.Cluster.Heal(ctx, store.RoomyPercent)
	if healed {
		t.Log.Warn("etcd was full; it was compacted and defragmented, and accepts writes again", "freed", freed)
	}
	return err
}

// checkBoots sends notices of first boots that are silent, and deletes old records of floods, of lockouts and of ended retirements.
func (t *Tasks) checkBoots(ctx context.Context) error {
	names, err := t.Store.Environments.List(ctx)
	problems := []error{err}
	for _, name := range names {
		ref, err := model.ParseRef(name)
		if err != nil {
			continue
		}
		boots, _, err := t.Store.FirstBoots.List(ctx, ref)
		for _, b := range boots {
			if b.Stands(t.Now()) && b.Unlocked == nil {
				t.Notifier.Stalled(ref, b)
			}
		}
		problems = append(problems, err, t.forgetFloods(ctx, ref), t.Store.Identities.ForgetLockouts(ctx, ref, t.Now().Add(-floodsKept)), t.Store.Fleet.EndRetirements(ctx, ref))
	}
	return errors.Join(problems...)
}

func (t *Tasks) forgetFloods(ctx context.Context, ref model.Ref) error {
	floods, _, err := t.Store.Fleet.Floods(ctx, ref)
	if err != nil {
		return err
	}
	before := t.Now().Add(-floodsKept)
	for node, f := range floods {
		if f.Last.Before(before) {
			if err := t.Store.Fleet.ForgetFlood(ctx, ref, node, before); err != nil {
				return err
			}
		}
	}
	return nil
}
