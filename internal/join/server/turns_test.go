package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pulley/environments"
	"pulley/environments/settings"
	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
	"pulley/internal/specs"
	"pulley/internal/testbed/etcdtest"
)

// provisioned is a world whose environment has a Puppet server.
func provisioned(t *testing.T, p settings.PuppetProvision) *world {
	t.Helper()
	w := newWorld(t, environments.Role{Name: "compute", Cardinality: 50}, environments.Role{Name: "controller", Cardinality: 50})
	spec, revision, err := specs.In(w.st).Spec(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	spec.DataLayers = []string{"node", "role", "region", "environment", "common"}
	spec.Roles[0].Attributes = map[string]string{"region": "eu"}
	spec.Puppet = settings.PuppetSettings{Servers: map[string]settings.PuppetServer{"eu1": {Address: "10.0.0.1"}}, Provision: p}
	if err := specs.In(w.st).PutSpec(t.Context(), spec, revision); err != nil {
		t.Fatal(err)
	}
	return w
}

// member joins a machine, which then asks any of the servers.
func (w *world) member(role string, n int, servers ...*serve) machine {
	w.t.Helper()
	m := w.machine(fmt.Sprintf("%s%032d", role, n)[:32], servers...)
	m.is.ID = fmt.Sprintf("%032d", n)
	a, err := m.join(w.t.Context(), w.token(access.Token{}), fmt.Sprintf("%s%d", role, n))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.joined(m, a, servers...)
}

func (m machine) says(t *testing.T, state string, finished bool) {
	t.Helper()
	if err := m.Progress(t.Context(), "", join.Progress{Machine: m.is.ID, Step: "certificate", State: state, Finished: finished}); err != nil {
		t.Fatal(err)
	}
}

// Too many machines at a time would stop a Puppet server, and a machine that overtakes others makes them wait for ever. The
// machines ask several serves at the same moment.
func TestTurnsAreBoundedAndInOrder(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 3})
	var ahead atomic.Int64 // the serves read again what the other one wrote
	clock := func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } }
	one, two := w.serve(clock), w.serve(clock)
	var all []machine
	for n := range 12 {
		servers := []*serve{one, two}
		if n%2 == 1 {
			slices.Reverse(servers)
		}
		all = append(all, w.member("compute", n+1, servers...))
	}
	granted := map[string]bool{}
	var begun []string
	var mu sync.Mutex
	round := func() {
		t.Helper()
		ahead.Add(int64(bootsLast))
		var asked sync.WaitGroup
		for _, m := range all {
			asked.Go(func() {
				a, err := m.Turn(t.Context(), m.is)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case a.Granted && !granted[m.is.ID]:
					granted[m.is.ID] = true
					begun = append(begun, m.is.ID)
				case !a.Granted && (a.Wait != join.WaitFull || granted[m.is.ID]):
					t.Errorf("%s waits: %+v", m.is.ID, a)
				}
			})
		}
		asked.Wait()
		boots, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
		if err != nil {
			t.Fatal(err)
		}
		working := 0
		for _, b := range boots {
			if b.HasTurn(time.Now()) {
				working++
			}
		}
		if working != min(3, len(all)) {
			t.Errorf("%d machines of %d have a turn", working, len(all))
		}
	}
	for _, m := range all { // the order of arrival
		if _, err := m.Turn(t.Context(), m.is); err != nil {
			t.Fatal(err)
		}
	}
	arrived := make([]string, len(all))
	for i, m := range all {
		arrived[i] = m.is.ID
	}
	for len(all) > 0 {
		round()
		for _, i := range rand.Perm(len(all)) {
			if m := all[i]; granted[m.is.ID] {
				m.says(t, "done", true)
				all = slices.Delete(all, i, i+1)
				break
			}
		}
	}
	if slices.Equal(begun[:3], arrived[:3]) { // the first three asked at the same moment
		t.Log("in order")
	}
	slices.Sort(begun[:3])
	if !slices.Equal(begun, arrived) {
		t.Errorf("they arrived as %v\nand began as %v", arrived, begun)
	}
}

