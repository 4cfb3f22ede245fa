//go:build e2e && linux

package userdata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pulley/internal/firstboot"
)

// TestMain restarts the tests in mount and UTS namespaces of their own: their mounts and hostnames end with them.
func TestMain(m *testing.M) {
	const inside = "PULLEY_USERDATA_NAMESPACE"
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests run the script on a copy-on-write view of this machine, which needs root: sudo -E make e2e")
		os.Exit(1)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
		Pdeathsig:    syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// An unquoted word or a bashism would show on one distribution only, months later.
func TestShellcheck(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Fatal("shellcheck is missing: apt-get install shellcheck, or dnf install ShellCheck")
	}
	scripts := map[string]string{"the boothook": strings.TrimPrefix(boothook, "#cloud-boothook\n"), "bootcmd": "#!/bin/sh\n" + bootcmd}
	for name, o := range samples(t) {
		p, err := newParts(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, whole := range []bool{true, false} {
			script, err := p.script(whole)
			if err != nil {
				t.Fatal(err)
			}
			scripts[fmt.Sprintf("%s, whole: %v", name, whole)] = string(script)
		}
	}
	for name, script := range scripts {
		cmd := exec.Command("shellcheck", "--shell=sh", "--severity=style", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: shellcheck: %v\n%s", name, err, out)
		}
	}
}

// A repeated first boot, after a crash or by an operator, must have the same result as a single one.
func TestFirstBootTwice(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := from(full(t), server, agent)
	m := newMachine(t)

	m.boot(t, o, 0)
	first := m.state(t)
	m.boot(t, o, 0)
	if second := m.state(t); first != second {
		t.Errorf("the second run left\n%s\nthe first\n%s", second, first)
	}

	parts, err := newParts(o)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		text string
		mode fs.FileMode
	}{
		"/etc/pulley/first-boot.yaml":       {parts.files[0].Text, 0o600},
		"/etc/pulley/ca.pem":                {string(o.CACert), 0o644},
		"/etc/pulley/allowed_signers":       {signerLines(o.AllowedSigners), 0o644},
		"/etc/pulley/first-boot/pre.d/001":  {o.Pre[0], 0o755},
		"/etc/pulley/first-boot/post.d/001": {o.Post[0], 0o755},
		"/usr/local/bin/pulley-agent":       {recorder, 0o755},
		"/var/lib/pulley/first-boot.sh":     {string(mustRender(t, o, Script)), 0o700},
		"/etc/cron.d/pulley-first-boot":     {"@reboot root sh /var/lib/pulley/first-boot.sh go\n", 0o644},
	} {
		if got := m.read(t, path); got != want.text {
			t.Errorf("%s holds %q, should hold %q", path, got, want.text)
		}
		if info, err := os.Stat(m.root + path); err != nil || info.Mode().Perm() != want.mode {
			t.Errorf("%s: mode %v (%v), should be %v", path, info.Mode(), err, want.mode)
		}
	}
	const call = "bootstrap|umask 0022 HOME /root LC_ALL C.UTF-8\n"
	if got := m.read(t, "/calls"); got != call+call {
		t.Errorf("pulley-agent was called\n%sshould have been called twice\n%s", got, call)
	}
	if n := server.hits.Load(); n != 1 {
		t.Errorf("the agent was downloaded %d times: an authentic agent should be kept", n)
	}
}

// An interrupted first boot must resume at the next start, without an operator.
func TestFirstBootKilled(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := from(full(t), server, agent)

	good := newMachine(t)
	good.boot(t, o, 0)
	want := good.state(t)

	// Each of these programs is, in turn, the last one that the script can start.
	for _, c := range []struct {
		last  string
		alone bool // it resumes without an operator from here on
	}{
		{"grep", false}, {"mkdir", false}, {"cat", false}, {"chmod", false}, {"mv", false},
		{"flock", true}, {"uname", true}, {"sha256sum", true}, {"timeout", true},
	} {
		t.Run(c.last, func(t *testing.T) {
			m := newMachine(t)
			m.program(t, c.last, "#!/bin/sh\nkill -KILL 0\n")
			m.boot(t, o, -1)
			if m.exists("/calls") {
				t.Fatalf("the agent was started: %s was not needed before", c.last)
			}
			m.remove(t, "/usr/local/sbin/"+c.last)
			if c.alone {
				m.reboot(t)
			} else {
				m.boot(t, o, 0)
			}
			if got := m.state(t); got != want {
				t.Errorf("killed at %s and run again, the machine holds\n%s\nshould hold\n%s", c.last, got, want)
			}
		})
	}
}

