package firstboot

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// boot is a first boot whose steps record their runs.
type boot struct {
	*Engine
	ran     []Name
	reports []string
	fail    map[Name]error
	log     bytes.Buffer
}

func (b *boot) Report(_ context.Context, step Name, state Progress, problem string) error {
	b.reports = append(b.reports, string(step)+" "+string(state)+problem)
	return b.fail["tell"]
}

func newBoot(dir string) *boot {
	b := &boot{fail: map[Name]error{}}
	b.Engine = &Engine{
		Memory: Disk{dir}, Machine: "m1", Plan: "p1", Reporter: b, Patient: true, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Now: time.Now,
		Program: func(_ context.Context, step Name, program string) error {
			b.ran = append(b.ran, Name(string(step)+":"+program))
			return nil
		},
	}
	for _, name := range Names() {
		b.Steps = append(b.Steps, Step{
			Name: name, Words: "do " + string(name), Deadline: time.Minute,
			Left: func(context.Context) (string, error) { return "do it", nil },
			Do:   func(context.Context) error { b.ran = append(b.ran, name); return b.fail[name] },
		})
	}
	return b
}

// A repeated step could request a second certificate, or run an operator's script again.
func TestStartResumes(t *testing.T) {
	dir := t.TempDir()
	first := newBoot(dir)
	first.fail[Puppet] = errors.New("no space left")
	err := first.Run(t.Context(), Options{})
	if err == nil || err.Error() != "cannot do puppet: no space left" {
		t.Errorf("it ended with %v", err)
	}
	at := slices.Index(Names(), Puppet)
	if !slices.Equal(first.ran, Names()[:at+1]) {
		t.Errorf("it did %v", first.ran)
	}
	state, _ := Disk{dir}.Load()
	if s := state.Steps[Puppet]; s.State != Failed || s.Attempts != 1 || !strings.Contains(s.Error, "no space left") || s.Started.IsZero() {
		t.Errorf("the state says %+v", s)
	}

	second := newBoot(dir)
	if err := second.Run(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(second.ran, Names()[at:]) {
		t.Errorf("the second start did %v", second.ran)
	}
	if state, _ = (Disk{dir}).Load(); state.Finished.IsZero() || state.Steps[Puppet].Attempts != 2 || state.Steps[Puppet].Error != "" {
		t.Errorf("the state says %+v", state)
	}
	if err := newBoot(dir).Run(t.Context(), Options{}); !errors.Is(err, ErrFinished) {
		t.Errorf("a third start: %v", err)
	}
	again := newBoot(dir)
	if err := again.Run(t.Context(), Options{From: Enable}); err != nil || !slices.Equal(again.ran, []Name{Enable, FirstRun, Daemon, Notify, Post, Unlock}) {
		t.Errorf("from enable it did %v: %v", again.ran, err)
	}
	if err := newBoot(dir).Run(t.Context(), Options{From: "nonsense"}); err == nil || !strings.Contains(err.Error(), "the steps are network, lock") {
		t.Errorf("from nonsense: %v", err)
	}
}

// An orderly reboot sends SIGTERM. If it counted as a failure, the machine would lose its turn and somebody would be notified; if it
// went unheard, steps without etcd would go on until systemd kills them.
func TestInterruptedStepIsNoFailure(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := newBoot(dir)
	at := slices.Index(Names(), Notify) // an optional step does not swallow it
	b.Steps[at].Optional = true
	b.Steps[at].Do = func(ctx context.Context) error { cancel(); return errors.New("signal received") }
	err := b.Run(ctx, Options{})
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "cannot do notify: ") {
		t.Errorf("it ended with %v", err)
	}
	state, _ := Disk{dir}.Load()
	if s := state.Steps[Notify]; s.State != Started || !slices.Equal(b.ran, Names()[:at]) || b.reports[len(b.reports)-1] != "notify started" {
		t.Errorf("it did %v, reported %q, and the state says %+v", b.ran, b.reports, s)
	}

	// A step that ended well is done, and the next one does not begin.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	b = newBoot(t.TempDir())
	b.Steps[at].Do = func(context.Context) error { b.ran = append(b.ran, Notify); cancel(); return nil }
	if err := b.Run(ctx, Options{}); !errors.Is(err, context.Canceled) || !slices.Equal(b.ran, Names()[:at+1]) {
		t.Errorf("it did %v: %v", b.ran, err)
	}
}

