package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/machines/drivers/folder"
	"pulley/internal/testbed/conformtest"
)

var testMark = machines.Mark{Owner: "0123456789abcdef", Fleet: "dev@t42"}

// provider returns a driver whose machines end with the test.
func provider(t *testing.T, root string) *Provider {
	t.Helper()
	p, err := NewProvider(ProviderConfig{Folder: root, Agent: "/bin/true", Mark: testMark})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clear(t, p) })
	return p
}

func clear(t *testing.T, p *Provider) {
	ctx := context.WithoutCancel(t.Context())
	all, err := p.List(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, m := range all {
		if err := p.Delete(ctx, machines.Ref{Name: m.Name}); err != nil {
			t.Error(err)
		}
	}
}

func order(name, script string) machines.Order {
	return machines.Order{Name: name, Node: name, Role: "compute", Userdata: []byte("#!/bin/sh\n" + script + "\n")}
}

func create(t *testing.T, p *Provider, o machines.Order) machines.Machine {
	t.Helper()
	m, err := p.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// state returns the one machine that there is.
func state(t *testing.T, p *Provider) machines.Machine {
	t.Helper()
	machines, err := p.List(t.Context())
	if err != nil || len(machines) != 1 {
		t.Fatalf("%+v, %v", machines, err)
	}
	return machines[0]
}

// folderOf returns the folder of a machine.
func folderOf(p *Provider, name string) string {
	return filepath.Join(p.Root, p.Mark.Owner, p.Mark.Fleet, name)
}

// insideOf returns the host's path of the root of the only machine of that name.
func insideOf(name string) (string, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		if line, _ := os.ReadFile(file); string(line) == argInit+"\x00"+name+"\x00" {
			return filepath.Join(filepath.Dir(file), "root"), nil
		}
	}
	return "", errors.Join(errors.New("no first process"), err)
}

// The driver must pass the checks of every driver.
func TestLocalConforms(t *testing.T) {
	root := t.TempDir()
	placeOf := func(mark machines.Mark) string { return filepath.Join(root, mark.Owner, mark.Fleet) }
	var ours machines.Mark
	conformtest.Test(t, conform.Config{
		New: func(mark machines.Mark) (machines.Provider, error) {
			if ours.Owner == "" {
				ours = mark
			}
			return NewProvider(ProviderConfig{Folder: root, Agent: "/bin/true", Mark: mark})
		},
		Userdata: func(_ context.Context, m machines.Machine) ([]byte, error) {
			root, err := insideOf(m.Name)
			if err != nil {
				return nil, err
			}
			return os.ReadFile(root + "/run/conform")
		},
		Script: `cat "$0" >/run/conform.new && mv /run/conform.new /run/conform`, // the machine removes it
		Labels: func(_ context.Context, m machines.Machine) (map[string]string, error) {
			var a folder.About
			err := folder.ReadJSON(filepath.Join(placeOf(ours), m.Name, folder.AboutFile), &a)
			return a.Labels, err
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			file := filepath.Join(placeOf(ours), name, "precious")
			return func(context.Context) error { _, err := os.Stat(file); return err },
				errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600))
		},
		Boot: 10 * time.Minute, Gone: 10 * time.Minute, Call: 10 * time.Minute, Poll: 10 * time.Millisecond,
	})
}

// makeOne is the main function of a program that makes a machine and is then killed.
func makeOne(root, word string) (int, error) {
	p, err := NewProvider(ProviderConfig{Folder: root, Agent: "/bin/true", Mark: testMark})
	if err != nil {
		return 1, err
	}
	if _, err := p.Create(context.Background(), order("compute1-t42", ": "+word+"; setsid sh -c 'while :; do sleep 1; done' "+word+" >/dev/null 2>&1 </dev/null &")); err != nil {
		return 1, err
	}
	fmt.Println("made")
	select {}
}

// A machine must outlive `pulley env apply`, and end with its deletion.
func TestMachineOutlivesProgramAndEndsWithDelete(t *testing.T) {
	root, word := t.TempDir(), marker(t)
	mounts := hostMounts(t)
	maker := exec.Command("/proc/self/exe")
	maker.Args = []string{argMaker, root, word}
	said, err := maker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	p := provider(t, root)
	line := make([]byte, 5)
	_, err = said.Read(line)
	maker.Process.Kill()
	_ = maker.Wait()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its program runs", func() bool { return len(processes(word)) > 0 })
	if m := state(t, p); m.State != machines.Running || m.Problem != "" || m.Name != "compute1-t42" || m.ID == "" {
		t.Errorf("%+v", m)
	}
	dir := folderOf(p, "compute1-t42")
	inside, err := insideOf("compute1-t42")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the userdata in the machine is removed", func() bool {
		_, err := os.Stat(inside + userdataInside)
		return errors.Is(err, os.ErrNotExist)
	})
	for path, mode := range map[string]os.FileMode{root + "/" + testMark.Owner: 0o700, dir: 0o700, dir + "/" + folder.LogFile: 0o600, dir + "/" + folder.AboutFile: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	pid, err := p.Process("compute1-t42")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--all", "--", "hostname").Output(); err != nil || string(out) != "compute1-t42\n" {
		t.Errorf("process %d is of %q: %v", pid, out, err)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1-t42"}); err != nil {
		t.Fatal(err)
	}
	if pid, err := p.Process("compute1-t42"); err == nil {
		t.Errorf("a deleted machine has process %d", pid)
	}
	if left := processes(word); len(left) > 0 {
		t.Errorf("left when Delete returned: %q", left)
	}
	if left, _ := os.ReadDir(root); len(left) != 1 || left[0].Name() != ".lock" {
		t.Errorf("left when Delete returned: %v", left)
	}
	noOverlayAdded(t, mounts)
}

