package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/schedule"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

const usual = schedule.Default

// fixture is a machine that puppet agent manages, from cron and as a service, as files below a root.
type fixture struct {
	*Machine
	schedule string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	f := &fixture{Machine: &Machine{
		Root: root, StateDir: filepath.Join(root, "var/lib/pulley"), StateDirs: []string{filepath.Join(root, "var/cache/puppet/state")},
		Now: func() time.Time { return noon },
	}, schedule: filepath.Join(root, "etc/cron.d/pulley-agent")}
	f.write(t, "etc/crontab", "SHELL=/bin/sh\n17 * * * * root cd / && run-parts --report /etc/cron.hourly\n", 0o644)
	f.write(t, "etc/cron.d/puppet", "# keeps this machine\n*/30 * * * * root sleep $RANDOM; /opt/puppetlabs/bin/puppet agent -t\n@reboot root puppet agent --onetime\n", 0o640)
	// Without a newline at the end.
	f.write(t, "var/spool/cron/crontabs/root", "5 * * * * puppet agent --onetime --no-daemonize", 0o600)
	f.write(t, "var/spool/cron/crontabs/ann", "5 * * * * echo puppet agents are fun\n", 0o600)
	f.write(t, "usr/lib/systemd/system/puppet.service", "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	f.write(t, "var/cache/puppet/state/last_run_report.yaml", "---\n", 0o644)
	if err := os.MkdirAll(f.path("etc/systemd/system/multi-user.target.wants"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/systemd/system/puppet.service", f.path("etc/systemd/system/multi-user.target.wants/puppet.service")); err != nil {
		t.Fatal(err)
	}
	if u, err := f.unit(t.Context(), "puppet.service"); err != nil || u == nil || u.Was != enabled {
		t.Fatalf("this test needs systemctl, of the package systemd: %+v %v", u, err)
	}
	return f
}

func (f *fixture) write(t *testing.T, under, text string, mode fs.FileMode) {
	t.Helper()
	path := f.path(under)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), mode)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) read(t *testing.T, under string) string {
	t.Helper()
	b, err := os.ReadFile(f.path(under))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// all returns every file and link of the machine with its mode and content, except the takeover's record.
func (f *fixture) all(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(f.Root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || path == filepath.Join(f.StateDir, memoryFile) {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, _ := os.Readlink(path)
		if text == "" {
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(raw)
		}
		_, err = fmt.Fprintf(&b, "%s %s %q\n", strings.TrimPrefix(path, f.Root), info.Mode(), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (f *fixture) on(context.Context) error {
	return os.WriteFile(f.schedule, []byte("*/5 * * * * root pulley-agent run\n"), 0o644)
}

func (f *fixture) off() error {
	if err := os.Remove(f.schedule); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *fixture) disable(t *testing.T) error {
	s, err := Load(f.StateDir)
	if err != nil {
		return err
	}
	return f.Disable(t.Context(), "ann", s.Choose("", false), model.State{}, false, f.on)
}

// remove removes the old agent after a good run of Pulley.
func (f *fixture) remove(t *testing.T) error {
	has := model.Target{Release: "1.0.0", Tree: "00"}
	return f.Remove(t.Context(), "ann", model.State{LastGood: has, Enforcing: has, Outcome: model.Changed, RanAt: noon.Add(time.Minute)}, false)
}
func (f *fixture) undo(t *testing.T) error { return f.Undo(t.Context(), "ann", f.off) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// idle fails if anything still starts puppet agent, or if a started agent would apply catalogs.
func (f *fixture) idle(t *testing.T) {
	t.Helper()
	found, err := f.Look(t.Context())
	if err != nil || len(found.Units)+len(found.Lines) > 0 {
		t.Errorf("it is still started: %+v %v", found, err)
	}
	lock, err := puppet.Disabled(f.StateDirs[0])
	if err != nil || lock == nil || lock.Message != Own(f.StateDir) || lock.Message != "taken over by Pulley on 2026-03-04T12:00:00Z: see pulley-agent takeover" {
		t.Errorf("Puppet's lock is %v (%v)", lock, err)
	}
	if _, err := os.Stat(f.schedule); err != nil {
		t.Error("nothing starts Pulley")
	}
}

// A machine must have exactly one manager in each stage: two interfere with each other, and none leaves it unmanaged.
func TestDisableAndRemove(t *testing.T) {
	f := newFixture(t)
	found, err := f.Look(t.Context())
	if err != nil || len(found.Units) != 1 || len(found.Lines) != 3 || !found.InCharge() {
		t.Fatalf("it finds %+v, %v", found, err)
	}
	must(t, f.disable(t))
	f.idle(t)
	want := "# keeps this machine\n# pulley-takeover: */30 * * * * root sleep $RANDOM; /opt/puppetlabs/bin/puppet agent -t\n# pulley-takeover: @reboot root puppet agent --onetime\n"
	if got := f.read(t, "etc/cron.d/puppet"); got != want {
		t.Errorf("the crontab is\n%s", got)
	}
	if err := f.Remove(t.Context(), "ann", model.State{}, false); err == nil || !strings.Contains(err.Error(), "no good run since") {
		t.Errorf("remove before a good run of Pulley: %v", err)
	}
	must(t, f.remove(t))
	f.idle(t)
	if got := f.read(t, "etc/cron.d/puppet"); got != "# keeps this machine\n" {
		t.Errorf("the crontab is\n%s", got)
	}
	if to, _ := os.Readlink(f.path("etc/systemd/system/puppet.service")); to != "/dev/null" {
		t.Errorf("the unit is not masked: %q", to)
	}
	for want, again := range map[string]func(*testing.T) error{
		"cannot disable the old agent: it is removed already": f.disable, "cannot remove the old agent: it was removed at": f.remove,
	} {
		if err := again(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("again: %v, want %q", err, want)
		}
	}
}

// An undo must restore the original machine, whatever was interrupted before.
func TestUndoRestoresEverything(t *testing.T) {
	t.Parallel()
	commands := map[string]func(*fixture, *testing.T) error{"disable": (*fixture).disable, "remove": (*fixture).remove, "undo": (*fixture).undo}
	for _, path := range [][]string{{"disable", "undo"}, {"disable", "remove", "undo"}} {
		for cutAt := -1; ; cutAt++ {
			f := newFixture(t)
			before, steps, where := f.all(t), 0, ""
			f.Interrupt = func(step string) error {
				steps++
				if steps == cutAt+1 {
					where = step
					return errors.New("power cut")
				}
				return nil
			}
			for _, name := range path {
				err := commands[name](f, t)
				if err != nil && where != "" && strings.Contains(err.Error(), "power cut") {
					err = commands[name](f, t)
				}
				if err != nil {
					t.Fatalf("cut at %q: %s: %v", where, name, err)
				}
				if name != "undo" {
					f.idle(t)
				}
			}
			if s, err := Load(f.StateDir); err != nil || s.Stage != Found || s.Schedule != usual || s.Message != "" || len(s.Files) > 0 {
				t.Errorf("%v, cut at %q: what is known afterwards is %+v (%v)", path, where, s, err)
			}
			if after := f.all(t); after != before {
				t.Errorf("%v, cut at %q: afterwards\n%s\nbefore\n%s", path, where, after, before)
			}
			if len(path) == 2 || cutAt >= 0 && where == "" { // the longer path includes all steps of the shorter one
				if steps < 10 {
					t.Errorf("%v has only %d steps", path, steps)
				}
				break
			}
		}
	}
}

// An undo during an interrupted step must also restore everything.
func TestUndoOfInterruptedTakeover(t *testing.T) {
	t.Parallel()
	for cutAt := 1; ; cutAt++ {
		f := newFixture(t)
		before, steps := f.all(t), 0
		f.Interrupt = func(string) error {
			if steps++; steps == cutAt {
				return errors.New("power cut")
			}
			return nil
		}
		if f.disable(t) == nil && f.remove(t) == nil {
			break
		}
		f.Interrupt = nil
		must(t, f.undo(t))
		if after := f.all(t); after != before {
			t.Errorf("cut at step %d: afterwards\n%s\nbefore\n%s", cutAt, after, before)
		}
	}
}

// An operator who disabled the agent had a reason that Pulley does not know.
func TestTakeoverRefusesDisabledAgent(t *testing.T) {
	f := newFixture(t)
	f.write(t, "var/cache/puppet/state/agent_disabled.lock", `{"disabled_message":"moving the rack"}`, 0o644)
	before := f.all(t)
	err := f.disable(t)
	var foreign *puppet.DisabledError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "moving the rack") {
		t.Errorf("it says %v", err)
	}
	if after := f.all(t); after != before {
		t.Errorf("and yet it changed\n%s\nto\n%s", before, after)
	}
	// An operator's lock that replaced Pulley's must not be removed either.
	must(t, os.Remove(f.path("var/cache/puppet/state/agent_disabled.lock")))
	must(t, f.disable(t))
	f.write(t, "var/cache/puppet/state/agent_disabled.lock", `{"disabled_message":"moving the rack"}`, 0o644)
	must(t, f.undo(t))
	if lock, _ := puppet.Disabled(f.StateDirs[0]); lock == nil || lock.Message != "moving the rack" {
		t.Errorf("the operator's lock is %v", lock)
	}
}

// Later edits of a crontab must stay.
func TestUndoKeepsLaterEdits(t *testing.T) {
	t.Parallel()
	const more = "1 2 3 4 5 root /usr/local/bin/backup\n"
	for _, removed := range []bool{false, true} {
		f := newFixture(t)
		must(t, f.disable(t))
		if removed {
			must(t, f.remove(t))
		}
		f.write(t, "etc/cron.d/puppet", f.read(t, "etc/cron.d/puppet")+more, 0o644)
		must(t, os.Remove(f.path("var/spool/cron/crontabs/root")))
		must(t, f.undo(t))
		got := f.read(t, "etc/cron.d/puppet")
		if len(agentLines(got, true)) != 2 || !strings.Contains(got, more) || strings.Contains(got, mark) {
			t.Errorf("removed %t: it is\n%s", removed, got)
		}
		if got := f.read(t, "var/spool/cron/crontabs/root"); got != "5 * * * * puppet agent --onetime --no-daemonize" {
			t.Errorf("a crontab that is gone: %q", got)
		}
	}
}

// A command in the wrong order must do nothing.
func TestTakeoverStepsInOrder(t *testing.T) {
	f := newFixture(t)
	before := f.all(t)
	for say, do := range map[string]func(*testing.T) error{"cannot undo: nothing was taken over": f.undo, "it is not disabled": f.remove} {
		if err := do(t); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want %s", err, say)
		}
	}
	if f.all(t) != before {
		t.Error("and yet something changed")
	}
	f.Interrupt = func(string) error { return errors.New("power cut") }
	if err := f.disable(t); err == nil {
		t.Fatal("it continued")
	}
	if err := f.undo(t); err == nil {
		t.Fatal("it continued")
	}
	if err := f.disable(t); err == nil || !strings.Contains(err.Error(), "run `pulley-agent takeover undo` to finish it") {
		t.Errorf("in the middle of an undo: %v", err)
	}
}

// An unreadable record of the old agent must not be lost or treated as empty.
func TestDamagedTakeoverRecordStopsEverything(t *testing.T) {
	f := newFixture(t)
	must(t, f.disable(t))
	for text, want := range map[string]string{"{": "it is damaged", `{"v":9}`: "its format 9 is newer"} {
		f.write(t, "var/lib/pulley/takeover.json", text, 0o600)
		for _, do := range []func(*testing.T) error{f.disable, f.remove, f.undo} {
			if err := do(t); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("with %s: %v", text, err)
			}
		}
		if Own(f.StateDir) != "" {
			t.Error("a lock without a known owner counts as Pulley's own")
		}
	}
}

// A unit that lies at the path of a mask is disabled. It can still be removed and restored.
func TestTakeoverOfAdministratorsUnit(t *testing.T) {
	f := newFixture(t)
	must(t, os.Rename(f.path("usr/lib/systemd/system/puppet.service"), f.path("etc/systemd/system/puppet.service")))
	link := f.path("etc/systemd/system/multi-user.target.wants/puppet.service")
	must(t, os.Remove(link))
	must(t, os.Symlink("/etc/systemd/system/puppet.service", link))
	before := f.all(t)
	must(t, f.disable(t))
	must(t, f.remove(t))
	f.idle(t)
	must(t, f.undo(t))
	if after := f.all(t); after != before {
		t.Errorf("afterwards\n%s\nbefore\n%s", after, before)
	}
}

// If a first boot mistakes a package's unit for a working agent, the new machine is unmanaged.
func TestInCharge(t *testing.T) {
	unit := []Unit{{Name: "puppet.service", Was: enabled}}
	for say, c := range map[string]struct {
		f    Findings
		want bool
	}{
		"nothing":                    {Findings{}, false},
		"a unit that never ran":      {Findings{Units: unit}, false},
		"a unit of a Puppet at work": {Findings{Units: unit, Ran: true}, true},
		"a timer of an operator":     {Findings{Units: []Unit{{Name: "puppet-run.timer", Was: enabled, Own: true}}}, true},
		"a timer of a package":       {Findings{Units: []Unit{{Name: "puppet-run.timer", Was: enabled}}}, false},
		"a timer that is off":        {Findings{Units: []Unit{{Name: "puppet-run.timer", Was: "disabled", Own: true}}}, false},
		"Puppet by hand":             {Findings{Ran: true}, false},
		"a line of cron":             {Findings{Lines: []Line{{"etc/crontab", "…"}}}, true},
		"a script that never ran":    {Findings{Scripts: []Script{{Path: "etc/cron.hourly/puppet", Starts: puppet.ByAgent}}}, false},
		"a script that cron runs":    {Findings{Scripts: []Script{{Path: "etc/cron.hourly/puppet", Starts: puppet.ByAgent}}, Ran: true}, true},
		"a script of a crontab":      {Findings{Scripts: []Script{{Path: "usr/local/bin/papply", Starts: puppet.ByApply, From: "etc/crontab"}}}, true},
		"a daemon by hand":           {Findings{Daemons: []Process{{7, "puppet agent"}}}, true},
		"a daemon of a new unit":     {Findings{Units: []Unit{{Name: "puppet.service", Active: true}}, Daemons: []Process{{7, "puppet agent"}}}, false},
	} {
		if c.f.InCharge() != c.want {
			t.Errorf("%s: %t", say, !c.want)
		}
	}
}

// An interrupted takeover that is repeated without flags must keep its schedule. Otherwise the old agent is off, and
// nothing starts Pulley.
func TestChosenScheduleSurvivesInterruption(t *testing.T) {
	t.Parallel()
	for say, c := range map[string]struct {
		found *string // schedule requested at first boot; nil: no agent found
		cron  string
		none  bool
		want  Schedule
	}{
		"nothing was said":               {nil, "", false, Schedule{Cron: usual}},
		"a schedule was given":           {nil, "@hourly", false, Schedule{Cron: "@hourly"}},
		"no cron":                        {nil, "", true, Schedule{None: true}},
		"the schedule of the first boot": {new(string("1 2 3 4 5")), "", false, Schedule{Cron: "1 2 3 4 5"}},
		"the first boot had none":        {new(string("")), "", false, Schedule{None: true}},
		"it had none, and one is given":  {new(string("")), "@hourly", false, Schedule{Cron: "@hourly"}},
		"none, against the first boot":   {new(string("1 2 3 4 5")), "", true, Schedule{None: true}},
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
				return s.Choose(cron, none)
			}
			var on []Schedule
			start := func(chosen Schedule) error {
				return f.Disable(t.Context(), "ann", chosen, model.State{}, false, func(context.Context) error { on = append(on, chosen); return nil })
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