// A machine that fails must give its turn to others, keep its place in no queue, and not come again for ever; one that restarts
// keeps its turn.
func TestTurnOfFailedMachine(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 1})
	s := w.serve(nil)
	bad, good := w.member("compute", 1, s), w.member("compute", 2, s)
	ask := func(m machine) join.TurnAnswer {
		t.Helper()
		a, err := m.Turn(t.Context(), m.is)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if !ask(bad).Granted || ask(good).Granted || !ask(bad).Granted {
		t.Error("a machine that asks again lost its turn, or two have one")
	}
	bad.says(t, "failed", false)
	if ask(bad).Granted || !ask(good).Granted {
		t.Error("the machine that failed is before the one that waited")
	}
	good.says(t, "done", true)
	for range maxTurns - 1 {
		if !ask(bad).Granted {
			t.Fatal("a retry waits for nobody")
		}
		bad.says(t, "failed", false)
	}
	_, err := bad.Turn(t.Context(), bad.is)
	var refused *join.RefusedError
	if !errors.As(err, &refused) || refused.Reason != join.TurnsUsedUp || refused.Params.Used != maxTurns {
		t.Errorf("turn %d: %v", maxTurns+1, err)
	}
	boots, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
	if b := boots[bad.is.ID]; err != nil || b.State != access.BootFailed || !b.Finished.IsZero() {
		t.Errorf("the failed machine is hidden: %+v, %v", b, err)
	}
	if _, err := access.JoinsIn(w.st).Unlock(t.Context(), dev, "compute1", access.Revoked{By: "ann", Why: "repaired"}); err != nil {
		t.Fatal(err)
	}
	if !ask(bad).Granted {
		t.Error("an operator unlocked it, and it has no turn")
	}
}

// An outage of the CA, or of one region's servers, must not use up the turns of machines that only wait for it, and must not stop the
// machines that need something else.
func TestWaitForServerReturnsTurn(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 1})
	s := w.serve(nil)
	waits, other := w.member("compute", 1, s), w.member("compute", 2, s)
	ask := func(m machine) join.TurnAnswer {
		t.Helper()
		a, err := m.Turn(t.Context(), m.is)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	report := func(step string, state access.BootState, problem model.Prose) {
		t.Helper()
		if err := waits.Progress(t.Context(), "", join.Progress{Machine: waits.is.ID, Step: step, State: string(state), Error: problem}); err != nil {
			t.Fatal(err)
		}
	}
	own := func() access.FirstBoot {
		t.Helper()
		b, _, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, waits.is.ID)
		if err != nil {
			t.Fatal(err)
		}
		return *b
	}
	if !ask(waits).Granted || ask(other).Granted {
		t.Fatal("two machines have the only turn, or none")
	}
	report("turn", access.BootStarted, "the answer was lost")
	if ask(other).Granted {
		t.Error("a lost answer costs a machine its turn")
	}
	report("certificate", access.BootStarted, "the CA is away")
	if a := ask(waits); a.Granted || a.Before != 1 {
		t.Errorf("a machine that waits for the CA asks again before the one that waited for it: %+v", a)
	}
	if b := own(); b.Turns != 0 || b.Error != "the CA is away" || !b.Waits(time.Now()) {
		t.Errorf("the machine waits for the CA: %+v", b)
	}
	if !ask(other).Granted || ask(waits).Granted {
		t.Error("the machine that waits for the CA keeps the only turn, or two have it")
	}
	other.says(t, "done", true)
	for range maxTurns + 1 {
		if !ask(waits).Granted {
			t.Fatal("the only machine waits for its turn")
		}
		report("certificate", access.BootStarted, "the CA is away")
	}
	report("certificate", access.BootFailed, "the CA is away") // the end of the step, in a wait
	if b := own(); b.Turns != 0 {
		t.Errorf("the outage used up %d turns", b.Turns)
	}
	ask(waits)
	report("first-run", access.BootFailed, "the run did not succeed")
	if b := own(); b.Turns != 1 {
		t.Errorf("a run that failed counts %d turns", b.Turns)
	}
}

