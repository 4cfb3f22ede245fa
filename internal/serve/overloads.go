package serve

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/model"
	"pulley/internal/notify"
	"pulley/internal/pki"
	"pulley/internal/serve/limits"
)

// callsTold is the pause between two log lines about the refused calls of one user.
const callsTold = time.Minute

// maxCallers bounds the users whose refused calls are counted.
const maxCallers = 1024

// overloads is what serve knows about clients that take too much: too many connections, or calls to etcd that no
// program of Pulley makes.
type overloads struct {
	log         *slog.Logger
	https, etcd *limits.Connections
	tasks       atomic.Pointer[Tasks] // nil until they run
	calls       atomic.Int64

	mu      sync.Mutex
	callers map[string]*caller // by user
}

// caller is a user of etcd with refused calls.
type caller struct {
	told  time.Time
	calls int64 // since then
}

// newOverloads returns the bounds of both listeners. An error means that the limit of open files is too low.
func newOverloads(log *slog.Logger) (*overloads, error) {
	files, err := limits.OpenFiles()
	if err != nil {
		return nil, err
	}
	o := &overloads{log: log, https: limits.HTTPS(files), etcd: limits.Etcd(files), callers: map[string]*caller{}}
	o.https.Overloaded, o.etcd.Overloaded = o.connectionsRefused, o.connectionsRefused
	return o, nil
}

// connect makes overloads visible: as notices, floods of nodes, and metrics.
func (o *overloads) connect(t *Tasks, metrics prometheus.Registerer) {
	for _, l := range []*limits.Connections{o.https, o.etcd} {
		label := prometheus.Labels{"listener": l.Listener}
		metrics.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pulley_connections", Help: "Open connections.", ConstLabels: label},
				func() float64 { open, _ := l.Counts(); return float64(open) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "pulley_connections_refused_total", Help: "Connections that were closed at a limit.", ConstLabels: label},
				func() float64 { _, refused := l.Counts(); return float64(refused) }))
	}
	metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "pulley_etcd_calls_refused_total", Help: "Calls that the embedded etcd refused: leases of nodes and viewers, watches other than that of a node for its own orders, and requests beyond the limits of a user.",
	}, func() float64 { return float64(o.calls.Load()) }))
	o.tasks.Store(t)
}

// connectionsRefused reports that a listener, or a user of etcd, is at a limit.
func (o *overloads) connectionsRefused(l limits.Overload) {
	peer := []any{"from", l.From}
	notice := notify.Notice{Listener: l.Listener, From: l.From, Connections: int64(l.Open)}
	if l.User != "" {
		peer, notice.Operator = []any{"user", l.User}, l.User
		if name, err := pki.ParseName(l.User); err == nil && name.Kind == pki.KindNode {
			notice.Operator, notice.Node, notice.Environment = "", name.Subject, name.Environment
		} else if err == nil {
			notice.Operator = name.Subject
		}
	}
	o.log.Warn("too many connections: some are refused", append(append([]any{"listener", l.Listener}, peer...), "open", l.Open, "refused", l.Refused)...)
	if t := o.tasks.Load(); t != nil {
		t.Notifier.ConnectionsRefused(notice)
	}
}

// lockedOut passes on that etcd refused a node.
func (o *overloads) lockedOut(node pki.Name, issued time.Time) {
	if t := o.tasks.Load(); t != nil {
		t.watcher.lockedOut(node, issued)
	}
}

// callRefused counts a refused call. A node with refused calls floods: `pulley doctor` names it.
func (o *overloads) callRefused(user, call string) {
	o.calls.Add(1)
	now := time.Now()
	o.mu.Lock()
	c := o.callers[user]
	if c == nil {
		if len(o.callers) >= maxCallers {
			clear(o.callers)
		}
		c = &caller{}
		o.callers[user] = c
	}
	c.calls++
	calls, due := c.calls, now.Sub(c.told) >= callsTold
	if due {
		c.told, c.calls = now, 0
	}
	o.mu.Unlock()
	t := o.tasks.Load()
	name, err := pki.ParseName(user)
	if ref, bad := model.ParseRef(name.Environment); err == nil && bad == nil && name.Kind == pki.KindNode && t != nil {
		t.watcher.refused(nodeKey{ref, name.Subject})
	}
	if !due {
		return
	}
	o.log.Warn("etcd refuses calls that this user never needs", "user", user, "call", call, "calls", calls)
	if err == nil && name.Kind == pki.KindOperator && t != nil {
		t.Notifier.CallsRefused(name.Subject, calls)
	}
}
