package server

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/join"
	"pulley/internal/machines/records"
	"pulley/internal/model"
)

// Without records of first boots, a hanging machine looks like one that was never started.
func TestFirstBootIsRecorded(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	at := time.Now()
	reports := make(chan access.FirstBoot, 10)
	s := w.serve(func(c *Config) {
		c.Now = func() time.Time { return at }
		c.OnFirstBoot = func(_ model.Ref, b access.FirstBoot) { reports <- b }
	})
	token := w.token(access.Token{Role: "controller", Uses: 1})
	m := w.machine("m1", s)
	say := func(c *join.Client, token, step, state, problem string, finished bool) {
		t.Helper()
		at = at.Add(time.Second)
		p := join.Progress{Machine: "m1", Hostname: "blank", Step: step, State: state, Error: model.Prose(problem), Finished: finished}
		if err := c.Progress(t.Context(), token, p); err != nil {
			t.Fatal(err)
		}
	}
	read := func() access.FirstBoot {
		t.Helper()
		b, _, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, "m1")
		if err != nil || b == nil {
			t.Fatalf("there is no record: %v", err)
		}
		return *b
	}
	say(m.Client, token, "network", "started", "", false)
	if b := read(); b.Node != "" || b.Step != "network" || b.Hostname != "blank" || b.Stands(at) || b.Locks() {
		t.Errorf("without a name: %+v", b)
	}
	if !read().Stands(at.Add(access.StandsStill)) {
		t.Error("it is not shown that nothing was heard of it")
	}
	a, err := m.join(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	node := w.joined(m, a, s).Client
	for range 3 {
		say(node, "", "puppet", "started", "", false)
		say(node, "", "puppet", "failed", "no such package", false)
	}
	if b := read(); b.Node != "controller1" || b.Attempts != 3 || b.Error != "no such package" || b.State != access.BootFailed || !b.Locks() {
		t.Errorf("while it fails: %+v", b)
	}
	say(node, "", "puppet", "started", "", false)
	say(node, "", "puppet", "started", "the archive is away", false)
	if b := read(); b.Attempts != 4 || b.Error != "the archive is away" || b.State != access.BootStarted {
		t.Errorf("while it waits: %+v", b)
	}
	say(node, "", "puppet", "done", "", false)
	say(node, "", "notify", "done", "", true)
	say(node, "", "unlock", "done", "", false)
	if b := read(); b.Error != "" || b.Finished.IsZero() || b.Locks() || b.Stands(at.Add(24*time.Hour)) || b.Step != "unlock" {
		t.Errorf("when it is over: %+v", b)
	}
	if len(reports) != 4 { // three failures and the end
		t.Errorf("%d words were passed on", len(reports))
	}
	want(t, m.Progress(t.Context(), "", join.Progress{Machine: "m1", Step: "puppet", State: "done"}), join.NoCertificate)
}

// Two machines with the same userdata would become the same node. The second is refused at its first step, before any
// change, and an operator can decide otherwise.
func TestFirstBootLocksItsName(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	token := w.token(access.Token{Node: "controller1", Uses: 2})
	begin := func(m machine) error {
		return m.Progress(t.Context(), token, join.Progress{Machine: m.is.ID, Step: "lock", State: "started"})
	}
	one, two := w.machine("one", s), w.machine("two", s)
	if err := begin(one); err != nil {
		t.Fatal(err)
	}
	want(t, begin(two), join.LockedByAnother)
	if err := begin(one); err != nil {
		t.Errorf("the same machine cannot continue: %v", err)
	}
	freed, err := access.JoinsIn(w.st).Unlock(t.Context(), dev, "controller1", access.Revoked{By: "ann", Why: "one is broken"})
	if err != nil || len(freed) != 1 || freed[0].Machine != "one" {
		t.Fatalf("freed are %+v, %v", freed, err)
	}
	if err := begin(two); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
	if b, _, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, "one"); err != nil || b.Unlocked == nil || b.Unlocked.Why != "one is broken" {
		t.Errorf("why is not recorded: %+v, %v", b, err)
	}
	if _, err := two.join(t.Context(), token, ""); err != nil {
		t.Fatal(err)
	}
	_, err = one.join(t.Context(), token, "")
	want(t, err, join.LockedByAnother)
}

