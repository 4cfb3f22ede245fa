package agent

import (
	"fmt"
	"testing"
	"time"
)

// While a rack of machines arrives, each node that sees it would run Puppet in each tick, and read the whole host list each time.
func TestArrivalsCauseOneRunForEachSettleTime(t *testing.T) {
	t.Parallel()
	const lasts, aMinute = 20 * time.Minute, 1000
	for _, settle := range []time.Duration{0, 10 * time.Second, time.Minute, 3 * time.Minute} {
		for _, every := range []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute} {
			w := newWorld(t)
			w.agent.Settings.EnforceInterval = 1000 * time.Hour // runs for changed nodes only
			w.hosts.see(t)
			w.hosts.settle = settle
			w.hosts.set(t, "0 controllers")
			w.promote(t, verA)
			w.good(t)
			runs, reads, ticks, begin := 0, 0, 0, w.now
			for w.now.Sub(begin) < lasts {
				w.now = w.now.Add(every)
				w.hosts.set(t, fmt.Sprint(int(w.now.Sub(begin).Minutes()*aMinute), " controllers"))
				w.tick(t)
				runs, reads, ticks = runs+len(w.puppet.jobs), reads+w.etcd.count("hosts"), ticks+1
			}
			limit := ticks
			if settle > 0 {
				limit = min(ticks, int(lasts/settle))
			}
			if runs > limit || reads > runs || runs == 0 {
				t.Errorf("settle time %s, a tick each %s: %d runs and %d reads of the host list in %s, want at most %d", settle, every, runs, reads, lasts, limit)
			}

			// The last arrival is not forgotten.
			w.now = w.now.Add(settle)
			w.tick(t)
			w.now = w.now.Add(settle)
			w.tick(t)
			w.now = w.now.Add(settle)
			if w.idle(t); w.puppet.saw != w.etcd.load().Hosts {
				t.Errorf("settle time %s, a tick each %s: at the end the node has seen %q of %q", settle, every, w.puppet.saw, w.etcd.load().Hosts)
			}
		}
	}
}
