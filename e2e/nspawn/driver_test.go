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

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	driver "pulley/internal/machines/drivers/nspawn"
	"pulley/internal/testbed/conformtest"
)

// lastSubnet counts the subnets of drivers, from 10.77.16.0/20: no two tests share addresses.
var lastSubnet atomic.Int32

// newConfig returns the config of a driver with its own folder and subnet. The end of the test deletes its machines.
func newConfig(t *testing.T) driver.Config {
	t.Helper()
	c := driver.Config{Folder: filepath.Join(t.TempDir(), "machines"), Bridge: bridgeName, Mark: machines.Mark{Owner: "test", Fleet: "dev"},
		Subnet: fmt.Sprintf("10.77.%d.0/20", 16*lastSubnet.Add(1))}
	t.Cleanup(func() { endAll(t, c) })
	return c
}

// endAll deletes all machines of a folder.
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
			t.Errorf("cannot delete a machine of %s: %v", path, err)
			continue
		}
		c.Mark = m.Mark
		if err := newDriver(t, c).Delete(context.Background(), machines.Ref{Name: m.Name}); err != nil {
			t.Error(err)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), c.Folder) {
		t.Errorf("the host's namespace still has a mount:\n%s", mounts)
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

// order returns the order of a machine whose userdata appends to a file.
func order(name string) machines.Order {
	return machines.Order{Name: name, Node: strings.ReplaceAll(name, "-", "_"), Role: "compute", Image: "debian",
		Userdata: []byte("#!/bin/sh\necho \"$(hostname) ran\" >>/root/seed\n")}
}

func create(t *testing.T, p *driver.Provider, o machines.Order) machines.Machine {
	t.Helper()
	m, err := p.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// the returns the only machine of a name.
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

// eventually waits for a condition of a driver's machine.
func eventually(t *testing.T, what string, missing func() string) {
	t.Helper()
	until(t, what, func() (string, bool) { return missing(), true }, func() string { return "" })
}

// in is a condition for eventually: the state of a machine.
func in(t *testing.T, p *driver.Provider, name string, want machines.State) func() string {
	return func() string {
		if m := the(t, p, name); m.State != want {
			return fmt.Sprintf("%+v", m)
		}
		return ""
	}
}

// has is a condition for eventually: the text of a file on a machine's disk.
func has(c driver.Config, name, file, text string) func() string {
	return func() string {
		got, err := os.ReadFile(filepath.Join(c.Folder, c.Mark.Owner, c.Mark.Fleet, name, "upper", file))
		if err != nil {
			return err.Error()
		}
		if string(got) != text {
			return fmt.Sprintf("%s has %q", file, got)
		}
		return ""
	}
}

// machineGroup returns the control group of a machine's processes.
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

// firstIn returns the first process of a control group.
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(pid), "--all", "--"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s in %s: %v: %s", args, name, err, out)
	}
}

