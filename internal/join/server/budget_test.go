package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pulley/internal/access"
	"pulley/internal/etcd"
	"pulley/internal/join"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// A broken node, or the holder of a stolen certificate, must not fill etcd with leases and revisions through serve.
func TestWritesOfOneCertificateAreBounded(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "compute", Uses: 1})
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	node := w.joined(m, a, s)
	etcd := w.etcd.ClientOf(etcdtest.Serve)
	look := func() (leases int, revision int64) {
		t.Helper()
		all, err := etcd.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		one, err := etcd.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Leases), one.Header.Revision
	}
	leases, revision := look()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 25 {
				p := join.Progress{Machine: "m1", Step: "step-" + strings.Repeat("x", (i+k)%10), State: "failed", Finished: true}
				_ = node.Progress(t.Context(), "", p)
				_ = node.Register(t.Context(), m.is)
			}
		})
	}
	all.Wait()
	nowLeases, nowRevision := look()
	if nowLeases > leases {
		t.Errorf("there were %d leases, and are %d", leases, nowLeases)
	}
	if most := int64(2*askedBurst + 10); nowRevision-revision > most || nowRevision == revision {
		t.Errorf("200 requests made %d revisions, want at most %d", nowRevision-revision, most)
	}
	// Other machines at the same address are served, and the same machine after a while.
	if _, err := w.machine("m2", s).join(t.Context(), w.token(access.Token{Role: "compute"}), ""); err != nil {
		t.Errorf("another machine is turned away: %v", err)
	}
}

// A write that loses a conflict must leave no lease, or provoked conflicts fill etcd.
func TestLostReportsLeaveNoLease(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	b := access.FirstBoot{Machine: "m1", Step: "lock", State: access.BootStarted}
	if err := access.FirstBootsIn(w.st).Put(t.Context(), dev, b, 0); err != nil {
		t.Fatal(err)
	}
	b.Finished = noon
	for _, revision := range []int64{0, 1} {
		if err := access.FirstBootsIn(w.st).Put(t.Context(), dev, b, revision); !errors.Is(err, etcd.ErrConflict) {
			t.Fatal(err)
		}
	}
	all, err := w.etcd.ClientOf(etcdtest.Serve).Leases(t.Context())
	if err != nil || len(all.Leases) != 1 {
		t.Errorf("%d leases for one record (%v)", len(all.Leases), err)
	}
}

// Repeated equal reports of a first boot are written once.
func TestRepeatedReportIsWrittenOnce(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	at := time.Now()
	s := w.serve(func(c *Config) { c.Now = func() time.Time { return at } })
	token := w.token(access.Token{Role: "compute", Uses: 1})
	m := w.machine("m1", s)
	revisions := map[int64]bool{}
	turnedAway := 0
	for range 2 * askedBurst {
		if err := m.Progress(t.Context(), token, join.Progress{Machine: "m1", Step: "network", State: "started"}); err != nil {
			turnedAway++
		}
		_, revision, err := access.FirstBootsIn(w.st).Get(t.Context(), dev, "m1")
		if err != nil {
			t.Fatal(err)
		}
		revisions[revision] = true
	}
	if len(revisions) != 1 {
		t.Errorf("it was written %d times", len(revisions))
	}
	if turnedAway != askedBurst {
		t.Errorf("%d of %d words were turned away", turnedAway, 2*askedBurst)
	}
}

// A token of the environment, used up or not, must not lock a live node's name: the node's replacement would be
// refused.
func TestTokenReportTakesNoNameOfLiveNode(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	ctx := t.Context()
	spent := w.token(access.Token{Role: "compute", Uses: 1})
	m := w.machine("m1", s)
	a, err := m.join(ctx, spent, "compute1")
	if err != nil {
		t.Fatal(err)
	}
	evil := w.machine("evil", s)
	say := func(token, machine, node string) error {
		return evil.Progress(ctx, token, join.Progress{Machine: machine, Node: node, Step: "network", State: "started"})
	}
	record := func(machine string) access.FirstBoot {
		t.Helper()
		b, _, err := access.FirstBootsIn(w.st).Get(ctx, dev, machine)
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return access.FirstBoot{}
		}
		return *b
	}
	// Its answer may have been lost. The report is no mistake, and changes nothing.
	before := record("m1")
	if err := say(spent, "m1", "compute1"); err != nil {
		t.Errorf("while it is in its first boot: %v", err)
	}
	if now := record("m1"); !now.Heard.Equal(before.Heard) || now.Step != before.Step {
		t.Errorf("a token changed the record of a machine that has joined: %+v", now)
	}
	if err := w.joined(m, a, s).Progress(ctx, "", join.Progress{Machine: "m1", Step: "unlock", State: "done", Finished: true}); err != nil {
		t.Fatal(err)
	}
	open := w.token(access.Token{Role: "compute", Uses: 9})
	want(t, say(spent, "m1", "compute1"), join.UsedUpToken)
	want(t, say(spent, "evil", "compute2"), join.UsedUpToken)
	want(t, say(open, "evil", "compute1"), join.HeldByAnother)
	for _, node := range []string{"compute1", "compute2", ""} {
		if err := say(open, "m1", node); err != nil {
			t.Errorf("a node that might join anew, as %q: %v", node, err)
		}
	}
	if b := record("m1"); b.Locks() || b.Finished.IsZero() {
		t.Errorf("the live node's record is %+v", b)
	}
	// A machine in its first boot may not switch to such a name, or to that of another first boot.
	for machine, node := range map[string]string{"one": "compute2", "two": "compute3"} {
		if err := say(open, machine, node); err != nil {
			t.Fatal(err)
		}
	}
	want(t, say(open, "two", "compute2"), join.LockedByAnother)
	want(t, say(open, "two", "compute1"), join.HeldByAnother)
	if _, err := w.machine("m9", s).join(ctx, w.token(access.Token{Node: "compute1", Uses: 1}), ""); err != nil {
		t.Errorf("the replacement is refused: %v", err)
	}
}

