package serve

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pulley/agent"
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
		c := Config{Cluster: true, Now: func() time.Time { return now.Add(shift) }, Today: today}.newClock()
		return c.start(t.Context(), st)
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
