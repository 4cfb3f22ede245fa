package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pulley/internal/atomicfile"
	"pulley/internal/model"
)

// TestMain lets a test start this program again to hold the lock, to take it, or to run one tick.
func TestMain(m *testing.M) {
	switch dir := os.Getenv("PULLEY_TEST_DIR"); os.Getenv("PULLEY_TEST_AS") {
	case "":
		os.Exit(m.Run())
	case "holder": // holds an inherited lock until its stdin ends
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	case "starter":
		os.Exit(startOnce(dir))
	case "agent":
		os.Exit(tickOnce(dir))
	}
}

// startOnce is an agent that only checks that it is the only one. Its exit codes: 0 alone, 1 not alone, 4 another agent
// was running.
func startOnce(dir string) int {
	d, err := OpenDisk(dir)
	if err != nil {
		return 2
	}
	lock, err := d.Lock()
	if errors.Is(err, ErrLocked) {
		return 4
	}
	if err != nil {
		return 2
	}
	defer lock.Close()
	inside := filepath.Join(dir, "inside")
	f, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 1
	}
	for range 1000 {
		runtime.Gosched()
	}
	if err := errors.Join(f.Close(), os.Remove(inside)); err != nil {
		return 1
	}
	return 0
}

// again starts this program in another mode.
func again(t *testing.T, as, dir string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(append(os.Environ(), "PULLEY_TEST_AS="+as, "PULLEY_TEST_DIR="+dir), env...)
	return cmd
}

func openDisk(t testing.TB, dir string) *Disk {
	t.Helper()
	d, err := OpenDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// Two agents at the same time start two Puppets at the same time.
func TestSecondLockIsRefused(t *testing.T) {
	dir := t.TempDir()
	first, second := openDisk(t, dir), openDisk(t, dir)
	lock, err := first.Lock()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Disk{first, second} {
		if _, err := d.Lock(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "another run is in progress") {
			t.Errorf("a second lock: %v", err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	lock, err = second.Lock()
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// The Puppet of a killed agent must keep the lock against the next agent.
func TestChildKeepsInheritedLock(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir)
	lock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	child := again(t, "holder", dir)
	child.ExtraFiles = []*os.File{lock}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(child.Start(), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("while the child lives: %v", err)
	}
	if err := errors.Join(stdin.Close(), child.Wait()); err != nil {
		t.Fatal(err)
	}
	lock, err = d.Lock()
	if err != nil {
		t.Errorf("after the child's end: %v", err)
	}
	lock.Close()
}

// A child that is not Puppet (a validate script, a daemon of a package) must not keep the node locked.
func TestOtherChildrenDoNotInheritLock(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir)
	lock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	child := again(t, "holder", dir)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(child.Start(), lock.Close()); err != nil {
		t.Fatal(err)
	}
	lock, err = d.Lock()
	if err != nil {
		t.Errorf("while an unrelated child lives: %v", err)
	}
	lock.Close()
	if err := errors.Join(stdin.Close(), child.Wait()); err != nil {
		t.Error(err)
	}
}

// cron, an operator and a daemon may all start an agent in the same second.
func TestFiftyAgentsRunOneAtATime(t *testing.T) {
	dir := t.TempDir()
	openDisk(t, dir)
	outcomes := make(chan int, 100)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			cmd := again(t, "starter", dir)
			if err := cmd.Run(); cmd.ProcessState == nil {
				t.Error(err)
				return
			}
			outcomes <- cmd.ProcessState.ExitCode()
		})
	}
	var inside atomic.Int32
	for range 50 {
		all.Go(func() {
			d, err := OpenDisk(filepath.Join(dir, "other"))
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			lock, err := d.Lock()
			for deadline := time.Now().Add(30 * time.Second); errors.Is(err, ErrLocked) && time.Now().Before(deadline); lock, err = d.Lock() {
				runtime.Gosched()
			}
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold the lock")
			}
			runtime.Gosched()
			inside.Add(-1)
			lock.Close()
		})
	}
	all.Wait()
	close(outcomes)
	alone := 0
	for code := range outcomes {
		switch code {
		case 0:
			alone++
		case 4: // another agent was running
		default:
			t.Errorf("an agent ended with %d: it was not alone", code)
		}
	}
	if alone == 0 {
		t.Error("of fifty agents none did its work")
	}
}

