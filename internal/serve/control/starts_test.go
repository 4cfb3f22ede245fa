package control

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pulley/internal/desired/targets"
	"pulley/internal/etcd"
	"pulley/internal/rollout"
	"pulley/internal/rollout/journal"
)

// startsEnv is the number of pairs of simultaneous starts; unset: 24.
const startsEnv = "PULLEY_TEST_STARTS"

const campaignKeys = etcd.DefaultPrefix + "/v1/environments/dev/campaigns/"

// planOf plans a rollout or a job over nodes, of a size that needs several keys.
func (f *testFleet) planOf(kind rollout.Kind, role string, nodes int) rollout.Plan {
	f.t.Helper()
	var members []rollout.Member
	var candidates []rollout.Candidate
	for i := range nodes {
		name := fmt.Sprintf("%s%d", role, i+1)
		members = append(members, rollout.Member{Node: name, Machine: "m-" + name})
		candidates = append(candidates, rollout.Candidate{Node: name, Role: role, Machine: "m-" + name})
	}
	order := rollout.Order{Target: f.new, Origin: f.old, Role: role, Roles: []string{role}, By: role, At: time.Now()}
	p, err := rollout.Make(order, candidates)
	if kind == rollout.Run {
		p, err = rollout.MakeJob(rollout.Order{By: role, At: time.Now()}, [][]rollout.Member{members[:1], members[1:]})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// onlyOf reports an error if a campaign has nodes of another role than the one that started it, or not all, or if etcd has keys of another start.
func (f *testFleet) onlyOf(plan rollout.Plan, nodes int) {
	f.t.Helper()
	c := f.campaign(plan.ID)
	seen := 0
	for _, g := range c.Plan.Groups {
		for _, m := range g.Nodes {
			if seen++; !strings.HasPrefix(m.Node, string(c.Plan.By)) {
				f.t.Fatalf("%s of %s has %s", plan.ID, c.Plan.By, m.Node)
			}
		}
	}
	if seen != nodes || c.Plan.Nonce != plan.Nonce {
		f.t.Fatalf("%s has %d nodes, and the nonce %s instead of %s", plan.ID, seen, c.Plan.Nonce, plan.Nonce)
	}
	for _, kv := range f.keys(plan.ID) {
		if !strings.Contains(string(kv), "/"+plan.Nonce+"/") {
			f.t.Fatalf("beside %s there is %s", plan.Nonce, kv)
		}
	}
}

// keys returns the keys with the nodes of a campaign, of any plan. None of a plan that is in force may have a lease.
func (f *testFleet) keys(id string) (keys []string) {
	f.t.Helper()
	resp, err := f.client.Get(f.t.Context(), campaignKeys+id+"/nodes/", clientv3.WithPrefix())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if keys = append(keys, string(kv.Key)); kv.Lease != 0 {
			f.t.Fatalf("%s has a lease, which will delete it", kv.Key)
		}
	}
	return keys
}

// TestStartsAtTheSameTime: when two operators, or two jobs of CI, start something at the same moment, exactly one of them wins, with its own nodes.
// The other leaves nothing behind. A canary of the one would else take the release of the other.
func TestStartsAtTheSameTime(t *testing.T) {
	t.Parallel()
	pairs := 6
	if s := os.Getenv(startsEnv); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		pairs = n
	}
	const nodes = 2200 // more than one key has
	f := begin(t, 1)
	kinds := [][2]rollout.Kind{{rollout.Take, rollout.Take}, {rollout.Run, rollout.Run}, {rollout.Take, rollout.Run}}
	won := map[string]int{}
	for n := range pairs {
		pair := kinds[n%len(kinds)]
		web, db := f.planOf(pair[0], "web", nodes), f.planOf(pair[1], "db", nodes)
		d := f.desires()
		var plans [2]rollout.Plan
		var errs [2]error
		var both sync.WaitGroup
		begin := make(chan struct{})
		for i, p := range []rollout.Plan{web, db} {
			both.Go(func() {
				<-begin
				if n%4 == i { // some begin a moment later, between the other's writes
					for range n % 7 {
						_, _ = targets.In(f.s).Desires(t.Context(), dev)
					}
				}
				plans[i], errs[i] = journal.In(f.s).Start(t.Context(), dev, d, p, author())
			})
		}
		close(begin)
		both.Wait()
		winner := slices.Index(errs[:], nil)
		if winner < 0 || !errors.Is(errs[1-winner], etcd.ErrConflict) {
			t.Fatalf("pair %d: %v", n, errs)
		}
		won[string(pair[0])+" and "+string(pair[1])+": "+[]string{"web", "db"}[winner]]++
		f.onlyOf(plans[winner], nodes)
		c := f.campaign(plans[winner].ID)
		var err error
		if c.Plan.Kind == rollout.Run {
			_, err = journal.In(f.s).Abort(t.Context(), dev, c, author())
		} else {
			_, err = journal.In(f.s).Revert(t.Context(), dev, c, author())
		}
		if err == nil {
			_, err = journal.In(f.s).Prune(t.Context(), dev, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	left, err := f.client.Get(t.Context(), campaignKeys, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || left.Count != 0 {
		t.Errorf("%d keys are left: %v", left.Count, err)
	}
	t.Logf("%d pairs: %v", pairs, won)
}

// TestKilledStartsAreNobodys: what a killed start wrote has a short lease, and the next start never reads it, although it has the same ID and
// fewer groups.
func TestKilledStartsAreNobodys(t *testing.T) {
	t.Parallel()
	for _, kind := range []rollout.Kind{rollout.Take, rollout.Run} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := begin(t, 1)
			for n, left := 1, 0; ; n++ {
				dying, m := f.mortal(n, n%2 == 0)
				d, err := targets.In(dying).Desires(t.Context(), dev)
				if err == nil {
					_, err = journal.In(dying).Start(t.Context(), dev, d, f.planOf(kind, "web", 4500), author())
				}
				if err == nil {
					if left < 3 {
						t.Errorf("%d killed starts left keys", left)
					}
					return
				}
				if m.left > 0 {
					t.Fatalf("start %d, with %d requests left: %v", n, m.left, err)
				}
				if owner := f.desires().Gate.Rollout; owner != "" { // it was killed after its transaction
					f.onlyOf(f.campaign(owner).Plan, 4500)
					return
				}
				keys, err := f.client.Get(t.Context(), campaignKeys, clientv3.WithPrefix()) // with its values: etcd tells no lease without them
				if err != nil {
					t.Fatal(err)
				}
				for _, kv := range keys.Kvs {
					lease, err := f.client.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
					if err != nil || lease.TTL <= 0 || lease.TTL > 60 {
						t.Fatalf("start %d: %s stays for %d s, lease %x: %v", n, kv.Key, lease.TTL, kv.Lease, err)
					}
					left++
				}
				p, err := journal.In(f.s).Start(t.Context(), dev, f.desires(), f.planOf(rollout.Take, "db", 3), author())
				if err != nil {
					t.Fatal(err)
				}
				c := f.campaign(p.ID)
				if len(c.Plan.Groups) != 1 && len(c.Plan.Groups) != 2 || c.Plan.Nodes() != 3 {
					t.Fatalf("%+v", c.Plan.Groups)
				}
				if _, err = journal.In(f.s).Revert(t.Context(), dev, c, author()); err == nil {
					_, err = journal.In(f.s).Prune(t.Context(), dev, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, kv := range keys.Kvs { // as their lease would
					if _, err := f.client.Delete(t.Context(), string(kv.Key)); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}