// On a machine with systemd, the unit resumes after a reboot and after a failure: systemd must accept it.
func TestFirstBootWithSystemd(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is missing: apt-get install systemd")
	}
	m := newMachine(t)
	m.program(t, "systemctl", "#!/bin/sh\necho \"$*\" >>/systemctl\n")
	m.program(t, "../bin/pulley-agent", recorder)
	if err := os.MkdirAll(m.root+"/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
	if out := m.boot(t, minimal(), 0); !strings.Contains(out, "continuing in pulley-first-boot.service") {
		t.Errorf("the console does not say where to look:\n%s", out)
	}
	if got, want := m.read(t, "/systemctl"), "-q enable pulley-first-boot.service\n--no-block start pulley-first-boot.service\n"; got != want {
		t.Errorf("systemctl was called\n%sshould have been called\n%s", got, want)
	}
	if m.exists("/calls") || m.exists("/etc/cron.d/pulley-first-boot") {
		t.Error("it is started by systemd, and otherwise too")
	}
	const unit = "/etc/systemd/system/pulley-first-boot.service"
	verify := exec.Command("systemd-analyze", "verify", "--man=no", m.root+unit)
	if out, err := verify.CombinedOutput(); err != nil || strings.Contains(string(out), "pulley-first-boot") {
		t.Errorf("systemd does not take the unit: %v\n%s", err, out)
	}
	_, start, _ := strings.Cut(m.read(t, unit), "ExecStart=")
	start, _, _ = strings.Cut(start, "\n")
	m.run(t, 0, strings.Fields(start)...)
	if got := m.read(t, "/calls"); !strings.HasPrefix(got, "bootstrap|umask") {
		t.Errorf("the unit calls the agent %q", got)
	}
	if m.exists("/systemctl.again") || strings.Count(m.read(t, "/systemctl"), "start") != 1 {
		t.Error("the unit starts itself")
	}
}

// A downloaded program must run as root only if its checksum is the operator's.
func TestFirstBootRefusesOtherAgent(t *testing.T) {
	server := serve(t, []byte("#!/bin/sh\ntouch /owned\n"))
	o := from(full(t), server, []byte(recorder))
	m := newMachine(t)
	out := m.boot(t, o, 1)
	if m.exists("/owned") || m.exists("/usr/local/bin/pulley-agent") {
		t.Error("an agent with a wrong checksum was installed")
	}
	if !strings.Contains(out, "wrong checksum") || !strings.Contains(out, "cannot download pulley-agent") {
		t.Errorf("the console does not say why:\n%s", out)
	}
	if got := m.read(t, "/sleeps"); got != "0 2 5 10 20 40 60 60 60 60 " {
		t.Errorf("the pauses between downloads were %q", got)
	}
}

// A server that is down, or that has another agent, must not stop a machine from using the next one.
func TestFirstBootTriesEverySource(t *testing.T) {
	agent := []byte(recorder)
	wrong, good := serveTLS(t, []byte("another")), serveTLS(t, agent)
	gone := serveTLS(t, agent)
	gone.Close()
	o := joining()
	o.AgentSHA256 = map[string]string{"amd64": checksum(agent), "arm64": checksum(agent)}
	o.Servers = []string{gone.URL, wrong.URL, good.URL}
	m := newMachine(t)
	out := m.boot(t, o, 0)
	if !m.exists("/calls") || m.read(t, "/sleeps") != "0 " {
		t.Errorf("the agent was not found in the first round:\n%s", out)
	}
	if got, want := good.path.Load(), "/agent/"+checksum(agent); got != want {
		t.Errorf("the server was asked for %v, should have been asked for %s", got, want)
	}
}

