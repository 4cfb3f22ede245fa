package serve

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/access/fleetca"
	"pulley/internal/desired/control"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/testbed/etcdtest"
)

// A serve beside a cluster has no mark of its own: the reports of the nodes, which went on meanwhile, show that its
// clock is wrong. One node with a wrong clock must not stop serve.
func TestClockIsComparedWithTheNewestReports(t *testing.T) {
	t.Parallel()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	start := func(shift time.Duration, today string) error {
		_, clock := Config{Cluster: true, Now: func() time.Time { return now.Add(shift) }, Today: today}.withClock()
		return clock.start(t.Context(), st)
	}
	report := func(node string, at time.Time) {
		t.Helper()
		if err := control.In(st).Report(t.Context(), model.Identity{Environment: "dev", Node: node, Role: "compute"}, model.Status{Node: node, SeenAt: at}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	const year = 365 * 24 * time.Hour
	if err := start(year, ""); err != nil {
		t.Errorf("without reports: %v", err)
	}
	report("compute1", now)
	report("compute2", now.Add(10*year)) // its clock is wrong
	report("compute3", now.Add(-time.Minute))
	for _, c := range []struct {
		shift time.Duration
		today string
		wrong bool
	}{
		{shift: 0}, {shift: 20 * 24 * time.Hour}, {shift: -12 * time.Hour},
		{shift: year, wrong: true}, {shift: -2 * 24 * time.Hour, wrong: true},
		{shift: year, today: "2027-11-22"}, {shift: year, today: "2026-11-22", wrong: true}, {shift: year, today: "tomorrow", wrong: true},
	} {
		err := start(c.shift, c.today)
		var clock *ClockError
		if errors.As(err, &clock) != c.wrong || err != nil && !c.wrong {
			t.Errorf("a clock %s ahead, with --today %q: %v", c.shift, c.today, err)
		}
		if c.wrong && !strings.Contains(clock.Hint(), "--today "+now.Add(c.shift).Format(time.DateOnly)) {
			t.Errorf("the remedy is %q", clock.Hint())
		}
	}
}

// The clock may jump between its check and the work of a task. The task must not renew certificates with that time, nor
// delete tokens.
func TestJumpAfterTheCheckOfTheClockChangesNothing(t *testing.T) {
	t.Parallel()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const year = 365 * 24 * time.Hour
	for _, jump := range []time.Duration{year, -year} {
		dir, ahead := t.TempDir(), time.Duration(0)
		c, clock := Config{DataDir: dir, Now: func() time.Time { return time.Now().Add(ahead) }}.withClock()
		if err := clock.start(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		certs, err := fleetca.Open(dir, "", "server1", true, c.CA)
		if err == nil {
			err = certs.Refresh([]string{"localhost"})
		}
		if err != nil {
			t.Fatal(err)
		}
		before := filesOf(t, filepath.Join(dir, fleetca.PKIName))
		if err := clock.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		ahead = jump
		if err := certs.Renew(); err != nil {
			t.Fatal(err)
		}
		if now := c.Now(); time.Since(now).Abs() > time.Minute {
			t.Errorf("after a jump of %s, tasks work with %s", jump, now)
		}
		if after := filesOf(t, filepath.Join(dir, fleetca.PKIName)); !maps.Equal(before, after) {
			t.Errorf("a jump of %s after the check replaced certificates", jump)
		}
		if err := clock.check(t.Context()); !errors.As(err, new(*ClockError)) {
			t.Errorf("after a jump of %s, the next check returns %v", jump, err)
		}
		ahead = time.Hour // a step that NTP makes
		if now := c.Now(); time.Until(now) < 59*time.Minute {
			t.Errorf("after a step of an hour, tasks work with %s", now)
		}
	}
}

// A clock that is set only in a test, with a timer that nobody sets.
type testClock struct {
	started time.Time
	elapsed time.Duration
	step    time.Duration
}

// serveWith returns the clock of a serve with a data folder.
func (k *testClock) serveWith(dir string) *clock {
	_, c := Config{DataDir: dir, Now: func() time.Time { return k.started.Add(k.elapsed + k.step) }}.withClock()
	c.timer = func() time.Duration { return k.elapsed }
	return c
}

// serveRan makes a data folder with the mark of an earlier serve.
func serveRan(t *testing.T, at time.Time) (dir string) {
	t.Helper()
	dir = t.TempDir()
	lock := filepath.Join(dir, "lock")
	if err := errors.Join(os.WriteFile(lock, nil, 0o600), os.Chtimes(lock, at, at)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A machine boots with a clock that is ahead, and NTP corrects it later. The fleet needs no operator.
func TestCorrectedClockDoesNotStopServe(t *testing.T) {
	t.Parallel()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const day = 24 * time.Hour
	right := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, reports := range []bool{false, true} {
		for node := 0; reports && node < 3; node++ {
			id := model.Identity{Environment: "dev", Node: fmt.Sprintf("compute%d", node), Role: "compute"}
			if err := control.In(st).Report(t.Context(), id, model.Status{Node: id.Node, SeenAt: right}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		k, dir := &testClock{started: right, step: 20 * day}, serveRan(t, right.Add(-time.Hour))
		running := k.serveWith(dir)
		if err := running.start(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		k.elapsed = 10 * time.Minute
		if err := running.check(t.Context()); err != nil {
			t.Fatal(err)
		}

		// serve is killed now, and the clock is right at the next start.
		killed := serveRan(t, running.last)
		if err := (&testClock{started: right}).serveWith(killed).start(t.Context(), st); err != nil {
			t.Errorf("reports %t: the next start: %v", reports, err)
		}

		k.step, k.elapsed = 0, 20*time.Minute
		if now := running.time(); !now.Equal(right.Add(k.elapsed)) {
			t.Errorf("reports %t: tasks work with %s", reports, now)
		}
		if err := running.check(t.Context()); err != nil {
			t.Errorf("reports %t: %v", reports, err)
		}
		k.elapsed = 400 * day // and is right for long
		if err := running.check(t.Context()); err != nil {
			t.Errorf("reports %t: %v", reports, err)
		}
		info, err := os.Stat(filepath.Join(dir, "lock"))
		if err != nil || !info.ModTime().Equal(right.Add(k.elapsed)) {
			t.Errorf("reports %t: the mark is %v, %v", reports, info.ModTime(), err)
		}
	}
}

// Each step is small. Together they end tokens and replace certificates as one large step does.
func TestSmallStepsOfTheClockAddUp(t *testing.T) {
	t.Parallel()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const day = 24 * time.Hour
	right := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, step := range []time.Duration{12 * day, -12 * day} {
		k := &testClock{started: right}
		c := k.serveWith(serveRan(t, right.Add(-time.Hour)))
		if err := c.start(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 3; n++ {
			k.elapsed, k.step = time.Duration(n)*time.Minute, time.Duration(n)*step
			err := c.check(t.Context())
			if wrong := n == 3; errors.As(err, new(*ClockError)) != wrong || err != nil && !wrong {
				t.Errorf("step %d of %s: %v", n, step, err)
			}
		}
		k.elapsed += time.Minute
		if now, want := c.time(), right.Add(k.elapsed+2*step); !now.Equal(want) {
			t.Errorf("beyond the limit, tasks work with %s, not %s", now, want)
		}
	}
}

// The timer of a virtual machine stops while its host pauses it. The nodes know that its clock is right.
func TestPausedMachineKeepsItsRightClock(t *testing.T) {
	t.Parallel()
	st, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	right := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	report := func(at time.Time) {
		for node := range 3 {
			id := model.Identity{Environment: "dev", Node: fmt.Sprintf("compute%d", node), Role: "compute"}
			if err := control.In(st).Report(t.Context(), id, model.Status{Node: id.Node, SeenAt: at}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	report(right)
	const paused = 40 * 24 * time.Hour
	k := &testClock{started: right}
	c := k.serveWith(serveRan(t, right.Add(-time.Hour)))
	if err := c.start(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	k.step = paused
	if err := c.check(t.Context()); !errors.As(err, new(*ClockError)) {
		t.Errorf("nodes do not agree: %v", err)
	}
	report(right.Add(paused))
	if err := c.check(t.Context()); err != nil {
		t.Errorf("nodes agree: %v", err)
	}
	if now := c.time(); !now.Equal(right.Add(paused)) {
		t.Errorf("tasks work with %s", now)
	}
	k.step = 2 * paused
	if err := c.check(t.Context()); !errors.As(err, new(*ClockError)) {
		t.Errorf("the clock jumps afterwards: %v", err)
	}
}

// filesOf reads the files of a folder.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}
