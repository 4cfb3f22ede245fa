//go:build e2e

package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runningDemo is a demo with its processes and files on this machine.
type runningDemo struct {
	cmd    *exec.Cmd
	output *lockedBuffer
	bin    string // its programs
	tmp    string // its TMPDIR
	mounts string // of this machine, before

	family     []string        // its processes, as "pid started"
	namespaces map[string]bool // of processes, those of its machines
}

func startDemo(t *testing.T, args ...string) *runningDemo {
	t.Helper()
	d := &runningDemo{bin: programs(t), tmp: t.TempDir(), output: &lockedBuffer{}, mounts: readMounts(t), namespaces: map[string]bool{}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	d.cmd = exec.CommandContext(ctx, filepath.Join(d.bin, "pulley"), append([]string{"demo"}, args...)...)
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	d.cmd.WaitDelay = 10 * time.Second
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.cmd.Process.Kill() })
	return d
}

// built is a folder with the two commands, for all tests.
var built string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "pulley-demo-bin-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", built+"/", "../../cmd/pulley", "../../cmd/pulley-agent").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the commands: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// programs returns a folder of this test's own with the two commands: they distinguish its processes.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := os.MkdirTemp("", "pulley-demo-bin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(bin) })
	err = os.Chmod(bin, 0o755) // the user nobody runs it too
	for _, program := range []string{"pulley", "pulley-agent"} {
		err = errors.Join(err, os.Link(filepath.Join(built, program), filepath.Join(bin, program)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// remember notes the demo's processes, and the namespaces in which its machines' processes are.
func (d *runningDemo) remember(t *testing.T) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	children, names := map[int][]int{}, map[int]string{}
	for _, p := range hostProcesses() {
		children[p.parent] = append(children[p.parent], p.pid)
		names[p.pid] = p.String()
	}
	for queue := []int{d.cmd.Process.Pid}; len(queue) > 0; queue = queue[1:] {
		queue = append(queue, children[queue[0]]...)
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", queue[0])); err == nil && ns != own {
			d.namespaces[ns] = true
		}
		if name := names[queue[0]]; name != "" && !slices.Contains(d.family, name) {
			d.family = append(d.family, name)
		}
	}
}

// runsPuppet reports whether Puppet runs in one of the machines.
func (d *runningDemo) runsPuppet(t *testing.T) bool {
	t.Helper()
	d.remember(t)
	for _, p := range hostProcesses() {
		ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.pid))
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if d.namespaces[ns] && bytes.Contains(command, []byte("puppet\x00apply\x00")) {
			return true
		}
	}
	return false
}

// leftNothing checks that no process, mount or file of the demo stays.
func (d *runningDemo) leftNothing(t *testing.T) {
	t.Helper()
	d.eventually(t, "no process stays", func() bool { return len(d.processes()) == 0 })
	d.eventually(t, "no folder stays", func() bool {
		left, err := os.ReadDir(d.tmp)
		return err == nil && len(left) == 0
	})
	if now := readMounts(t); now != d.mounts {
		t.Errorf("mounts were\n%s\nand are\n%s", d.mounts, now)
	}
}

// processes returns the processes of the demo that still run.
func (d *runningDemo) processes() []string {
	var left []string
	for _, p := range hostProcesses() {
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.pid))
		if strings.HasPrefix(exe, d.bin) || d.namespaces[ns] || slices.Contains(d.family, p.String()) {
			left = append(left, p.String()+" "+exe)
		}
	}
	return left
}

func (d *runningDemo) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within 10 minutes: %s\nprocesses: %q\n%s", what, d.processes(), d.output.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

type hostProcess struct {
	pid, parent int
	started     string
}

func (p hostProcess) String() string { return fmt.Sprintf("%d %s", p.pid, p.started) }

// hostProcesses reads /proc: "pid (name) state ppid …", and a name may hold anything.
func hostProcesses() []hostProcess {
	var all []hostProcess
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 20 || fields[0] == "Z" {
			continue // a zombie is its parent's to collect
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(fields[1])
		all = append(all, hostProcess{pid, parent, fields[19]})
	}
	return all
}

func readMounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// hashEtc is one hash of all names, modes, owners, times and contents below /etc.
func hashEtc(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir("/etc", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(sum, path, info.Mode(), stat.Uid, stat.Gid, info.Size(), info.ModTime().UnixNano())
		if !info.Mode().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		sum.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// lockedBuffer collects a process's output while it is being read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
