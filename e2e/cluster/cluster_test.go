//go:build e2e

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/hieradata"
	"pulley/internal/access"
	"pulley/internal/data"
	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/fleet"
	"pulley/internal/model"
)

const (
	minutesEnv = "PULLEY_CLUSTER_MINUTES" // how long faults are repeated; unset: each kind once
	seedEnv    = "PULLEY_CLUSTER_SEED"    // of the faults; unset: the time

	realNodes    = 2 // with real Puppet
	computeNodes = 4 // with the scripted Puppet
	laterNodes   = 4 // join during the faults

	failoverBound = time.Minute // of a node, on a slow machine
)

// A fleet lives on three machines for etcd and two for serve, and any of them may fail at any moment. No acknowledged write may be
// lost, no refused one may be in force, no node may run two Puppets, and nodes must fail over by themselves.
func TestThreeMembersSurviveFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano() % 1e9)
	if s := os.Getenv(seedEnv); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("the seed is %d; repeat with %s=%d", seed, seedEnv, seed)
	began := time.Now()
	w := newWorld(t, fmt.Sprintf("roles:\n  compute: {cardinality: %d, flavor: bare-metal}\n  real: {cardinality: %d, flavor: bare-metal}\n  spare: {cardinality: 1, flavor: bare-metal}\n", computeNodes+laterNodes, realNodes))
	w.release("1.0.0")
	w.must("pulley", "promote", "1.0.0")

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	w.joinAll(ctx, &all, seed, realNodes, computeNodes)
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	var writers sync.WaitGroup
	writers.Go(func() { w.createTokens(writing) })
	writers.Go(func() { w.setData(writing) })
	writers.Go(func() { w.publishAndPromote(writing) })
	writers.Go(func() {
		for i := range laterNodes {
			if w.joinOne(ctx, &all, "compute", realNodes+computeNodes+i, seed) == nil {
				return
			}
		}
	})
	ready := time.Now()
	w.inflict(rand.New(rand.NewPCG(seed, 0)))
	faults := time.Now()
	w.replaceMembers()
	replaced := time.Now()
	stopWriting()
	writers.Wait()
	delivered := w.promoteWithoutServe()
	stop()
	all.Wait()
	w.allAnswer()

	wrong, count := w.judge(w.inForce())
	for _, line := range wrong {
		t.Error(line)
	}
	w.sameEverywhere()
	killed := 0
	for _, n := range w.allNodes() {
		killed += n.kills
		if second, err := os.ReadFile(filepath.Join(n.root, "second")); err == nil {
			t.Errorf("%s: %s", n.name, second)
		}
	}
	failover := w.failover()
	if len(failover) == 0 {
		t.Fatal("no fail-over was measured")
	}
	p50, longest := failover[len(failover)/2], failover[len(failover)-1]
	if longest > failoverBound {
		t.Errorf("a node needed %s to fail over", longest)
	}
	sum := map[outcome]int{}
	var kinds []string
	for kind, by := range count {
		kinds = append(kinds, fmt.Sprintf("%d %s", by[acknowledged], kind))
		for o, n := range by {
			sum[o] += n
		}
	}
	slices.Sort(kinds)
	exits := w.exits()
	t.Logf("%.1f minutes (start %s, faults %s, replacement of all members %s), seed %d: %s, %d agents killed; acknowledged %d (%s), unknown %d, refused %d, lost or untrue %d; "+
		"ticks %d, of these %d without etcd; fail-over p50 %s, max %s of %d; with every serve dead, a promotion was applied on %d nodes after %s",
		time.Since(began).Minutes(), ready.Sub(began).Round(time.Second), faults.Sub(ready).Round(time.Second), replaced.Sub(faults).Round(time.Second), seed, w.kinds(), killed,
		sum[acknowledged], strings.Join(kinds, ", "), sum[unknown], sum[refused], len(wrong),
		exits[0]+exits[1]+exits[3], exits[3], p50.Round(time.Millisecond), longest.Round(time.Millisecond), len(failover), len(w.allNodes()), delivered.Round(time.Millisecond))
}