// The program of a machine's agent must be one that an upgrade replaces, as on other machines: a mount point is busy.
func TestAgentCanBeReplaced(t *testing.T) {
	p := provider(t, t.TempDir())
	create(t, p, order("compute1-t42", `set -e; cp `+agentInMachine+` /usr/local/bin/.new; mv -T /usr/local/bin/.new `+agentInMachine+`; test ! -L `+agentInMachine))
	eventually(t, "the userdata is done", func() bool {
		log, err := os.ReadFile(filepath.Join(folderOf(p, "compute1-t42"), folder.LogFile))
		return err == nil && strings.Contains(string(log), "the userdata did not make the machine a node")
	})
}

// A machine without a supervisor must be listed as stopped, and can be deleted.
func TestKilledSupervisorStopsMachine(t *testing.T) {
	p, word := provider(t, t.TempDir()), marker(t)
	create(t, p, order("compute1", "setsid sh -c 'while :; do sleep 1; done' "+word+" >/dev/null 2>&1 </dev/null &"))
	eventually(t, "its program runs", func() bool { return len(processes(word)) > 0 })
	dir := folderOf(p, "compute1")
	if err := folder.Kill(dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool { return state(t, p).State == machines.Stopped })
	eventually(t, "its processes end", func() bool { return len(processes(word)) == 0 })
	again := create(t, p, order("compute1", "exit 0"))
	if again.State != machines.Stopped || !strings.Contains(again.Problem, "its supervisor was killed") {
		t.Errorf("a second Create returned %+v", again)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1", ID: again.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder still exists: %v", err)
	}
}

// An operator must see why a first boot failed.
func TestFailedFirstBootIsReported(t *testing.T) {
	p := provider(t, t.TempDir())
	create(t, p, order("compute1", "echo no such role >&2; exit 2"))
	eventually(t, "it failed", func() bool {
		m := state(t, p)
		return m.State == machines.Failed && strings.Contains(m.Problem, "no such role")
	})
	clear(t, p)
	create(t, p, order("compute1", "echo no network yet; exit 1"))
	eventually(t, "a retry", func() bool {
		m := state(t, p)
		return m.State == machines.Running && strings.Contains(m.Problem, "no network yet; it is retried")
	})
}

// A machine whose agent ended must not look healthy.
func TestEndedAgentIsReported(t *testing.T) {
	p := provider(t, t.TempDir()) // whose agent is /bin/true
	create(t, p, order("compute1", "mkdir -p /etc/pulley; touch /etc/pulley/agent.yaml"))
	eventually(t, "it failed", func() bool {
		m := state(t, p)
		return m.State == machines.Failed && strings.Contains(m.Problem, "its agent has ended")
	})
}

// Folders that a killed program left contain tokens and use up names.
func TestLeftoversAreRemoved(t *testing.T) {
	p := provider(t, t.TempDir())
	for _, name := range []string{".new.compute1.1", ".gone.compute1.2"} {
		if err := os.MkdirAll(folderOf(p, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if machines, err := p.List(t.Context()); err != nil || len(machines) > 0 {
		t.Errorf("listed: %+v, %v", machines, err)
	}
	create(t, p, order("compute1", "exit 0"))
	if left, _ := filepath.Glob(folderOf(p, ".*.compute1.*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// The deletion of the last machine removes leftovers, too.
	if err := os.MkdirAll(folderOf(p, ".gone.compute2.3"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: "compute1"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folderOf(p, "")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A machine must not differ from its order.
func TestImpossibleOrdersAreRefused(t *testing.T) {
	p := provider(t, filepath.Join(t.TempDir(), "machines"))
	for want, o := range map[string]machines.Order{
		`flavor "small": it is not a size`: {Name: "compute1", Flavor: "small"},
		`image "debian": a local machine`:  {Name: "compute1", Image: "debian"},
		`network "front": local machines`:  {Name: "compute1", Networks: []string{"front"}},
		`network "": local machines share`: {Name: "compute1", Networks: []string{""}},
		`"../compute1" is not a hostname`:  {Name: "../compute1"},
	} {
		if _, err := p.Create(t.Context(), o); !errors.Is(err, machines.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v is refused with: %v", o, err)
		}
	}
}