// A machine of another architecture would get an agent that does not start.
func TestFirstBootOfAnotherArchitecture(t *testing.T) {
	m := newMachine(t)
	m.program(t, "uname", "#!/bin/sh\necho riscv64\n")
	if out := m.boot(t, joining(), 1); !strings.Contains(out, "cannot install pulley-agent: there is none for riscv64") {
		t.Errorf("the console does not say why:\n%s", out)
	}
}

// With wget instead of curl, a first boot must have the same result.
func TestFirstBootWithWget(t *testing.T) {
	agent := []byte(recorder)
	server := serveTLS(t, agent)
	o := joining()
	o.AgentSHA256 = map[string]string{"any": checksum(agent)}
	o.Servers = []string{server.URL}
	m := newMachine(t)
	m.remove(t, "/usr/bin/curl")
	m.boot(t, o, 0)
	if !m.exists("/calls") {
		t.Error("the agent was not started")
	}
	m.remove(t, "/usr/bin/wget", "/usr/local/bin/pulley-agent")
	if out := m.boot(t, o, 1); !strings.Contains(out, "wget") {
		t.Errorf("the console does not say what is missing:\n%s", out)
	}
}

// The script must report a missing agent in the console log, which is all that an operator can read later.
func TestFirstBootWithoutAgent(t *testing.T) {
	m := newMachine(t)
	out := m.boot(t, minimal(), 1)
	if !strings.Contains(out, "cannot start pulley-agent: this image has no /usr/local/bin/pulley-agent") {
		t.Errorf("the console does not say what is missing:\n%s", out)
	}
	m.program(t, "../bin/pulley-agent", recorder)
	m.reboot(t)
	if got := m.read(t, "/calls"); !strings.HasPrefix(got, "bootstrap|umask") {
		t.Errorf("the agent was called %q", got)
	}
}

// The exit code of the agent must reach the caller of the script: systemd retries failures, but not invalid plans.
func TestFirstBootReturnsExitCodeOfAgent(t *testing.T) {
	for _, code := range []int{0, 1, 2, 3} {
		m := newMachine(t)
		m.program(t, "../bin/pulley-agent", fmt.Sprintf("#!/bin/sh\nexit %d\n", code))
		m.boot(t, minimal(), code)
	}
}