func TestStateRoundTrip(t *testing.T) {
	d := openDisk(t, t.TempDir())
	empty, err := d.Load()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the state of a new node", empty, model.State{Format: model.StateFormat})
	want := model.State{
		Format: model.StateFormat, LastGood: verA, LastGoodData: "x", Enforcing: verB, Before: verA, OpenRun: "r-7",
		Attempts: []model.Attempt{{Target: verB, Started: 2, Finished: 1, Open: true, Last: start, Kind: model.Between, Problem: model.Problem{Code: model.HookFailed, Text: "…"}}},
		Refusal:  &model.Refusal{Target: verC, Error: *refusedFor("it"), At: start},
		Holds:    []model.Hold{freeze, stop}, RanAt: start, Outcome: model.Failed, LastRun: "r-6", Sequence: 7,
	}
	if err := d.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.Load()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the state", got, want)
}

// A power cut that damages one file must not need an operator: the node applies its target again.
func TestDamagedStateIsRenamedAndNodeRecovers(t *testing.T) {
	for _, damage := range []string{"", "{", `{"v": 1, "attempts": 7}`, "\x00\x00\x00\x00", "[]", `"state"`} {
		w := fleetOn(t, verA)
		file := filepath.Join(w.dir, "node", stateFile)
		if err := os.WriteFile(file, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // only a run renames it, a reader does not
			var damaged *DamagedError
			if _, err := w.disk.Load(); !errors.As(err, &damaged) {
				t.Errorf("%q: %v", damage, err)
			}
		}
		var log strings.Builder
		w.agent.Log = slog.New(slog.NewTextHandler(&log, nil))
		if run := w.good(t); run.Target != verA || run.Reason != model.ReasonNew {
			t.Errorf("%q: it ran %+v", damage, run)
		}
		if !strings.Contains(log.String(), "the node forgets its holds") {
			t.Errorf("%q: the log does not name what is forgotten: %s", damage, &log)
		}
		w.stands(t, verA, verA)
		if b, err := os.ReadFile(file + ".damaged"); err != nil || string(b) != damage {
			t.Errorf("%q: the damaged file is not kept: %q, %v", damage, b, err)
		}
	}
}