// Each report with a token may look new to a record: a machine that always reports that it is finished must be
// counted, too.
func TestMachinesThatClaimToBeFinishedAreBounded(t *testing.T) {
	w := newWorld(t, role("controller", 2))
	s := w.serve(nil)
	token := w.token(access.Token{Role: "controller", Uses: 2})
	for i := range 12 {
		_ = w.machine("m", s).Progress(t.Context(), token, join.Progress{Machine: fmt.Sprintf("m%d", i), Step: "unlock", State: "done", Finished: true})
	}
	if all, _, err := access.FirstBootsIn(w.st).List(t.Context(), dev); err != nil || len(all) != 2+spareMachines {
		t.Errorf("%d machines are recorded (%v)", len(all), err)
	}
}

// A machine with a wrong token must not prevent other nodes at its address from renewing. After its repair it must be
// served again.
func TestRefusalsOfAddressDoNotSlowCertificates(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	m := w.machine("m1", s)
	a, err := m.join(t.Context(), w.token(access.Token{Role: "compute"}), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.gate.refused.spend("127.0.0.1", s.Now())
	}
	if err := m.Leave(t.Context()); err == nil || errors.As(err, new(*join.RefusedError)) {
		t.Fatalf("the address is not turned away: %v", err)
	}
	if _, err := w.joined(m, a, s).Renew(t.Context(), w.key(), m.is); err != nil {
		t.Errorf("a good certificate is: %v", err)
	}
	if wait := s.gate.refused.blocked("127.0.0.1", s.Now()); wait > 2*time.Minute {
		t.Errorf("the address waits for %s", wait)
	}
}

// A client must not be able to fill serve's disk through the log.
func TestLogOfRequestIsBounded(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	s := w.serve(nil)
	long := strings.Repeat("x", 60000)
	m := w.machine(long, s)
	token := w.token(access.Token{Role: "compute"})
	want(t, m.Progress(t.Context(), "nonsense", join.Progress{Machine: "m1", Step: long, State: "done"}), join.BadRequest)
	want(t, m.Progress(t.Context(), token, join.Progress{Machine: "m1", Node: long, Step: "network", State: "done"}), join.BadRequest)
	_, err := m.join(t.Context(), token, "compute1")
	want(t, err, join.BadRequest)
	_, err = m.Join(t.Context(), m.key, join.Request{Token: token, Environment: long[:30000], Machine: join.Machine{ID: "m1"}})
	want(t, err, join.WrongEnvironment)
	if n := len(s.log.String()); n > 8<<10 {
		t.Errorf("four requests made %d bytes of log", n)
	}
}

// A step's name is shown to people: it must not contain arbitrary text.
func TestProgressRejectsInvalidStepNames(t *testing.T) {
	w := newWorld(t, role("compute", 3))
	notices := 0
	s := w.serve(func(c *Config) { c.OnFirstBoot = func(model.Ref, access.FirstBoot) { notices++ } })
	token := w.token(access.Token{Role: "compute"})
	for _, step := range []string{"", "call 555 now", "https://evil", "s1", "-x", strings.Repeat("x", 21)} {
		want(t, w.machine("m1", s).Progress(t.Context(), token, join.Progress{Machine: "m1", Step: step, State: "failed"}), join.BadRequest)
	}
	if notices > 0 {
		t.Errorf("%d notices were sent", notices)
	}
}

// A request that makes serve panic must be answered and logged, with its stack at debug level only.
func TestPanicIsAnsweredAndLogged(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		var log bytes.Buffer
		d := New(Config{Now: time.Now, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))})
		answer := httptest.NewRecorder()
		d.gate.answer(func(context.Context, *caller) (any, error) { panic("out of luck") })(answer, httptest.NewRequest(http.MethodPost, join.PathLeave, &bytes.Buffer{}))
		if answer.Code != http.StatusInternalServerError {
			t.Errorf("it answers %d", answer.Code)
		}
		if text := log.String(); !strings.Contains(text, "out of luck") || strings.Contains(text, "TestPanicIsAnsweredAndLogged") != (level == slog.LevelDebug) {
			t.Errorf("at level %s, the log has %q", level, text)
		}
	}
}

// A machine with a token that joins and leaves in a loop must not fill etcd, or make other nodes read the host list all the time.
func TestJoinsOfOneNameAreLimited(t *testing.T) {
	w := newWorld(t, role("compute", 2))
	s := w.serve(func(c *Config) { at := time.Now(); c.Now = func() time.Time { return at } })
	ctx, token := t.Context(), w.token(access.Token{Role: "compute"})
	m, joins := w.machine("m1", s), 0
	for ; joins <= askedBurst; joins++ {
		m.key = w.key()
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		a, err := m.join(within, token, "compute1")
		cancel()
		if err != nil {
			break
		}
		if err := w.joined(m, a, s).Leave(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if joins != askedBurst || s.count(t, "pulley_join_turned_away_total", "") == 0 {
		t.Errorf("it joined %d times in a row", joins)
	}
	again, one := w.machine("m2", s), w.token(access.Token{Role: "compute"})
	for joins = 0; joins <= askedBurst+1; joins++ { // with one key
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := again.join(within, one, "compute2")
		cancel()
		if err != nil {
			break
		}
	}
	if joins != askedBurst+1 { // the first is no repeat
		t.Errorf("the same request got %d certificates", joins)
	}
}