// Two concurrent runs would write the same files; the second must leave the machine to the first.
func TestSecondRunAtOnce(t *testing.T) {
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", "#!/bin/sh\necho started >>/calls\nread -r _ </go\n")
	if err := syscall.Mkfifo(m.root+"/go", 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.boot(t, minimal(), 0)
	}()
	waitUntil(t, "the first run starts the agent", func() bool { return m.exists("/calls") })
	if out := m.boot(t, minimal(), 0); !strings.Contains(out, "another run is in progress") {
		t.Errorf("the second run said:\n%s", out)
	}
	// also for reading: then opening does not wait for the other side
	release, err := os.OpenFile(m.root+"/go", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer release.Close()
	if _, err := release.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	<-done
	if got := m.read(t, "/calls"); got != "started\n" {
		t.Errorf("the agent was started more than once: %q", got)
	}
}

// A script that resumes must not restore the token, nor an agent that an upgrade replaced. Otherwise a ready node would
// have another first boot, with an old agent, every five minutes.
func TestFirstBootReusesDownloadedAgent(t *testing.T) {
	agent := []byte(recorder)
	server := serve(t, agent)
	o := from(full(t), server, agent)
	const plan, program, state = "/etc/pulley/first-boot.yaml", "/usr/local/bin/pulley-agent", "/var/lib/pulley"
	const upgraded = recorder + "# upgraded\n"
	m := newMachine(t)
	m.boot(t, o, 0)
	whole := m.read(t, plan)
	change := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(m.root+path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	steps := map[firstboot.Name]firstboot.StepState{firstboot.Agent: {State: firstboot.Started}}
	for _, c := range []struct {
		what          string
		change        func(*firstboot.State)
		plan, program string
	}{
		{"no step is done", func(*firstboot.State) {}, whole, recorder},
		{"the agent is in place", func(*firstboot.State) {
			steps[firstboot.Agent] = firstboot.StepState{State: firstboot.Done, Took: 1}
			steps[firstboot.Post] = firstboot.StepState{State: firstboot.Failed, Error: `"finished": "agent": { "state": "x"`}
		}, whole, upgraded},
		{"all is done", func(s *firstboot.State) { s.Finished = time.Now() }, "tidied\n", upgraded},
	} {
		s := firstboot.State{Started: time.Now(), Steps: steps}
		c.change(&s)
		if err := (firstboot.Disk{Dir: m.root + state}).Save(s); err != nil {
			t.Fatal(err)
		}
		change(plan, "tidied\n")
		change(program, upgraded)
		m.reboot(t)
		if got := m.read(t, plan); got != c.plan {
			t.Errorf("%s: the plan is %q, should be %q", c.what, got, c.plan)
		}
		if got := m.read(t, program); got != c.program {
			t.Errorf("%s: the agent is %q, should be %q", c.what, got, c.program)
		}
	}
	if n := strings.Count(m.read(t, "/calls"), "bootstrap"); n != 4 {
		t.Errorf("the agent was called %d times: it has to tidy", n)
	}

	// New userdata, as on a copy of this disk, overrides the existing files.
	m.boot(t, o, 0)
	if m.read(t, plan) != whole || m.read(t, program) != recorder {
		t.Error("new userdata was not followed: an older state was there")
	}
}

// If the script reported success without flock, or without a lock, the idle machine would be found weeks later.
func TestFirstBootWithoutALock(t *testing.T) {
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", recorder)
	m.program(t, "flock", "#!/bin/sh\nexit 66\n")
	if out := m.boot(t, minimal(), 1); !strings.Contains(out, "cannot lock the first boot") || strings.Contains(out, "another run") {
		t.Errorf("the console says\n%s", out)
	}
	m.remove(t, "/usr/local/sbin/flock", "/usr/bin/flock")
	if out := m.boot(t, minimal(), 1); !strings.Contains(out, "cannot find flock (util-linux)") {
		t.Errorf("the console says\n%s", out)
	}
	if m.exists("/calls") {
		t.Error("the agent was started beside another")
	}
}

// A service that outlives the installation must not hold the first boot's lock.
func TestServiceLeftBehind(t *testing.T) {
	m := newMachine(t)
	m.program(t, "../bin/pulley-agent", "#!/bin/sh\n/bin/sleep 300 >/dev/null 2>&1 &\necho $! >>/service\necho \"it's done\"\n")
	t.Cleanup(func() {
		if err := exec.Command("kill", append([]string{"-KILL"}, strings.Fields(m.read(t, "/service"))...)...).Run(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if out := m.boot(t, minimal(), 0); !strings.HasSuffix(out, "it's done\n") {
			t.Fatalf("the service of the run before holds the lock:\n%s", out)
		}
	}
}

// from sets the download of the agent to a server.
func from(o firstboot.Plan, server *agentServer, agent []byte) firstboot.Plan {
	o.Proxy = ""
	o.AgentURLs, o.Mirrors = []string{server.URL}, nil
	o.AgentSHA256 = map[string]string{"any": checksum(agent)}
	return o
}

// recorder stands in for pulley-agent: it records its arguments.
const recorder = `#!/bin/sh
for word; do printf '%s|' "$word"; done >>/calls
echo "umask $(umask) HOME $HOME LC_ALL $LC_ALL" >>/calls
`

// machine is a copy-on-write view of this machine, without an agent, with the test's own programs in /usr/local/sbin.
type machine struct{ root, upper string }

func newMachine(t *testing.T) machine {
	t.Helper()
	dir := t.TempDir()
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err := syscall.Mount(source, target, kind, flags, data); err != nil {
			t.Fatalf("cannot mount %s on %s: %v", source, target, err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
				t.Errorf("cannot unmount %s: %v", target, err)
			}
		})
	}
	mount("tmpfs", dir, "tmpfs", 0, "size=64m")
	m := machine{root: filepath.Join(dir, "root"), upper: filepath.Join(dir, "upper")}
	for _, d := range []string{m.root, m.upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount("overlay", m.root, "overlay", 0, "lowerdir=/,upperdir="+m.upper+",workdir="+filepath.Join(dir, "work"))
	mount("/dev", m.root+"/dev", "", syscall.MS_BIND|syscall.MS_REC, "")
	mount("/proc", m.root+"/proc", "", syscall.MS_BIND|syscall.MS_REC, "")
	mount("tmpfs", m.root+"/run", "tmpfs", 0, "size=4m")
	m.remove(t, "/usr/local/bin/pulley-agent", "/etc/pulley", "/var/lib/pulley", "/calls", "/sleeps")
	m.program(t, "sleep", "#!/bin/sh\nprintf '%s ' \"$1\" >>/sleeps\n")
	return m
}

// boot runs the script as cloud-init does, expects the exit code (-1: killed by a signal), and returns the console
// output.
func (m machine) boot(t *testing.T, o firstboot.Plan, code int) string {
	t.Helper()
	if err := os.WriteFile(m.root+"/part-001", mustRender(t, o, Script), 0o700); err != nil {
		t.Fatal(err)
	}
	return m.run(t, code, "/part-001")
}

// reboot does the work of cron at the machine's next start.
func (m machine) reboot(t *testing.T) {
	t.Helper()
	_, command, ok := strings.Cut(m.read(t, "/etc/cron.d/pulley-first-boot"), "@reboot root ")
	if !ok {
		t.Fatal("cron starts nothing")
	}
	if lock, err := os.Open(m.root + "/run/pulley-first-boot.lock"); err == nil { // nothing of before holds it after a reboot
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		_ = lock.Close()
	}
	m.run(t, 0, "/bin/sh", "-c", command)
}

func (m machine) run(t *testing.T, code int, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = "/"
	cmd.Env = []string{} // as empty as cloud-init's
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root, Setpgid: true}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Error(err)
	}
	if got != code {
		t.Errorf("%q ended with %d, should end with %d:\n%s", command, got, code, out)
	}
	return string(out)
}

// state returns all files that the script left, except the log and the test's own counters.
func (m machine) state(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(m.upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, m.upper)
		if slices.Contains([]string{"/calls", "/sleeps", "/part-001"}, name) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := []byte(nil)
		if info.Mode().IsRegular() {
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		} else if info.Mode()&fs.ModeCharDevice != 0 {
			return nil // a whiteout: the test removed it, or it never existed
		}
		_, err = fmt.Fprintf(&out, "%s %v %s\n", name, info.Mode(), checksum(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (m machine) program(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, "usr/local/sbin", name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m machine) remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(m.root + path); err != nil {
			t.Fatal(err)
		}
	}
}

func (m machine) exists(path string) bool {
	_, err := os.Lstat(m.root + path)
	return err == nil
}

func (m machine) read(t *testing.T, path string) string {
	t.Helper()
	return read(t, m.root, path)
}

type agentServer struct {
	*httptest.Server
	hits atomic.Int32
	path atomic.Value
}

func newServer(agent []byte) *agentServer {
	s := &agentServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		s.path.Store(r.URL.Path)
		_, _ = w.Write(agent) // a client that disconnected retries
	}))
	return s
}

func serve(t *testing.T, agent []byte) *agentServer {
	t.Helper()
	s := newServer(agent)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// serveTLS serves with a certificate that the machine does not trust.
func serveTLS(t *testing.T, agent []byte) *agentServer {
	t.Helper()
	s := newServer(agent)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s in vain until %s", what)
		}
	}
}