// One machine that hangs, or whose key is stolen, must not keep all others from being provisioned: neither with a turn that it only
// reports about, nor at the head of the queue without a request.
func TestHangingMachineBlocksNoTurn(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 1, Sleeptime: model.Duration(3 * time.Minute), Turn: model.Duration(time.Hour)})
	var ahead time.Duration
	clock := func(c *Config) { c.Now = func() time.Time { return time.Now().Add(ahead) } }
	one, two := w.serve(clock), w.serve(clock)
	bad, good, next := w.member("compute", 1, one, two), w.member("compute", 2, two, one), w.member("compute", 3, two, one)
	ask := func(m machine) bool {
		t.Helper()
		a, err := m.Turn(t.Context(), m.is)
		if err != nil {
			t.Fatal(err)
		}
		if a.After > longestQueue {
			t.Errorf("a waiting machine asks again after %s", a.After)
		}
		return a.Granted
	}
	// until lets time pass while the bad machine reports its step, and returns the time until the good one has its turn.
	until := func(step string, most time.Duration) time.Duration {
		t.Helper()
		begun := ahead
		for !ask(good) {
			if ahead += time.Minute; ahead-begun > most {
				t.Fatalf("the other machine has no turn after %s", ahead-begun)
			}
			if err := bad.Progress(t.Context(), "", join.Progress{Machine: bad.is.ID, Step: step, State: "started"}); err != nil {
				t.Fatal(err)
			}
		}
		return ahead - begun
	}
	if !ask(bad) || ask(good) {
		t.Fatal("two machines have the only turn, or none")
	}
	if after := until("first-run", time.Hour+time.Minute); after < 59*time.Minute {
		t.Errorf("the machine lost its turn after %s", after)
	}
	if boots, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev); err != nil || boots[bad.is.ID].HasTurn(time.Now().Add(ahead)) || boots[bad.is.ID].Turns != 1 {
		t.Errorf("the turn that ended: %+v, %v", boots[bad.is.ID], err)
	}
	good.says(t, "done", true)

	good = next
	if ask(bad) { // it waits for sleeptime, and is the first one
		t.Fatal("no pause between two machines")
	}
	if after := until("turn", 6*time.Minute); after < 4*time.Minute {
		t.Errorf("the head of the queue lost its position after %s", after)
	}
}

