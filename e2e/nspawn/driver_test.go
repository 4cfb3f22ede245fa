//go:build e2e

package nspawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/drivers/conform"
	driver "pulley/internal/drivers/nspawn"
	"pulley/internal/machines"
	"pulley/internal/testbed/conformtest"
)

// lastSubnet counts the subnets of drivers: 10.77.16.0/20 and up, so that no two tests share addresses.
var lastSubnet atomic.Int32

// newConfig is that of a driver with a folder and a subnet of its own. What it left running is ended with the test.
func newConfig(t *testing.T) driver.Config {
	t.Helper()
	c := driver.Config{Folder: filepath.Join(t.TempDir(), "machines"), Bridge: bridgeName, Mark: machines.Mark{Owner: "test", Fleet: "dev"},
		Subnet: fmt.Sprintf("10.77.%d.0/20", 16*lastSubnet.Add(1))}
	t.Cleanup(func() { endAll(t, c) })
	return c
}

// endAll deletes all machines of a folder. A folder that can't be removed afterwards fails the test by itself.
func endAll(t *testing.T, c driver.Config) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(c.Folder, "*", "*", "*", "machine.json"))
	for _, path := range paths {
		var m struct {
			Name string
			Mark machines.Mark
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &m)
		}
		if err != nil {
			t.Errorf("a machine is left behind: %v", err)
			continue
		}
		c.Mark = m.Mark
		if err := newDriver(t, c).Delete(context.Background(), machines.Ref{Name: m.Name}); err != nil {
			t.Error(err)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), c.Folder) {
		t.Errorf("a mount is left behind in the host's namespace:\n%s", mounts)
	}
}

func newDriver(t *testing.T, c driver.Config) *driver.Provider {
	t.Helper()
	p, err := driver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// order is of a machine whose userdata writes a file, once.
func order(name string) machines.Order {
	return machines.Order{Name: name, Node: strings.ReplaceAll(name, "-", "_"), Role: "compute", Image: "debian",
		Userdata: []byte("#!/bin/sh\necho \"$(hostname) ran\" >>/root/seed\n")}
}

// create makes a machine.
func create(t *testing.T, p *driver.Provider, o machines.Order) machines.Machine {
	t.Helper()
	m, err := p.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// the is the one machine of a name.
func the(t *testing.T, p *driver.Provider, name string) machines.Machine {
	t.Helper()
	all, err := p.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	of := slices.DeleteFunc(all, func(m machines.Machine) bool { return m.Name != name })
	if len(of) != 1 {
		return machines.Machine{Name: name, Problem: fmt.Sprintf("there are %d", len(of))}
	}
	return of[0]
}

// until polls for what is missing.
func until(t *testing.T, what string, within time.Duration, missing func() string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(pollInterval) {
		why := missing()
		if why == "" {
			return
		}
		if time.Since(start) > within {
			t.Fatalf("%s is not reached in %s: %s", what, within, why)
		}
	}
}

// in says where a machine is to be.
func in(t *testing.T, p *driver.Provider, name string, want machines.State) func() string {
	return func() string {
		if m := the(t, p, name); m.State != want {
			return fmt.Sprintf("%+v", m)
		}
		return ""
	}
}

// has says whether a file of a machine's disk, which its keeper has mounted and nobody else, has the text.
func has(c driver.Config, name, file, text string) func() string {
	return func() string {
		got, err := os.ReadFile(filepath.Join(c.Folder, c.Mark.Owner, c.Mark.Fleet, name, "upper", file))
		if err != nil {
			return err.Error()
		}
		if string(got) != text {
			return fmt.Sprintf("it has %q", got)
		}
		return ""
	}
}

// group is the control group of a machine's processes.
func machineGroup(t *testing.T, c driver.Config, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Folder, c.Mark.Owner, c.Mark.Fleet, name, "machine.json"))
	var m struct{ Group string }
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(groupRoot, m.Group)
}

// firstIn is the first process of one of a machine's groups.
func firstIn(t *testing.T, group string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatalf("nothing runs in %s: %v", group, err)
	}
	return pid
}

