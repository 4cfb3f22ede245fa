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

	driver "pulley/internal/drivers/nspawn"
	"pulley/internal/machines"
)

// argAsk is the word by which the test runs itself again, as a program that asks the driver for something.
const argAsk = "pulley-nspawn-ask"

// ask is what such a program is to do.
type ask struct {
	driver.Config
	Order    machines.Order
	Userdata []byte        // of the order
	After    time.Duration // the program kills itself so long after it has asked, at the latest when it has the answer
	Delete   bool          // asks for the end of the machine, and lives
}

func (a ask) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// mayAsk is that program.
func mayAsk() {
	if len(os.Args) != 3 || os.Args[1] != argAsk {
		return
	}
	var a ask
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

// An apply that is killed at whatever moment must leave a machine that runs, or none: half of one could be neither waited
// for nor trusted.
func TestAProgramThatIsKilledLeavesAMachineOrNone(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	p := newDriver(t, c)
	made, none := 0, 0
	for i := range 24 {
		o := order(fmt.Sprintf("compute%d", i+1))
		out, err := exec.Command("/proc/self/exe", argAsk, ask{Config: c, Order: o, After: time.Duration(i) * time.Millisecond}.String()).CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the program was not killed: %v: %s", err, out)
		}
		before := the(t, p, o.Name)
		m := create(t, p, o)
		if before.ID != "" && m.ID != before.ID {
			t.Errorf("a machine was made twice: %+v, %+v", before, m)
		}
		if before.ID == "" {
			none++
		} else {
			made++
		}
		until(t, o.Name, 30*time.Second, in(t, p, o.Name, machines.Running))
		if err := p.Delete(t.Context(), machines.Ref{Name: o.Name, ID: m.ID}); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, c)
	}
	t.Logf("killed programs left %d machines, and none %d times", made, none)
}

// Most hosts have systemd, which ends what a service or a session has started: machines that an apply made by a service, or
// over ssh, must outlive it.
func TestAMachineOutlivesTheServiceThatMadeIt(t *testing.T) {
	t.Parallel()
	host := NewMachine(t) // with systemd as its first process, and so a host like most
	for name, from := range map[string]string{"/usr/bin/systemd-nspawn": "/usr/bin/systemd-nspawn", "/root/ask": "/proc/self/exe"} {
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
	host.Boot()
	run := func(args ...string) string {
		t.Helper()
		out, err := host.In(time.Minute, args[0], args[1:]...)
		if err != nil {
			t.Fatalf("%s: %v: %s\n%s", strings.Join(args, " "), err, out, host.Story())
		}
		return out
	}
	host.Wait("systemd", time.Minute, func() string {
		out, err := host.In(time.Minute, "busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer", "Ping")
		if err != nil {
			return err.Error() + out
		}
		return ""
	})
	run("ip", "link", "add", "pulley1", "type", "bridge")
	run("ip", "address", "add", "10.78.0.1/24", "dev", "pulley1")
	run("ip", "link", "set", "pulley1", "up")
	run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/forwarding") // so that its machines have a way out
	// Its own disk is the image; /tmp is a tmpfs, which an overlay can write to.
	a := ask{Config: driver.Config{Folder: "/run/machines", Bridge: "pulley1", Mark: machines.Mark{Owner: "o", Fleet: "dev"}}, Order: order("compute1"), After: time.Minute}
	a.Order.Image, a.Userdata = "/", a.Order.Userdata
	out, err := host.In(time.Minute, "systemd-run", "--quiet", "--wait", "--unit=apply", "/root/ask", argAsk, a.String())
	if err == nil {
		t.Fatalf("the program was not killed: %s", out)
	}
	folder := "/run/machines/o/dev/compute1"
	host.Wait("a machine that runs", time.Minute, func() string {
		text, _ := host.In(time.Minute, "cat", folder+"/state.json")
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
		t.Errorf("it is in the group %s, not %s", m.Group, want)
	}
	if is := run("systemctl", "show", "--value", "-p", "ActiveState,Delegate", unit); !strings.Contains(is, "active") || !strings.Contains(is, "yes") {
		t.Errorf("systemd knows of its scope: %s", is)
	}
	host.Wait("its cloud-init", 2*time.Minute, func() string {
		if out, err := host.In(time.Minute, "cat", folder+"/upper/root/seed"); err != nil || out != "compute1 ran\n" {
			return "it has " + out
		}
		return ""
	})
	if way := run("cat", folder+"/upper/etc/systemd/network/10-cloud-init-host0.network", folder+"/upper/etc/resolv.conf"); !strings.Contains(way, "Gateway=10.78.0.1\n") || !strings.Contains(way, "\nnameserver 10.78.0.53\n") {
		t.Errorf("a machine of a host that forwards has no way out:\n%s", way)
	}
	a.Delete = true
	run("/root/ask", argAsk, a.String())
	if left := run("find", "/run/machines", "-mindepth", "1", "-type", "d"); left != "" {
		t.Errorf("it leaves %s", left)
	}
	// A group that is removed before systemd has heard that it is empty leaves a scope that is active for good. That is a matter of
	// moments: so many times.
	for n := range 12 {
		a.Delete = false
		if out, err := host.In(time.Minute, "systemd-run", "--quiet", "--wait", fmt.Sprintf("--unit=apply-%d", n), "/root/ask", argAsk, a.String()); err == nil {
			t.Fatalf("the program was not killed: %s", out)
		}
		a.Delete = true
		run("/root/ask", argAsk, a.String())
	}
	host.Wait("the end of all scopes", time.Minute, func() string {
		return run("systemctl", "list-units", "--all", "--plain", "--no-legend", "pulley-machine-*")
	})
}
