//go:build e2e

package nspawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pulley/internal/machines"
	driver "pulley/internal/machines/drivers/nspawn"
)

// argRequest is the argument that makes this test program send one request to the driver.
const argRequest = "pulley-nspawn-request"

// request is the request that such a program sends.
type request struct {
	driver.Config
	Order    machines.Order
	Userdata []byte        // of the order
	After    time.Duration // time from the call until the program kills itself, at the latest when the call returns
	Delete   bool          // deletes the machine instead, and does not kill itself
}

func (a request) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// maybeRequest runs such a program.
func maybeRequest() {
	if len(os.Args) != 3 || os.Args[1] != argRequest {
		return
	}
	var a request
	err := json.Unmarshal([]byte(os.Args[2]), &a)
	var p *driver.Provider
	if err == nil {
		p, err = driver.New(a.Config)
	}
	switch {
	case err != nil:
	case a.Delete:
		if err = p.Delete(context.Background(), machines.Ref{Name: a.Order.Name}); err == nil {
			os.Exit(0)
		}
	default:
		time.AfterFunc(a.After, func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) })
		a.Order.Userdata = a.Userdata
		if _, err = p.Create(context.Background(), a.Order); err == nil {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// An apply that is killed at any moment must leave a running machine, or none: at eight moments, and at each of 24 milliseconds where
// PULLEY_TEST_MACHINES is "all".
func TestKilledCreateLeavesMachineOrNone(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	made, none, step := 0, 0, 3
	if os.Getenv("PULLEY_TEST_MACHINES") == "all" {
		step = 1
	}
	for i := 0; i < 24; i += step {
		o := order(fmt.Sprintf("compute%d", i+1))
		out, err := exec.Command("/proc/self/exe", argRequest, request{Config: c, Order: o, After: time.Duration(i) * time.Millisecond}.String()).CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the program was not killed: %v: %s", err, out)
		}
		before := the(t, p, o.Name)
		m := create(t, p, o)
		if before.ID != "" && m.ID != before.ID {
			t.Errorf("the machine was created twice: %+v, %+v", before, m)
		}
		if before.ID == "" {
			none++
		} else {
			made++
		}
		eventually(t, o.Name, in(t, p, o.Name, machines.Running))
		if err := p.Delete(t.Context(), machines.Ref{Name: o.Name, ID: m.ID}); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, c)
	}
	t.Logf("killed programs left a machine %d times, and none %d times", made, none)
}

// systemd ends the processes of a service or a session. Machines that such an apply created must outlive it.
func TestMachineOutlivesServiceThatCreatedIt(t *testing.T) {
	t.Parallel()
	host := NewMachine(t) // systemd is its first process, as on most hosts
	for name, from := range map[string]string{"/usr/bin/systemd-nspawn": "/usr/bin/systemd-nspawn", "/root/request": "/proc/self/exe"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		host.Write(name, string(text))
		if err := os.Chmod(host.root()+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host.Seed(map[string]string{"user-data": ""})
	host.Write("/etc/resolv.conf", "nameserver 10.78.0.53\n")
	host.boot()
	run := func(args ...string) string {
		t.Helper()
		out, err := host.In(args[0], args[1:]...)
		if err != nil {
			t.Fatalf("%s: %v: %s\n%s", strings.Join(args, " "), err, out, host.story())
		}
		return out
	}
	host.Wait("systemd", func() string {
		out, err := host.In("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer", "Ping")
		if err != nil {
			return err.Error() + out
		}
		return ""
	})
	run("ip", "link", "add", "pulley1", "type", "bridge")
	run("ip", "address", "add", "10.78.0.1/24", "dev", "pulley1")
	run("ip", "link", "set", "pulley1", "up")
	run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/forwarding") // a gateway for its machines
	// The image is the host's own disk. /run is a tmpfs, which can hold the upper layer of an overlay.
	a := request{Config: driver.Config{Folder: "/run/machines", Bridge: "pulley1", Mark: machines.Mark{Owner: "o", Fleet: "dev"}}, Order: order("compute1"), After: time.Minute}
	a.Order.Image, a.Userdata = "/", a.Order.Userdata
	out, err := host.In("systemd-run", "--quiet", "--wait", "--unit=apply", "/root/request", argRequest, a.String())
	if err == nil {
		t.Fatalf("the program was not killed: %s", out)
	}
	folder := "/run/machines/o/dev/compute1"
	host.Wait("a machine that runs", func() string {
		text, _ := host.In("cat", folder+"/state.json")
		if !strings.Contains(text, `"running"`) {
			return text + out + run("journalctl", "--no-pager", "-u", "apply", "-n", "20")
		}
		return ""
	})
	var m struct{ ID, Group string }
	if err := json.Unmarshal([]byte(run("cat", folder+"/machine.json")), &m); err != nil {
		t.Fatal(err)
	}
	unit := "pulley-machine-" + m.ID + ".scope"
	if want := "/machine.slice/" + unit; m.Group != want {
		t.Errorf("the machine is in the group %s, not %s", m.Group, want)
	}
	if is := run("systemctl", "show", "--value", "-p", "ActiveState,Delegate", unit); !strings.Contains(is, "active") || !strings.Contains(is, "yes") {
		t.Errorf("systemd reports of its scope: %s", is)
	}
	host.Wait("its cloud-init", func() string {
		if out, err := host.In("cat", folder+"/upper/root/seed"); err != nil || out != "compute1 ran\n" {
			return "seed has " + out
		}
		return ""
	})
	if way := run("cat", folder+"/upper/etc/systemd/network/10-cloud-init-host0.network", folder+"/upper/etc/resolv.conf"); !strings.Contains(way, "Gateway=10.78.0.1\n") || !strings.Contains(way, "\nnameserver 10.78.0.53\n") {
		t.Errorf("a machine of a host that forwards has no gateway or name server:\n%s", way)
	}
	a.Delete = true
	run("/root/request", argRequest, a.String())
	if left := run("find", "/run/machines", "-mindepth", "1", "-type", "d"); left != "" {
		t.Errorf("Delete leaves %s", left)
	}
	// A group that is removed before systemd reads its last event leaves a scope active forever. The race is short: try
	// 12 times.
	for n := range 12 {
		a.Delete = false
		if out, err := host.In("systemd-run", "--quiet", "--wait", fmt.Sprintf("--unit=apply-%d", n), "/root/request", argRequest, a.String()); err == nil {
			t.Fatalf("the program was not killed: %s", out)
		}
		a.Delete = true
		run("/root/request", argRequest, a.String())
	}
	host.Wait("the end of all scopes", func() string {
		return run("systemctl", "list-units", "--all", "--plain", "--no-legend", "pulley-machine-*")
	})
}