// inside runs a program in a machine.
func inside(t *testing.T, c driver.Config, name string, args ...string) {
	t.Helper()
	pid := firstIn(t, filepath.Join(machineGroup(t, c, name), "machine", "payload", "init.scope"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(pid), "--all", "--"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s in %s: %v: %s", args, name, err, out)
	}
}

// Fleets stand on this: were a machine not what was ordered, or gone when it reboots, or there when it is off, no plan of
// them would be right.
func TestAMachineOfTheDriverLivesAndEnds(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	began := time.Now()
	m := create(t, p, order("compute1-t42"))
	t.Logf("made in %s: %+v", time.Since(began).Round(time.Millisecond), m)
	until(t, "running", 30*time.Second, in(t, p, m.Name, machines.Running))
	until(t, "the userdata", 2*time.Minute, has(c, m.Name, "root/seed", "compute1-t42 ran\n"))
	if err := ping(m.Addresses[0]); err != nil {
		t.Errorf("it does not answer: %v", err)
	}
	id, _ := os.ReadFile(filepath.Join(c.Folder, "test/dev", m.Name, "upper/etc/machine-id"))
	if len(strings.TrimSpace(string(id))) != 32 {
		t.Errorf("its machine id is %q", id)
	}
	secret := filepath.Join(c.Folder, "test/dev", m.Name, "upper/var/lib/cloud/seed/nocloud/user-data")
	for path, want := range map[string]os.FileMode{secret: 0o600, c.Folder: 0o700, filepath.Join(c.Folder, "test/dev", m.Name): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("others may read %s: %v, %v", path, info.Mode(), err)
		}
	}

	inside(t, c, m.Name, "systemctl", "--no-block", "reboot")
	until(t, "a second boot", time.Minute, func() string {
		text, _ := os.ReadFile(filepath.Join(c.Folder, "test/dev", m.Name, "state.json"))
		if !strings.Contains(string(text), `"boots":2`) || !strings.Contains(string(text), `"running"`) {
			return string(text)
		}
		return ""
	})
	until(t, "its address", time.Minute, func() string {
		if err := ping(m.Addresses[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	if now := the(t, p, m.Name); now.ID != m.ID || now.State != machines.Running {
		t.Errorf("a machine that reboots is another one: %+v", now)
	}
	if why := has(c, m.Name, "root/seed", "compute1-t42 ran\n")(); why != "" {
		t.Errorf("after a reboot: %s", why)
	}

	until(t, "systemd", time.Minute, func() string {
		if _, err := os.Stat(filepath.Join(machineGroup(t, c, m.Name), "machine/payload/system.slice/dbus.service")); err != nil {
			return err.Error()
		}
		return ""
	})
	inside(t, c, m.Name, "systemctl", "--no-block", "poweroff")
	until(t, "off", time.Minute, in(t, p, m.Name, machines.Stopped))
	if err := p.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c)
}

// nothingLeft says that neither folders, processes, groups nor ports of the bridge are there any more.
func nothingLeft(t *testing.T, c driver.Config) {
	t.Helper()
	left, _ := filepath.Glob(filepath.Join(c.Folder, "*", "*", "*"))
	if left != nil {
		t.Errorf("folders are left behind: %v", left)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), c.Folder) {
		t.Errorf("mounts are left behind:\n%s", mounts)
	}
}

// A keeper that the kernel killed, for want of memory say, must not leave a machine that runs and that nobody knows.
func TestAMachineEndsWithItsKeeper(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	m := create(t, p, order("compute1"))
	until(t, "running", 30*time.Second, in(t, p, m.Name, machines.Running))
	until(t, "its address", time.Minute, func() string {
		if err := ping(m.Addresses[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	group := machineGroup(t, c, m.Name)
	if err := unix.Kill(firstIn(t, filepath.Join(group, "keeper")), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "off", 30*time.Second, in(t, p, m.Name, machines.Stopped))
	until(t, "the end of all its processes", 30*time.Second, func() string {
		events, _ := os.ReadFile(filepath.Join(group, "cgroup.events"))
		if strings.Contains(string(events), "populated 1") {
			return string(events)
		}
		return ""
	})
	if again := create(t, p, order("compute1")); again.ID != m.ID || again.State != machines.Stopped {
		t.Errorf("a machine that is off was made again: %+v", again)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: m.Name}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c)
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its control group stays: %v", err)
	}
	if i, err := net.InterfaceByName("vb-p" + m.ID); err == nil {
		t.Errorf("its port of the bridge stays: %+v", i)
	}
}

// A host that is switched off gives its machines the time to write down what they know.
func TestAMachineIsPoweredOffWithItsHost(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	m := create(t, p, order("compute1"))
	until(t, "the userdata", 2*time.Minute, has(c, m.Name, "root/seed", "compute1 ran\n"))
	if err := unix.Kill(firstIn(t, filepath.Join(machineGroup(t, c, m.Name), "keeper")), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(t, "off", 2*time.Minute, in(t, p, m.Name, machines.Stopped))
	if now := the(t, p, m.Name); now.Problem != "it was powered off" {
		t.Errorf("it ended otherwise: %+v", now)
	}
}

// A machine whose image can't boot has to say why: its console is on a host that an operator may not reach.
func TestAMachineThatCanNotBootFailsWithAReason(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	o := order("compute1")
	o.Image = t.TempDir()
	if err := os.MkdirAll(filepath.Join(o.Image, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	create(t, p, o)
	until(t, "failed", time.Minute, in(t, p, o.Name, machines.Failed))
	if m := the(t, p, o.Name); !strings.Contains(m.Problem, "os-release") && !strings.Contains(m.Problem, "init") {
		t.Errorf("what is wrong with it is not said: %+v", m)
	}
}

// What plans and applies rely on, the driver has to keep with real machines.
func TestNspawnConforms(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	foreign := 0
	conformtest.Test(t, conform.Config{
		New: func(mark machines.Mark) (machines.Provider, error) {
			c := c
			c.Mark = mark
			return driver.New(c)
		},
		Userdata: func(_ context.Context, m machines.Machine) ([]byte, error) {
			paths, err := filepath.Glob(filepath.Join(c.Folder, "*", "*", m.Name, "upper/var/lib/cloud/instances", m.ID, "user-data.txt"))
			if err != nil || len(paths) != 1 {
				return nil, errors.Join(fmt.Errorf("cloud-init has not taken it, it is in %q", paths), err)
			}
			return os.ReadFile(paths[0])
		},
		Labels: func(_ context.Context, m machines.Machine) (map[string]string, error) {
			paths, err := filepath.Glob(filepath.Join(c.Folder, "*", "*", m.Name, "machine.json"))
			if err != nil || len(paths) != 1 {
				return nil, errors.Join(fmt.Errorf("it is in %q", paths), err)
			}
			var about struct{ Labels map[string]string }
			text, err := os.ReadFile(paths[0])
			if err == nil {
				err = json.Unmarshal(text, &about)
			}
			return about.Labels, err
		},
		Foreign: func(_ context.Context, name string) (func(context.Context) error, error) {
			foreign++
			dir := filepath.Join(c.Folder, "somebody", fmt.Sprint(foreign), name)
			return func(context.Context) error { _, err := os.Stat(dir); return err }, os.MkdirAll(dir, 0o700)
		},
		Call: time.Minute, Boot: 2 * time.Minute, Gone: time.Minute, Poll: pollInterval,
	})
}
