//go:build e2e

package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The longest that these may take, on a machine that has other work.
const (
	endDeadline  = 60 * time.Second // from a signal, or from poweroff, until the machine has ended
	pollInterval = 50 * time.Millisecond
)

// Machine is a Debian of its own: an overlay of the image on a tmpfs, which outlives power cuts and boots.
type Machine struct {
	Name    string // of the container, not of the node: "m3"
	Address string // on the bridge: "10.77.1.3"

	t       *testing.T
	dir     string // upper, work, root (the merged view), console
	group   string // control group of its processes
	user    string // of etcd: whom the identity names
	boots   int
	process *exec.Cmd // nil: powered off
	ended   chan struct{}
}

// NewMachine returns a machine that was never switched on. It is powered off and removed at the end of the test.
func NewMachine(t *testing.T) *Machine {
	t.Helper()
	n := machineNumber()
	m := &Machine{Name: fmt.Sprintf("m%d", n), Address: fmt.Sprintf("10.77.1.%d", n), t: t, dir: t.TempDir()}
	m.group = filepath.Join(groupRoot, os.Getenv(groupEnv), m.Name)
	m.mount()
	t.Cleanup(func() {
		m.Cut()
		if err := unix.Unmount(m.root(), 0); err != nil { // busy: a process or a mount was left behind
			t.Errorf("cannot unmount %s: %v", m.root(), err)
			_ = unix.Unmount(m.root(), unix.MNT_DETACH)
		}
	})
	return m
}

func (m *Machine) mount() {
	m.t.Helper()
	for _, dir := range []string{m.upper(), filepath.Join(m.dir, "work"), m.root()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", imageDir, m.upper(), filepath.Join(m.dir, "work"))
	if err := unix.Mount("overlay", m.root(), "overlay", 0, options); err != nil {
		m.t.Fatalf("cannot mount %s: %v", m.root(), err)
	}
}

func (m *Machine) upper() string   { return filepath.Join(m.dir, "upper") }
func (m *Machine) root() string    { return filepath.Join(m.dir, "root") }
func (m *Machine) console() string { return filepath.Join(m.dir, "console") }

// Clone returns another machine with the disk of this one, which must be off: what a careless operator does with an image
// of a running node. Only its machine id and its address are its own.
func (m *Machine) Clone() *Machine {
	m.t.Helper()
	if m.process != nil {
		m.t.Fatal("cannot clone a machine that is on")
	}
	c := NewMachine(m.t)
	if err := unix.Unmount(c.root(), 0); err != nil {
		m.t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", m.upper()+"/.", c.upper()).CombinedOutput(); err != nil {
		m.t.Fatalf("cannot copy %s: %v: %s", m.upper(), err, out)
	}
	c.mount()
	c.Write("/etc/machine-id", "") // systemd makes a new one
	network := c.Read("/etc/systemd/network/10-cloud-init-host0.network")
	c.Write("/etc/systemd/network/10-cloud-init-host0.network", strings.ReplaceAll(network, m.Address, c.Address))
	c.Write(seedDir+"/network-config", strings.ReplaceAll(c.Read(seedDir+"/network-config"), m.Address, c.Address))
	return c
}

// Boot switches the machine on. It returns at once; what is to be seen of it is waited for with Wait.
func (m *Machine) Boot() {
	m.t.Helper()
	if m.process != nil {
		m.t.Fatalf("%s is on", m.Name)
	}
	m.boots++
	console, err := os.OpenFile(m.console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer console.Close()
	fmt.Fprintf(console, "--- boot %d of %s\n", m.boots, m.Name)
	if err := os.Mkdir(m.group, 0o755); err != nil {
		m.t.Fatal(err)
	}
	group, err := os.Open(m.group)
	if err != nil {
		m.t.Fatal(err)
	}
	defer group.Close()
	m.process = exec.Command("systemd-nspawn", "--quiet", "--directory="+m.root(), "--machine="+m.Name, "--boot",
		"--register=no", "--keep-unit", "--network-bridge="+bridgeName, "--console=pipe",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no")
	m.process.Stdout, m.process.Stderr = console, console
	m.process.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := m.process.Start(); err != nil {
		m.process = nil
		m.t.Fatalf("cannot boot %s: %v", m.Name, err)
	}
	m.ended = make(chan struct{})
	go func(p *exec.Cmd, ended chan struct{}) {
		_ = p.Wait()
		close(ended)
	}(m.process, m.ended)
}

// Cut is a power cut: every process of the machine is killed at once, and nothing of it but its disk is left.
func (m *Machine) Cut() {
	m.t.Helper()
	if m.process == nil {
		return
	}
	if err := os.WriteFile(filepath.Join(m.group, "cgroup.kill"), []byte("1"), 0); err != nil {
		m.t.Errorf("cannot cut the power of %s: %v", m.Name, err)
	}
	m.Off()
}

// Off waits until the machine has ended, by a power cut or by itself.
func (m *Machine) Off() {
	m.t.Helper()
	if m.process == nil {
		return
	}
	select {
	case <-m.ended:
	case <-time.After(endDeadline):
		m.t.Fatalf("%s did not end in %s\n%s", m.Name, endDeadline, m.Story())
	}
	m.process = nil
	// The next boot takes the same names.
	for deadline := time.Now().Add(endDeadline); ; time.Sleep(pollInterval) {
		removeGroup(m.group)
		link := "/sys/class/net/vb-" + m.Name
		if !exists(m.group) && !exists(link) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("processes of %s were left behind in %s, or its network interface %s", m.Name, m.group, link)
		}
	}
}

// On reports whether the machine runs.
func (m *Machine) On() bool {
	if m.process == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// In runs a program in the machine, which must be on, and returns what it printed. Tests of what happens "with no hand in
// between" must not use it.
func (m *Machine) In(timeout time.Duration, program string, args ...string) (string, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
	defer cancel()
	procs, err := os.ReadFile(filepath.Join(m.group, "payload", "init.scope", "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		return "", fmt.Errorf("%s is not on: %w", m.Name, err)
	}
	leader, _, _ := strings.Cut(string(procs), "\n")
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", leader, "--all", "--", program}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Story is what a person needs who must find out why a machine did not do what it should: its console, its logs, and its
// processes' last words.
func (m *Machine) Story() string {
	var b strings.Builder
	show := func(name, text string) {
		if text = strings.TrimSpace(text); text != "" {
			fmt.Fprintf(&b, "--- %s of %s\n%s\n", name, m.Name, tail(text, 60))
		}
	}
	console, _ := os.ReadFile(m.console())
	show("console", string(console))
	for _, path := range []string{"/var/log/cloud-init-output.log", "/var/log/pulley-first-boot.log", "/var/log/pulley-bootstrap.log", "/var/lib/pulley/first-boot.json"} {
		if text, err := m.read(path); err == nil {
			show(path, text)
		}
	}
	show("journal", m.Journal())
	return b.String()
}

// Journal is what the machine's journal has of Pulley, over all boots.
func (m *Machine) Journal() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "journalctl", "--no-pager", "-q", "-o", "short-precise", "-D", filepath.Join(m.root(), "var/log/journal"),
		"SYSLOG_IDENTIFIER=pulley-agent", "+", "_SYSTEMD_UNIT=pulley-first-boot.service", "+", "_SYSTEMD_UNIT=pulley-leave.service",
		"+", "_SYSTEMD_UNIT=cron.service", "+", "SYSLOG_IDENTIFIER=systemd").CombinedOutput()
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, " systemd[1]: ") || strings.Contains(line, "pulley") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// tail returns the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
