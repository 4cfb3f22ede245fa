package local

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestCloseEndsEverythingAtOnce(t *testing.T) {
	// A demo that is left would leave processes and mounts on its user's computer.
	before := hostMounts(t)
	m := startMachine(t, Config{})
	word := marker(t)
	cmd := m.Command(t.Context(), "sh", "-c", tree(word))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tree is up", func() bool { return len(processes(word)) >= 5 })
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
	if left := append(processes(word), processes(m.Hostname())...); len(left) > 0 {
		t.Errorf("left after Close: %q", left)
	}
	if left := inMountNamespace(namespace); len(left) > 0 {
		t.Errorf("in the machine's mounts after Close: %q", left)
	}
	noOverlayAdded(t, before)
	select {
	case <-m.Ended():
	default:
		t.Error("not said to have ended")
	}
	if err := m.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
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

func TestSIGKILLOfTheOwnerLeavesNothing(t *testing.T) {
	// A demo that is killed twice would leave processes and mounts on its user's computer.
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
	eventually(t, "all processes are gone", func() bool { return len(processes(word)) == 0 })
	for n := range namespaces {
		eventually(t, "the mounts are gone", func() bool { return len(inMountNamespace(n)) == 0 })
	}
	noOverlayAdded(t, before)
}

func TestSIGKILLOfTheOwnerWhileStartingLeavesNothing(t *testing.T) {
	// The same, for someone who changes their mind at once.
	before := hostMounts(t)
	seen := 0
	// Until enough moments were in the middle of it: on a machine that has other work a start takes longer.
	for moment := time.Duration(0); moment < 120*time.Millisecond || seen < 3 && moment < 2*time.Second; moment += 4 * time.Millisecond {
		word := marker(t)
		owner, stdout := startOwner(t, word)
		up := make(chan struct{})
		go func() { stdout.ReadString('\n'); close(up) }()
		select {
		case <-time.After(moment): // not a wait for anything: the moment to be killed at
		case <-up:
		}
		if len(processes(argInit)) > 0 {
			seen++
		}
		owner.Process.Kill()
		_ = owner.Wait()
		eventually(t, fmt.Sprintf("nothing is left of what was killed after %v", moment), func() bool { return len(processes(word)) == 0 })
	}
	if seen < 3 {
		t.Errorf("only %d moments were in the middle of it", seen)
	}
	noOverlayAdded(t, before)
}
