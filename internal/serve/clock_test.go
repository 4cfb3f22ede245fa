package serve

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/agent"
	"pulley/internal/fleetca"
	"pulley/internal/store"
	"pulley/internal/testbed/etcdtest"
)

// A serve beside a cluster has no mark of its own: the reports of the nodes, which went on meanwhile, show that its
// clock is wrong. One node with a wrong clock must not stop serve.
func TestClockIsComparedWithTheNewestReports(t *testing.T) {
	t.Parallel()
	st, err := store.Open(store.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
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
		if err := st.Node.Report(t.Context(), agent.Identity{Environment: "dev", Node: node, Role: "compute"}, agent.Status{Node: node, SeenAt: at}, nil, nil); err != nil {
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
	st, err := store.Open(store.Config{Endpoints: []string{etcdtest.Start(t).Endpoint}})
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
		if err := clock.check(); err != nil {
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
		if err := clock.check(); !errors.As(err, new(*ClockError)) {
			t.Errorf("after a jump of %s, the next check returns %v", jump, err)
		}
		ahead = time.Hour // a step that NTP makes
		if now := c.Now(); time.Until(now) < 59*time.Minute {
			t.Errorf("after a step of an hour, tasks work with %s", now)
		}
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
