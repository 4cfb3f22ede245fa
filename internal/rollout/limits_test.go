package rollout

import (
	"fmt"
	"testing"
	"time"

	"pulley/internal/model"
)

// TestMayFail: a percentage of the first few nodes would stop a rollout for one failure, and one of all nodes too late.
func TestMayFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share              Share
		sample, ended, all int
		want               int
	}{
		{"2", 100, 1, 1000, 2}, {"", 100, 5, 7, 7}, {"0", 100, 500, 1000, 0},
		{"2%", 100, 0, 1000, 2}, {"2%", 100, 100, 1000, 2}, {"2%", 100, 549, 1000, 10}, {"2%", 100, 1000, 1000, 20},
		{"2%", 0, 1, 1000, 20}, // a job: of all nodes
		{"10%", 100, 3, 20, 2}, // no more than all nodes
		{"50%", 10, 3, 1000, 5}, {"50%", 10, 30, 1000, 15},
	} {
		if got := (Policy{Sample: c.sample}).MayFail(c.share, c.ended, c.all); got != c.want {
			t.Errorf("%s of a sample of %d, %d of %d ended: %d may fail, not %d", c.share, c.sample, c.ended, c.all, got, c.want)
		}
	}
}

// TestAdvanceCountsTheSample: a percentage stops a rollout when it exceeds that share of the nodes that ended, and not before the
// sample could exceed it.
func TestAdvanceCountsTheSample(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*40", Policy{Canaries: "0", Batch: "1", Failures: "20%", Sample: 10}).settle()
	for i := range 40 {
		node, how := fmt.Sprintf("web%d", i+1), "ok"
		if i == 0 || i == 1 || i == 19 {
			how = "failed"
		}
		b.reports(how, node).settle()
	}
	b.is("completed; 37 done; web1 run_failed; web2 run_failed; web20 run_failed")

	b = begin(t, "web*40", Policy{Canaries: "0", Batch: "1", Failures: "20%", Sample: 10}).settle()
	b.reports("failed", "web1").settle().reports("failed", "web2").settle().reports("failed", "web3")
	b.is("advancing; 0 done; web1 run_failed; web2 run_failed; web3 run_failed; stopped: failures; waits for gate")
	if b.state.Stop.Allowed != 2 {
		t.Errorf("%+v", b.state.Stop)
	}

	batch := Policy{Canaries: "0", Batch: "20", Failures: "40", BatchFailures: "20%", Sample: 5}
	b = begin(t, "web*40", batch).settle()
	b.reports("failed", "web1").settle().reports("failed", "web2")
	b.settle()
	if b.state.Stop == nil || b.state.Stop.Code != StopBatch || b.state.Stop.Allowed != 1 {
		t.Errorf("two of two in a batch of 20: %+v", b.state.Stop)
	}
	b = begin(t, "web*40", batch).settle()
	for i := range 8 {
		b.reports("ok", fmt.Sprintf("web%d", i+3)).settle()
	}
	b.reports("failed", "web1").settle().reports("failed", "web2").settle()
	if b.state.Stop != nil {
		t.Errorf("two of ten in a batch of 20: %+v", b.state.Stop)
	}
}

// TestAdvanceLimitsABatchThatIsOrderedAgain: without it, all nodes of a batch could fail once more, and the next group would begin.
func TestAdvanceLimitsABatchThatIsOrderedAgain(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*4 web*4", Policy{Canaries: "0", Batch: "4", Failures: "8", Roles: map[string]RolePolicy{"db": {BatchFailures: "1"}}}).settle()
	b.reports("failed", "db1", "db2").settle()
	if b.state.Stop == nil || b.state.Stop.Code != StopBatch {
		t.Fatalf("two of a batch failed: %+v", b.state.Stop)
	}
	b.resume().reports("failed", "db3", "db4").settle().resume().settle() // the next group begins
	b.reports("ok", "web1", "web2", "web3").settle()
	again, n, err := b.state.Retry(b.plan)
	if err != nil || n != 4 {
		t.Fatal(n, err)
	}
	b.state = again
	b.reports("ok", "web4").is("advancing; ordered db1 db2 db3 db4; 4 done; waits for nodes")
	b.reports("failed", "db1").settle()
	if b.state.Stop != nil {
		t.Errorf("one of the batch failed again, which the policy allows: %+v", b.state.Stop)
	}
	b.reports("failed", "db2").is("advancing; ordered db3 db4; 4 done; db1 run_failed; db2 run_failed; stopped: batch_failures; waits for gate")
}

// TestAdvanceSettlesForLongerThanProgress: without it, each batch with a long settle time pauses its rollout. A node that stops reporting
// while it settles still pauses it.
func TestAdvanceSettlesForLongerThanProgress(t *testing.T) {
	t.Parallel()
	policy := Policy{Canaries: "0", Batch: "1", Settle: model.Duration(3 * time.Hour)}
	b := begin(t, "web*2", policy).settle()
	b.reports("ok", "web1").settle().after(3*time.Hour - time.Second).is("advancing; healthy web1; 0 done; waits for settle")
	b.after(time.Second).reports("ok", "web1").is("advancing; ordered web2; 1 done; waits for nodes")
	b.reports("ok", "web2").settle().after(3 * time.Hour).is("advancing; healthy web2; 1 done; stopped: progress; waits for gate")
}