// joinAll joins the first nodes at once, and lets them tick.
func (w *world) joinAll(ctx context.Context, all *sync.WaitGroup, seed uint64, puppets, scripted int) {
	w.t.Helper()
	var joins sync.WaitGroup
	for i := range puppets + scripted {
		role := "compute"
		if i < puppets {
			role = "real"
		}
		joins.Go(func() { w.joinOne(ctx, all, role, i, seed) })
	}
	joins.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
	for _, n := range w.allNodes() {
		w.eventually(n.name+" runs 1.0.0", func() error { return n.runs("1.0.0") })
	}
}

func (w *world) joinOne(ctx context.Context, all *sync.WaitGroup, role string, i int, seed uint64) *node {
	n, err := w.join(role, fmt.Sprintf("machine%d", i+1), uint64(i+1))
	if err != nil {
		w.t.Error(err)
		return nil
	}
	n.random = rand.New(rand.NewPCG(seed, uint64(i+1)))
	all.Go(func() { n.ticks(ctx, 800*time.Millisecond) })
	return n
}

// runs returns an error until the node's Puppet has applied a version.
func (n *node) runs(version string) error {
	if is := n.enforced(); is != version {
		return fmt.Errorf("its Puppet applied %q", is)
	}
	return nil
}

// release publishes a version, and returns the outcome. It is valid for both Puppets.
func (w *world) release(version string) outcome {
	file := filepath.Join(w.dir, "machine")
	site := fmt.Sprintf("node default {\n  file { \"%s/${trusted['certname']}\": content => \"%s\\n\" }\n}\n# fake: sleep 1\n# fake: file %s/%%{certname} %s\n", file, version, file, version)
	if err := os.WriteFile(filepath.Join(w.dir, "R/manifests/site.pp"), []byte(site), 0o600); err != nil {
		w.t.Error(err)
	}
	return w.act(releaseWrite, version, "publish", "R", "--version", version)
}

// createTokens writes over connections that live for some seconds.
func (w *world) createTokens(ctx context.Context) {
	for n := 0; ctx.Err() == nil; {
		st, err := w.store()
		if err != nil {
			w.t.Error(err)
			return
		}
		for end := time.Now().Add(5 * time.Second); ctx.Err() == nil && time.Now().Before(end); time.Sleep(slower(80*time.Millisecond, n)) {
			n++
			key, now := fmt.Sprintf("t%d", n), time.Now().UTC().Truncate(time.Second)
			_, _, err := access.TokensIn(st).Create(context.WithoutCancel(ctx), access.Token{Operator: key, As: access.RoleViewer, Uses: 1, Created: now, Expires: now.Add(time.Hour), By: "ann"})
			w.wrote(tokenWrite, key, outcomeOf(err), fmt.Sprint(err))
		}
		_ = st.Close()
	}
}

// setData sets one key after the other, with a command for each.
func (w *world) setData(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("d%d", n)
		w.act(dataWrite, key, "data", "set", "--role", "spare", key, "x")
		rest(slower(500*time.Millisecond, n))
	}
}

// slower lengthens a pause with the number of writes: each write costs more than the one before, and disks are small.
func slower(pause time.Duration, writes int) time.Duration {
	return pause + pause*time.Duration(writes)/500
}

// publishAndPromote publishes one release after the other, and promotes each for the nodes with the scripted Puppet.
func (w *world) publishAndPromote(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		version := fmt.Sprintf("1.%d.0", n)
		if w.release(version) == acknowledged {
			w.act(promotionWrite, "p"+version, "promote", version, "--role", "compute", "-m", "p"+version)
			if n == 4 || n%16 == 0 { // real Puppet is expensive
				w.act(promotionWrite, "q"+version, "promote", version, "-m", "q"+version)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Second):
		}
	}
}

