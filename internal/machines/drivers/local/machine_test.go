package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A demo starts its machines at one time: each needs its own identity.
func TestMachinesStartTogether(t *testing.T) {
	before := hostMounts(t)
	type started struct {
		m    *Machine
		err  error
		took time.Duration
	}
	results := make(chan started, 3)
	names := map[string]bool{}
	for i := range 3 {
		name := fmt.Sprintf("%s-%d", marker(t), i)
		names[name] = true
		go func() {
			begin := time.Now()
			m, err := Start(t.Context(), Config{Hostname: name})
			results <- started{m, err, time.Since(begin)}
		}()
	}
	ids := map[string]bool{}
	for range 3 {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		defer r.m.Close()
		t.Logf("machine %s started in %v", r.m.hostname, r.took)
		if r.took > 20*time.Second {
			t.Errorf("machine %s took %v to start", r.m.hostname, r.took)
		}
		out := strings.Fields(sh(t, r.m, "hostname; cat /etc/hostname; cat /etc/machine-id; getent hosts $(hostname) | cut -d' ' -f1"))
		if len(out) != 4 || out[0] != r.m.hostname || out[1] != r.m.hostname || out[3] != "127.0.1.1" {
			t.Errorf("the hostname of machine %s is %q", r.m.hostname, out)
		}
		if !names[out[0]] || ids[out[2]] || len(out[2]) != 32 {
			t.Errorf("the name and machine ID are not its own: %q", out)
		}
		delete(names, out[0])
		ids[out[2]] = true
	}
	if hostID, err := os.ReadFile("/etc/machine-id"); err == nil && ids[strings.TrimSpace(string(hostID))] {
		t.Error("a machine has the host's machine id")
	}
	noOverlayAdded(t, before)
}

// A large log in a machine must not use up the memory of the host.
func TestSizeIsLimited(t *testing.T) {
	m := startMachine(t, Config{SizeBytes: 100 << 20})
	for _, file := range []string{"/var/fill", "/tmp/fill", "/run/fill", "/dev/shm/fill"} {
		out, err := m.Command(t.Context(), "sh", "-c", "dd if=/dev/zero of="+file+" bs=1M count=120; code=$?; stat -c %s "+file+"; rm "+file+"; exit $code").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "No space left on device") {
			t.Errorf("120 MiB fit into %s of a machine of 100 MiB: %v\n%s", file, err, out)
		}
	}
	sh(t, m, "dd if=/dev/zero of=/var/fill bs=1M count=80 2>/dev/null") // and what was freed is free
}

// A host that is a node must not give its identity to machines.
func TestEmptyHidesFolders(t *testing.T) {
	dir, err := os.MkdirTemp("/var/lib", "pulley-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.MkdirAll(dir+"/a/b", 0o755), os.WriteFile(dir+"/a/b/state.json", nil, 0o600), os.Chmod(dir+"/a", 0o2711), os.Chown(dir+"/a", 1, 2),
		os.Mkdir(dir+"/kept", 0o755), os.Chmod(dir+"/kept", os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/a", os.ModeSetgid|0o711); err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, Config{Empty: []string{dir + "/a", "/no/such/folder"}})
	if got := sh(t, m, "ls -A "+dir+"/a; stat -c '%a %u:%g' "+dir+"/a; stat -c %a "+dir+"/kept"); got != "2711 1:2\n1777" {
		t.Errorf("the emptied folder is %q", got)
	}
	sh(t, m, "! test -e /no/such/folder")
	sh(t, m, "cd "+dir+"; mkdir -p a/b; touch a/b/own; mv a c; test -e c/b/own; mkdir a; rmdir a")
	if _, err := os.Stat(dir + "/a/b/state.json"); err != nil {
		t.Error(err)
	}
	// Package managers rename folders in place.
	sh(t, m, "perl -e 'rename(\"/usr/share/perl5\", \"/usr/share/perl6\") or die $!'; test -d /usr/share/perl6; ! test -e /usr/share/perl5")
}

// A machine must see the bound agent, and must not change it.
func TestBindsAreReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/agent", []byte("#!/bin/sh\necho built\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, Config{Binds: []Bind{
		{From: dir + "/agent", To: "/usr/local/bin/pulley-agent-probe"},
		{From: dir, To: "/opt/new/place"},
		{From: dir, To: "/tmp/place"},
	}})
	if got := sh(t, m, "pulley-agent-probe; /opt/new/place/agent; /tmp/place/agent"); got != "built\nbuilt\nbuilt" {
		t.Errorf("the bound program printed %q", got)
	}
	for _, script := range []string{"echo >/usr/local/bin/pulley-agent-probe", "touch /opt/new/place/x", "rm /tmp/place/agent"} {
		if out, err := m.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err == nil || !strings.Contains(string(out), "Read-only") {
			t.Errorf("%s: %v %s", script, err, out)
		}
	}
	if _, err := os.Stat("/opt/new"); err == nil {
		t.Error("the mount point was created on the host")
	}
}

// A wrong path or name must give a readable error.
func TestInvalidConfigIsRefused(t *testing.T) {
	for want, config := range map[string]Config{
		`"" is not a hostname`:    {},
		`"A_b" is not a hostname`: {Hostname: "A_b"},
		`"a.b" is not a hostname`: {Hostname: "a.b"},
		"/no/such: no such file":  {Hostname: "a", Binds: []Bind{{From: "/no/such", To: "/x"}}},
		"cannot empty folders":    {Hostname: "a", Empty: []string{"/etc/passwd"}},
	} {
		m, err := Start(t.Context(), config)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "cannot start a local machine: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", config, err, want)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(canceled, Config{Hostname: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a start with an ended context: %v", err)
	}
}

// A user without root must read what to do.
func TestCheckNamesRemedy(t *testing.T) {
	if err := Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for want, setpriv := range map[string][]string{
		"it needs root\nrun the same": {"--reuid=65534", "--clear-groups"},
		"--privileged":                {"--bounding-set=-sys_admin"}, // root as in an ordinary container
	} {
		binary := fmt.Sprintf("/proc/%d/exe", os.Getpid())
		if len(setpriv) == 2 {
			binary = publicCopy(t)
		}
		check := exec.Command("setpriv", append(setpriv, "bash", "-c", "exec -a "+argCheck+" "+binary)...)
		out, err := check.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "cannot start a local machine: ") || !strings.Contains(string(out), want) {
			t.Errorf("%v: %q, want %q", err, out, want)
		}
	}
}

// The demo must work in a container, whose root is an overlay.
func TestMachineStartsOnOverlay(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, Config{Binds: []Bind{{From: binary, To: "/usr/local/bin/local-test"}}})
	out, err := m.Command(t.Context(), "bash", "-c", "exec -a "+argCheck+" /usr/local/bin/local-test").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A machine that is made in a chroot must not change the host outside of it.
func TestChrootIsRefused(t *testing.T) {
	script := `mount --rbind / "$1" && exec chroot "$1" bash -c "exec -a $2 $3"`
	out, err := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", t.TempDir(), argCheck, publicCopy(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "runs in a chroot") {
		t.Errorf("%v: %s", err, out)
	}
}

// A user's "exec -a" must not start the parts of a machine.
func TestPartsCannotBeStartedDirectly(t *testing.T) {
	for _, name := range []string{argInit, argEnter, argRun} {
		part := exec.Command("/proc/self/exe")
		part.Args = []string{name, "true"}
		out, err := part.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitCannotRun || !strings.HasPrefix(string(out), "cannot ") {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}
