package local

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A demo must not leave processes or mounts on the user's computer.
func TestCloseEndsAllProcessesAndMounts(t *testing.T) {
	before := hostMounts(t)
	m := startMachine(t, Config{})
	word := marker(t)
	cmd := m.Command(t.Context(), "sh", "-c", tree(word))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all processes run", func() bool { return len(processes(word)) >= 5 })
	namespace := mountNamespace(t, fmt.Sprint(m.Pid()))
	if namespace == "" || namespace == mountNamespace(t, "self") {
		t.Fatalf("the machine's mount namespace is %q", namespace)
	}
	begin := time.Now()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("ended in %v", time.Since(begin))
	_ = cmd.Wait()
	if left := append(processes(word), processes(m.hostname)...); len(left) > 0 {
		t.Errorf("left after Close: %q", left)
	}
	if left := inMountNamespace(namespace); len(left) > 0 {
		t.Errorf("in the machine's mounts after Close: %q", left)
	}
	noOverlayAdded(t, before)
	select {
	case <-m.ended:
	default:
		t.Error("it has not ended")
	}
	if err := m.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := m.Command(t.Context(), "true").Run(); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a command in an ended machine: %v", err)
	}
	if _, err := m.ReadFile("/etc/hostname"); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a file of an ended machine: %v", err)
	}
}

// startOwner starts this test binary as an owner that can be killed without the test.
func startOwner(t *testing.T, word string) (owner *exec.Cmd, stdout *bufio.Reader) {
	t.Helper()
	owner = exec.Command("/proc/self/exe")
	owner.Args = []string{argOwner, word}
	pipe, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Process.Kill(); _ = owner.Wait() })
	return owner, bufio.NewReader(pipe)
}

// A killed demo must not leave processes or mounts on the user's computer.
func TestKilledOwnerLeavesNothing(t *testing.T) {
	before := hostMounts(t)
	word := marker(t)
	owner, stdout := startOwner(t, word)
	if line, err := stdout.ReadString('\n'); line != "up\n" {
		t.Fatal(line, err)
	}
	namespaces := map[string]bool{}
	for _, process := range processes(word) {
		pid, _, _ := strings.Cut(strings.TrimPrefix(process, "/proc/"), "/")
		if n := mountNamespace(t, pid); n != "" && n != mountNamespace(t, "self") {
			namespaces[n] = true
		}
	}
	if len(namespaces) != 1 || len(processes(word)) < 5 {
		t.Fatalf("the machine is not up: %v %q", namespaces, processes(word))
	}
	owner.Process.Kill()
	eventually(t, "all processes have ended", func() bool { return len(processes(word)) == 0 })
	for n := range namespaces {
		eventually(t, "the mounts are removed", func() bool { return len(inMountNamespace(n)) == 0 })
	}
	noOverlayAdded(t, before)
}

// The same during the start of a machine.
func TestOwnerKilledDuringStartLeavesNothing(t *testing.T) {
	before := hostMounts(t)
	seen := 0
	// Until enough kills came during a start: on a busy machine a start takes longer.
	for moment := time.Duration(0); moment < 120*time.Millisecond || seen < 3 && moment < 10*time.Second; moment += 4 * time.Millisecond {
		word := marker(t)
		owner, stdout := startOwner(t, word)
		up := make(chan struct{})
		go func() { stdout.ReadString('\n'); close(up) }()
		select {
		case <-time.After(moment): // the moment of the kill
		case <-up:
		}
		if len(processes(argInit)) > 0 {
			seen++
		}
		owner.Process.Kill()
		_ = owner.Wait()
		eventually(t, fmt.Sprintf("the end of all processes of an owner that was killed after %v", moment), func() bool { return len(processes(word)) == 0 })
	}
	if seen < 3 {
		t.Errorf("only %d kills came during a start", seen)
	}
	noOverlayAdded(t, before)
}