// inflict inflicts each kind of fault once in a random order, and repeats this until the wanted minutes are over.
func (w *world) inflict(random *rand.Rand) {
	w.t.Helper()
	minutes, _ := strconv.ParseFloat(os.Getenv(minutesEnv), 64)
	end := time.Now().Add(time.Duration(minutes * float64(time.Minute)))
	for first := true; first || time.Now().Before(end); first = false {
		deck := w.deck(random)
		random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, inflict := range deck {
			inflict()
			w.allAnswer()
		}
	}
}

// deck lists all faults.
func (w *world) deck(random *rand.Rand) []func() {
	for_ := func(from, to time.Duration) { rest(from + time.Duration(random.Int64N(int64(to-from)))) }
	any := func() *member { all := w.members(); return all[random.IntN(len(all))] }
	leader := func() *member {
		if m := w.leader(); m != nil {
			return m
		}
		return any()
	}
	note := func(kind string) { w.fault(fault{kind: kind, at: time.Now()}) }
	check := func(err error) {
		if err != nil {
			w.t.Error(err)
		}
	}
	kill := func(m *member) {
		note("kills of members")
		m.kill()
		for_(500*time.Millisecond, 2*time.Second)
	}
	pause := func(m *member) {
		note("pauses of members")
		m.signal(syscall.SIGSTOP)
		for_(2*time.Second, 4*time.Second)
		m.signal(syscall.SIGCONT)
	}
	any1 := func() *serve { return w.serves[random.IntN(len(w.serves))] }
	return []func(){
		func() { kill(leader()) },
		func() { kill(any()) },
		func() { pause(leader()) },
		func() { pause(any()) },
		func() { // a slow machine: it runs a quarter of the time
			m := any()
			note("slow members")
			for range 8 {
				m.signal(syscall.SIGSTOP)
				rest(300 * time.Millisecond)
				m.signal(syscall.SIGCONT)
				rest(100 * time.Millisecond)
			}
		},
		func() {
			m := leader()
			note("cuts of members")
			check(m.cut(true))
			for_(2*time.Second, 4*time.Second)
			check(m.cut(false))
		},
		func() { // clients still reach it
			m, all := leader(), w.members()
			note("partitions")
			check(m.isolate(true, all))
			for_(2*time.Second, 4*time.Second)
			check(m.isolate(false, all))
		},
		func() {
			m := any()
			note("full disks")
			check(m.fill())
			for_(3*time.Second, 4*time.Second)
			if !m.runs() {
				note("members ended by a full disk")
				check(m.start()) // it cannot run, or must do no harm
				for_(500*time.Millisecond, time.Second)
			}
			check(m.clear())
		},
		func() { // no quorum
			all := w.members()
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			at := time.Now()
			all[0].kill()
			all[1].kill()
			for_(time.Second, 2*time.Second)
			check(all[0].start())
			check(all[1].start())
			w.allAnswer()
			w.fault(fault{"losses of quorum", at, time.Now()})
		},
		func() {
			note("kills of serves")
			any1().signal(syscall.SIGKILL)
			for_(500*time.Millisecond, 2*time.Second)
		},
		func() {
			s := any1()
			note("pauses of serves")
			s.signal(syscall.SIGSTOP)
			for_(time.Second, 3*time.Second)
			s.signal(syscall.SIGCONT)
		},
		func() {
			note("moves of the leader")
			w.moveLeader(any())
			for_(200*time.Millisecond, time.Second)
			w.moveLeader(any())
		},
	}
}

