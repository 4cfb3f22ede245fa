//go:build e2e

package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience     = 15 * time.Minute // limits each wait for an expected change, on a busy machine
	standstill   = 5 * time.Minute  // limits the time without any change: cron starts something each minute, and no step takes longer
	pollInterval = 50 * time.Millisecond
	pollLongest  = time.Second // conditions start programs, which compete for processor time
)

// slots limits the number of simultaneous first boots: each keeps a processor busy.
var slots = make(chan struct{}, 3)

// takeSlots waits for n slots. The returned function releases them, and so does the end of the test.
func takeSlots(t *testing.T, n int) (release func()) {
	t.Helper()
	taking.Lock() // prevents a deadlock between partial holders
	defer taking.Unlock()
	for range n {
		slots <- struct{}{}
	}
	release = sync.OnceFunc(func() {
		for range n {
			<-slots
		}
	})
	t.Cleanup(release)
	return release
}

var taking sync.Mutex

// Machine is a separate Debian: an overlay of the image on a tmpfs, which outlives power cuts and boots.
type Machine struct {
	Name    string // of the container, not of the node: "m3"
	Address string // on the bridge: "10.77.1.3"

	t       *testing.T
	dir     string // upper, work, root (the merged view), console
	lower   string // the layers below upper
	group   string // control group of its processes
	user    string // etcd's user in the identity
	ticked  string // output of the last Tick
	boots   int
	process *exec.Cmd // nil: powered off
	ended   chan struct{}
}

// NewMachine returns a machine that was never booted. The end of the test powers it off and removes it.
func NewMachine(t *testing.T) *Machine { t.Helper(); return newMachine(t, imageDir) }

// newMachineWithPuppet returns a machine whose image has Puppet, for tests that do not need its installation.
func newMachineWithPuppet(t *testing.T) *Machine {
	t.Helper()
	layer, err := puppetLayer()
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, layer+":"+imageDir)
}

// puppetLayer returns a layer over the image in which Puppet is installed. It is made once.
var puppetLayer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "puppet-")
	if err != nil {
		return "", err
	}
	upper, work, root := filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "root")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755), os.Mkdir(root, 0o755)); err != nil {
		return "", err
	}
	if err := unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", imageDir, upper, work)); err != nil {
		return "", fmt.Errorf("cannot mount %s: %w", root, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	script := `set -eu
export DEBIAN_FRONTEND=noninteractive
mount -t proc proc "$1/proc"
echo '` + packages + `' >"$1/etc/apt/sources.list"
chroot "$1" apt-get -qq update
chroot "$1" apt-get -qq -o Dpkg::Options::=--force-unsafe-io install puppet-agent
: >"$1/etc/apt/sources.list"
find "$1/var/lib/apt/lists" -type f -delete`
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", root).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cannot install Puppet in %s: %w: %s", root, err, tail(string(out), 30))
	}
	return upper, errors.Join(err, unix.Unmount(root, 0))
})

