//go:build failpoint

package agent

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/model"
)

// A machine loses power, or its agent is killed, before and after every step. The next run must end like a run without
// the crash: in the node's state, in `current`, on the machine, and in etcd. Only an interrupted run may count as
// interrupted.
func TestTickResumesAfterAnyCrash(t *testing.T) {
	scenarios := []struct {
		say    string
		target model.Target
		runs   model.Target // the targets that Puppet runs on
		asked  model.RequestKind
		turn   model.AssignmentKind
	}{
		{"a good new target", verB, verB, "", ""},
		{"a target that does not compile", syntax, syntax, "", ""},
		{"a target that fails in the middle", halfway, halfway, "", ""},
		{"a target that does not verify", unverified, unverified, "", ""},
		{"the target that is in place, due again", verA, verA, "", ""},
		{"a target that is refused, and the one that is in place due again", refusedB, verA, "", ""},
		{"a run that was asked for", verA, verA, model.RequestRun, ""},
		{"a run that was asked for, of a target that fails in the middle", halfway, halfway, model.RequestRun, ""},
		{"a node that is to retire", verA, model.Target{}, model.RequestRetire, ""},
		{"a node that is to retire before it has a release", model.Target{}, model.Target{}, model.RequestRetire, ""},
		{"the turn of a job", verA, verA, "", model.AssignRun},
		{"the turn of a job, on a target that fails in the middle", halfway, halfway, "", model.AssignRun},
		{"the turn of a noop job", verA, verA, "", model.AssignNoop},
	}
	for _, sc := range scenarios {
		t.Run(sc.say, func(t *testing.T) {
			prepared := t.TempDir()
			prepare(t, prepared, sc.target, sc.runs == verA && sc.asked == "" && sc.turn == "", sc.asked)
			if sc.turn != "" {
				(&fakeEtcd{file: filepath.Join(prepared, "etcd.json")}).operator(t, func(d *model.Desired) { turnOf(d, sc.turn, "j4.1") })
			}
			calm := copyWorld(t, prepared)
			w := reopen(t, calm, crashAt)
			r := w.tick(t)
			if r.Err != nil || (r.Run == nil) != sc.runs.IsZero() || r.Run != nil && r.Run.Target != sc.runs {
				t.Fatalf("without a crash: %+v", r)
			}
			want := endOf(t, w)
			if a := w.etcd.status(t).Answer; (a == nil) != (sc.asked == "") {
				t.Fatalf("it answers %+v", a)
			}
			if ran := w.etcd.status(t).Ran; (ran == nil) != (sc.turn == "") {
				t.Fatalf("it answers its turn with %+v", ran)
			}
			for _, place := range places(r.Decision.Action) {
				if sc.turn == model.AssignNoop && slices.ContainsFunc([]string{"verify", "commit", "tell"}, func(step string) bool { return strings.HasSuffix(place, ":"+step) }) {
					continue // a noop run has none of these steps
				}
				t.Run(place, func(t *testing.T) {
					dir := copyWorld(t, prepared)
					die(t, dir, place)
					w := reopen(t, dir, crashAt.Add(time.Second))
					if r := w.tick(t); r.Err != nil {
						t.Fatal(r.Err)
					}
					got := endOf(t, w)
					if got != want {
						t.Errorf("after the crash and one run:\n%s\nwithout a crash:\n%s", got, want)
					}
					w.now = w.now.Add(time.Second)
					if r := w.tick(t); r.Err != nil || r.Run != nil || endOf(t, w) != want {
						t.Errorf("the run after that is not quiet: %+v\n%s", r, endOf(t, w))
					}
					if n := len(w.machine.retired); n > 1 { // once more than before the crash
						t.Errorf("after the crash, the hooks of a retirement ran %d times", n)
					}
				})
			}
		})
	}
}

// The nodes that a node sees change, and its agent is killed at any point. Puppet never sees a part of the list, and the
// next tick ends like one without the crash.
func TestHostsSurviveAnyCrash(t *testing.T) {
	prepared := t.TempDir()
	w := reopen(t, prepared, start)
	w.hosts.see(t)
	w.hosts.set(t, "controller1")
	w.promote(t, verA)
	w.good(t)
	w.hosts.set(t, "controller1 controller2")
	calm := reopen(t, copyWorld(t, prepared), crashAt)
	calm.good(t)
	want := endOf(t, calm)
	told := calm.machine.told()
	for _, place := range append(places(model.Enforce), "hosts:fetched", "hosts:shown", "hosts:told") {
		t.Run(place, func(t *testing.T) {
			dir := copyWorld(t, prepared)
			die(t, dir, place)
			w := reopen(t, dir, crashAt.Add(time.Second))
			for _, n := range []string{"first", "second"} {
				r := w.tick(t)
				if r.Err != nil || endOf(t, w) != want {
					t.Errorf("the %s tick after the crash: %v\n%s\nwithout a crash:\n%s", n, r.Err, endOf(t, w), want)
				}
				if r.Run != nil && w.sees(t) != "controller1 controller2" {
					t.Errorf("Puppet saw %q", w.sees(t))
				}
			}
			// A hook that ended at the moment of the crash is not acknowledged: it receives the same difference again.
			again := strings.Replace(told, "10-first: controller1 →", "10-first: controller1 → controller1 controller2\n10-first: controller1 →", 1)
			if got := w.machine.told(); got != told && (place != "hosts:told" || got != again) {
				t.Errorf("the hooks received\n%s\nwithout a crash\n%s", got, told)
			}
		})
	}
}

// places returns the crash points of every step of a tick with this action.
func places(a model.Action) (all []string) {
	for _, s := range Steps(a) {
		all = append(all, "before:"+s, "after:"+s)
	}
	return all
}