// An operator who sees only "since 10m" would have to log in to every machine. A cause that stays must not be reported at each try,
// and one that serve gave not at all.
func TestWaitingStepReportsItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoot(t.TempDir())
		answers := []error{
			Passing(errors.New("the CA is away")), Passing(errors.New("the CA is away")), &PassingError{Err: errors.New("3 machines wait longer"), Known: true},
			Passing(errors.New("no answer")), nil,
		}
		at := slices.Index(Names(), Certificate)
		b.Steps[at].Do = func(context.Context) error { err := answers[0]; answers = answers[1:]; return err }
		if err := b.Run(t.Context(), Options{}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, report := range b.reports {
			if strings.HasPrefix(report, "certificate") {
				got = append(got, report)
			}
		}
		want := []string{"certificate started", "certificate startedthe CA is away", "certificate startedno answer", "certificate done"}
		if !slices.Equal(got, want) {
			t.Errorf("it reported %q", got)
		}
	})
}

// The wait for a server gives the machine's turn back, each time: a turn that nobody reports keeps other machines waiting. It may
// last longer than one try, and one try must not last so long.
func TestStepInTurnWaitsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoot(t.TempDir())
		step := &b.Steps[slices.Index(Names(), Certificate)]
		step.Deadline, step.Patience = time.Minute, time.Hour
		begun := time.Now()
		step.Do = func(ctx context.Context) error {
			if time.Since(begun) < 30*time.Minute {
				return Passing(errors.New("the CA is away"))
			}
			<-ctx.Done()
			return ctx.Err()
		}
		err := b.Run(t.Context(), Options{})
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took < 31*time.Minute || took > 32*time.Minute {
			t.Errorf("after %s: %v", took, err)
		}
		reports := 0
		for _, report := range b.reports {
			if report == "certificate startedthe CA is away" {
				reports++
			}
		}
		if reports < 30*60/33 {
			t.Errorf("it reported %d waits", reports)
		}
	})
}

// A disk that was copied to another machine, or a changed plan, is another first boot.
func TestOtherMachineOrPlanRestartsFirstBoot(t *testing.T) {
	for say, change := range map[string]func(*boot){"machine": func(b *boot) { b.Machine = "m2" }, "plan": func(b *boot) { b.Engine.Plan = "p2" }} {
		dir := t.TempDir()
		if err := newBoot(dir).Run(t.Context(), Options{}); err != nil {
			t.Fatal(err)
		}
		other := newBoot(dir)
		change(other)
		if err := other.Run(t.Context(), Options{}); err != nil || len(other.ran) != len(Names()) {
			t.Errorf("another %s did %v: %v", say, other.ran, err)
		}
	}
}

// A finished node must be recognised, or another first boot that fails would stop it. A copy of its disk must not be.
func TestFinishedFirstBootIsRecognized(t *testing.T) {
	dir := t.TempDir()
	good := newBoot(dir)
	good.Token = "t1"
	if err := good.Run(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	state, _ := Disk{dir}.Load()
	finished := state.Finished
	if finished.IsZero() || !state.Before.IsZero() || len(state.Tokens) != 1 || state.Tokens[0] != "t1" {
		t.Fatalf("the state says %+v", state)
	}
	for _, c := range []struct {
		what          string
		machine, plan string
		options       Options
		before        bool
	}{
		{"from its first step", "m1", "p1", Options{From: Network}, true},
		{"again after that failed", "m1", "p1", Options{}, true},
		{"by another plan", "m1", "p2", Options{}, true},
		{"on a copy", "m2", "p2", Options{}, false},
	} {
		b := newBoot(dir)
		b.Machine, b.Engine.Plan, b.fail[Lock] = c.machine, c.plan, errors.New("no")
		if err := b.Run(t.Context(), c.options); err == nil {
			t.Fatalf("%s: it did not fail", c.what)
		}
		state, _ := Disk{dir}.Load()
		if want := c.before; state.Before.Equal(finished) != want || state.Before.IsZero() == want || !state.Finished.IsZero() {
			t.Errorf("%s: the state says %+v", c.what, state)
		}
	}
}

// An ignored "off" could rename a machine that must keep its name.
func TestStepsAreReplacedAndSwitchedOff(t *testing.T) {
	b := newBoot(t.TempDir())
	b.Replaced = map[string]string{"hostname": Off, "puppet": "/opt/install"}
	if err := b.Run(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(b.ran, Hostname) || slices.Contains(b.ran, Puppet) || !slices.Contains(b.ran, "puppet:/opt/install") {
		t.Errorf("it did %v", b.ran)
	}
}

// A temporary failure must not end a first boot; a permanent one must not be retried for a quarter of an hour.
func TestTemporaryErrorsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoot(t.TempDir())
		tries := 0
		join := &b.Steps[slices.Index(Names(), Join)]
		join.Deadline = 10 * time.Minute
		join.Do = func(context.Context) error {
			if tries++; tries < 6 {
				return Passing(errors.New("no answer"))
			}
			return nil
		}
		begun := time.Now()
		if err := b.Run(t.Context(), Options{}); err != nil || tries != 6 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		// 1 + 2 + 4 + 8 + 16 seconds, a tenth more or less
		if took := time.Since(begun); took < 27*time.Second || took > 35*time.Second {
			t.Errorf("it waited %s", took)
		}

		late := newBoot(t.TempDir())
		late.fail[Join] = Passing(errors.New("no answer"))
		begun = time.Now()
		err := late.Run(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), "no answer") || time.Since(begun) > 2*time.Minute {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		final := newBoot(t.TempDir())
		final.fail[Join] = errors.New("refused")
		begun = time.Now()
		if err := final.Run(t.Context(), Options{}); err == nil || time.Since(begun) > 0 {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		person := newBoot(t.TempDir())
		person.Patient, person.fail[Join] = false, Passing(errors.New("no answer"))
		begun = time.Now()
		if err := person.Run(t.Context(), Options{}); err == nil || time.Since(begun) > 0 {
			t.Errorf("a person at the machine waited %s: %v", time.Since(begun), err)
		}
	})
}

