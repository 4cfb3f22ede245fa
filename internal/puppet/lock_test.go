package puppet_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pulley/internal/model"
	"pulley/internal/puppet"
	"pulley/internal/testbed/puppettest"
)

// A machine on which an operator disabled Puppet must not be changed.
func TestDisabledMachineRunsNothing(t *testing.T) {
	for content, message := range map[string]string{`{"disabled_message":"disk is dying"}`: "disk is dying", `{}`: "", "": "", "not JSON": ""} {
		dir, p, job := machine(t, "")
		write(t, filepath.Join(dir, "var", "state", "agent_disabled.lock"), content)
		_, err := p.Apply(t.Context(), job)
		var disabled *puppet.DisabledError
		if !errors.As(err, &disabled) || disabled.Message != message {
			t.Errorf("lock %q: %v, want disabled with message %q", content, err, message)
		}
		if starts := puppettest.Starts(t, dir); len(starts) != 0 {
			t.Errorf("lock %q: Puppet was started: %q", content, starts)
		}
	}
}

// A lock that Pulley set against puppet agent must not stop Pulley. Any other lock must, in every folder.
func TestOwnLockDoesNotForbidRuns(t *testing.T) {
	const own = "taken over by Pulley on 2026-03-04T05:06:07Z: see pulley-agent takeover"
	for content, stops := range map[string]bool{
		`{"disabled_message":"` + own + `"}`:          false,
		`{"disabled_message":"` + own + ` and more"}`: true,
		`{"disabled_message":"disk is dying"}`:        true,
		`{}`:                                          true,
		"":                                            true,
	} {
		dir, p, _ := machine(t, "")
		p.Own = own
		write(t, filepath.Join(dir, "var", "state", "agent_disabled.lock"), content)
		if err := p.Locks(); (err != nil) != stops {
			t.Errorf("lock %q: %v", content, err)
		}
		second := t.TempDir()
		p.StateDirs = append(p.StateDirs, second)
		write(t, filepath.Join(second, "agent_disabled.lock"), `{"disabled_message":"disk is dying"}`)
		if p.Locks() == nil {
			t.Errorf("lock %q hides one in another folder", content)
		}
		p.Own, p.StateDirs = "", p.StateDirs[:len(p.StateDirs)-1]
		if p.Locks() == nil {
			t.Errorf("lock %q: it counts where nothing was taken over", content)
		}
	}
}

// sleeper starts an idle process with the given name.
func sleeper(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(sleep, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return cmd
}

// Two catalogs at the same time can leave packages and files in an undefined state.
func TestCatalogLock(t *testing.T) {
	other, stray := sleeper(t, "puppet"), sleeper(t, "not-it")
	for content, busy := range map[string]bool{
		strconv.Itoa(other.Process.Pid): true, strconv.Itoa(other.Process.Pid) + "\n": true,
		strconv.Itoa(stray.Process.Pid): false, "4194305": false, "": false, "-1": false, "x": false,
	} {
		dir, p, job := machine(t, "")
		write(t, filepath.Join(dir, "tree", "manifests", "site.pp"), "# fake: file "+dir+"/motd hello\n")
		lock := filepath.Join(dir, "var", "state", "agent_catalog_run.lock")
		write(t, lock, content)
		result, err := p.Apply(t.Context(), job)
		if busy {
			var e *puppet.BusyError
			if !errors.As(err, &e) || e.Pid != other.Process.Pid || len(puppettest.Starts(t, dir)) != 0 {
				t.Errorf("lock %q: %v, starts %q; want busy and no start", content, err, puppettest.Starts(t, dir))
			}
			if text, _ := os.ReadFile(lock); string(text) != content {
				t.Errorf("the other Puppet's lock is now %q", text)
			}
			continue
		}
		if err != nil || result.Kind != model.Success {
			t.Errorf("stale lock %q: %+v, %v", content, result, err)
		}
		if _, err := os.Stat(lock); !os.IsNotExist(err) {
			t.Errorf("stale lock %q: a lock is left after the run (%v)", content, err)
		}
	}
}

// Without Pulley's lock, the machine's own Puppet could start during a run.
func TestLockIsHeldWhilePuppetRuns(t *testing.T) {
	dir, p, job := machine(t, "# fake: sleep 300\n")
	p.Deadline = 400 * time.Millisecond
	lock := filepath.Join(dir, "var", "state", "agent_catalog_run.lock")
	done := make(chan error)
	go func() { _, err := p.Apply(t.Context(), job); done <- err }()
	var text []byte
	eventually(t, "the lock names a Puppet", func() bool { text, _ = os.ReadFile(lock); return len(text) > 0 })
	comm, _ := os.ReadFile("/proc/" + string(text) + "/comm")
	if strings.TrimSpace(string(comm)) != "puppet" {
		t.Errorf("the lock %q names %q, which Puppet takes for stale", text, comm)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "var", "state", "*"))
	if len(left) != 0 {
		t.Errorf("left after the run: %q", left)
	}
}

// A killed agent must not interrupt a running catalog. The next agent must not start a second Puppet.
func TestPuppetOutlivesItsAgent(t *testing.T) {
	dir, p, job := machine(t, "# fake: file "+filepath.Join(t.TempDir(), "motd")+" x\n# fake: sleep 301\n")
	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), "PULLEY_TEST_AGENT="+dir)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "agent", "runs", "1", "puppet.log")
	eventually(t, "Puppet applies", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "defined content")
	})
	_ = first.Process.Kill()
	_ = first.Wait()

	job.ID = "2"
	_, err := p.Apply(t.Context(), job)
	var busy *puppet.BusyError
	if !errors.As(err, &busy) || len(puppettest.Starts(t, dir)) != 1 {
		t.Fatalf("the next run: %v, %d starts; want busy, 1", err, len(puppettest.Starts(t, dir)))
	}
	if syscall.Kill(busy.Pid, 0) != nil {
		t.Fatal("the running Puppet did not survive its agent")
	}
	// After the deadline, only the next agent can end it.
	record := filepath.Join(dir, "agent", "puppet", "running.json")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), `"deadline":`)
	write(t, record, before+`"deadline":1}`)
	write(t, filepath.Join(dir, "tree", "manifests", "site.pp"), "# fake: file "+dir+"/motd x\n")
	result, err := p.Apply(t.Context(), job)
	if err != nil || result.Kind != model.Success {
		t.Fatalf("the run after: %+v, %v; want success", result, err)
	}
	eventually(t, "the old Puppet is gone", func() bool { return !running(busy.Pid) })
}

// running reports whether the process runs. A zombie does not count.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// The record of a process that has exited, or of another boot, must not block a machine.
func TestReapDeletesRecordOfEndedPuppet(t *testing.T) {
	other := sleeper(t, "puppet")
	for _, record := range []string{"", "{", `{"pid":4194305,"start":1,"deadline":1}`, `{"pid":-1}`, `{"pid":1}`,
		`{"pid":` + strconv.Itoa(other.Process.Pid) + `,"start":1,"boot":"x","deadline":1}`} {
		dir, p, _ := machine(t, "")
		path := filepath.Join(dir, "agent", "puppet", "running.json")
		write(t, path, record)
		if err := p.Reap(t.Context()); err != nil {
			t.Errorf("record %q: %v", record, err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("record %q is still there", record)
		}
	}
	if !running(other.Process.Pid) {
		t.Error("a process that is not the recorded one was ended")
	}
}
