package child

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A grandchild in a session of its own belongs to the tree, and its name may contain what separates the fields of stat.
func TestTreeHasOtherSessions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := dir + "/a ) R (b"
	sleep, err := exec.LookPath("sleep")
	if err == nil {
		err = os.Symlink(sleep, program)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `setsid "$0" 1000 & wait`, program)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	root, ok := Read(cmd.Process.Pid)
	if !ok || !root.Alive() || root.Parent != os.Getpid() {
		t.Fatalf("the child is %+v, %t", root, ok)
	}
	var tree Tree
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		tree = Of(root)
		if last := tree[len(tree)-1]; strings.HasPrefix(last.Comm, "a ) R (") || last.Comm == "sleep" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the tree is %+v", tree)
		}
	}
	if len(tree) != 2 {
		t.Errorf("the tree is %+v", tree)
	}
	tree.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	for end := time.Now().Add(30 * time.Second); tree.Alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still there: %+v", tree)
		}
	}
	if p, ok := Read(root.PID); ok && p.Start == root.Start {
		t.Errorf("after its end: %+v", p)
	}
	if other := (Process{PID: os.Getpid(), Start: 1}); other.Alive() {
		t.Error("a process with a reused PID counts as the former one")
	}
}