// A failing report must not stop a first boot.
func TestFirstBootContinuesWithoutReports(t *testing.T) {
	b := newBoot(t.TempDir())
	b.fail["tell"] = errors.New("no answer")
	b.fail[Notify] = errors.New("no answer")
	b.Steps[slices.Index(Names(), Notify)].Optional = true
	if err := b.Run(t.Context(), Options{}); err != nil || !slices.Equal(b.ran, Names()) {
		t.Errorf("it did %v: %v", b.ran, err)
	}
	if len(b.reports) != 1 {
		t.Errorf("a report was repeated at once: %q", b.reports)
	}
}

// `pulley nodes` can only show the steps that were reported.
func TestFirstBootReportsEachStep(t *testing.T) {
	b := newBoot(t.TempDir())
	b.fail[Register] = errors.New("etcd is full")
	_ = b.Run(t.Context(), Options{})
	text := strings.Join(b.reports, ", ")
	if !strings.HasPrefix(text, "network done, lock started, lock done, pre started") || !strings.HasSuffix(text, "register started, register failedcannot do register: etcd is full") {
		t.Errorf("it reported %s", text)
	}
}

// A dry run must not change the machine.
func TestDryRunChangesNothing(t *testing.T) {
	dir := t.TempDir()
	b := newBoot(dir)
	b.Replaced = map[string]string{"hostname": Off, "puppet": "/opt/install"}
	b.Steps[slices.Index(Names(), Register)].Left = func(context.Context) (string, error) { return "", nil }
	var out bytes.Buffer
	if err := b.DryRun(t.Context(), Options{}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"network      would do it\n", "hostname     is switched off\n", "puppet       would run /opt/install\n", "register     has nothing left to do\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, &out)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 || len(b.ran) > 0 || len(b.reports) > 0 {
		t.Errorf("it left %v, did %v, reported %v", left, b.ran, b.reports)
	}
}

// A script that hangs, or fails silently, would be found weeks later.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var out bytes.Buffer
	p := Programs{Env: []string{"PULLEY_NODE=web1"}, Output: &out, Log: slog.New(slog.DiscardHandler)}
	if err := p.Run(t.Context(), write("good", `echo "$PULLEY_NODE $HOME $1"`)); err != nil || out.String() != "web1 /root \n" {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := p.Run(t.Context(), write("bad", "echo out of luck >&2; exit 7")); err == nil || !strings.Contains(err.Error(), "exit status 7: out of luck") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := p.Run(ctx, write("hangs", "sleep 1000 & sleep 1000")); err == nil || !strings.Contains(err.Error(), "it took too long") || time.Since(begun) > 8*time.Second {
		t.Errorf("after %s: %v", time.Since(begun), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if found, err := Executables(dir); err != nil || len(found) != 3 || filepath.Base(found[0]) != "bad" {
		t.Errorf("%v, %v", found, err)
	}
	if found, err := Executables(filepath.Join(dir, "none")); err != nil || found != nil {
		t.Errorf("%v, %v", found, err)
	}
}

// A step of a Puppet server must cost a machine without one nothing: no report, no state, no crash point.
func TestStepThatDoesNotApply(t *testing.T) {
	dir := t.TempDir()
	b := newBoot(dir)
	at := slices.Index(Names(), Certificate)
	b.Steps[at].Applies = func(context.Context) (bool, error) { return false, nil }
	if err := b.Run(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	state, err := Disk{dir}.Load()
	if _, noted := state.Steps[Certificate]; err != nil || noted || slices.Contains(b.ran, Certificate) || strings.Contains(strings.Join(b.reports, "\n"), "certificate") {
		t.Errorf("it did %v, reported %v and noted %+v", b.ran, b.reports, state.Steps)
	}
	again := newBoot(t.TempDir())
	again.Steps[at].Applies = func(context.Context) (bool, error) { return false, errors.New("etcd is away") }
	if err := again.Run(t.Context(), Options{}); err != nil || !slices.Contains(again.ran, Certificate) {
		t.Errorf("a step of which nobody knows whether it applies was left out: %v", err)
	}
}