// promoteWithoutServe kills both serves, promotes a release, and returns the time until each node has applied it.
func (w *world) promoteWithoutServe() time.Duration {
	w.t.Helper()
	w.allAnswer()
	if w.release("2.0.0") != acknowledged {
		w.t.Fatal("cannot publish with a healthy cluster")
	}
	for _, s := range w.serves {
		s.stop()
	}
	began := time.Now()
	for _, args := range [][]string{{"promote", "2.0.0", "-m", "p2.0.0"}, {"promote", "2.0.0", "--role", "compute", "-m", "q2.0.0"}} {
		w.act(promotionWrite, args[len(args)-1], args...)
	}
	for _, n := range w.allNodes() {
		w.eventually(n.name+" runs 2.0.0", func() error { return n.runs("2.0.0") })
	}
	took := time.Since(began)
	w.eventually("status shows 2.0.0", func() error {
		type listed struct{ Node, State, Release string }
		var s struct{ Nodes []listed }
		out, err := w.run("pulley", "status", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &s)
		}
		s.Nodes = slices.DeleteFunc(s.Nodes, func(n listed) bool { return n.Node == "spare1" && n.State == "missing" }) // the role of no machine
		if err == nil && len(s.Nodes) != len(w.allNodes()) {
			err = fmt.Errorf("it has %d nodes", len(s.Nodes))
		}
		for _, n := range s.Nodes {
			if n.State != "converged" || n.Release != "2.0.0" {
				err = fmt.Errorf("%s is %s on %s", n.Node, n.State, n.Release)
			}
		}
		return err
	})
	return took
}

// store returns a connection of the administrator.
func (w *world) store() (*etcd.DB, error) {
	admin := filepath.Join(w.dir, "data/pki/admin.pem")
	return etcd.Open(etcd.Config{Endpoints: strings.Split(w.endpoints(), ","), CACert: filepath.Join(w.dir, "data/pki/bundle.pem"), Cert: admin, Key: admin})
}

// inForce reads what is in force, by kind and key.
func (w *world) inForce() map[string]map[string]bool {
	w.t.Helper()
	fail := func(err error) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
	st, err := w.store()
	fail(err)
	defer st.Close()
	ctx := w.t.Context()
	ref, err := model.ParseRef("dev")
	fail(err)
	all := map[string]map[string]bool{}
	for _, kind := range []string{tokenWrite, dataWrite, releaseWrite, promotionWrite, joinWrite, runWrite} {
		all[kind] = map[string]bool{}
	}
	tokens, damaged, err := access.TokensIn(st).List(ctx)
	fail(err)
	if len(damaged) > 0 {
		w.t.Errorf("damaged tokens: %q", damaged)
	}
	for _, t := range tokens {
		all[tokenWrite][t.Operator] = true
	}
	values, err := data.Read(ctx, st, ref, hieradata.ForRole("spare"), "")
	fail(err)
	for _, v := range values {
		all[dataWrite][v.Key] = true
	}
	history, _, err := targets.In(st).History(ctx, ref, 0)
	fail(err)
	for _, c := range history {
		all[promotionWrite][strings.TrimSpace(string(c.Why))] = true
	}
	var releases []struct{ Version string }
	fail(json.Unmarshal([]byte(w.must("pulley", "releases", "-o", "json")), &releases))
	for _, r := range releases {
		all[releaseWrite][r.Version] = true
	}
	hosts, err := fleet.In(st).Hosts(ctx, ref)
	fail(err)
	for name := range hosts {
		all[joinWrite][name] = true
		for _, word := range strings.Fields(w.must("pulley", "runs", name)) {
			all[runWrite][name+" "+word] = true
		}
	}
	return all
}

// sameEverywhere checks that all members have the same data.
func (w *world) sameEverywhere() {
	w.t.Helper()
	members := w.members()
	w.eventually("all members have the same data", func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
		defer cancel()
		var first *clientv3.HashKVResponse
		for _, m := range members {
			if _, err := w.state(m); err != nil {
				return err
			}
			w.mu.Lock()
			c := w.clients[m]
			w.mu.Unlock()
			var revision int64
			if first != nil {
				revision = first.Header.Revision
			}
			h, err := c.HashKV(ctx, m.endpoint(), revision)
			if err != nil {
				return err
			}
			if first == nil {
				first = h
			} else if h.Hash != first.Hash && h.CompactRevision == first.CompactRevision {
				return fmt.Errorf("%s differs at revision %d", m.name, revision)
			}
		}
		return nil
	})
}
