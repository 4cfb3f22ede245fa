package server

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/machines/records"
)

// crowd lets n machines join at once, spread over serves, and returns the node of each.
func (w *world) crowd(n int, token string, serves ...*serve) []string {
	w.t.Helper()
	nodes := make([]string, n)
	machines := make([]machine, n)
	for i := range machines {
		machines[i] = w.machine(fmt.Sprintf("m%d", i), serves[i%len(serves)], serves[(i+1)%len(serves)])
	}
	var all sync.WaitGroup
	at := make(chan struct{}, 40)
	for i, m := range machines {
		all.Go(func() {
			at <- struct{}{}
			defer func() { <-at }()
			for {
				a, err := m.join(w.t.Context(), token, "")
				var busy *join.UnreachableError
				if asUnreachable(err, &busy) && w.t.Context().Err() == nil {
					continue // like first boot
				}
				if err != nil {
					w.t.Errorf("machine %d: %v", i, err)
				}
				nodes[i] = a.Node
				return
			}
		})
	}
	all.Wait()
	return nodes
}

// Two machines with the same node name would overwrite each other. A skipped number is a machine that operators do not
// find. Two serves assign a thousand numbers at once: each of 1 to 1,000 goes to one machine.
func TestThousandClaimsAtTwoServes(t *testing.T) {
	const n = 1000
	w := newWorld(t, role("compute", n))
	serves := []*serve{w.serve(nil), w.serve(nil)}
	token := w.token(access.Token{Role: "compute", Uses: n})
	id, secret, err := access.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	at := make(chan struct{}, 2*maxJoins)
	for i := range n {
		at <- struct{}{}
		all.Go(func() {
			defer func() { <-at }()
			machine := fmt.Sprintf("m%d", i)
			a := joining{Request: join.Request{Machine: join.Machine{ID: machine}}, id: id, secret: secret, key: machine, claimed: true}
			p, err := serves[i%2].place(t.Context(), &caller{}, dev, "compute", a)
			if err != nil {
				t.Errorf("%s: %v", machine, err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[p.Node]++
		})
	}
	all.Wait()
	for num := 1; num <= n; num++ {
		if times := got[fmt.Sprintf("compute%d", num)]; times != 1 {
			t.Errorf("compute%d was handed out %d times", num, times)
		}
	}
	tokens, _, err := access.TokensIn(w.st).List(t.Context())
	if err != nil || tokens[0].Used != n {
		t.Errorf("the token was used %d times (%v), want %d", tokens[0].Used, err, n)
	}
	conflicts := serves[0].count(t, "pulley_join_conflicts_total", "") + serves[1].count(t, "pulley_join_conflicts_total", "")
	if conflicts == 0 {
		t.Error("nothing ever conflicted: this tests nothing")
	}
	t.Logf("%d attempts were overtaken", conflicts)
}

// A conflict may have another cause than the number: the first machine of a role must become the first node.
func TestNumberIsSkippedOnlyIfTaken(t *testing.T) {
	w := newWorld(t, role("compute", 9))
	s := w.serve(nil)
	for attempt := range 10 {
		c, err := s.claims.claim(t.Context(), dev, "compute", attempt, "compute1")
		if err != nil || c.node != "compute1" {
			t.Fatalf("attempt %d gets %q (%v), and compute1 is free", attempt, c.node, err)
		}
		c.free(false)
	}
}

// Machines that start together must all join exactly once: over TLS, at two serves, each with its user in etcd.
func TestManyMachinesJoinAtOnce(t *testing.T) {
	const n = 120
	w := newWorld(t, role("compute", n))
	a, b := w.serve(nil), w.serve(nil)
	token := w.token(access.Token{Role: "compute", Uses: n})
	got := map[string]bool{}
	for _, node := range w.crowd(n, token, a, b) {
		got[node] = true
	}
	if len(got) != n || !got["compute1"] || !got[fmt.Sprintf("compute%d", n)] {
		t.Errorf("%d machines became %d nodes", n, len(got))
	}
	_, err := w.machine("late", a).join(t.Context(), token, "")
	want(t, err, join.AllTaken)
	users, err := access.In(w.st).Users(t.Context())
	if err != nil || len(users) != n+2 { // root and serve
		t.Errorf("there are %d users (%v), want %d", len(users), err, n+2)
	}
}

// The number of a removed node must be assigned again, even by a serve that had seen it taken.
func TestFreedNumberIsAssignedAgain(t *testing.T) {
	w := newWorld(t, role("compute", 2))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "compute"})
	w.crowd(2, token, s)
	_, err := w.machine("third", s).join(t.Context(), token, "")
	want(t, err, join.AllTaken)
	i, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "compute1")
	if err != nil {
		t.Fatal(err)
	}
	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, "compute1", access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	_, err = w.machine(i.Machine, s).join(t.Context(), token, "")
	want(t, err, join.MachineRemoved) // the machine itself does not return with the old token
	a, err := w.machine("third", s).join(t.Context(), token, "")
	if err != nil || a.Node != "compute1" {
		t.Errorf("got %s, %v; want compute1", a.Node, err)
	} // Nor does it return under another free number.
	two, _, err := access.IdentitiesIn(w.st).Get(t.Context(), dev, "compute2")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"compute1", "compute2"} {
		if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, node, access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.machine(two.Machine, w.serve(nil)).join(t.Context(), token, "")
	want(t, err, join.MachineRemoved)
}
