package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestTimesOfGroups: the record of a rollout must not blame a group for the time of another, also after one in which no node began.
func TestTimesOfGroups(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*1 app*1 web*4", Policy{Canaries: "0", Batch: "2", Failures: "1"})
	b.plan.Groups[1], b.plan.Groups[2] = b.plan.Groups[2], b.plan.Groups[1] // db, app, web
	b.edit("app1", func(n *Node) { n.Host = nil })
	b.settle()
	b.after(time.Minute).reports("ok", "db1").settle()
	b.after(3*time.Minute).reports("ok", "web1").settle()
	b.after(2*time.Minute).reports("failed", "web2").settle() // the first batch took 5 minutes
	b.after(time.Minute).reports("ok", "web3", "web4")        // the second one 1 minute
	b.settle()
	b.is("completed; 4 done; web2 run_failed; app1 skipped: removed")
	var got []string
	for _, s := range b.state.Times {
		if s.From.IsZero() {
			got = append(got, "never")
			continue
		}
		got = append(got, fmt.Sprintf("%s to %s, batch %d took %ds", s.From.Sub(t0), s.To.Sub(t0), s.Slowest, s.Seconds))
	}
	if text := strings.Join(got, "; "); text != "0s to 1m0s, batch 1 took 60s; never; 1m0s to 7m0s, batch 1 took 300s" {
		t.Error(text)
	}
}