// waiting stores first boots of machines that wait for their turn.
func waiting(t testing.TB, st *etcd.DB, count int) {
	t.Helper()
	now := time.Now().UTC()
	var all sync.WaitGroup
	for first := range 16 {
		all.Go(func() {
			for n := first; n < count; n += 16 {
				b := access.FirstBoot{
					Machine: fmt.Sprintf("%032d", n), Hostname: fmt.Sprintf("compute%d.example.com", n), Node: fmt.Sprintf("compute%d", n), Role: "compute", Step: "turn",
					State: access.BootStarted, Started: now, Since: now, Heard: now, Asked: now.Add(-time.Minute), Again: now, Token: "0123456789", Joined: true,
				}
				if err := access.FirstBootsIn(st).Put(t.Context(), dev, b, 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// asks returns a request of one of many machines, which has its turn or waits.
func asks(t testing.TB, st *etcd.DB, turn bool) func(testing.TB) {
	t.Helper()
	now := time.Now().UTC()
	b := access.FirstBoot{Machine: "own", Node: "own1", Role: "compute", Step: "turn", State: access.BootStarted, Started: now, Since: now, Heard: now, Asked: now, Again: now, Joined: true}
	if turn {
		b.Machine, b.Asked, b.Turn, b.Until, b.Turns = "own turn", time.Time{}, now, now.Add(time.Hour), 1
	}
	if err := access.FirstBootsIn(st).Put(t.Context(), dev, b, 0); err != nil {
		t.Fatal(err)
	}
	d := New(Config{DB: st, Now: time.Now})
	return func(t testing.TB) {
		a, err := d.ask(t.Context(), &caller{}, certified{ref: dev, identity: &access.Identity{Node: b.Node, Role: b.Role}}, join.Machine{ID: b.Machine}, queue{selected: true, now: d.Now().UTC()})
		if err != nil || a.Granted != turn {
			t.Fatalf("%+v, %v", a, err)
		}
	}
}

// Each of thousands of waiting machines asks once a minute. Requests that read all of them would need several processors.
func TestTurnRequestsDoNotReadTheQueue(t *testing.T) {
	etcd := etcdtest.StartAuth(t, etcdtest.AuthOptions{})
	st := etcd.Admin()
	const machines, requests = 200, 20
	waiting(t, st, machines)
	sent := func() (bytes float64) {
		families, err := prometheus.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "etcd_network_client_grpc_sent_bytes_total" {
				bytes = f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return bytes
	}
	before := sent()
	if _, _, err := access.FirstBootsIn(st).List(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	all := sent() - before
	if all < machines*100 {
		t.Fatalf("%d machines have %.0f bytes", machines, all)
	}
	for what, turn := range map[string]bool{"waits": false, "has its turn": true} {
		ask := asks(t, st, turn)
		before, begun := sent(), time.Now()
		for range requests {
			ask(t)
		}
		most := all / 2 // of 20 small answers
		if !turn {
			most += all * (1 + float64(time.Since(begun)/bootsLast))
		}
		if got := sent() - before; got > most {
			t.Errorf("a machine that %s read %.0f bytes in %d requests; all machines are %.0f", what, got, requests, all)
		}
	}
}

func BenchmarkTurnOfThreeThousand(b *testing.B) {
	st := etcdtest.StartAuth(b, etcdtest.AuthOptions{}).Admin()
	waiting(b, st, 3000)
	for what, turn := range map[string]bool{"waits": false, "has": true} {
		ask := asks(b, st, turn)
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				ask(b)
			}
		})
	}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := access.FirstBootsIn(st).List(b.Context(), dev); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// An operator must be able to stop the queue, to let only some machines through, and to spread them over time.
func TestTurnsFollowTheOperator(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 2, Sleeptime: model.Duration(time.Minute), Where: `region == "eu"`})
	var ahead time.Duration
	s := w.serve(func(c *Config) { c.Now = func() time.Time { return time.Now().Add(ahead) } })
	other, one, two := w.member("controller", 1, s), w.member("compute", 2, s), w.member("compute", 3, s)
	ask := func(m machine) join.TurnAnswer {
		t.Helper()
		a, err := m.Turn(t.Context(), m.is)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(other); a.Granted || a.Wait != join.WaitFiltered {
		t.Errorf("a machine that the expression does not select: %+v", a)
	}
	if _, err := access.FirstBootsIn(w.st).Pause(t.Context(), dev, &access.Revoked{By: "ann", Why: "the servers move"}); err != nil {
		t.Fatal(err)
	}
	if a := ask(one); a.Granted || a.Wait != join.WaitPaused || a.By != "ann" || a.Why != "the servers move" {
		t.Errorf("while it is paused: %+v", a)
	}
	if was, err := access.FirstBootsIn(w.st).Pause(t.Context(), dev, nil); err != nil || was == nil || was.By != "ann" {
		t.Fatalf("it ended the pause %+v: %v", was, err)
	}
	if a := ask(one); !a.Granted {
		t.Errorf("after the pause: %+v", a)
	}
	if a := ask(two); a.Granted || a.Wait != join.WaitPause || a.After <= 50*time.Second {
		t.Errorf("a moment later: %+v", a)
	}
	if ahead = time.Minute; !ask(two).Granted {
		t.Error("after sleeptime, the second machine has no turn")
	}
	if ahead += access.StandsStill; ask(other).Granted {
		t.Error("silence of others opens the filter")
	}
	boots, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
	if b := boots[one.is.ID]; err != nil || b.HasTurn(time.Now().Add(ahead)) {
		t.Errorf("a silent machine keeps its turn: %+v, %v", b, err)
	}
	one.says(t, "started", false)
	boots, _, err = access.FirstBootsIn(w.st).List(t.Context(), dev)
	if b := boots[one.is.ID]; err != nil || b.HasTurn(time.Now().Add(ahead)) {
		t.Errorf("a machine that was silent has its turn again without asking: %+v, %v", b, err)
	}
}

// The key of one node must not take the turns of others, however many first boots it names: neither before nor after an operator allows
// new turns or removes the node.
func TestInventedFirstBootsHaveOneTurn(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{Concurrency: 3})
	var ahead time.Duration
	s := w.serve(func(c *Config) { c.Now = func() time.Time { return time.Now().Add(ahead) } })
	bad, good, other := w.member("compute", 1, s), w.member("compute", 2, s), w.member("compute", 3, s)
	invent := func() {
		t.Helper()
		for n := range 2 * maxTurns {
			m := bad.is
			m.FirstBoot = fmt.Sprintf("%016d", n)
			if _, err := bad.Turn(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if err := bad.Progress(t.Context(), "", join.Progress{Machine: m.ID, FirstBoot: fmt.Sprintf("p%015d", n), Step: "turn", State: "started"}); err != nil {
				t.Fatal(err)
			}
		}
		ahead += bootsLast
	}
	granted := func(m machine) {
		t.Helper()
		if a, err := m.Turn(t.Context(), m.is); err != nil || !a.Granted {
			t.Errorf("another machine waits: %+v, %v", a, err)
		}
	}
	recorded := func(want int) {
		t.Helper()
		all, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
		got := 0
		for _, b := range all {
			if b.Node == "compute1" {
				got++
			}
		}
		if err != nil || got != want {
			t.Errorf("the node has %d records of first boots, want %d (%v)", got, want, err)
		}
	}
	invent()
	recorded(1)
	granted(good)
	if _, err := access.JoinsIn(w.st).Unlock(t.Context(), dev, "compute1", access.Revoked{By: "ann", Why: "repaired"}); err != nil {
		t.Fatal(err)
	}
	invent()
	recorded(1)
	granted(other)
	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, "compute1", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	recorded(0)
}

// A node must not write into the record of another one, whose machine has the same machine id.
func TestNodeWritesNoFirstBootOfAnother(t *testing.T) {
	t.Parallel()
	w := provisioned(t, settings.PuppetProvision{})
	s := w.serve(nil)
	one := w.member("compute", 1, s)
	if err := access.FirstBootsIn(w.st).Put(t.Context(), dev, access.FirstBoot{Machine: "same", Node: "compute2", Step: "turn", State: access.BootStarted, Heard: time.Now(), Joined: true}, 0); err != nil {
		t.Fatal(err)
	}
	own, revision, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "compute1")
	if err != nil {
		t.Fatal(err)
	}
	own.Machine = "same"
	if err := errors.Join(
		access.IdentitiesIn(w.st).Put(t.Context(), dev, *own, revision),
		access.IdentitiesIn(w.st).Put(t.Context(), dev, access.Identity{Node: "compute2", Role: "compute", Machine: "same", User: "another"}, 0),
	); err != nil {
		t.Fatal(err)
	}
	one.is.ID = "same"
	_, err = one.Turn(t.Context(), one.is)
	want(t, err, join.WrongMachine)
	want(t, one.Progress(t.Context(), "", join.Progress{Machine: "same", Step: "turn", State: "started"}), join.WrongMachine)
	if b, _, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, "same"); err != nil || b.Node != "compute2" || !b.Turn.IsZero() {
		t.Errorf("the record is now %+v, %v", b, err)
	}
}
