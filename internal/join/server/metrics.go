package server

import "github.com/prometheus/client_golang/prometheus"

// metrics are the counters and gauges of a Server.
type metrics struct {
	joins      *prometheus.CounterVec // by kind: new, again, rejoin, operator
	refusals   *prometheus.CounterVec // by reason
	turnedAway prometheus.Counter
	renewals   prometheus.Counter
	conflicts  prometheus.Counter
	clones     prometheus.Counter
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
		clones:     prometheus.NewCounter(prometheus.CounterOpts{Name: "pulley_duplicates_total", Help: "Requests of another machine for a name that is taken."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pulley_join_seconds", Help: "Time from a request to join to its certificate.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25},
		}),
		atWork: prometheus.NewGauge(prometheus.GaugeOpts{Name: "pulley_joins_at_work", Help: "Joins in progress."}),
	}
	if r != nil {
		r.MustRegister(m.joins, m.refusals, m.turnedAway, m.renewals, m.conflicts, m.clones, m.seconds, m.atWork)
	}
	return m
}
