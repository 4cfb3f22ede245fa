package takeover

import (
	"context"
	"errors"
	"testing"
)

// An interrupted takeover that is repeated without flags must keep its schedule. Otherwise the old agent is off, and
// nothing starts Pulley.
func TestAScheduleThatWasChosenOutlivesACut(t *testing.T) {
	t.Parallel()
	for say, c := range map[string]struct {
		found *string // schedule requested at first boot; nil: no agent found
		cron  string
		none  bool
		want  Schedule
	}{
		"nothing was said":              {nil, "", false, Schedule{Cron: usual}},
		"a schedule was given":          {nil, "@hourly", false, Schedule{Cron: "@hourly"}},
		"no cron":                       {nil, "", true, Schedule{None: true}},
		"as the first boot was told":    {new(string("1 2 3 4 5")), "", false, Schedule{Cron: "1 2 3 4 5"}},
		"the first boot had none":       {new(string("")), "", false, Schedule{None: true}},
		"it had none, and one is given": {new(string("")), "@hourly", false, Schedule{Cron: "@hourly"}},
		"it was told, and none is said": {new(string("1 2 3 4 5")), "", true, Schedule{None: true}},
	} {
		for cutAt := 1; ; cutAt++ {
			f, steps := newFixture(t), 0
			if c.found != nil {
				must(t, f.Find(*c.found, "ann"))
			}
			f.Interrupt = func(string) error {
				if steps++; steps == cutAt {
					return errors.New("power cut")
				}
				return nil
			}
			choose := func(cron string, none bool) Schedule {
				s, err := Load(f.StateDir)
				must(t, err)
				return s.Choose(cron, none, usual)
			}
			var on []Schedule
			start := func(chosen Schedule) error {
				return f.Disable(t.Context(), "ann", chosen, func(context.Context) error { on = append(on, chosen); return nil })
			}
			err := start(choose(c.cron, c.none))
			if err == nil {
				break
			}
			must(t, start(choose("", false))) // the same command without flags
			if len(on) != 1 || on[0] != c.want {
				t.Errorf("%s, cut at step %d: it set up %+v, want %+v", say, cutAt, on, c.want)
			}
		}
	}
}
