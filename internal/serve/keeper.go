package serve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/environments"
	"pulley/internal/pki"
	"pulley/internal/store"
)

// KeeperConfig is what a Keeper works with.
type KeeperConfig struct {
	Store        *store.Store
	Certificates *Certificates // nil: nobody joins here
	Now          func() time.Time
	Log          *slog.Logger
	Metrics      prometheus.Registerer
	Notify       []string // URLs, as shoutrrr has them
}

// Keeper is what serve does beside serving: loops that make users ahead, watch over what nodes write, tell people, and renew
// certificates. Each is safe to run in several serves at once.
type Keeper struct {
	KeeperConfig

	watcher *watcher
	senders []sender
	told    chan store.Notice
	hush    hush
	owner   string // this serve, as claims name it
	events  *prometheus.CounterVec
	ahead   *prometheus.GaugeVec

	claimLasts, firstRetry, outboxInterval time.Duration

	mu    sync.Mutex
	heard map[string]string // complaints, so that each is made once
}

// CheckNotify refuses URLs that can't be used, before anything is started.
func CheckNotify(urls []string) error {
	_, err := newSenders(urls)
	return err
}

// NewKeeper makes a keeper; a URL that can't be used is an error.
func NewKeeper(k KeeperConfig) (*Keeper, error) {
	senders, err := newSenders(k.Notify)
	if err != nil {
		return nil, err
	}
	n := &Keeper{
		KeeperConfig: k, watcher: newWatcher(k.Now, k.Log), senders: senders, told: make(chan store.Notice, maxTold), owner: pki.NewIncarnation(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pulley_serve_events_total", Help: "What serve noticed or did: flood, clone, sent.",
		}, []string{"event"}),
		ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pulley_users_made_ahead", Help: "Users of etcd that wait for their nodes.",
		}, []string{"environment"}),
		claimLasts: claimLasts, firstRetry: firstRetry, outboxInterval: outboxInterval, heard: map[string]string{},
	}
	if k.Metrics != nil {
		k.Metrics.MustRegister(n.events, n.ahead)
	}
	return n, nil
}

func (k *Keeper) count(event string) { k.events.WithLabelValues(event).Inc() }

func (k *Keeper) reserved(ref environments.Ref, users int) {
	k.ahead.WithLabelValues(ref.String()).Set(float64(users))
}

// Run runs the loops until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { k.watchNodes(ctx) })
	loops.Go(func() {
		k.every(ctx, bootsInterval, "cannot look after first boots", k.watchBoots)
	})
	if len(k.senders) > 0 {
		loops.Go(func() { k.keepOutbox(ctx) })
	}
	if k.Certificates != nil {
		loops.Go(func() { k.keepReserves(ctx) })
		loops.Go(func() {
			k.every(ctx, tokensInterval, "cannot delete what ended", func(ctx context.Context) error { return k.Store.ForgetTokens(ctx, k.Now()) })
		})
		loops.Go(func() {
			k.every(ctx, keepInterval, "cannot renew certificates", func(ctx context.Context) error {
				return errors.Join(k.Certificates.Renew(), k.Certificates.recordRenewal(ctx, k.Store))
			})
		})
	}
	loops.Wait()
}

// every does something again and again until ctx ends, and says what goes wrong, once.
func (k *Keeper) every(ctx context.Context, interval time.Duration, problem string, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		k.complain(ctx, problem, do(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// watchPause is how long after a watch that broke off the next one begins.
const watchPause = time.Second

// untilDone does something that should not end until ctx does, again and again.
func (k *Keeper) untilDone(ctx context.Context, what string, do func(context.Context) error) {
	k.every(ctx, watchPause, "cannot "+what, do)
}

// complain logs an error, unless it is the same as the last one of its kind; nil forgets that one. What ends because serve
// does is none.
func (k *Keeper) complain(ctx context.Context, problem string, err error, more ...any) {
	says := ""
	if err != nil {
		says = err.Error()
	}
	k.mu.Lock()
	same := k.heard[problem] == says
	k.heard[problem] = says
	k.mu.Unlock()
	if err != nil && !same && ctx.Err() == nil {
		k.Log.Warn("a part of serve met a problem", append([]any{"problem", problem, "error", err}, more...)...)
	}
}