func newMachine(t *testing.T, lower string) *Machine {
	t.Helper()
	n := machineNumber()
	m := &Machine{Name: fmt.Sprintf("m%d", n), Address: fmt.Sprintf("10.77.1.%d", n), t: t, dir: t.TempDir(), lower: lower}
	m.group = filepath.Join(groupRoot, os.Getenv(groupEnv), m.Name)
	m.mount()
	t.Cleanup(func() {
		m.cut()
		if err := unix.Unmount(m.root(), 0); err != nil { // busy: a process or a mount remains
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
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", m.lower, m.upper(), filepath.Join(m.dir, "work"))
	if err := unix.Mount("overlay", m.root(), "overlay", 0, options); err != nil {
		m.t.Fatalf("cannot mount %s: %v", m.root(), err)
	}
}

func (m *Machine) upper() string   { return filepath.Join(m.dir, "upper") }
func (m *Machine) root() string    { return filepath.Join(m.dir, "root") }
func (m *Machine) console() string { return filepath.Join(m.dir, "console") }

// duplicate returns another machine with the disk of this one, which must be off, like an image of a running node. Only
// its machine ID and its address differ.
func (m *Machine) duplicate() *Machine {
	m.t.Helper()
	if m.process != nil {
		m.t.Fatal("cannot copy the disk of a machine that is on")
	}
	c := newMachine(m.t, m.lower)
	if err := unix.Unmount(c.root(), 0); err != nil {
		m.t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", m.upper()+"/.", c.upper()).CombinedOutput(); err != nil {
		m.t.Fatalf("cannot copy %s: %v: %s", m.upper(), err, out)
	}
	c.mount()
	c.Write("/etc/machine-id", "") // systemd creates a new one
	network := c.Read("/etc/systemd/network/10-cloud-init-host0.network")
	c.Write("/etc/systemd/network/10-cloud-init-host0.network", strings.ReplaceAll(network, m.Address, c.Address))
	c.Write(seedDir+"/network-config", strings.ReplaceAll(c.Read(seedDir+"/network-config"), m.Address, c.Address))
	return c
}

// becomeNode boots the machine and waits until its first boot has ended.
func (m *Machine) becomeNode() {
	m.t.Helper()
	defer takeSlots(m.t, 1)()
	m.boot()
	m.Wait("the first boot", m.Finished)
}

// boot powers the machine on without waiting.
func (m *Machine) boot() {
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

// cut simulates a power cut: it kills every process of the machine at once. Only the disk remains.
func (m *Machine) cut() {
	m.t.Helper()
	if m.process == nil {
		return
	}
	if err := os.WriteFile(filepath.Join(m.group, "cgroup.kill"), []byte("1"), 0); err != nil {
		m.t.Errorf("cannot cut the power of %s: %v", m.Name, err)
	}
	m.off()
}

// off waits until the machine has ended, by a power cut or a shutdown.
func (m *Machine) off() {
	m.t.Helper()
	if m.process == nil {
		return
	}
	select {
	case <-m.ended:
	case <-time.After(patience):
		m.t.Fatalf("%s did not end in %s\n%s", m.Name, patience, m.story())
	}
	m.process = nil
	// The next boot uses the same names.
	for deadline := time.Now().Add(patience); ; time.Sleep(pollInterval) {
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

// on reports whether the machine runs.
func (m *Machine) on() bool {
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

// Tick runs the agent once, as cron does each minute. It stores the output, and returns it if the run failed.
func (m *Machine) Tick() string {
	m.t.Helper()
	out, err := m.In("pulley-agent", "run")
	m.ticked = out
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return ""
}

// In runs a program in the machine, which must be on, and returns its output. Tests of unattended machines must not use
// it.
func (m *Machine) In(program string, args ...string) (string, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
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

// story returns the information to explain a failed test: the machine's console and the ends of its logs.
func (m *Machine) story() string {
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
	show("journal", m.journal())
	return b.String()
}

// journal returns the lines of the machine's journal about Pulley, of all boots.
func (m *Machine) journal() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

const seedDir = "/var/lib/cloud/seed/nocloud" // cloud-init's NoCloud reads this folder

// networkConfig returns the machine's address in cloud-init's format.
func (m *Machine) networkConfig() string {
	return fmt.Sprintf("version: 2\nethernets:\n  host0:\n    addresses: [%s/%d]\n", m.Address, networkBits)
}

// Seed writes the files of a NoCloud seed into the machine. The default network-config contains the machine's address.
func (m *Machine) Seed(files map[string]string) {
	m.t.Helper()
	if _, ok := files["network-config"]; !ok {
		m.Write(seedDir+"/network-config", m.networkConfig())
	}
	if _, ok := files["meta-data"]; !ok {
		m.Write(seedDir+"/meta-data", fmt.Sprintf("instance-id: %s\nlocal-hostname: debian\n", m.Name))
	}
	for name, text := range files {
		m.Write(seedDir+"/"+name, text)
	}
}

// seedPath returns the path of the seed's folder outside the machine.
func (m *Machine) seedPath() string { return filepath.Join(m.root(), seedDir) }

// Read returns a file of the machine, on or off, by its absolute path. Links that lead out of the machine are refused.
func (m *Machine) Read(name string) string {
	m.t.Helper()
	text, err := m.read(name)
	if err != nil {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	return text
}

func (m *Machine) read(name string) (string, error) {
	root, err := os.OpenRoot(m.root())
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile(rel(name))
	return string(b), err
}

// Has reports whether the machine has a file or folder of this name.
func (m *Machine) Has(name string) bool {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	_, err = root.Lstat(rel(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return err == nil
}

// Stat describes a file of the machine.
func (m *Machine) Stat(name string) fs.FileInfo {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	info, err := root.Lstat(rel(name))
	if err != nil {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	return info
}

// List returns the names of a folder's files and folders, or none if the folder is missing.
func (m *Machine) List(name string) []string {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), rel(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatalf("%s: %v", m.Name, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Write writes a file and its folder onto the disk of a machine that is off.
func (m *Machine) Write(name, text string) {
	m.t.Helper()
	root, err := os.OpenRoot(m.root())
	if err != nil {
		m.t.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll(path.Dir(rel(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := root.WriteFile(rel(name), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func rel(name string) string { return strings.TrimPrefix(name, "/") }

// Wait polls until missing returns "". Before that, missing returns why the condition does not hold. If the machine is
// off, the test fails.
func (m *Machine) Wait(what string, missing func() string) {
	m.t.Helper()
	until(m.t, m.Name+": "+what, func() (string, bool) {
		on := m.on()
		return missing(), on
	}, m.story)
}

// until polls until missing returns "". The test fails when the condition can no longer hold: missing reports that it cannot, or returns
// the same text for too long.
func until(t *testing.T, what string, missing func() (why string, possible bool), story func() string) {
	t.Helper()
	began, changed, last := time.Now(), time.Now(), ""
	for pause := pollInterval; ; time.Sleep(pause) {
		pause = min(pause*3/2, pollLongest)
		why, possible := missing()
		if why != last {
			changed, last = time.Now(), why
		}
		now := time.Now()
		switch {
		case why == "":
			return
		case !possible:
			t.Fatalf("%s is not reached, and cannot be any more: %s\n%s", what, why, story())
		case now.Sub(changed) > standstill:
			t.Fatalf("%s is not reached, and nothing has changed for %s: %s\n%s", what, standstill, why, story())
		case now.Sub(began) > patience:
			t.Fatalf("%s is not reached in %s: %s\n%s", what, patience, why, story())
		}
	}
}