// Copies of one image that boot at the same moment have one machine id. An operator must see each of them, before and after its join, and
// the removal of one must not hide the other.
func TestCopiesInTheirFirstBootAreAllShown(t *testing.T) {
	w := newWorld(t, role("controller", 3))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "controller", Uses: 5})
	one, two := w.machine("same", s), w.machine("same", s)
	one.is.FirstBoot, two.is.FirstBoot = "1111111111111111", "2222222222222222"
	say := func(m machine, token, step string) {
		t.Helper()
		if err := m.Progress(t.Context(), token, join.Progress{Machine: m.is.ID, FirstBoot: m.is.FirstBoot, Step: step, State: "started"}); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(want ...string) {
		t.Helper()
		boots, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
		var got []string
		for _, b := range boots {
			if b.Machine != "same" {
				t.Errorf("the machine id is %q", b.Machine)
			}
			got = append(got, b.Node+" "+b.Step)
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the first boots are %q, want %q (%v)", got, want, err)
		}
	}
	say(one, token, "network")
	say(two, token, "lock")
	shown(" lock", " network")
	a, err := one.join(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	say(two, token, "agent")
	shown(" agent", a.Node+" network")
	b, err := two.join(t.Context(), token, "")
	if err != nil || b.Node == a.Node {
		t.Fatalf("the second one is %s: %v", b.Node, err)
	}
	one = w.joined(one, a, s)
	say(one, "", "puppet")
	say(w.joined(two, b, s), "", "register")
	shown("controller1 puppet", "controller2 register")
	if err := access.JoinsIn(w.st).RemoveNode(t.Context(), dev, b.Node, access.Removal{At: time.Now(), By: "ann"}, records.Left); err != nil {
		t.Fatal(err)
	}
	shown("controller1 puppet")
}

// A leaked token must not fill etcd with first boots of invented machines.
func TestFirstBootsOfTokenAreBounded(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "controller", Uses: 2})
	m := w.machine("m", s)
	refused := 0
	for i := range 20 {
		p := join.Progress{Machine: fmt.Sprintf("m%d", i), Step: "network", State: "started", Error: model.Prose(fmt.Sprintf("%10000d", 1)), Hostname: fmt.Sprintf("%10000d", 1)}
		if err := m.Progress(t.Context(), token, p); err != nil {
			want(t, err, join.TooManyMachines)
			refused++
		}
	}
	all, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev)
	if err != nil || len(all) != 2+spareMachines || refused != 20-len(all) {
		t.Errorf("%d machines are recorded (%v), and %d were refused", len(all), err, refused)
	}
	for _, b := range all {
		if len(b.Error)+len(b.Hostname) > 1024 {
			t.Errorf("a record has %d bytes of words", len(b.Error)+len(b.Hostname))
		}
	}
}

// An address with constant refusals must not keep serve and etcd busy. A machine with the right token must soon be
// served, at that address or any other.
func TestRefusedAddressMustWait(t *testing.T) {
	l := newLimiter(refusedBurst, refusedEvery)
	for range refusedBurst {
		if wait := l.blocked("10.0.0.1", noon); wait > 0 {
			t.Fatalf("it waits %s already", wait)
		}
		l.spend("10.0.0.1", noon)
	}
	if l.blocked("10.0.0.1", noon) <= 0 {
		t.Error("it does not wait")
	}
	if l.blocked("10.0.0.2", noon) > 0 || l.blocked("10.0.0.1", noon.Add(2*refusedEvery)) > 0 {
		t.Error("others wait, or it waits for ever")
	}
	for from, want := range map[string]string{"10.0.0.1:443": "10.0.0.1", "[2001:db8::1]:443": "2001:db8::/64", "[fe80::1%eth0]:443": "fe80::/64", "@": "@"} {
		if got := PartyOf(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%s has the bucket of %s, not of %s", from, got, want)
		}
	}
	for i := range 3 * maxBuckets {
		l.spend(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), noon)
	}
	if len(l.buckets) > maxBuckets {
		t.Errorf("%d addresses are remembered", len(l.buckets))
	}
}

// A machine that boots before the environment calls for it must be visible, or nobody learns why it never joins.
func TestFirstBootOutsideTheEnvironmentIsRecorded(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	m := w.machine("m1", w.serve(nil))
	token := w.token(access.Token{Role: "controller", Uses: 1})
	p := join.Progress{Machine: "m1", Node: "controller4", Step: "join", State: "failed", Error: "refused"}
	if err := m.Progress(t.Context(), token, p); err != nil {
		t.Fatal(err)
	}
	if b, _, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, "m1"); err != nil || b == nil || b.State != access.BootFailed {
		t.Errorf("recorded is %+v, %v", b, err)
	}
}
