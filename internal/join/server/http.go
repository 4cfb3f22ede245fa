package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/internal/clip"
	"pulley/internal/join"
	"pulley/internal/model"
)

// caller is a request with its attributes for the log.
type caller struct {
	*http.Request
	from  string // its address
	party string // the owner of its budget: the certificate's name, else PartyOf
	say   []any  // attributes for slog
}

// maxSaid bounds one value of a request in the log, in bytes.
const maxSaid = 256

// about adds attributes of the request.
func (c *caller) about(attributes ...any) {
	for _, a := range attributes {
		if text, ok := a.(string); ok {
			a = clip.Text(text, maxSaid)
		}
		c.say = append(c.say, a)
	}
}

// busyError is a temporary refusal.
type busyError struct {
	reason join.Reason
	params join.Params
	after  time.Duration
}

func (e *busyError) Error() string { return string(e.reason) }

func busy(after time.Duration) error { return &busyError{reason: join.TooBusy, after: after} }

// gate bounds what callers can do to a server, and answers them.
type gate struct {
	now     func() time.Time
	log     *slog.Logger
	metrics metrics
	refused *limiter // on refused requests
	asked   *limiter // on requests of authenticated parties
	joined  *limiter // on joins of one name
	joins   slots
	others  slots // of requests that are no joins
	puppets slots // of requests that wait for Puppet's CA: while it hangs, no other request waits for it
}

func newGate(now func() time.Time, log *slog.Logger, m metrics) gate {
	return gate{
		now: now, log: log, metrics: m, refused: newLimiter(refusedBurst, refusedEvery), asked: newLimiter(askedBurst, askedEvery),
		joined: newLimiter(askedBurst, joinsEvery), joins: newSlots(), others: newSlots(), puppets: newSlots(),
	}
}

// answer wraps the work of a request into a handler with bounds and time limits. It counts and logs refusals.
func (g gate) answer(do func(context.Context, *caller) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &caller{Request: r, from: addressOf(r), party: PartyOf(r)}
		defer g.recover(w, c)
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 { // other clients at the same address must not slow it down
			c.party = "certificate " + r.TLS.PeerCertificates[0].Subject.CommonName
			if wait := g.asked.take(c.party, g.now()); wait > 0 {
				g.metrics.turnedAway.Inc()
				writeRefusal(w, http.StatusTooManyRequests, &join.RefusedError{Reason: join.TooOften}, wait)
				return
			}
		} else if wait := g.refused.blocked(c.party, g.now()); wait > 0 {
			g.metrics.turnedAway.Inc()
			writeRefusal(w, http.StatusTooManyRequests, &join.RefusedError{Reason: join.TooManyRefused}, wait)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, join.MaxBody)
		value, err := do(ctx, c)
		var refused *join.RefusedError
		var busy *busyError
		switch {
		case err == nil && value == nil:
			w.WriteHeader(http.StatusNoContent)
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value)
		case errors.As(err, &refused):
			g.refuse(c, refused)
			writeRefusal(w, http.StatusForbidden, refused, 0)
		case errors.As(err, &busy):
			g.metrics.turnedAway.Inc()
			writeRefusal(w, http.StatusServiceUnavailable, &join.RefusedError{Reason: busy.reason, Params: busy.params}, busy.after)
		case errors.Is(err, model.ErrUnreachable) || ctx.Err() != nil:
			g.log.Warn("a request could not be answered", append(c.say, "path", r.URL.Path, "from", c.from, "error", err)...)
			writeRefusal(w, http.StatusServiceUnavailable, &join.RefusedError{Reason: join.NoEtcd}, 2*time.Second)
		default:
			g.log.Error("a request could not be answered", append(c.say, "path", r.URL.Path, "from", c.from, "error", err)...)
			writeRefusal(w, http.StatusInternalServerError, &join.RefusedError{Reason: join.Broken}, 5*time.Second)
		}
	}
}

// recover answers a request that panicked, and logs it; at debug level with the stack.
func (g gate) recover(w http.ResponseWriter, c *caller) {
	what := recover()
	if what == nil {
		return
	}
	if what == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(what)
	}
	about := slices.Concat(c.say, []any{"path", c.URL.Path, "from", c.from, "panic", what})
	if g.log.Enabled(c.Context(), slog.LevelDebug) {
		about = append(about, "stack", string(debug.Stack()))
	}
	g.log.Error("a request ended in a panic", about...)
	writeRefusal(w, http.StatusInternalServerError, &join.RefusedError{Reason: join.Broken}, 5*time.Second)
}

func writeRefusal(w http.ResponseWriter, status int, e *join.RefusedError, after time.Duration) {
	w.Header().Set("Content-Type", "application/json")
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}

// body reads a request's body, or refuses it.
func (c *caller) body() ([]byte, error) {
	b, err := io.ReadAll(c.Body)
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody, Limit: int(long.Limit)})
	case err != nil:
		return nil, no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	return b, nil
}

// read decodes a request's body, or refuses it.
func (c *caller) read(into any) error {
	b, err := c.body()
	if err == nil && json.Unmarshal(b, into) != nil {
		err = no(join.BadRequest, join.Params{Field: join.FieldBody})
	}
	return err
}

// refuse counts and logs a refusal.
func (g gate) refuse(c *caller, e *join.RefusedError) {
	g.refused.spend(c.party, g.now())
	g.metrics.refusals.WithLabelValues(string(e.Reason)).Inc()
	g.log.Warn("refused", append(c.say, "path", c.URL.Path, "from", c.from, "reason", string(e.Reason), "params", e.Params)...)
}

func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// PartyOf returns the part of a sender's address that identifies one party: a complete IPv4 address, or an IPv6 /64.
func PartyOf(r *http.Request) string {
	from := addressOf(r)
	a, err := netip.ParseAddr(from)
	if err != nil || a.Unmap().Is4() {
		return from
	}
	return netip.PrefixFrom(a.WithZone(""), 64).Masked().String()
}

// metrics are the counters and gauges of a Server.
type metrics struct {
	joins      *prometheus.CounterVec // by kind: new, again, rejoin, operator
	refusals   *prometheus.CounterVec // by reason
	turnedAway prometheus.Counter
	renewals   prometheus.Counter
	conflicts  prometheus.Counter
	duplicates prometheus.Counter
	seconds    prometheus.Histogram
	atWork     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		joins:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pulley_joins_total", Help: "Issued certificates of joins."}, []string{"kind"}),
		refusals:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pulley_join_refusals_total", Help: "Refused requests to join, renew, register, leave or report progress."}, []string{"reason"}),
		turnedAway: prometheus.NewCounter(prometheus.CounterOpts{Name: "pulley_join_turned_away_total", Help: "Requests that were asked to retry: too many at a time, or from an address with many refusals."}),
		renewals:   prometheus.NewCounter(prometheus.CounterOpts{Name: "pulley_renewals_total", Help: "Renewed certificates."}),
		conflicts:  prometheus.NewCounter(prometheus.CounterOpts{Name: "pulley_join_conflicts_total", Help: "Attempts of joins that lost against another join."}),
		duplicates: prometheus.NewCounter(prometheus.CounterOpts{Name: "pulley_duplicates_total", Help: "Requests of another machine for a name that is taken."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pulley_join_seconds", Help: "Time from a request to join to its certificate.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25},
		}),
		atWork: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pulley_joins_at_work", Help: "Joins in progress."}),
	}
	if r != nil {
		r.MustRegister(m.joins, m.refusals, m.turnedAway, m.renewals, m.conflicts, m.duplicates, m.seconds, m.atWork)
	}
	return m
}