// prepare creates a node on A in a fleet whose target is target, or a node without a release. due means that
// enforcement of A is due. asked is the pending request.
func prepare(t *testing.T, dir string, target model.Target, due bool, asked model.RequestKind) {
	t.Helper()
	w := reopen(t, dir, start)
	if asked != "" {
		defer func() { w.request(t, askedFor(asked)) }()
	}
	if target.IsZero() {
		return
	}
	w.promote(t, verA)
	w.good(t)
	w.promote(t, target)
	if due {
		s := w.state(t)
		s.RanAt = start.Add(-time.Hour)
		if err := w.disk.Save(s); err != nil {
			t.Fatal(err)
		}
	}
}

func reopen(t *testing.T, dir string, now time.Time) *world {
	t.Helper()
	w, err := openWorld(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := w.disk.Lock()
	if err != nil {
		t.Fatalf("the lock of the dead agent is still held: %v", err)
	}
	t.Cleanup(func() { lock.Close(); w.disk.Close() })
	return w
}

func copyWorld(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	// The link names a folder of the world from which it was copied.
	link := filepath.Join(to, "current")
	at, err := os.Readlink(link)
	if err == nil {
		err = errors.Join(os.Remove(link), os.Symlink(strings.Replace(at, from, to, 1), link))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return to
}

// die runs one tick in another process, up to its crash point.
func die(t *testing.T, dir, place string) {
	t.Helper()
	cmd := again(t, "agent", dir, "PULLEY_FAILPOINT="+place)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the agent did not die: %v %s", err, out)
	}
	ws := exit.Sys().(syscall.WaitStatus)
	if !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the agent did not die at %s: %v %s", place, err, out)
	}
}

// endOf returns the result of a tick that must not depend on crashes. It excludes times, names of runs, and the number
// of interruptions.
func endOf(t *testing.T, w *world) string {
	t.Helper()
	s, status := w.state(t), w.etcd.status(t)
	if s.Attempt(s.LastGood) != nil {
		t.Errorf("attempts at the last good target are on record: %+v", s.Attempts)
	}
	if s.LastRun != status.LastRun || !s.RanAt.Equal(status.RanAt) {
		t.Errorf("etcd has run %s as the last one, and the node has %s", status.LastRun, s.LastRun)
	}
	s.RanAt, s.Sequence, s.LastRun = time.Time{}, 0, ""
	if s.Refusal != nil && status.Refusal != nil {
		s.Refusal.At, status.Refusal.At = time.Time{}, time.Time{}
	}
	for i := range s.Attempts {
		s.Attempts[i] = ended(t, s.Attempts[i])
	}
	status.RanAt, status.SeenAt, status.LastRun, status.Params = time.Time{}, time.Time{}, "", model.Params{}
	if status.Attempt != nil {
		a := ended(t, *status.Attempt)
		status.Attempt = &a
	}
	// A repeated run finds the changes of the first one, and changes nothing.
	if s.Outcome == model.Unchanged {
		s.Outcome, status.Outcome = model.Changed, model.Changed
	}
	current, err := w.content.Current()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(map[string]any{"state": s, "status": status, "current": current, "machine": w.puppet.applied()}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ended checks that an attempt has ended, and clears its time and its number of interruptions.
func ended(t *testing.T, a model.Attempt) model.Attempt {
	t.Helper()
	if a.Finished != 1 || a.Open || a.Started > 2 {
		t.Errorf("attempts are miscounted: %+v", a)
	}
	a.Last, a.Started = time.Time{}, 1
	return a
}

// The agent dies at any point of a preview. The next ticks answer the order, run it at most once more, and leave the node as it was.
func TestPreviewSurvivesAnyCrash(t *testing.T) {
	prepared := t.TempDir()
	w := reopen(t, prepared, start)
	w.promote(t, verA)
	w.good(t)
	calm := endOf(t, w)
	w.order(t, "1", verB)
	for _, place := range append(places(model.Nothing), "preview:shown", "preview:answered") {
		t.Run(place, func(t *testing.T) {
			dir := copyWorld(t, prepared)
			die(t, dir, place)
			w := reopen(t, dir, crashAt.Add(time.Second))
			w.tick(t)
			if len(w.puppet.jobs) > 1 || w.answer(t).Order != "1" || w.answer(t).Problem != (model.Problem{}) {
				t.Errorf("%d runs after the crash, and the answer %+v", len(w.puppet.jobs), w.answer(t))
			}
			w.etcd.operator(t, func(d *model.Desired) { d.Preview = nil })
			w.idle(t)
			if now := endOf(t, w); now != calm || w.etcd.load().Preview != nil {
				t.Errorf("after the preview:\n%s\nbefore it:\n%s", now, calm)
			}
		})
	}
}

// An agent that is killed twice in one preview must not begin it again at each tick.
func TestPreviewGivesUpAfterTwoCrashes(t *testing.T) {
	dir := t.TempDir()
	w := reopen(t, dir, start)
	w.promote(t, verA)
	w.good(t)
	w.order(t, "1", verB)
	for range maxPreviewTries {
		at := copyWorld(t, dir)
		die(t, at, "preview:shown")
		dir = at
	}
	w = reopen(t, copyWorld(t, dir), crashAt.Add(time.Second))
	w.tick(t)
	if a := w.answer(t); len(w.puppet.jobs) != 0 || a.Order != "1" || a.Problem.Code != model.PreviewInterrupted {
		t.Errorf("%d runs after two crashes, and the answer %+v", len(w.puppet.jobs), a)
	}
}
