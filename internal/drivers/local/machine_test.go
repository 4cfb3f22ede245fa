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

func TestThreeMachinesStartTogetherAndFast(t *testing.T) {
	// A demo that starts its fleet would keep its user waiting, or mix its machines up.
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
		t.Logf("machine %s started in %v", r.m.Hostname(), r.took)
		if r.took > 2*time.Second {
			t.Errorf("machine %s took %v to start", r.m.Hostname(), r.took)
		}
		out := strings.Fields(sh(t, r.m, "hostname; cat /etc/hostname; cat /etc/machine-id; getent hosts $(hostname) | cut -d' ' -f1"))
		if len(out) != 4 || out[0] != r.m.Hostname() || out[1] != r.m.Hostname() || out[3] != "127.0.1.1" {
			t.Errorf("machine %s says it is %q", r.m.Hostname(), out)
		}
		if !names[out[0]] || ids[out[2]] || len(out[2]) != 32 {
			t.Errorf("not a name and machine id of its own: %q", out)
		}
		delete(names, out[0])
		ids[out[2]] = true
	}
	if hostID, err := os.ReadFile("/etc/machine-id"); err == nil && ids[strings.TrimSpace(string(hostID))] {
		t.Error("a machine has the host's machine id")
	}
	noOverlayAdded(t, before)
}

func TestSizeIsLimited(t *testing.T) {
	// A runaway log in a machine would take the memory of its user's computer.
	m := startMachine(t, Config{SizeBytes: 100 << 20})
	for _, file := range []string{"/var/fill", "/tmp/fill", "/run/fill", "/dev/shm/fill"} {
		out, err := m.Command(t.Context(), "sh", "-c", "dd if=/dev/zero of="+file+" bs=1M count=120; code=$?; stat -c %s "+file+"; rm "+file+"; exit $code").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "No space left on device") {
			t.Errorf("120 MiB fit into %s of a machine of 100 MiB: %v\n%s", file, err, out)
		}
	}
	sh(t, m, "dd if=/dev/zero of=/var/fill bs=1M count=80 2>/dev/null") // and what was freed is free
}

func TestEmptiedFoldersAreEmptyAndOrdinary(t *testing.T) {
	// A host that is a node itself would lend its identity to every machine.
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

func TestBindsAreSeenAndReadOnly(t *testing.T) {
	// The agent under test could not be put into machines where it is built on another disk; or machines could change it.
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
		t.Errorf("the bound program said %q", got)
	}
	for _, script := range []string{"echo >/usr/local/bin/pulley-agent-probe", "touch /opt/new/place/x", "rm /tmp/place/agent"} {
		if out, err := m.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err == nil || !strings.Contains(string(out), "Read-only") {
			t.Errorf("%s: %v %s", script, err, out)
		}
	}
	if _, err := os.Stat("/opt/new"); err == nil {
		t.Error("the place was made on the host")
	}
}

func TestBadConfigsAreRefusedWithAReason(t *testing.T) {
	// A typing error would surface as a kernel's error number.
	for want, config := range map[string]Config{
		`"" is no hostname`:        {},
		`"A_b" is no hostname`:     {Hostname: "A_b"},
		`"a.b" is no hostname`:     {Hostname: "a.b"},
		"below 0":                  {Hostname: "a", SizeBytes: -1},
		`cannot empty "/"`:         {Hostname: "a", Empty: []string{"/"}},
		`cannot empty "var"`:       {Hostname: "a", Empty: []string{"var"}},
		`"rel" is not an absolute`: {Hostname: "a", Binds: []Bind{{From: "/etc", To: "rel"}}},
		"/no/such: no such file":   {Hostname: "a", Binds: []Bind{{From: "/no/such", To: "/x"}}},
		"cannot empty folders":     {Hostname: "a", Empty: []string{"/etc/passwd"}},
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
		t.Errorf("a start whose context has ended: %v", err)
	}
}

func TestCheckSaysWhatIsMissing(t *testing.T) {
	// Someone without root would get a system call's name instead of a word on what to do.
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

func TestAMachineStartsWhereTheRootIsAnOverlay(t *testing.T) {
	// There would be no demo in a container, whose root is an overlay already.
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

func TestPartsOfAMachineCannotBeStartedByHand(t *testing.T) {
	// A user's "exec -a" would run whatever these parts do to the host.
	for _, name := range []string{argInit, argEnter, argSupervise} {
		part := exec.Command("/proc/self/exe")
		part.Args = []string{name, "true"}
		out, err := part.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitCannotRun || !strings.HasPrefix(string(out), "cannot ") {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}