// An older agent must not discard a newer agent's state: the machine may be between two targets.
func TestNewerStateIsRefusedAndKept(t *testing.T) {
	for _, newer := range []string{`{"v": 2, "enforcing": {"tree": "aa"}}`, `{"v": 2, "attempts": {"by": "tree"}}`, `{"attempts": 7, "v": 2}`} {
		dir := t.TempDir()
		d := openDisk(t, dir)
		file := filepath.Join(dir, stateFile)
		if err := os.WriteFile(file, []byte(newer), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := d.Load()
		if err == nil || !strings.Contains(err.Error(), "newer than this agent's 1; upgrade the agent") {
			t.Errorf("%s: %v", newer, err)
		}
		if b, _ := os.ReadFile(file); string(b) != newer {
			t.Errorf("the state was changed to %q", b)
		}
	}
}

// A failed write (disk full, read-only, a folder at the path) must return an error and keep the old file intact.
func TestErrorNamesUnwritableFile(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir)
	if err := d.Save(model.State{LastGood: verA}); err != nil {
		t.Fatal(err)
	}
	// Permissions do not stop root. A folder at the path of the temporary file does.
	if err := os.MkdirAll(filepath.Join(dir, atomicfile.Temporary(stateFile), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := d.Save(model.State{LastGood: verB})
	if err == nil || !strings.Contains(err.Error(), "cannot write "+filepath.Join(dir, stateFile)) {
		t.Errorf("%v", err)
	}
	if s, err := d.Load(); err != nil || s.LastGood != verA {
		t.Errorf("the old state is %+v: %v", s, err)
	}
	file := filepath.Join(dir, "a file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDisk(filepath.Join(file, "pulley")); err == nil || !strings.Contains(err.Error(), "cannot make the state folder") {
		t.Errorf("%v", err)
	}
}

// On a disk without writes, a tick must not start Puppet: a crash would look like an unchanged machine.
func TestUnwritableStateStopsTickBeforePuppet(t *testing.T) {
	w := fleetOn(t, verA)
	w.promote(t, verB)
	if err := os.MkdirAll(filepath.Join(w.dir, "node", atomicfile.Temporary(stateFile), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := w.idle(t)
	if r.Err == nil || !strings.Contains(r.Err.Error(), "cannot admit: cannot write") {
		t.Errorf("%v", r.Err)
	}
	if s := w.etcd.status(t); s.Phase != model.Idle {
		t.Errorf("etcd says that it is %s", s.Phase)
	}
	if err := os.RemoveAll(filepath.Join(w.dir, "node", atomicfile.Temporary(stateFile))); err != nil {
		t.Fatal(err)
	}
	w.good(t)
	w.stands(t, verB, verB)
}

func TestResultOfRunOnDisk(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir)
	check := func(want model.Result, wantBegan, wantEnded bool) {
		t.Helper()
		r, began, ended, err := d.Ended("r-1")
		if err != nil || began != wantBegan || ended != wantEnded || r.Kind != want.Kind || r.Problem != want.Problem {
			t.Errorf("it began: %t, ended: %t, %+v, %v", began, ended, r, err)
		}
	}
	check(model.Result{}, false, false)
	if err := d.Begin("r-1"); err != nil {
		t.Fatal(err)
	}
	check(model.Result{}, true, false)
	ended := model.Result{Kind: model.Untouched, Outcome: model.Failed, Problem: model.Problem{Code: model.HookFailed, Text: "does not compile"}, Log: make([]model.LogLine, 1000)}
	if err := d.End("r-1", ended); err != nil {
		t.Fatal(err)
	}
	check(ended, true, true)
	if err := os.WriteFile(filepath.Join(dir, result("r-1")), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(model.Result{}, true, false) // damaged: it may have been started
}

// The agent's files must not fill the machine's disk over the years.
func TestRunsAndSpoolOnDiskAreBounded(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, dir)
	name := func(i int) string { return fmt.Sprintf("20260304T%06dZ-%d", i, i) }
	for i := range 3 * maxRunsOnDisk {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, runsDir, name(i)), 0o700), d.Begin(name(i)), d.End(name(i), model.Result{Kind: model.Success})); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{runsDir, resultsDir} {
		kept, err := d.list(folder)
		if err != nil || len(kept) > maxRunsOnDisk || len(kept) < maxRunsOnDisk-1 || !strings.HasPrefix(kept[len(kept)-1], name(3*maxRunsOnDisk-1)) {
			t.Errorf("%s keeps %d entries, %v: %v", folder, len(kept), kept, err)
		}
	}
	// After the clock was set back, the newest runs must not look like the oldest. Other entries are removed after a
	// day.
	back := func(i int) string { return fmt.Sprintf("20250101T%06dZ-%d", i, i) }
	for _, foreign := range []string{"bootstrap", "command-7"} {
		if err := os.Mkdir(filepath.Join(dir, runsDir, foreign), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, runsDir, "bootstrap"), yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	if err := d.Save(model.State{}); err != nil {
		t.Fatal(err)
	}
	last := 3*maxRunsOnDisk + 4
	for i := 3 * maxRunsOnDisk; i <= last; i++ {
		if err := errors.Join(d.Begin(back(i)), os.Mkdir(filepath.Join(dir, runsDir, back(i)), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := d.list(runsDir)
	if err != nil || kept[0] != "command-7" || len(kept) != maxRunsOnDisk+1 || kept[len(kept)-5] != back(3*maxRunsOnDisk) || kept[len(kept)-1] != back(last) {
		t.Errorf("after the clock was set back %v are kept: %v", kept, err)
	}
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil {
		t.Fatal(err)
	}
	if s, err := d.Load(); err != nil || s.Sequence != int64(last) {
		t.Errorf("a lost state counts on from %d, %v; want %d", s.Sequence, err, last)
	}
	for i := range 3 * maxSpooled {
		if err := d.Spool(model.EncodedRun{ID: name(i), Bytes: []byte{byte(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	oldest, err := d.Spooled(2)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the oldest", oldest, []model.EncodedRun{{ID: name(2 * maxSpooled), Bytes: []byte{2 * maxSpooled}}, {ID: name(2*maxSpooled + 1), Bytes: []byte{2*maxSpooled + 1}}})
	all, err := d.Spooled(1000)
	if err != nil || len(all) != maxSpooled {
		t.Errorf("%d are spooled: %v", len(all), err)
	}
	if err := d.Unspool([]string{name(2 * maxSpooled), "gone already"}); err != nil {
		t.Fatal(err)
	}
	if all, _ = d.Spooled(1000); len(all) != maxSpooled-1 || all[0].ID != name(2*maxSpooled+1) {
		t.Errorf("after one was sent, %d are spooled from %s on", len(all), all[0].ID)
	}
}

// The record of the last report may be lost: the node then reports again.
func TestDamagedReportedFileCostsOneReport(t *testing.T) {
	w := fleetOn(t, verA)
	if err := os.WriteFile(filepath.Join(w.dir, "node", reportedFile), []byte(`{"fingerprint": "x", "runs": 7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.idle(t)
	same(t, "calls", w.etcd.calls, []string{"desire", "report"})
	w.now = w.now.Add(time.Minute)
	w.idle(t)
	same(t, "calls", w.etcd.calls, []string{"desire"})
}

func TestDisableStoresReason(t *testing.T) {
	d := openDisk(t, t.TempDir())
	for _, c := range []struct{ given, want string }{{"kernel debugging", "kernel debugging"}, {"", defaultDisabled}, {" \n", defaultDisabled}} {
		if err := d.Disable(c.given); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Disabled(); string(got) != c.want || err != nil {
			t.Errorf("%q: %q, %v", c.given, got, err)
		}
	}
	for range 2 {
		if err := d.Enable(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.Disabled(); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A first boot that ends must not enable an agent that an operator disabled meanwhile.
func TestFirstBootKeepsAnOperatorsReason(t *testing.T) {
	d := openDisk(t, t.TempDir())
	for _, step := range []struct {
		do   func() error
		want model.Prose
	}{
		{func() error { return d.AwaitFirstBoot("") }, inFirstBoot},
		{func() error { return d.Disable("kernel debugging") }, "kernel debugging"},
		{d.EndFirstBoot, "kernel debugging"},
		{func() error { return d.AwaitFirstBoot("") }, "kernel debugging"},
		{d.Enable, ""},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Disabled(); got != step.want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, step.want)
		}
	}
}

// No content of state.json may crash the agent or prevent its start.
func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(`{"v":1}`))
	f.Add([]byte(`{"v":1,"refusal":{"target":{"tree":"t"},"why":"it is not signed","at":"2026-03-04T05:06:07Z"}}`))
	dir := f.TempDir()
	d := openDisk(f, dir)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, stateFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := d.Load()
		var damaged *DamagedError
		if errors.As(err, &damaged) {
			s, err = d.Afresh()
		}
		if err != nil {
			if !strings.Contains(err.Error(), "upgrade the agent") {
				t.Fatalf("an error without a remedy: %v", err)
			}
			return
		}
		if _, err := os.Stat(filepath.Join(dir, stateFile)); errors.Is(err, fs.ErrNotExist) && s.Sequence != 0 {
			t.Fatalf("put aside, and yet used: %+v", s)
		}
		o, desired := onA()
		o.State = s
		model.Decide(o, desired, start)
		s.KeepAttempts(verA)
		s.KeepRefusal(verA)
		s.Begin("r", verA, start, false, nil, nil)
		s.Fail(model.Run{ID: "r", Target: verA, Result: model.Result{Kind: model.Untouched}}, start)
		s.Forget()
		want, err := json.Marshal(s)
		if err == nil { // not Save: its flush would make the fuzzer a hundred times slower
			err = os.WriteFile(filepath.Join(dir, stateFile), want, 0o600)
		}
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := d.Load()
		if err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
		if got, _ := json.Marshal(again); !slices.Equal(got, want) {
			t.Fatalf("written %s, read %s", want, got)
		}
	})
}
