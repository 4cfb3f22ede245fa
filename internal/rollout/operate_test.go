package rollout

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"pulley/internal/model"
)

// TestAdvanceWaitsForApproval: with manual promotion, nothing follows the canaries until an operator approves it.
func TestAdvanceWaitsForApproval(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*3", Policy{Canaries: "1", Batch: "2", Promote: Manual}).settle()
	_, err := b.state.Approve(b.plan)
	if !errors.Is(err, ErrNotWaiting) {
		t.Errorf("an approval before the canary ended: %v", err)
	}
	b.reports("ok", "web1").is("advancing; 1 done; waits for approval")
	if b.state, err = b.state.Approve(b.plan); err != nil {
		t.Fatal(err)
	}
	b.is("advancing; ordered web2 web3; 1 done; waits for nodes")
}

// TestAdvanceRetry: failed nodes of earlier groups are ordered again, group by group, and nobody else begins beside them.
func TestAdvanceRetry(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*2 web*3", Policy{Canaries: "0", Batch: "2", Failures: "2"}).settle()
	b.reports("failed", "db1").reports("failed", "db2").is("advancing; ordered web1 web2; 0 done; db1 run_failed; db2 run_failed; waits for nodes")
	b.reports("failed", "web1").is("advancing; ordered web2; 0 done; db1 run_failed; db2 run_failed; web1 run_failed; stopped: failures; waits for gate")
	again, n, err := b.state.Retry(b.plan)
	if err != nil || n != 3 {
		t.Fatal(n, err)
	}
	b.state = again
	b.resume().is("advancing; ordered web2; 0 done; waits for nodes")
	b.reports("ok", "web2").is("advancing; ordered db1 db2; 1 done; waits for nodes")
	b.reports("ok", "db1").is("advancing; ordered db2; 2 done; waits for nodes")
	b.reports("ok", "db2").is("advancing; ordered web1; 3 done; waits for nodes")
	b.reports("ok", "web1").is("advancing; ordered web3; 4 done; waits for nodes")
}

// TestAdvanceSkip: an operator gives up a node; one that runs keeps its slot until it is lost.
func TestAdvanceSkip(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*3", Policy{Canaries: "0", Batch: "1", Deadline: model.Duration(time.Minute)}).settle()
	skip := func(node string) {
		t.Helper()
		var err error
		if b.state, err = b.state.Skip(b.plan, node); err != nil {
			t.Fatal(err)
		}
	}
	skip("web1")
	b.is("advancing; ordered web2; 0 done; web1 skipped: operator; waits for nodes")
	b.reports("running", "web2")
	skip("web2")
	b.is("advancing; lost web2; 0 done; web2 lost; web1 skipped: operator; stopped: failures; waits for gate")
	skip("web2")
	b.resume().is("advancing; ordered web3; 0 done; web1 skipped: operator; web2 skipped: operator; waits for nodes")
	for node, want := range map[string]error{"web1": ErrPassed, "web9": ErrUnknown} {
		if _, err := b.state.Skip(b.plan, node); !errors.Is(err, want) {
			t.Errorf("a skip of %s: %v", node, err)
		}
	}
}

// TestAdvanceSkipBeforeItsTurn: a node that an operator left out before its turn never begins, and no longer waits to be ordered again.
func TestAdvanceSkipBeforeItsTurn(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*1 web*4", Policy{Canaries: "0", Batch: "2", Failures: "1"}).settle()
	skip := func(node string) {
		t.Helper()
		var err error
		if b.state, err = b.state.Skip(b.plan, node); err != nil {
			t.Fatal(err)
		}
	}
	skip("web1")
	skip("web4")
	b.reports("failed", "db1").is("advancing; ordered web2; 0 done; db1 run_failed; web1 skipped: operator; web4 skipped: operator; waits for nodes")
	again, n, err := b.state.Retry(b.plan)
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	b.state = again
	skip("db1")
	if _, err := b.state.Skip(b.plan, "web4"); !errors.Is(err, ErrPassed) {
		t.Errorf("a second skip: %v", err)
	}
	const skips = "db1 skipped: operator; web1 skipped: operator; web4 skipped: operator"
	b.reports("ok", "web2").is("advancing; ordered web3; 1 done; " + skips + "; waits for nodes")
	b.reports("ok", "web3").is("completed; 2 done; " + skips)
}

