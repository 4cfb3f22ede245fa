//go:build e2e

package providers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulley/internal/machines"
	"pulley/internal/machines/drivers/conform"
	"pulley/internal/testbed/conformtest"
)

// libvirtd is a libvirtd in its own namespaces. It leaves only the folder on the host.
type libvirtd struct {
	folder string // sockets, and the disks of the pool
	uri    string
}

// startLibvirt starts a libvirtd with a pool and a network called default and an empty image called base. Its domains
// run in QEMU and boot nothing.
func startLibvirt(t *testing.T) libvirtd {
	t.Helper()
	l := libvirtd{folder: t.TempDir()}
	l.uri = "qemu+unix:///system?socket=" + l.folder + "/libvirt-sock"
	script, err := filepath.Abs("libvirtd.sh")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	daemon := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", script, l.folder)
	daemon.Stdout, daemon.Stderr = &log, &log
	daemon.Env = []string{path, "LC_ALL=C"}
	life, err := daemon.StdinPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // ending the namespace's first process ends all others
		_ = life.Close()
		stop := time.AfterFunc(patience, func() { _ = daemon.Process.Kill() })
		_ = daemon.Wait()
		stop.Stop()
		if t.Failed() {
			t.Logf("log of libvirtd:\n%s", &log)
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, err := l.virsh(t.Context(), "version"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("libvirtd does not answer: %v", err)
		}
	}
	network := filepath.Join(l.folder, "network.xml")
	if err := os.WriteFile(network, []byte("<network><name>default</name><forward mode='bridge'/><bridge name='pulleytest'/></network>"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"pool-define-as", "default", "dir", "--target", l.folder + "/pool"}, {"pool-build", "default"}, {"pool-start", "default"},
		{"vol-create-as", "default", "base", "16M", "--format", "qcow2"}, {"net-define", network}, {"net-start", "default"},
	} {
		if _, err := l.virsh(t.Context(), words...); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l libvirtd) virsh(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"--connect", l.uri}, words...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("virsh %q: %w: %s", words, err, &stderr)
	}
	return string(out), nil
}

// userdata reads the disk created for cloud-init.
func (l libvirtd) userdata(ctx context.Context, m machines.Machine) ([]byte, error) {
	return exec.CommandContext(ctx, "isoinfo", "-R", "-i", filepath.Join(l.folder, "pool", m.ID+".raw"), "-x", "/user-data").Output()
}

// Users copy the documented command: it must pass the checks of every driver.
func TestLibvirtCommandConforms(t *testing.T) {
	t.Parallel()
	l := startLibvirt(t)
	disks := func() int {
		files, err := filepath.Glob(l.folder + "/pool/*")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	before := disks()
	conformtest.Test(t, slow(conform.Config{
		New: documented(t, []string{"LIBVIRT_DEFAULT_URI=" + l.uri}, "libvirt", "default", "qemu"),
		Order: func(string) machines.Order {
			return machines.Order{Flavor: "1x32x1", Image: "base", Networks: []string{"default"}}
		},
		Userdata: l.userdata,
		Foreign: func(ctx context.Context, name string) (func(context.Context) error, error) {
			file := filepath.Join(t.TempDir(), "domain.xml")
			text := "<domain type='qemu'><name>" + name + "</name><memory unit='MiB'>32</memory><os><type>hvm</type></os></domain>"
			err := os.WriteFile(file, []byte(text), 0o600)
			if err == nil {
				_, err = l.virsh(ctx, "create", file)
			}
			return func(ctx context.Context) error {
				state, err := l.virsh(ctx, "domstate", name)
				if err == nil && strings.TrimSpace(state) != "running" {
					err = errors.New("the domain is " + state)
				}
				return err
			}, err
		},
	}))
	if after := disks(); after != before {
		t.Errorf("the pool has %d more disks than before", after-before)
	}
}

// An interrupted create leaves a domain without disks. The next create must complete it, and a deletion must remove it.
func TestLibvirtCommandResumes(t *testing.T) {
	t.Parallel()
	l := startLibvirt(t)
	p := open(t, []string{"LIBVIRT_DEFAULT_URI=" + l.uri}, "libvirt", "default", "qemu")
	o := machines.Order{Name: "compute1", Flavor: "1x32x1", Image: "base", Userdata: []byte("#!/bin/sh\n")}
	for _, cut := range []string{"destroy", "undefine"} {
		m, err := p.Create(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range [][]string{{"destroy", m.ID}, {"autostart", "--disable", m.ID}, {"vol-delete", "--pool=default", m.ID + ".raw"}} {
			if _, err := l.virsh(t.Context(), words...); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := p.List(t.Context()); err != nil || len(all) != 1 || all[0].State != machines.Building {
			t.Fatalf("%+v, %v", all, err)
		}
		if cut == "destroy" {
			again, err := p.Create(t.Context(), o)
			if err != nil || again.ID != m.ID || again.State != machines.Running {
				t.Fatalf("%+v, %v", again, err)
			}
			if got, err := l.userdata(t.Context(), again); err != nil || !bytes.Equal(got, o.Userdata) {
				t.Errorf("the userdata is %q, %v", got, err)
			}
		}
		if err := p.Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err != nil {
			t.Fatal(err)
		}
	}
}

// A failure of virsh must not count as an absent domain: the domain would be created again, and a disk with a token
// would stay.
func TestLibvirtCommandReportsFailures(t *testing.T) {
	t.Parallel()
	l := startLibvirt(t)
	environ := []string{"LIBVIRT_DEFAULT_URI=" + l.uri}
	p := open(t, environ, "libvirt", "default", "qemu")
	o := machines.Order{Name: "compute1", Flavor: "1x32x1", Image: "base", Userdata: []byte("one token")}
	m, err := p.Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	broken := instead(t, "virsh", `if [ "$1" = dumpxml ]; then echo "error: failed to get domain '$2'" >&2; exit 1; fi; exec "$tool" "$@"`)
	if machines, err := open(t, append(environ, broken), "libvirt", "default", "qemu").List(t.Context()); err == nil {
		t.Errorf("a domain that virsh cannot show is missing without an error: %+v", machines)
	}
	if err := open(t, environ, "libvirt", "another", "qemu").Delete(t.Context(), machines.Ref{Name: m.Name, ID: m.ID}); err == nil {
		t.Error("the domain was deleted without its disks")
	}
	if machines, err := p.List(t.Context()); err != nil || len(machines) != 1 {
		t.Errorf("%+v, %v", machines, err)
	}

	// The guest runs, and the create was interrupted before the autostart: the command must not write to the disk of a
	// running guest.
	for _, words := range [][]string{{"start", m.ID}, {"autostart", "--disable", m.ID}} {
		if _, err := l.virsh(t.Context(), words...); err != nil && words[0] != "start" {
			t.Fatal(err)
		}
	}
	o.Userdata = []byte("another token")
	if again, err := p.Create(t.Context(), o); err != nil || again.ID != m.ID || again.State != machines.Running {
		t.Errorf("%+v, %v", again, err)
	}
	if got, err := l.userdata(t.Context(), m); err != nil || string(got) != "one token" {
		t.Errorf("the userdata is %q, %v", got, err)
	}
	leavesNoUserdata(t, environ, "libvirt", "virsh", "vol-upload", machines.Order{Name: "compute2", Flavor: "1x32x1", Image: "base"})
}
