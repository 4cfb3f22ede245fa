package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/child"
	"pulley/internal/model"
)

// A check that is interrupted by the agent's stop is not a failure of the release.
func TestStoppedCheckIsNoFailure(t *testing.T) {
	s := scripts{log: slog.New(slog.DiscardHandler), timeout: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.one(ctx, "/bin/true", model.Job{}); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
}

// A node is drained by its hooks: in order, with their variables, until the first failure.
func TestHooksRunInOrderUntilOneFails(t *testing.T) {
	tree, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	for name, text := range map[string]string{
		"20-second": "echo 2 $PULLEY_NODE $PULLEY_WHY >>" + said,
		"10-first":  "echo 1 $PULLEY_ENVIRONMENT $PULLEY_RELEASE >>" + said,
		"30-third":  "echo 3 >>" + said + "; echo no >&2; exit 7",
		"40-fourth": "echo 4 >>" + said,
	} {
		script(t, filepath.Join(tree, "retire.d", name), text, 0o755)
	}
	script(t, filepath.Join(tree, "retire.d", "15-notes"), "echo 15 >>"+said, 0o644)
	m := &Machine{log: slog.New(slog.DiscardHandler), timeout: time.Minute}
	job := model.Job{Identity: model.Identity{Node: "web1", Environment: "dev"}, Target: model.Target{Release: "1.0.0"}, Tree: tree}
	err := m.Retire(t.Context(), job, "fewer are\x00 needed")
	if err == nil || err.Error() != "retire.d/30-third: exit status 7: no" {
		t.Errorf("it ends with %v", err)
	}
	got, err := os.ReadFile(said)
	if want := "1 dev 1.0.0\n2 web1 fewer are needed\n3\n"; err != nil || string(got) != want {
		t.Errorf("they ran as\n%swant\n%s%v", got, want, err)
	}
	if err := m.Retire(t.Context(), model.Job{Tree: t.TempDir()}, ""); err != nil {
		t.Errorf("without hooks: %v", err)
	}
}

// Hooks for changed nodes receive the difference. One that hangs, floods, is killed or reads nothing disturbs neither the tick nor the
// others, and none runs again that acknowledged.
func TestHooksForChangedNodes(t *testing.T) {
	tree, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	hook := func(name, text string) { script(t, filepath.Join(tree, "hosts.d", name), text, 0o755) }
	m := &Machine{log: slog.New(slog.DiscardHandler), timeout: 5 * time.Second}
	difference, acknowledged := []byte(strings.Repeat("x", 1<<20)), ""
	tell := func() string {
		err := m.Tell(t.Context(), model.Job{Tree: tree}, difference, acknowledged, func(name string) error {
			acknowledged = name
			return nil
		})
		if err == nil {
			return ""
		}
		return err.Error()
	}
	hook("10-reads-nothing", "exec true")
	hook("20-counts", "wc -c >>"+said)
	hook("30-bad", "head -c 50000000 /dev/zero | tr '\\0' y; exit 3")
	if problem := tell(); acknowledged != "20-counts" || !strings.HasPrefix(problem, "hosts.d/30-bad: exit status 3: ") || len(problem) > 1000 {
		t.Errorf("a flood: %q, %.1000s", acknowledged, problem)
	}
	hook("30-bad", "kill -9 $$")
	if problem := tell(); problem != "hosts.d/30-bad: signal: killed" {
		t.Errorf("killed: %s", problem)
	}
	hook("30-bad", "sleep 1000 & wait")
	m.timeout = 100 * time.Millisecond
	if problem := tell(); problem != "hosts.d/30-bad: it took longer than 100ms" {
		t.Errorf("it hangs: %s", problem)
	}
	m.timeout = 5 * time.Second
	hook("30-bad", "cat >/dev/null")
	if problem := tell(); problem != "" || acknowledged != "30-bad" {
		t.Errorf("%q: %s", acknowledged, problem)
	}
	if b, err := os.ReadFile(said); err != nil || strings.TrimSpace(string(b)) != "1048576" {
		t.Errorf("the second hook received %q: %v", b, err)
	}
}

// A hook that hangs must neither prevent a retirement nor leave child processes.
func TestHangingHookIsEnded(t *testing.T) {
	tree := t.TempDir()
	script(t, filepath.Join(tree, "retire.d", "10-hangs"), "echo busy; sleep 1000 & wait", 0o755)
	m := &Machine{log: slog.New(slog.DiscardHandler), timeout: 200 * time.Millisecond}
	err := m.Retire(t.Context(), model.Job{Tree: tree}, "")
	if err == nil || err.Error() != "retire.d/10-hangs: it took longer than 200ms: busy" {
		t.Errorf("it ends with %v", err)
	}
}

// A check that restarts a service must not fail because the service keeps its output, and the service stays. What it left in
// the background does not.
func TestHookMayRestartAService(t *testing.T) {
	tree, dir := t.TempDir(), t.TempDir()
	t.Setenv("ETCDCTL_PASSWORD", "secret")
	script(t, filepath.Join(tree, "retire.d", "10-restart"), "cd "+dir+`
env | grep secret && exit 1
setsid sh -c 'echo $$ >service; exec sleep 1000' &
sh -c 'echo $$ >rest; exec sleep 1000' &
while ! [ -s service ] || ! [ -s rest ]; do sleep 0.01; done`, 0o755)
	s := scripts{folder: "retire.d", shown: 100, timeout: time.Minute, log: slog.New(slog.DiscardHandler)}
	if err := s.run(t.Context(), model.Job{Tree: tree}); err != nil {
		t.Error(err)
	}
	alive := func(name string) (child.Process, bool) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		p, _ := child.Read(pid)
		return p, p.Alive() && p.Comm == "sleep"
	}
	service, runs := alive("service")
	if !runs {
		t.Error("the service was ended")
	} else {
		child.Tree{service}.Signal(syscall.SIGKILL)
	}
	if rest, runs := alive("rest"); runs {
		t.Errorf("%+v was left", rest)
	}
}

func script(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), mode); err != nil {
		t.Fatal(err)
	}
}