// A person who approves each batch is asked before each of them, and an approval is valid for one batch only.
func TestAdvanceAsksBeforeEachBatch(t *testing.T) {
	t.Parallel()
	b := begin(t, "db*1 web*3", Policy{Canaries: "0", Batch: "2", Promote: Batches}).settle()
	approve := func(want string) {
		t.Helper()
		next, err := b.state.Approve(b.plan)
		if err != nil {
			t.Fatal(err)
		}
		b.state = next
		b.is(want)
		if _, err := b.state.Approve(b.plan); !errors.Is(err, ErrNotWaiting) {
			t.Errorf("a second approval: %v", err)
		}
	}
	b.is("advancing; ordered db1; 0 done; waits for nodes")
	b.reports("ok", "db1").is("advancing; 1 done; waits for approval")
	approve("advancing; ordered web1 web2; 1 done; waits for nodes")
	b.reports("ok", "web1", "web2").is("advancing; 3 done; waits for approval")
	if b.wait.Node != "web3" {
		t.Errorf("it waits before %q", b.wait.Node) // notifications tell batches apart by it
	}
	approve("advancing; ordered web3; 3 done; waits for nodes")
	b.reports("ok", "web3").is("completed; 4 done")
}

// A small fleet needs a canary more than a large one.
func TestSmallFleetHasCanary(t *testing.T) {
	t.Parallel()
	for share, want := range map[Share]int{"5%": 1, "20%": 3, "0": 0, "0%": 0, "2": 2} {
		if got := share.canaries(15); got != want {
			t.Errorf("%s of 15 nodes are %d canaries, not %d", share, got, want)
		}
	}
}

// TestAdvanceSkipOfASettlingNode: without it, a skip reports success, and the settle time of the node begins once more.
func TestAdvanceSkipOfASettlingNode(t *testing.T) {
	t.Parallel()
	b := begin(t, "web*3", Policy{Canaries: "0", Batch: "1", Settle: model.Duration(time.Hour)}).settle()
	b.reports("ok", "web1").is("advancing; healthy web1; 0 done; waits for settle")
	skip := func(node string) {
		t.Helper()
		var err error
		if b.state, err = b.state.Skip(b.plan, node); err != nil {
			t.Fatal(err)
		}
	}
	skip("web1")
	b.is("advancing; ordered web2; 1 done; waits for nodes")
	b.reports("ok", "web2").settle().reports("running", "web2") // and it stops answering
	skip("web2")
	b.is("advancing; ordered web3; 2 done; waits for nodes")
	b.reports("ok", "web3").settle()
	skip("web3")
	b.reports("failed", "web3").is("advancing; 2 done; web3 run_failed; stopped: failures; waits for gate")
}

// A retry of thousands of nodes copied the list of those that wait for each node that began: a step took longer than serve has for it.
func TestRetryOfManyNodes(t *testing.T) { // not beside others, which allocate as well
	b := fleetOfTenThousand(t)
	b.state.Group, b.state.Next = 2, 9000
	b.state = b.state.clone()
	for _, m := range b.plan.Groups[2].Nodes {
		b.state.Failed[m.Node] = Failure{Code: RunFailed}
	}
	again, _, err := b.state.Retry(b.plan)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	step := Advance(b.plan, again, b.o, b.now)
	runtime.ReadMemStats(&after)
	if step.State == nil || len(step.State.Slots) != 900 {
		t.Fatalf("%+v", step.Wait)
	}
	if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 30 {
		t.Errorf("a step allocated %d MiB", used)
	}
}