// Plans rely on this: a machine equals its order, stays the same over a reboot, and is stopped after a power-off.
func TestMachineLivesAndEnds(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	began := time.Now()
	m := create(t, p, order("compute1-t42"))
	t.Logf("created in %s: %+v", time.Since(began).Round(time.Millisecond), m)
	eventually(t, "running", in(t, p, m.Name, machines.Running))
	eventually(t, "the userdata", has(c, m.Name, "root/seed", "compute1-t42 ran\n"))
	if err := ping(m.Addresses[0]); err != nil {
		t.Errorf("the machine does not answer: %v", err)
	}
	id, _ := os.ReadFile(filepath.Join(c.Folder, "test/dev", m.Name, "upper/etc/machine-id"))
	if len(strings.TrimSpace(string(id))) != 32 {
		t.Errorf("the machine ID is %q", id)
	}
	secret := filepath.Join(c.Folder, "test/dev", m.Name, "upper/var/lib/cloud/seed/nocloud/user-data")
	for path, want := range map[string]os.FileMode{secret: 0o600, c.Folder: 0o700, filepath.Join(c.Folder, "test/dev", m.Name): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("other users may read %s: %v, %v", path, info.Mode(), err)
		}
	}

	inside(t, c, m.Name, "systemctl", "--no-block", "reboot")
	eventually(t, "a second boot", func() string {
		text, _ := os.ReadFile(filepath.Join(c.Folder, "test/dev", m.Name, "state.json"))
		if !strings.Contains(string(text), `"boots":2`) || !strings.Contains(string(text), `"running"`) {
			return string(text)
		}
		return ""
	})
	eventually(t, "its address", func() string {
		if err := ping(m.Addresses[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	if now := the(t, p, m.Name); now.ID != m.ID || now.State != machines.Running {
		t.Errorf("after a reboot the machine is %+v", now)
	}
	if why := has(c, m.Name, "root/seed", "compute1-t42 ran\n")(); why != "" {
		t.Errorf("after a reboot: %s", why)
	}

	eventually(t, "systemd", func() string {
		if _, err := os.Stat(filepath.Join(machineGroup(t, c, m.Name), "machine/payload/system.slice/dbus.service")); err != nil {
			return err.Error()
		}
		return ""
	})
	inside(t, c, m.Name, "systemctl", "--no-block", "poweroff")
	eventually(t, "off", in(t, p, m.Name, machines.Stopped))
	if err := p.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c)
}

// nothingLeft checks that the driver left no folders and no mounts.
func nothingLeft(t *testing.T, c driver.Config) {
	t.Helper()
	left, _ := filepath.Glob(filepath.Join(c.Folder, "*", "*", "*"))
	if left != nil {
		t.Errorf("these folders are left: %v", left)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	if strings.Contains(string(mounts), c.Folder) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
}

// A supervisor that is killed, for example for lack of memory, must take its machine with it: no plan could see it.
func TestMachineEndsWithItsSupervisor(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	m := create(t, p, order("compute1"))
	eventually(t, "running", in(t, p, m.Name, machines.Running))
	eventually(t, "its address", func() string {
		if err := ping(m.Addresses[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	group := machineGroup(t, c, m.Name)
	if err := unix.Kill(firstIn(t, filepath.Join(group, "supervisor")), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "off", in(t, p, m.Name, machines.Stopped))
	eventually(t, "the end of all its processes", func() string {
		events, _ := os.ReadFile(filepath.Join(group, "cgroup.events"))
		if strings.Contains(string(events), "populated 1") {
			return string(events)
		}
		return ""
	})
	if again := create(t, p, order("compute1")); again.ID != m.ID || again.State != machines.Stopped {
		t.Errorf("a stopped machine was created again: %+v", again)
	}
	if err := p.Delete(t.Context(), machines.Ref{Name: m.Name}); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c)
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its control group is left: %v", err)
	}
	if i, err := net.InterfaceByName("vb-p" + m.ID); err == nil {
		t.Errorf("its port of the bridge is left: %+v", i)
	}
}

// When a host is powered off, its machines must be powered off cleanly.
func TestMachineIsPoweredOffWithItsHost(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	m := create(t, p, order("compute1"))
	eventually(t, "the userdata", has(c, m.Name, "root/seed", "compute1 ran\n"))
	if err := unix.Kill(firstIn(t, filepath.Join(machineGroup(t, c, m.Name), "supervisor")), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "off", in(t, p, m.Name, machines.Stopped))
	if now := the(t, p, m.Name); now.Problem != "it was powered off" {
		t.Errorf("the machine is %+v", now)
	}
}

// A machine whose image cannot boot must report the cause: an operator may not reach its console.
func TestUnbootableMachineFailsWithCause(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	o := order("compute1")
	o.Image = t.TempDir()
	if err := os.MkdirAll(filepath.Join(o.Image, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	create(t, p, o)
	eventually(t, "failed", in(t, p, o.Name, machines.Failed))
	if m := the(t, p, o.Name); !strings.Contains(m.Problem, "os-release") && !strings.Contains(m.Problem, "init") {
		t.Errorf("the problem does not name the cause: %+v", m)
	}
}

// The driver must pass the checks of every driver, with real machines.
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
				return nil, errors.Join(fmt.Errorf("cloud-init has not read it: found %q", paths), err)
			}
			return os.ReadFile(paths[0])
		},
		Labels: func(_ context.Context, m machines.Machine) (map[string]string, error) {
			paths, err := filepath.Glob(filepath.Join(c.Folder, "*", "*", m.Name, "machine.json"))
			if err != nil || len(paths) != 1 {
				return nil, errors.Join(fmt.Errorf("found %q", paths), err)
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
		Call: patience, Boot: patience, Gone: patience, Poll: pollInterval,
	})
}
