package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Names under which this test binary runs itself again.
const (
	argOwner = "test-owner" // owns a machine until it is killed
	argCheck = "test-check" // calls Check
	argMaker = "test-maker" // makes a machine that outlives it, and is killed
)

func TestMain(m *testing.M) {
	MaybeInit()
	switch os.Args[0] {
	case argOwner:
		os.Exit(report(own(os.Args[1])))
	case argMaker:
		os.Exit(report(makeOne(os.Args[1], os.Args[2])))
	case argCheck:
		if err := Check(context.Background()); err != nil {
			os.Exit(report(1, err))
		}
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "cannot start machines: not root\nrun these tests as root, for example with sudo -E go test")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// own starts a machine with processes that ignore signals, prints "up", and waits to be killed.
func own(marker string) (int, error) {
	m, err := Start(context.Background(), Config{Hostname: marker})
	if err != nil {
		return 1, err
	}
	daemons := "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' " + marker + " & done"
	if out, err := m.Command(context.Background(), "sh", "-c", "("+daemons+") >/dev/null 2>&1 </dev/null").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%w: %s", err, out)
	}
	held := m.Command(context.Background(), "sh", "-c", "echo up; setsid sleep 1000; : "+marker)
	held.Stdout = os.Stdout
	return 1, held.Run()
}

// startMachine starts a machine, which the end of the test closes.
func startMachine(t *testing.T, config Config) *Machine {
	t.Helper()
	if config.Hostname == "" {
		config.Hostname = marker(t)
	}
	m, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// sh runs a script in the machine, which must succeed, and returns its output.
func sh(t *testing.T, m *Machine, script string) string {
	t.Helper()
	out, err := m.Command(t.Context(), "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// marker returns a hostname that no other process and no other test uses.
func marker(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("m%d-%d", os.Getpid(), time.Now().UnixNano())
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// processes returns the host's other processes whose command line contains a word.
func processes(word string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte(word)) && file != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			found = append(found, file+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// mountNamespace returns the name of a process's mount namespace, which no other one gets during the test. It is empty where the
// process has ended.
func mountNamespace(t *testing.T, pid string) string {
	t.Helper()
	link := "/proc/" + pid + "/ns/mnt"
	held, err := os.Open(link)
	if err != nil {
		return ""
	}
	t.Cleanup(func() { held.Close() })
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", held.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// inMountNamespace returns the host's processes with a thread in that mount namespace, with their command lines.
func inMountNamespace(name string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/mnt")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == name {
			line, _ := os.ReadFile(filepath.Join(link, "../../../../cmdline"))
			found = append(found, link+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// hostMounts returns the host's mounts.
func hostMounts(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(mounts)
}

// noOverlayAdded fails the test where the host has a new mount of a machine.
func noOverlayAdded(t *testing.T, before string) {
	t.Helper()
	for line := range strings.Lines(hostMounts(t)) {
		if !strings.Contains(before, line) && (strings.Contains(line, " - overlay ") || strings.Contains(line, " machine ")) {
			t.Errorf("mounted on the host: %s", line)
		}
	}
}

// publicCopy returns a copy of this test binary that every user may run.
func publicCopy(t *testing.T) string {
	t.Helper()
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "local-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/test", binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir + "/test"
}
